# SPDX-License-Identifier: Apache-2.0
"""A training without a framework, through the real session, recorder and step machine, that ends as told.

``python plain_training.py STEPS ENDING [LOG]``: every finished step is one byte in LOG, written before the
next begins. With ``GRADEML_EXPORTER=none`` the same program is the bare run: no ring, no relay.

ENDING: ``return``, ``raise``, ``exit3``, ``os_exit``, ``SIGTERM``, ``SIGINT``, ``SIGKILL`` (sent to itself in
the middle of a forward), ``memory`` (allocates until it is stopped), ``wait`` (trains on until it is killed,
or until ``LOG.stop`` exists; for as long as a test may take, lest it outlive a test run that was killed).
"""

import os
import signal
import sys
import time
from itertools import count
from time import perf_counter_ns as now

from grademl_otel.lifecycle import session

OPTIMIZER = 1
MODULE = 2
STEP_S = 0.002
LONGEST_S = 600


class Bare:
    """Takes the machine's place where nothing is recorded."""

    def __getattr__(self, event):
        return lambda *_: None


def compute(begin, end) -> None:
    """One phase: its events and a little time between."""
    t0 = now()
    begin(t0)
    time.sleep(STEP_S / 3)
    end(t0, now())


def step(inside_forward=lambda: None) -> None:
    recorder = session.recorder or session.begin(training=True)
    machine = Bare() if recorder is None else recorder.here()

    def begin_forward(at):
        machine.begin_forward(at, MODULE)
        inside_forward()

    compute(begin_forward, lambda t0, t1: machine.end_forward(t0, t1, True, MODULE, 0))
    compute(machine.begin_backward, machine.end_backward)
    compute(machine.begin_optimizer, lambda t0, t1: machine.stepped(OPTIMIZER, t0, t1))


def allocate() -> None:
    hoard = []
    while True:
        hoard.append(bytearray(b"x" * (1 << 22)))


def end(how: str) -> None:
    if how == "raise":
        raise ArithmeticError("loss is not finite")
    if how == "exit3":
        sys.exit(3)
    if how == "os_exit":
        os._exit(4)
    if how == "memory":
        allocate()
    if how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
        time.sleep(1)  # a signal that Python handles comes a moment later


def main(steps: int, how: str, log: str = os.devnull) -> None:
    session.install()
    # One write for each step, so that a death at any time leaves a true count behind.
    finished = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    until = time.monotonic() + LONGEST_S
    for number in count():
        waits = how == "wait" and time.monotonic() < until and not os.path.exists(f"{log}.stop")
        if number >= steps and not waits:
            break
        step()
        os.write(finished, b"x")
    step(lambda: end(how))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:4])
