# SPDX-License-Identifier: Apache-2.0
"""Run as ``python -I -S detach.py COMMAND...``: start COMMAND as nobody's child and exit at once.

A fresh single-threaded interpreter may fork safely; the training process, full of threads, may not. Imports
only what ``-S`` leaves.
"""

import os
import sys

_ALL_CPUS = range(4096)
"""The kernel cuts this to the CPUs that the cgroup allows."""


def main(command: list[str]) -> None:
    """Fork; the parent returns, the child becomes ``command``."""
    if os.fork():
        return
    os.setsid()
    if hasattr(os, "sched_setaffinity"):
        try:  # a rank pinned to one core must not keep the relay on that core
            os.sched_setaffinity(0, _ALL_CPUS)
        except OSError:
            pass
    try:
        os.nice(10)
    except OSError:
        pass
    try:
        os.execv(command[0], command)
    finally:
        os._exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
