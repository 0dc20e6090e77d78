# SPDX-License-Identifier: Apache-2.0
"""Tasks in the order of time, where pools have so many places and no more.

Events are ordered by time, at one time ends before requests, those by the number of their task. A place that
is given back goes to who asked first.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.replay.network import NO_POOL, Circular, Network, Replayed, Stuck, lists

_END: Final = 0
_REQUEST: Final = 1


def by_events(network: Network, duration: IntArray) -> Replayed:
    """Return when each task of ``network``, which has pools, runs with these durations (n), in ns."""
    pools, count = network.pools, network.count
    assert pools is not None
    took, delay, earliest = duration.tolist(), network.delay.tolist(), network.earliest.tolist()
    later = lists(count, network.before, network.after)
    waiting = np.bincount(network.after, minlength=count).tolist()
    takes, gives = pools.takes.tolist(), pools.gives.tolist()
    free, queues = list(pools.places), [deque[int]() for _ in pools.places]
    ready, start, end = [0] * count, [-1] * count, [-1] * count
    events = [
        (max(delay[task], earliest[task]), _REQUEST, task) for task in range(count) if not waiting[task]
    ]
    heapify(events)

    def begin(task: int, time: int) -> None:
        start[task] = time
        heappush(events, (time + took[task], _END, task))

    while events:
        time, what, task = heappop(events)
        if what == _REQUEST:
            pool = takes[task]
            if pool != NO_POOL:
                if not free[pool]:
                    queues[pool].append(task)
                    continue
                free[pool] -= 1
            begin(task, time)
            continue
        end[task] = time
        pool = gives[task]
        if pool != NO_POOL:
            if queues[pool]:
                begin(queues[pool].popleft(), time)
            else:
                free[pool] += 1
        for one in later[task]:
            ready[one] = max(ready[one], time)
            waiting[one] -= 1
            if not waiting[one]:
                heappush(events, (max(ready[one] + delay[one], earliest[one]), _REQUEST, one))
    if min(end, default=0) < 0:
        if held := sum(map(len, queues)):
            raise Stuck(f"{held} tasks wait for places that are never given back")
        raise Circular("tasks wait for each other in a circle")
    return Replayed(np.array(start, np.int64), np.array(end, np.int64))
