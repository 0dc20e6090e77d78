# SPDX-License-Identifier: Apache-2.0
"""Python in a process whose memory and time are bounded, fed from a stream that may have no end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from .training import clean_environ

GRADEML: Final = "import sys; from grademl_otel.analyzers.cli import main; sys.exit(main())"
READ: Final = """
import sys
from grademl_otel.analyzers.errors import GrademlError
from grademl_otel.analyzers.sources import open_source
from grademl_otel.analyzers.sources.base import Selection, SourceOptions
options = SourceOptions(max_bytes=int(sys.argv[2]))
try:
    print(len(open_source(sys.argv[1], options).read(Selection()).spans))
except GrademlError as error:
    print("grademl:", error, file=sys.stderr)
    sys.exit(error.exit_code)
"""
"""Reads SOURCE with no document larger than BYTES."""


_BETWEEN: Final = """
import os, resource, sys
memory, told = int(sys.argv[1]), int(sys.argv[2])
child = os.fork()
if child == 0:
    os.set_inheritable(told, False)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    os.execv(sys.executable, [sys.executable, "-c", *sys.argv[3:]])
_, status, usage = os.wait4(child, 0)
os.write(told, b"%d %d" % (os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024))
"""
"""A process between: what one has at most begins with what the process had that it was forked from, and that
of the tests is large."""


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str
    peak: int
    """Bytes of memory that it had at most."""


def confined(
    program: str,
    arguments: Sequence[str],
    folder: Path,
    memory: int,
    fed: Iterable[bytes] = (),
    timeout_s: float = 120,
) -> Ended:
    """Run ``program`` with its address space bounded to ``memory`` bytes, ``fed`` on its standard input.

    Raises TimeoutExpired when it does not end in time; it is dead then.
    """

    # Threads of numerical libraries map memory each; OPENBLAS asks for 30 MB a core.
    environ = {**clean_environ(folder), "OPENBLAS_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        told, telling = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", _BETWEEN, str(memory), str(telling), program, *arguments],
            cwd=folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            pass_fds=[telling],
            start_new_session=True,
        )
        os.close(telling)
        assert process.stdin is not None
        feeder = threading.Thread(target=_feed, args=(process.stdin, fed))
        feeder.start()
        killer = threading.Timer(timeout_s, os.killpg, (process.pid, signal.SIGKILL))
        killer.start()
        try:
            with open(told, "rb") as end:
                words = end.read().split()
            process.wait()
        finally:
            killer.cancel()
        feeder.join()
        if not words:
            raise subprocess.TimeoutExpired(list(arguments), timeout_s)
        code, peak = map(int, words)
        return Ended(code, _text(out), _text(err), peak)


def _feed(stdin: IO[bytes], fed: Iterable[bytes]) -> None:
    try:
        with stdin:
            for each in fed:
                stdin.write(each)
    except BrokenPipeError:
        pass  # it has seen enough


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()
