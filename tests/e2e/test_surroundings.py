# SPDX-License-Identifier: Apache-2.0
"""A program finds its process as it would without us: streams, signals, descriptors, threads, environment."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grademl_otel import semconv
from tests.support import training
from tests.support.rawspans import read_lines

pytest.importorskip("torch")

# Looks at everything that a library can change in a process, before, during and after a training.
SCRIPT = """
import atexit, faulthandler, fcntl, gc, json, locale, logging, os, random, signal, subprocess, sys, threading
import warnings, zlib

LATE = "late" in sys.argv
said = {}

def streams():
    return [fcntl.fcntl(number, fcntl.F_GETFL) for number in (0, 1, 2)]

def descriptors():
    kinds = []
    for name in os.listdir("/proc/self/fd"):
        try:
            kinds.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            pass
    return kinds

def surroundings():
    umask = os.umask(0o22)
    os.umask(umask)
    child = "import json, os; print(json.dumps([dict(os.environ), os.getcwd(), os.umask(0), os.nice(0)]))"
    return {
        "flags": list(sys.flags),
        "filters": [repr(each) for each in warnings.filters],
        "signals": [repr(signal.getsignal(number)).partition(" at 0x")[0] for number in range(1, 65)],
        "masked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "timers": [signal.getitimer(which) for which in (0, 1, 2)],
        "wakeup": signal.set_wakeup_fd(-1),
        "streams": [type(each).__name__ for each in (sys.stdin, sys.stdout, sys.stderr)] + streams(),
        "cwd": os.getcwd(),
        "umask": umask,
        "nice": os.nice(0),
        "cores": sorted(os.sched_getaffinity(0)),
        "groups": [os.getpgrp(), os.getsid(0)] == [os.getpgid(os.getppid()), os.getsid(os.getppid())],
        "locale": locale.setlocale(locale.LC_ALL),
        "environ": dict(os.environ),
        "child": json.loads(subprocess.check_output([sys.executable, "-I", "-c", child])),
        "argv": sys.argv[1:],
        "recursion": sys.getrecursionlimit(),
        "switch": sys.getswitchinterval(),
        # Ours is there, for pauses.
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug(),
               sum(not type(each).__module__.startswith("grademl_otel") for each in gc.callbacks)],
        "tracing": [sys.gettrace() is None, sys.getprofile() is None, threading.gettrace() is None],
        "hooks": [sys.unraisablehook is sys.__unraisablehook__, sys.displayhook is sys.__displayhook__,
                  threading.excepthook is threading.__excepthook__],
        "faulthandler": faulthandler.is_enabled(),
        "logging": [logging.root.level, len(logging.root.handlers), logging.raiseExceptions,
                    logging.lastResort is not None],
        "random": zlib.crc32(repr(random.getstate()).encode()),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "children": waited(),
        "packages": sorted({name.partition(".")[0] for name in sys.modules}),
    }

def waited():
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return "none"

def last():
    said["threads at the end"] = sorted(thread.name for thread in threading.enumerate())
    said["after"] = surroundings()
    print(json.dumps(said))

atexit.register(last)
atexit.register(print, "registered first")
random.seed(7)
import torch
torch.set_num_threads(1)
torch.manual_seed(3)
said["before"] = surroundings()
if LATE:
    import grademl_otel
    grademl_otel.instrument()
from torch.utils.data import DataLoader
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in DataLoader(torch.randn(40, 4), batch_size=4, num_workers=2):
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
said["during"] = surroundings()
said["torch"] = torch.rand(2).tolist()
if LATE:
    counts = []
    for _ in range(6):
        for x in DataLoader(torch.randn(40, 4), batch_size=4):
            net(x).sum().backward()
            optimizer.step()
        from grademl_otel.lifecycle import session
        session.end()
        counts.append(len(descriptors()))
    said["descriptors over runs"] = counts
atexit.register(print, "registered last")
sys.exit(7)
"""

QUIET = """
import os, sys
if "late" in sys.argv:
    import grademl_otel
    grademl_otel.instrument()
import torch
from torch.utils.data import DataLoader
torch.set_num_threads(1)
torch.manual_seed(3)
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in DataLoader(torch.ones(40, 4), batch_size=4, num_workers=1):
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
torch.save(net.state_dict(), "net.pt")
print(net.weight.sum().item().hex(), __debug__)
"""


def run(command: list[str], folder: Path, settings: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=training.clean_environ(folder, settings),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=training.TIMEOUT_S,
    )


def looked(folder: Path, exporter: str) -> dict[str, Any]:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    done = run(
        [str(training.BIN / "opentelemetry-instrument"), sys.executable, str(script)],
        folder,
        {"GRADEML_EXPORTER": exporter},
    )
    assert done.returncode == 7, done
    *lines, found = done.stdout.splitlines()
    assert lines == ["registered last", "registered first"]
    assert len(done.stderr.splitlines()) == (exporter == "file"), done.stderr
    told: dict[str, Any] = json.loads(found)
    for moment in ("before", "during", "after"):
        told[moment]["environ"].pop("GRADEML_EXPORTER")
        told[moment]["child"][0].pop("GRADEML_EXPORTER")
    return told


def test_the_process_is_as_it_would_be(tmp_path: Path) -> None:
    """With the hooks and without, under the same `opentelemetry-instrument`."""
    without, traced = looked(tmp_path, "none"), looked(tmp_path, "file")
    for moment in ("before", "during", "after"):
        ours = set(traced[moment].pop("packages")) - set(without[moment].pop("packages"))
        assert {name for name in ours if name not in sys.stdlib_module_names} <= {
            "grademl_otel",
            "__mp_main__",
        }
        for what, bare in without[moment].items():
            assert traced[moment][what] == bare, (moment, what)
    assert traced["threads at the end"] == without["threads at the end"]
    assert traced["torch"] == without["torch"]


def test_a_program_that_instruments_itself_keeps_no_descriptors(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = run([sys.executable, str(script), "late"], tmp_path, {"GRADEML_EXPORTER": "file"})
    assert done.returncode == 7, done
    told = json.loads(done.stdout.splitlines()[-1])
    counts = told["descriptors over runs"]
    assert len(set(counts[1:])) == 1, counts
    before, after = told["before"], told["after"]
    # What torch changes is not looked for here.
    for what in ("threads", "children", "cwd", "umask", "logging", "locale"):
        assert after[what] == before[what], what


@pytest.mark.parametrize(
    ("options", "by_itself"),
    [(["-X", "dev", "-W", "error"], False), (["-I", "-O", "-W", "error::ResourceWarning"], True)],
    ids=["dev", "isolated"],
)
def test_strict_interpreters_have_nothing_to_say(options: list[str], by_itself: bool, tmp_path: Path) -> None:
    """The script calls `instrument()`, which under `opentelemetry-instrument` has nothing left to do."""
    script = tmp_path / "train.py"
    script.write_text(QUIET)
    python = [sys.executable, *options, str(script)]
    bare = run(python, tmp_path, {})
    instrument = [] if by_itself else [str(training.BIN / "opentelemetry-instrument")]
    traced = run([*instrument, *python, "late"], tmp_path, {"GRADEML_EXPORTER": "file"})
    assert bare.returncode == 0, bare.stderr
    lines = traced.stderr.splitlines(keepends=True)
    (ours,) = [line for line in lines if line.startswith("grademl: recording run ")]
    lines.remove(ours)
    assert "".join(lines) == bare.stderr
    assert (traced.returncode, traced.stdout) == (bare.returncode, bare.stdout)
    (path,) = (tmp_path / "runs").glob("*/traces.jsonl")
    (recorded,) = [span for span in read_lines(path) if span.name == semconv.RUN]
    assert recorded[semconv.STEPS_TOTAL] == 10
