# SPDX-License-Identifier: Apache-2.0
"""How a training can end, and what of its telemetry arrives: docs/guarantees.md, in real processes.

Most trainings here need no framework; what they have done they log themselves, a byte a step.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from grademl_otel import semconv
from grademl_otel.digest import SETTINGS_DIGITS
from grademl_otel.ring import layout
from tests.support import deaths, servers, training
from tests.support.deaths import Scene, ours, theirs, wait_for_steps
from tests.support.otlp_server import http_receiver
from tests.support.rawspans import RawSpan, read_jaeger, read_lines
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


def test_exit_that_may_not_wait(scene: Scene) -> None:
    """With `GRADEML_EXIT_WAIT=0` the end comes before any relay may have looked; all arrives after it."""
    scene.settings["GRADEML_EXIT_WAIT"] = "0"
    for _ in range(3):
        assert scene.start("return", 20).wait(30) == 0
    until(lambda: len(scene.runs()) == 3)
    assert {(run[semconv.ENDED], run[semconv.TRACER_DROPPED]) for run in scene.runs()} == {("exit", 0)}
    until(lambda: not scene.files(""))


def test_out_of_memory_by_the_kernel(scene: Scene) -> None:
    group = f"grademl-test-{secrets.token_hex(4)}"
    scene.prefix = deaths.in_memory_cgroup(group, 160 << 20)
    try:
        process = scene.start("memory", STEPS)
        _, err = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        assert theirs(err) == ""
        check_complete(scene, STEPS, "killed")
    finally:
        scene.clear()
        deaths.remove_memory_cgroup(group)


def test_out_of_memory_as_an_exception(scene: Scene) -> None:
    process = scene.start("memory", STEPS)
    resource.prlimit(process.pid, resource.RLIMIT_AS, (600 << 20, 600 << 20))
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


def test_killed_before_the_relay_of_others_has_looked(scene: Scene) -> None:
    """A relay that is there already is given the ring, and need not come for it."""
    assert scene.start("return", 1).wait(30) == 0
    (relay,) = scene.relays()
    os.kill(relay, signal.SIGSTOP)
    try:
        assert scene.start("SIGKILL", 3).wait(30) == -signal.SIGKILL
    finally:
        os.kill(relay, signal.SIGCONT)
    until(lambda: len(scene.runs()) == 2)
    (recovered,) = (run for run in scene.runs() if semconv.RECOVERED in run.attributes)
    assert recovered[semconv.STEPS_TOTAL] == 3
    assert scene.relays() == [relay]


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
    # Nor is anything left that a relay outside would tell once more.
    assert not list(scene.rings.glob(f"{scene.digest[:SETTINGS_DIGITS]}*"))


def test_container_that_is_killed(scene: Scene) -> None:
    """All its processes die at once; what it left in shared memory is told outside of it."""
    scene.prefix = deaths.as_pid_1()
    process = scene.start("wait", STEPS)
    settings = scene.digest[:SETTINGS_DIGITS]
    wait_for_steps(scene, 300)
    copied = scene.wait_for_copy()
    os.kill(scene.trainer(), signal.SIGKILL)
    process.communicate(timeout=30)

    scene.prefix = ()
    assert scene.start("return", 1).wait(30) == 0
    until(lambda: len(scene.runs()) == 2)
    (recovered,) = (run for run in scene.runs() if semconv.RECOVERED in run.attributes)
    assert recovered[semconv.ENDED] == "killed"
    assert copied <= recovered[semconv.STEPS_TOTAL] <= scene.done
    until(lambda: not list(scene.rings.glob(f"{settings}*-*")))


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


@pytest.mark.parametrize("then", ["gone", "its number is in use again", "no copy"])
def test_process_and_relay_that_die_together(then: str, scene: Scene) -> None:
    """The relay's copy of the ring tells the next relay all but the last moments."""
    process = scene.start("wait", STEPS)
    until(lambda: scene.files(layout.SUFFIX))
    wait_for_steps(scene, 300)
    copied = scene.wait_for_copy()
    deaths.killed_together([process.pid, *scene.relays()])
    process.communicate(timeout=30)
    assert scene.runs() == []
    (copy,), (pointer,) = scene.files(layout.SUFFIX), scene.files(layout.POINTER_SUFFIX)
    assert copy.stat().st_size == layout.geometry(2 << 20).size
    if then == "its number is in use again":
        _, _, *identity = os.readlink(pointer).split()
        pointer.unlink()
        pointer.symlink_to(" ".join([str(os.getpid()), "0", *identity]))
    elif then == "no copy":
        copy.unlink()

    next_one = scene.start("return", 1)
    assert next_one.wait(30) == 0
    if then == "no copy":
        until(lambda: scene.says("what it recorded is lost"))
    else:
        until(lambda: len(scene.runs()) == 2)
        recovered = next(run for run in scene.runs() if semconv.RECOVERED in run.attributes)
        assert recovered[semconv.ENDED] == "killed"
        assert copied <= recovered[semconv.STEPS_TOTAL] <= scene.done
    until(lambda: not scene.files(""))


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
    assert f"nothing is recorded: {folder}/grademl-runs: expected a folder that can be written to" in line


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
        "import sys, time\nreal_ns, real, stepped = time.time_ns, time.time, []\n"
        "def back():\n"
        "    session = getattr(sys.modules.get('grademl_otel.lifecycle'), 'session', None)\n"
        "    if session is not None and session.recorder is not None and session.recorder.rows > 20:\n"
        "        stepped.append(True)\n"
        "    return 3600 if stepped else 0\n"
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


# --- PyTorch ----------------------------------------------------------------------------------------------

STEPS_BEFORE_THE_KILL = 25

SLOW_LOADER = """\
import time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.ones(4), torch.ones(1)

network = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
for number, (inputs, targets) in enumerate(DataLoader(Slow(), batch_size=4, num_workers={workers})):
    loss = (network(inputs) - targets).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", number, flush=True)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_killed_into_the_file_store(workers: int, tmp_path: Path) -> None:
    done = _train_and_kill(tmp_path, workers, {"GRADEML_EXPORTER": "file"})
    stored = _stored(tmp_path)
    servers.wait_until(lambda: _run_span(stored()) is not None, "closing of the killed run")
    _check_spans(stored(), done, workers)
    _check_report(str(tmp_path / "runs"), tmp_path, done)


@pytest.mark.real
def test_killed_into_jaeger(jaeger: servers.Jaeger, tmp_path: Path) -> None:
    run_id = secrets.token_hex(16)
    settings = {"GRADEML_RUN_ID": run_id, "OTEL_EXPORTER_OTLP_ENDPOINT": jaeger.otlp_grpc}
    done = _train_and_kill(tmp_path, 2, {**settings, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    traces = [f"{semconv.trace_id(run_id, 0, 'run'):032x}"]
    traces += [f"{semconv.trace_id(run_id, 0, 'window', n):032x}" for n in range(4)]
    servers.wait_until(
        lambda: _run_span(read_jaeger(jaeger.query_url, traces)) is not None, "closing of the killed run"
    )
    _check_spans(read_jaeger(jaeger.query_url, traces), done, 2)
    _check_report(jaeger.source, tmp_path, done, "--run", run_id)


def _train_and_kill(folder: Path, workers: int, settings: Mapping[str, str]) -> int:
    """Train, and kill the process without warning; the number of steps that it had reported as done."""
    pytest.importorskip("torch")
    script = folder / "train.py"
    script.write_text(SLOW_LOADER.format(workers=workers))
    process = subprocess.Popen(
        training.traced_command(script),
        cwd=folder,
        env=training.clean_environ(folder, settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    done = 0
    for line in process.stdout:
        assert line.startswith("step "), line
        done += 1
        if done == STEPS_BEFORE_THE_KILL:
            break
    process.send_signal(signal.SIGKILL)
    done += process.stdout.read().count("step ")  # what it printed until the signal came
    assert process.wait(60) == -signal.SIGKILL
    assert done >= STEPS_BEFORE_THE_KILL
    return done


def _stored(folder: Path) -> Callable[[], list[RawSpan]]:
    """What the store holds so far; it may be made only after the death of the process."""
    return lambda: [s for path in (folder / "runs").glob("*/traces.jsonl") for s in read_lines(path)]


def _run_span(spans: list[RawSpan]) -> RawSpan | None:
    return next((span for span in spans if span.name == "run"), None)


def _check_spans(spans: list[RawSpan], done: int, workers: int) -> None:
    run = _run_span(spans)
    assert run is not None
    assert run["grademl.ended"] == run["grademl.terminated"] == "killed"
    assert run.status == 2  # ERROR
    assert run["grademl.steps"] >= done - 1  # the last one may have had no time to close
    (epoch,) = (span for span in spans if span.name == "epoch")
    assert epoch["grademl.terminated"] == "killed"
    assert epoch.status == 2
    assert epoch.parent_id == run.span_id
    assert epoch["grademl.loader.workers"] == workers
    rows = [step for window in spans if window.name == "window" for step in window.column("step")]
    assert sorted(rows)[: done - 1] == list(range(done - 1))


def _check_report(source: str, folder: Path, done: int, *select: str) -> None:
    told = training.grademl(["report", source, *select], folder).ok()
    assert "killed" in told.out
    document = json.loads(training.grademl(["report", source, *select, "--json"], folder).ok().out)
    (ended,) = document["run"]["ended"]
    assert ended["how"] == "killed"
    assert done - 2 <= ended["last_step"] <= done + 1
    wall = document["window"]["wall_ns"]
    assert document["path"]["total_ns"] == wall == sum(entry["ns"] for entry in document["lane_budget"])
    (listed,) = (
        run
        for run in json.loads(training.grademl(["runs", source, "--json"], folder).ok().out)["runs"]
        if run["run"] == document["source"]["run"]
    )
    assert listed["ended"] == "killed"
