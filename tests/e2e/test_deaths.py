# SPDX-License-Identifier: Apache-2.0
"""How a training can end, and what of its telemetry arrives: docs/guarantees.md, in real processes.

Most trainings here need no framework; what they have done they log themselves, a byte a step.
"""

from __future__ import annotations

import os
import resource
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from grademl_otel import semconv
from grademl_otel.ring import layout
from tests.support import deaths
from tests.support.deaths import Scene, ours, theirs, wait_for_steps
from tests.support.otlp_server import http_receiver
from tests.support.relays import until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes through /proc")

STEPS = 120


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.clear()


def check_complete(scene: Scene, steps: int, ended: str) -> Any:
    """The run is told once and whole: its steps, and a row of the table for each."""
    run = scene.run()
    assert run[semconv.ENDED] == ended
    assert run[semconv.TRACER_DROPPED] == 0
    # The one that was running counts if it came to its end.
    assert run[semconv.STEPS_TOTAL] in (steps, steps + 1)
    assert scene.rows()[:steps] == list(range(steps))
    spans = scene.spans()
    assert len({(span.trace_id, span.span_id) for span in spans}) == len(spans)
    return run


# --- Ends of the program ----------------------------------------------------------------------------------


@dataclass
class Ended:
    """The same program twice: without a recorder, and with one."""

    bare_code: int
    bare_err: str
    code: int
    err: str
    scene: Scene


ENDINGS = {
    "return": "exit",
    "raise": "exception",
    "exit3": "exit",
    "os_exit": "killed",
    "SIGTERM": "killed",
    "SIGINT": "exception",
    "SIGKILL": "killed",
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Ended]]:
    """All of `ENDINGS`, side by side: they mostly sleep."""
    folder = tmp_path_factory.mktemp("endings")

    def both(ending: str) -> Ended:
        bare, recorded = (
            Scene(folder / f"bare-{ending}", {"GRADEML_EXPORTER": "none"}),
            Scene(folder / ending),
        )
        found = []
        for each in (bare, recorded):
            process = each.start(ending, STEPS)
            _, err = process.communicate(timeout=60)
            found += [process.returncode, err.replace(str(each.folder), "")]
        assert bare.done == recorded.done == STEPS
        return Ended(*found, recorded)

    with ThreadPoolExecutor(len(ENDINGS)) as threads:
        made = dict(zip(ENDINGS, threads.map(both, ENDINGS), strict=True))
    yield made
    for each in made.values():
        each.scene.clear()


@pytest.mark.parametrize("ending", ENDINGS)
def test_end_is_the_same_and_all_steps_arrive(ending: str, ended: dict[str, Ended]) -> None:
    found = ended[ending]
    assert found.code == found.bare_code
    assert theirs(found.err) == theirs(found.bare_err)
    assert ours(found.err) == []
    run = check_complete(found.scene, STEPS, ENDINGS[ending])
    if ENDINGS[ending] == "killed":
        assert run[semconv.OPEN_PHASE] == semconv.FORWARD
    until(lambda: not found.scene.files(""))  # neither ring nor copy nor lock is left


def test_out_of_memory_by_the_kernel(scene: Scene) -> None:
    scene.prefix = deaths.in_memory_cgroup(f"grademl-test-{secrets.token_hex(4)}", 160 << 20)
    process = scene.start("memory", STEPS)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert theirs(err) == ""
    check_complete(scene, STEPS, "killed")


def test_out_of_memory_as_an_exception(scene: Scene) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))

    process = scene.start("memory", STEPS, preexec_fn=limit)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert theirs(err).endswith("MemoryError\n")
    assert check_complete(scene, STEPS, "exception")["error.type"] == "MemoryError"


def test_killed_in_its_first_moment(scene: Scene) -> None:
    """The relay is not there yet; the ring, which has no name, outlives its process all the same."""
    process = scene.start("SIGKILL", 3)
    assert process.wait(30) == -signal.SIGKILL
    run = check_complete(scene, 3, "killed")
    assert run[semconv.RECOVERED] is True


def test_pid_1_of_a_container(scene: Scene) -> None:
    """Nobody is left to finish anything when it exits."""
    scene.prefix = deaths.as_pid_1()
    process = scene.start("return", STEPS)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, theirs(err), ours(err)) == (0, "", [])
    assert len(scene.runs()) == 1
    check_complete(scene, STEPS, "exit")
    for path in scene.store.glob("*/*.jsonl"):
        assert path.read_bytes().endswith(b"}\n")


# --- The relay's deaths -----------------------------------------------------------------------------------


def test_relay_that_dies_is_replaced_then_done_without(scene: Scene) -> None:
    process = scene.start("wait", STEPS)
    scene.kill_relay()
    wait_for_steps(scene, scene.done + 300)
    for _ in range(3):
        scene.kill_relay()
    until(lambda: not scene.relays())
    wait_for_steps(scene, scene.done + 1200)
    code, err = scene.stop(process)
    assert (code, theirs(err)) == (0, "")
    (line,) = ours(err)
    assert line.startswith("grademl: no relay process (none stays alive)")
    run = scene.run()
    assert run[semconv.TRACER_DROPPED] == 0
    assert set(scene.rows()) == set(range(scene.done + 1))  # a batch may have come twice


def test_process_and_relay_that_die_together(scene: Scene) -> None:
    """The relay's copy of the ring tells the next relay all but the last moments."""
    process = scene.start("wait", STEPS)
    until(lambda: scene.says("attached"))
    wait_for_steps(scene, 500)
    a_second_ago = scene.done
    time.sleep(1)
    deaths.killed_together([process.pid, *scene.relays()])
    process.communicate(timeout=30)
    assert scene.runs() == []
    (copy,) = scene.files(layout.SUFFIX)
    assert copy.stat().st_size == layout.geometry(2 << 20).size

    next_one = scene.start("return", 1)
    assert next_one.wait(30) == 0
    until(lambda: len(scene.runs()) == 2)
    recovered = next(run for run in scene.runs() if semconv.RECOVERED in run.attributes)
    assert recovered[semconv.ENDED] == "killed"
    assert a_second_ago <= recovered[semconv.STEPS_TOTAL] <= scene.done
    until(lambda: not scene.files(layout.SUFFIX))


# --- What others do to its files --------------------------------------------------------------------------


def test_ring_cannot_be_truncated(scene: Scene) -> None:
    process = scene.start("wait", STEPS)
    until(lambda: scene.files(layout.SUFFIX))
    (pointer,) = scene.files(layout.POINTER_SUFFIX)
    pid, descriptor, *_ = os.readlink(pointer).split()
    for length in (0, 1 << 24):
        with pytest.raises(PermissionError):
            os.truncate(f"/proc/{pid}/fd/{descriptor}", length)
    os.truncate(scene.files(layout.SUFFIX)[0], 0)
    wait_for_steps(scene, scene.done + 200)
    assert scene.stop(process)[0] == 0
    check_complete(scene, scene.done, "exit")


@pytest.mark.parametrize("relay_dies", [False, True])
def test_files_that_are_deleted(scene: Scene, relay_dies: bool) -> None:
    """What points to the ring is made anew, for the relay after this one."""
    process = scene.start("wait", STEPS)
    until(lambda: scene.files(layout.SUFFIX))
    if relay_dies:
        scene.kill_relay()
    for path in scene.rings.glob(f"*{scene.digest}*"):
        path.unlink()
    until(lambda: scene.files(layout.POINTER_SUFFIX) and scene.files(layout.LOCK_SUFFIX))
    if relay_dies:
        until(scene.relays)
    wait_for_steps(scene, scene.done + 200)
    code, err = scene.stop(process)
    assert (code, theirs(err), ours(err)) == (0, "", [])
    check_complete(scene, scene.done, "exit")


def test_named_ring_that_is_deleted(scene: Scene) -> None:
    """A ring in a folder of the user's choice has a name; without it no relay after this one can come."""
    scene.settings["GRADEML_RING_DIR"] = str(scene.folder / "rings")
    process = scene.start("wait", STEPS)
    until(lambda: scene.says("attached"))
    scene.files(layout.SUFFIX)[0].unlink()
    wait_for_steps(scene, scene.done + 500)
    scene.kill_relay()
    wait_for_steps(scene, scene.done + 1200)
    code, err = scene.stop(process)
    assert (code, theirs(err)) == (0, "")
    (line,) = ours(err)
    assert "the ring's file is gone" in line
    check_complete(scene, scene.done, "exit")


def test_program_that_closes_descriptors_that_it_does_not_know(scene: Scene) -> None:
    """As a daemon does; afterwards it opens files of its own under the same numbers."""
    program = scene.folder / "closes.py"
    program.write_text(
        f"import os, sys\nsys.path.insert(0, {str(deaths.PROGRAM.parent)!r})\nimport plain_training as p\n"
        "def close():\n    os.closerange(3, 64)\n"
        "    for _ in range(20):\n        os.open('own', os.O_CREAT | os.O_RDWR)\n"
        "p.session.install()\nfor n in range(900):\n    p.step(close if n == 100 else lambda: None)\n"
        "p.session.end()\nprint(len(os.listdir('/proc/self/fd')))\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)],
        env=scene.environ, cwd=scene.folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, theirs(done.stderr)) == (0, "")
    assert int(done.stdout) >= 3 + 20  # none of its own was closed
    check_complete(scene, 900, "exit")


# --- Full, read-only and missing places -------------------------------------------------------------------


def test_full_shared_memory(scene: Scene) -> None:
    """There is no room for a copy of the ring, but a relay serves it."""
    scene.prefix = deaths.in_private_mounts(
        "mount -t tmpfs -o size=256k none /dev/shm", "{ cat /dev/zero > /dev/shm/full 2>/dev/null || true; }"
    )
    process = scene.start("SIGKILL", STEPS)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, theirs(err), ours(err)) == (-signal.SIGKILL, "", [])
    check_complete(scene, STEPS, "killed")
    assert scene.says("no copy is kept")


def test_read_only_everywhere(scene: Scene) -> None:
    """No place for anything: one line says so, and the training does not notice."""
    folder = scene.folder
    scene.settings |= {"XDG_RUNTIME_DIR": str(folder), "TMPDIR": str(folder), "GRADEML_RELAY_LOG": ""}
    scene.prefix = deaths.in_private_mounts(
        "mount -t tmpfs -o ro none /dev/shm",
        f"mount --bind {folder} {folder}",
        f"mount -o remount,bind,ro {folder}",
        "unset GRADEML_STORE GRADEML_SPOOL_DIR",
    )
    process = scene.start("return", STEPS, log=os.devnull)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, theirs(err)) == (0, "")
    (line,) = ours(err)
    assert f"nothing is written to {folder}/grademl-runs: Read-only file system" in line


@pytest.mark.parametrize("what", ["store", "spool"])
def test_full_disk(what: str, scene: Scene) -> None:
    """What was written before is whole, one line says so, and the exit does not wait."""
    full = scene.folder / ("runs" if what == "store" else "spool")
    scene.prefix = deaths.in_private_mounts(f"mkdir -p {full}", f"mount -t tmpfs -o size=16k none {full}")
    if what == "spool":
        with http_receiver() as receiver:
            port = receiver.port
        scene.settings |= {
            "GRADEML_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "TMPDIR": str(scene.folder),
        }
    process = scene.start("return", 6 * STEPS)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, theirs(err)) == (0, "")
    (line,) = ours(err)
    if "they wait in" in line:  # a spool elsewhere takes the place of one that takes nothing
        assert what == "spool"
        assert list((scene.folder / f"grademl-{os.getuid()}").rglob("*.otlp"))
    else:
        assert str(full) in line
        assert "dropped" in line or "lost" in line


def test_home_that_is_not_set(scene: Scene) -> None:
    scene.prefix = ["env", "-u", "HOME", "-u", "GRADEML_SPOOL_DIR", "-u", "XDG_STATE_HOME"]
    process = scene.start("return", STEPS)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, theirs(err), ours(err)) == (0, "", [])
    check_complete(scene, STEPS, "exit")


def test_wall_clock_that_is_stepped(scene: Scene) -> None:
    """Python's view of the wall clock jumps an hour back in the middle: no time of the run changes."""
    (scene.folder / "sitecustomize.py").write_text(
        "import time\nstart, real_ns, real = time.monotonic(), time.time_ns, time.time\n"
        "def back():\n    return 3600 if time.monotonic() - start > 0.6 else 0\n"
        "time.time_ns = lambda: real_ns() - back() * 10**9\ntime.time = lambda: real() - back()\n"
    )
    scene.settings["PYTHONPATH"] = str(scene.folder)
    before = time.time_ns()
    process = scene.start("return", 4 * STEPS)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, theirs(err), ours(err)) == (0, "", [])
    check_complete(scene, 4 * STEPS, "exit")
    for span in scene.spans():
        assert before - 10**9 <= span.start <= span.end <= time.time_ns() + 10**9


# --- What earlier crashes left ----------------------------------------------------------------------------


def test_leftover_rings(scene: Scene) -> None:
    """Two hundred: those that can be told are told, none keeps the training or its end waiting."""
    scene.settings["GRADEML_RING_DIR"] = str(scene.folder / "rings")
    process = scene.start("wait", STEPS)
    until(lambda: scene.says("attached"))
    wait_for_steps(scene, 50)
    deaths.killed_together([process.pid, *scene.relays()])
    process.communicate(timeout=30)
    (left,) = scene.files(layout.SUFFIX)
    whole = left.read_bytes()
    for number in range(60):
        place(scene, number).write_bytes(whole)
    for number in range(100, 170):
        place(scene, number).write_bytes(whole[:8] + b"\x01" + whole[9:])
    for number in range(200, 270):
        place(scene, number).write_bytes(secrets.token_bytes(4096))

    next_one = scene.start("return", STEPS)
    _, err = next_one.communicate(timeout=30)
    assert (next_one.returncode, theirs(err), ours(err)) == (0, "", [])
    until(lambda: len(scene.runs()) == 62, 60)
    assert sorted(run[semconv.ENDED] for run in scene.runs()) == ["exit"] + 61 * ["killed"]
    until(lambda: len(scene.files(layout.SUFFIX)) == 140)
    assert scene.log.read_text().count("left alone") == 140


def place(scene: Scene, number: int) -> Path:
    path = scene.rings / f"{scene.digest}-{number:016x}{layout.SUFFIX}"
    path.touch(0o600)
    return path
