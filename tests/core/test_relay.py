# SPDX-License-Identifier: Apache-2.0
"""The relay process, with real rings of real processes that end well or badly."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grademl_otel.config import Settings
from grademl_otel.digest import SETTINGS_DIGITS, destination_digest
from grademl_otel.locks import elect, lock_path, retire
from grademl_otel.relay.calls import answer_at, wait_for_call, wake_path
from grademl_otel.relay.launch import RelayUnavailable, ensure_relay, relay_environment
from grademl_otel.relay.service import Relay
from grademl_otel.ring.writer import RingWriter

from ..support.otlp_server import Answer, http_receiver
from ..support.relays import REPOSITORY, Workplace, until

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/ns"), reason="finds relays through /proc")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    workplace = Workplace(tmp_path)
    yield workplace
    workplace.stop_relays()


def leftovers(place: Workplace) -> list[str]:
    return [path.name for path in place.rings.iterdir() if path.suffix == ".ring" or (path.match("*-*.lock")
            and not path.name.startswith("relay-"))]  # fmt: skip


def check_whole_run(place: Workplace, steps: int, ended: str) -> dict[str, Any]:
    (run,) = place.named("run")
    assert run["attributes"]["grademl.ended"] == ended
    assert run["attributes"]["grademl.steps"] == steps
    assert run["attributes"]["grademl.tracer.dropped"] == 0
    assert place.rows()[:steps] == list(range(steps))
    last = place.named("window")[-1]["attributes"]
    assert last["grademl.window.cumulative_steps"] == steps
    spans = place.spans()
    assert len({span["spanId"] for span in spans}) == len(spans)
    assert run["attributes"]["grademl.spans.emitted"] == len(spans)
    return run


def test_program_that_ends_well(place: Workplace) -> None:
    status, said, err = place.train("relay", "60", "close")

    assert (status, said, err) == (0, {"delivered": True, "mode": "relay"}, "")
    run = check_whole_run(place, 60, "exit")
    assert run["status"] == {}
    (folder,) = place.store.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["metrics.jsonl", "traces.jsonl"]
    lines = (folder / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
    metrics = json.loads([line for line in lines if b"grademl.steps" in line][-1])  # others are of the host
    by_name = {m["name"]: m for m in metrics["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]}
    assert by_name["grademl.steps"]["sum"]["dataPoints"][0]["asInt"] == "60"
    assert by_name["grademl.samples"]["sum"]["dataPoints"][0]["asInt"] == str(60 * 32)
    until(lambda: leftovers(place) == [])


def test_program_that_is_killed(place: Workplace) -> None:
    status, _, err = place.train("relay", "100", "kill")

    assert (status, err) == (-signal.SIGKILL, "")
    until(lambda: place.named("run"))
    # The last step had only waited for its data when the process died in its forward.
    run = check_whole_run(place, 99, "killed")
    assert run["status"] == {"message": "killed", "code": 2}
    assert run["attributes"]["grademl.terminated"] == "killed"
    assert run["attributes"]["grademl.open_phase"] == "forward"
    (epoch,) = place.named("epoch")
    assert epoch["status"]["code"] == 2
    assert epoch["attributes"]["grademl.terminated"] == "killed"
    until(lambda: leftovers(place) == [])


def test_relay_serves_several_processes_and_lives_apart(place: Workplace) -> None:
    programs = [place.start("relay", "40", "wait") for _ in range(3)]
    for program in programs:
        assert program.stdout is not None
        assert json.loads(program.stdout.readline())["ready"]
    pid = place.attached_relay()

    assert os.getsid(pid) != os.getsid(programs[0].pid)
    assert os.getpgid(pid) not in {os.getpgid(program.pid) for program in programs}
    assert Path(f"/proc/{pid}/cwd").resolve() == Path("/")
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, pid) == min(own + 10, 19)
    descriptors = [os.readlink(f"/proc/{pid}/fd/{number}") for number in (0, 1, 2)]
    assert descriptors == ["/dev/null"] * 3
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert b"GRADEML_RELAY=1" in environ
    for program in programs:
        out, err = program.communicate("\n", timeout=30)
        assert json.loads(out)["delivered"]
        assert err == ""
    assert len(place.named("run")) == 3
    assert place.relay_pids() == [pid]


_NUISANCE = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
import plain_training
os.set_inheritable(os.open(sys.argv[2], os.O_RDWR | os.O_CREAT), True)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
plain_training.session.install()
for _ in range(50):
    plain_training.step()
try:
    print("waited for", os.wait())
except ChildProcessError:
    print("no child", threading.active_count(), flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity")
def test_relay_is_no_nuisance(place: Workplace) -> None:
    """It is nobody's child, has none of the user's descriptors, and is not kept on a pinned rank's core."""
    opened = place.folder / "opened by the user"
    support = REPOSITORY / "tests" / "support"
    program = subprocess.Popen(
        [sys.executable, "-c", _NUISANCE, str(support), str(opened)],
        env={**place.environment(), "GRADEML_EXPORTER": "file"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "no child 1\n"
    pid = place.attached_relay()
    open_in_relay = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    assert str(opened) not in open_in_relay
    assert not any(link.startswith("pipe:") for link in open_in_relay)
    assert os.sched_getaffinity(pid) == os.sched_getaffinity(0)
    _, err = program.communicate("\n", timeout=30)
    assert program.returncode == 0
    assert err.count("\n") == 1  # where the run goes


def test_relay_told_to_stop_drains_first(place: Workplace) -> None:
    program = place.start("relay", "50", "wait")
    assert program.stdout is not None
    program.stdout.readline()
    pid = place.attached_relay()
    os.kill(pid, signal.SIGTERM)
    until(lambda: place.relay_pids() == [])
    # Windows 0 and 1 are complete; the third, which is open, is told as far as it goes.
    assert place.rows() == list(range(50))
    assert [w["attributes"]["grademl.window.last"] for w in place.named("window")] == [True, True, False]
    assert place.named("run") == []

    out, err = program.communicate("\n", timeout=30)

    assert json.loads(out) == {"delivered": True, "mode": "relay"}
    assert err == ""
    check_whole_run(place, 50, "exit")


def test_relay_and_process_told_to_stop_at_once(place: Workplace) -> None:
    """As at the end of a machine or a job: the relay still tells how the run ended."""
    program = place.start("relay", "50", "wait")
    assert program.stdout is not None
    program.stdout.readline()
    pid = place.attached_relay()
    for each in (pid, program.pid):
        os.kill(each, signal.SIGTERM)
    assert program.wait(10) == -signal.SIGTERM
    until(lambda: place.relay_pids() == [])
    check_whole_run(place, 50, "killed")
    assert leftovers(place) == []


def test_killed_relay_is_replaced_and_nothing_is_told_twice(place: Workplace) -> None:
    program = place.start("relay", "1800", "wait")
    for _ in range(2):
        pid = place.attached_relay()
        time.sleep(0.5)
        os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid: pid not in place.relay_pids())  # type: ignore[misc]
    assert program.stdout is not None
    program.stdout.readline()

    out, err = program.communicate("\n", timeout=30)

    assert json.loads(out) == {"delivered": True, "mode": "relay"}
    assert err == ""
    # A batch may be written and its relay killed before it says so: never lost, at most repeated as it was.
    spans: dict[str, dict[str, Any]] = {}
    for span in place.spans():
        assert spans.setdefault(span["spanId"], span) == span
    rows = [row for span in spans.values() for row in span["attributes"].get("grademl.table.step", ())]
    assert rows == list(range(1800))
    (run,) = (span for span in spans.values() if span["name"] == "run")
    assert run["attributes"]["grademl.steps"] == 1800


def test_ring_without_owner_is_adopted(place: Workplace) -> None:
    status, _, _ = place.train("relay", "20", "kill")
    assert status == -signal.SIGKILL
    place.stop_relays()
    before = len(place.named("run"))
    # The next program of the same settings starts a relay, which finds what the other left.
    place.train("relay", "5", "close")

    until(lambda: len(place.named("run")) == 2 - before)
    assert {run["attributes"]["grademl.ended"] for run in place.named("run")} == {"killed", "exit"}


def test_what_is_planted_in_the_ring_folder_stops_nobody(place: Workplace) -> None:
    """For a ring, a pointer, a lock, the wake-up socket: nothing of it is touched or waited for."""
    place.rings.mkdir(parents=True, mode=0o700)
    digest = destination_digest(place.environment())
    mine = place.folder / "mine.txt"
    mine.write_text("the user's own")
    ring = (place.rings / f"{digest}-{number:016x}.ring" for number in range(100))
    pointer = (place.rings / f"{digest}-{number:016x}.memfd" for number in range(100, 200))
    next(ring).write_bytes(os.urandom(100_000))
    next(ring).symlink_to("/dev/zero")
    next(ring).symlink_to(mine)
    next(ring).mkdir()
    os.mkfifo(next(ring))
    next(ring).hardlink_to(mine)
    with open(next(ring), "wb") as sparse:
        sparse.truncate(1 << 40)
    if os.getuid() == 0:
        os.mknod(next(ring), 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    terminal, other_end = os.openpty()
    unsealed = os.memfd_create("unsealed")
    os.ftruncate(unsealed, 1 << 20)
    with open(mine, "r+") as file:
        for descriptor in (0, file.fileno(), terminal, unsealed):
            status = os.fstat(descriptor)
            text = f"{os.getpid()} {descriptor} {status.st_dev} {status.st_ino}"
            next(pointer).symlink_to(text)
        next(pointer).symlink_to(mine)
        next(pointer).symlink_to("-1 0 0 0")
        next(pointer).write_text("1 0 0 0")
        (place.rings / f"relay-{digest}.wake").mkdir()
        (place.rings / f"{digest}-{0:016x}.lock").symlink_to(mine)

        assert place.train("relay", "20", "close")[1]["delivered"]
        check_whole_run(place, 20, "exit")
        until(lambda: place.log.read_text().count("left alone") >= 12)
    assert mine.read_text() == "the user's own"
    assert os.pread(unsealed, 8, 0) == bytes(8)
    for descriptor in (terminal, other_end, unsealed):
        os.close(descriptor)


@pytest.mark.parametrize("planted", ["link", "folder"])
def test_planted_lock_of_the_relay(place: Workplace, planted: str) -> None:
    """No relay can be elected then; the process does without, and says so in one line."""
    place.rings.mkdir(parents=True, mode=0o700)
    mine = place.folder / "mine.txt"
    mine.write_text("the user's own")
    lock = lock_path(place.rings, destination_digest(place.environment()))
    lock.symlink_to(mine) if planted == "link" else lock.mkdir()
    status, said, err = place.train("relay", "20", "close")
    assert (status, said) == (0, {"delivered": True, "mode": "in-process"})
    assert err.startswith("grademl: no relay process")
    assert err.count("\n") == 1
    check_whole_run(place, 20, "exit")
    assert mine.read_text() == "the user's own"


def test_ring_left_in_other_namespaces_is_adopted(place: Workplace) -> None:
    """A container that is gone left a ring; one with the same settings and another namespace tells it."""
    place.train("relay", "20", "kill")
    place.stop_relays()
    digest = destination_digest(place.environment())
    foreign = digest[:SETTINGS_DIGITS] + "0" * (len(digest) - SETTINGS_DIGITS)
    elsewhere = "f" * SETTINGS_DIGITS + digest[SETTINGS_DIGITS:]
    (ring,) = place.rings.glob(f"{digest}-*.ring")
    data = ring.read_bytes()
    ring.unlink()
    for other in (foreign, elsewhere):
        path = place.rings / f"{other}-0000000000000000.ring"
        path.touch(0o600)
        path.write_bytes(data.replace(digest.encode(), other.encode()))

    # While the relay of that namespace serves, it is left to that one.
    lock = elect(place.rings, foreign)
    assert lock is not None
    place.train("relay", "5", "close")
    assert len(place.named("run")) == 1
    place.stop_relays()
    retire(place.rings, foreign, lock)

    place.train("relay", "5", "close")
    until(lambda: len(place.named("run")) == 3)
    (recovered,) = (run for run in place.named("run") if "grademl.recovered" in run["attributes"])
    assert recovered["attributes"]["grademl.ended"] == "killed"
    until(lambda: not list(place.rings.glob(f"{foreign}*")))
    # Never a ring of other settings: its destination may be another's.
    assert [path.name for path in place.rings.glob("*.ring")] == [f"{elsewhere}-0000000000000000.ring"]


def test_relay_that_leaves_removes_what_nobody_delivered_for_a_day(place: Workplace) -> None:
    place.train("relay", "5", "close")
    forgotten = place.rings / "0123456789abcdef-00.ring"
    forgotten.touch()
    os.utime(forgotten, (time.time() - 25 * 3600,) * 2)
    os.kill(place.attached_relay(), signal.SIGTERM)
    until(lambda: not forgotten.exists())


def test_dead_collector_delays_nobody_and_gets_all_later(place: Workplace) -> None:
    with http_receiver() as receiver:
        port = receiver.port
    place.environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    status, said, err = place.train("relay", "30", "close", "otlp")
    assert (status, said) == (0, {"delivered": True, "mode": "relay"})
    assert err.startswith(f"grademl: collector at http://127.0.0.1:{port}/v1/traces: traces are kept until")
    assert err.count("\n") == 1
    assert list((place.folder / "spool").glob("*/*.otlp"))
    place.stop_relays()

    with http_receiver(port) as receiver:
        receiver.answer = lambda signal: Answer(http=404 if signal == "metrics" else 200)
        assert place.train("relay", "30", "close", "otlp")[1]["delivered"]
        until(lambda: receiver.span_names.count("run") == 2)
        until(lambda: not list((place.folder / "spool").glob("*/*.otlp")))
        expected = Counter(receiver.span_ids)
    assert receiver.span_names.count("step") == 2 * receiver.span_names.count("forward") // 2
    assert set(expected.values()) <= {1, 2}  # both programs have the same run id, and so the same derived ids


def test_both_destinations_get_the_same(place: Workplace) -> None:
    with http_receiver() as receiver:
        place.environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }
        assert place.train("relay", "30", "close", "file,otlp")[1]["delivered"]
    assert sorted(receiver.span_names) == sorted(span["name"] for span in place.spans())


def test_without_a_relay_the_process_does_it_itself(place: Workplace) -> None:
    place.environ = {"PYTHONPATH": str(REPOSITORY)}
    status, said, err = place.train("in-process", "60", "close")

    assert (status, said, err) == (0, {"delivered": True, "mode": "in-process"}, "")
    check_whole_run(place, 60, "exit")
    assert place.relay_pids() == []
    assert leftovers(place) == []


_HUNG = """
import os, sys, time
from pathlib import Path
from grademl_otel.locks import elect
lock = elect(Path(sys.argv[1]), sys.argv[2])
print("held", flush=True)
time.sleep(600)
"""


def test_relay_that_hangs_is_given_up(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is held, nobody attends the ring: after 5 s the process converts its marks itself."""
    from grademl_otel.transport import open_transport

    environ = place.environment()
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    settings = Settings.from_env(environ)
    ring = RingWriter.create(settings)
    assert ring.path is not None
    holder = subprocess.Popen(
        [sys.executable, "-c", _HUNG, str(ring.path.parent), ring.digest],
        stdout=subprocess.PIPE,
        env=environ,
        text=True,
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        transport = open_transport(ring, settings, "relay")
        now = time.perf_counter_ns()
        transport.tick(now + 1_000_000_000)
        assert transport.mode == "relay"
        transport.tick(now + 6_000_000_000)
        assert transport.mode == "in-process"
        assert transport.close(5)
    finally:
        holder.kill()
        holder.communicate()


def test_one_relay_is_elected(place: Workplace, tmp_path: Path) -> None:
    environ = place.environment()
    place.rings.mkdir(parents=True)
    os.chmod(place.rings, 0o700)
    digest = "0123456789abcdef01234567"
    started = [ensure_relay(place.rings, digest, environ) for _ in range(4)]
    until(place.relay_pids)
    until(lambda: lock_path(place.rings, digest).exists())
    until(lambda: len(place.relay_pids()) == 1)

    assert started[0]
    until(lambda: not ensure_relay(place.rings, digest, environ))
    assert len(place.relay_pids()) == 1


def test_start_that_does_not_come_to_an_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the exit of a program there is little time."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(RelayUnavailable):
        ensure_relay(tmp_path, "0123456789abcdef01234567", {}, within_s=0.1)


def test_relay_that_is_not_elected_hands_its_ring_over(tmp_path: Path) -> None:
    digest = "0123456789abcdef01234567"
    elected = elect(tmp_path, digest)
    assert elected is not None
    given = os.open(tmp_path, os.O_RDONLY)
    late = threading.Thread(target=Relay(tmp_path, digest, Settings.from_env({}), {}, [given]).run)
    late.start()
    called = answer_at(wake_path(tmp_path, digest))
    assert called is not None
    (received,) = wait_for_call(called, 10)
    late.join(10)

    assert os.path.samestat(os.fstat(received), os.fstat(given))
    os.close(received)
    os.close(given)
    called.close()
    retire(tmp_path, digest, elected)


def test_relay_that_leaves_leaves_nothing(tmp_path: Path) -> None:
    digest = "0123456789abcdef01234567"
    first = elect(tmp_path, digest)
    assert first is not None
    assert elect(tmp_path, digest) is None
    retire(tmp_path, digest, first)
    assert list(tmp_path.iterdir()) == []
    second = elect(tmp_path, digest)
    assert second is not None
    retire(tmp_path, digest, second)


def test_environment_of_a_relay() -> None:
    auto = "/x/opentelemetry/instrumentation/auto_instrumentation"
    environ = relay_environment({"PYTHONPATH": f"{auto}:/mine:{auto}/", "OTEL_EXPORTER_OTLP_HEADERS": "a=b"})

    assert environ == {"PYTHONPATH": "/mine", "OTEL_EXPORTER_OTLP_HEADERS": "a=b", "GRADEML_RELAY": "1"}
    assert "PYTHONPATH" not in relay_environment({"PYTHONPATH": auto})


def test_settings_that_differ_have_relays_of_their_own() -> None:
    base = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1", "PATH": "/bin"}
    digest = destination_digest(base)

    assert (
        destination_digest({**base, "PATH": "/other", "OTEL_SERVICE_NAME": "x", "GRADEML_RUN_ID": "y"})
        == digest
    )
    for change in (
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://b:1"},
        {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=x"},
        {"GRADEML_SPOOL_DIR": "/s"},
        {"https_proxy": "http://p"},
        {"all_proxy": "http://p"},
        {"NETRC": "/n"},
    ):
        assert destination_digest({**base, **change}) != digest


def test_module_of_the_working_folder_is_not_imported_by_the_relay(place: Workplace) -> None:
    """A user's `queue.py` lies next to the script and in the relay's way."""
    bad = place.folder / "user"
    bad.mkdir()
    for name in ("queue", "logging", "socket"):
        (bad / f"{name}.py").write_text("raise SystemExit('imported a file of the user')\n")
    environ = place.environment()
    place.rings.mkdir(parents=True)
    os.chmod(place.rings, 0o700)
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom grademl_otel.relay.launch import ensure_relay\n"
        f"os.chdir({str(bad)!r})\n"
        f"ensure_relay(Path({str(place.rings)!r}), '0123456789abcdef01234567', os.environ)\n"
    )
    subprocess.run([sys.executable, "-c", script], env=environ, check=True, cwd=REPOSITORY)

    until(lambda: place.log.exists() and "serving" in place.log.read_text())
