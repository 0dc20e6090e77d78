# SPDX-License-Identifier: Apache-2.0
"""A training without a framework that does a bit of everything: epochs, evaluations, incomplete steps.

``python metered_training.py EPOCHS [LOG]``: at least so many epochs, and then on until ``LOG.stop`` exists,
if LOG is given. One JSON object on stdout says what was done.
"""

import json
import os
import sys
import time
from itertools import count
from time import perf_counter_ns as now

from grademl_otel.lifecycle import session
from grademl_otel.loops import LoaderFacts

OPTIMIZER, MODULE = 1, 2
BATCHES = 12
BATCH_SIZE = 32
PAUSE_S = 0.001
done = {"train": 0, "evaluate": 0, "incomplete": 0, "samples": 0}


def facts(loader):
    return LoaderFacts(
        loader, workers=0, prefetch=None, batch_size=BATCH_SIZE, persistent=False, in_order=True
    )


def timed(begin, end):
    t0 = now()
    begin(t0)
    time.sleep(PAUSE_S)
    end(t0, now())


def batches(machine, loader, number):
    pass_ = machine.iterator_made(facts(loader), now())
    for _ in range(number):
        timed(
            lambda at: machine.begin_wait(pass_, at),
            lambda t0, t1: machine.end_wait(pass_, t0, t1, BATCH_SIZE),
        )
        yield
    machine.begin_wait(pass_, now())
    machine.exhausted(pass_, now())


def forward(machine, grad):
    timed(
        lambda at: machine.begin_forward(at, MODULE),
        lambda t0, t1: machine.end_forward(t0, t1, grad, MODULE, 0),
    )


def epoch(machine):
    for number, _ in enumerate(batches(machine, 1, BATCHES)):
        forward(machine, grad=True)
        if number == BATCHES // 2:
            done["incomplete"] += 1  # a batch that the script skips
            continue
        timed(machine.begin_backward, machine.end_backward)
        timed(machine.begin_optimizer, lambda t0, t1: machine.stepped(OPTIMIZER, t0, t1))
        done["train"] += 1
        done["samples"] += BATCH_SIZE
    for _ in batches(machine, 2, 3):
        forward(machine, grad=False)
        done["evaluate"] += 1


def main(epochs, log=None):
    session.install()
    recorder = session.begin(training=True)
    machine = recorder.here()
    for number in count(1):
        epoch(machine)
        if number >= epochs and (log is None or os.path.exists(f"{log}.stop")):
            break
    print(json.dumps(done))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:3])
