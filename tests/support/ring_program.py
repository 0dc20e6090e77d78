# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a training process: writes marks of a given number of steps into a real ring, and ends as
told.

``python -m tests.support.ring_program MODE STEPS END [EXPORTERS]``; MODE ``relay`` or ``in-process``; END
``close``, ``kill`` (by itself, inside a forward) or ``wait`` (for a line on stdin before it closes). One JSON
object on stdout says what it saw.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from grademl_otel import marks, semconv
from grademl_otel.config import Settings
from grademl_otel.ring.writer import RingWriter
from grademl_otel.transport import open_transport

RUN_ID = "feedfacefeedfacefeedfacefeedface"
STEP_NS = 2_000_000
BATCH = 32
EPOCH = 2


def main(mode: str, steps: int, end: str, exporters: str = "file") -> None:
    settings = Settings.from_env()
    ring = RingWriter.create(settings)
    now = time.perf_counter_ns
    info = marks.RunInfo(
        run_id=RUN_ID,
        attempt=0,
        rank=0,
        local_rank=0,
        world_size=1,
        perf_to_unix_ns=time.time_ns() - now(),
        exporters=tuple(exporters.split(",")),
        store=str(settings.store_dir),
        script="ring_program.py",
        resource={"service.name": "ring-program", semconv.RUN_ID: RUN_ID, semconv.RANK: 0},
    )
    main_lane, worker = ring.intern("main"), ring.intern("loader-worker-0")
    forward = marks.phase_kind(semconv.FORWARD)
    start = now()
    ring.write(marks.SCOPE_OPEN, main_lane, start, start, 1, 0, marks.SCOPE_INDEX[semconv.RUN], -1)
    ring.write(marks.RUN_INFO, main_lane, start, start, 1, ring.intern(info.to_json()))
    transport = open_transport(ring, settings, mode)  # type: ignore[arg-type]
    at = now()
    ring.write(marks.SCOPE_OPEN, main_lane, at, at, EPOCH, 1, marks.SCOPE_INDEX[semconv.EPOCH], 0)
    last_tick = at
    for step in range(steps):
        t0 = now()
        item = marks.pack_item(EPOCH, step)
        row = 10 + step
        ring.write(marks.phase_kind(semconv.DATA_FETCH), worker, t0 - STEP_NS, t0, row, item)
        t1 = now()
        ring.write(marks.phase_kind(semconv.DATA_WAIT), main_lane, t0, t1, row, item)
        ring.began(main_lane, forward, t1)
        time.sleep(STEP_NS / 1e9)
        if end == "kill" and step == steps - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        ring.ended(main_lane)
        t2 = now()
        ring.write(forward, main_lane, t1, t2, row)
        t3 = now()
        ring.write(marks.phase_kind(semconv.BACKWARD), main_lane, t2, t3, row)
        ring.write(marks.ROW, main_lane, t0, t3, row, step, marks.pack_row(0, 1, EPOCH), BATCH)
        ring.totals[marks.ACC_STEPS] += 1
        ring.totals[marks.ACC_SAMPLES] += BATCH
        if t3 - last_tick > 1_000_000_000:
            last_tick = t3
            transport.tick(t3)
    if end == "wait":
        print(json.dumps({"ready": True, "ring": str(ring.path)}), flush=True)
        sys.stdin.readline()  # a line, or the end of the test that started this
    at = now()
    ring.write(marks.SCOPE_CLOSE, main_lane, at, at, EPOCH, 0, marks.SCOPE_INDEX[semconv.EPOCH])
    ring.write(marks.SCOPE_CLOSE, main_lane, at, at, 1, 0, marks.SCOPE_INDEX[semconv.RUN])
    delivered = transport.close(settings.exit_wait_s)
    print(json.dumps({"delivered": delivered, "mode": transport.mode}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:5])
