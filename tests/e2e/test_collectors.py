# SPDX-License-Identifier: Apache-2.0
"""Trainings whose collector is in every mood: the exit is bounded, one line says it, and the books are exact.

Each training also keeps its telemetry in files, which say what was recorded; what is at the collector, in the
spool, and counted as lost must add up to that.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
import trustme
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from grademl_otel import semconv
from tests.support.deaths import Scene, as_root, in_private_mounts, ours, theirs
from tests.support.otlp_server import Answer, Receiver, grpc_receiver, http_receiver, spans_of
from tests.support.rawspans import read_lines
from tests.support.relays import until
from tests.support.training import ROOT

STEPS = 40
HANG_S = 30.0
"""An exit that takes longer waits for something that never comes."""
HTTP = "http/protobuf"
GRPC = "grpc"


@dataclass
class Mood:
    """A collector, and what becomes of the spans that are sent to it."""

    name: str
    protocol: str = HTTP
    answer: Callable[[str], Answer] = lambda signal: Answer()
    max_bytes: int = 4 << 20
    environ: dict[str, str] = field(default_factory=dict)
    scheme: str = "http"
    absent: bool = False
    says: str = ""
    """What our one line says; empty: there is none."""
    perhaps: bool = False
    """The collector may be back before the end of the training, and then there is none, too."""
    in_spool: bool = False
    """Everything lies in the spool in the end; else nothing does."""
    lost: str = "nothing"
    """Or `everything`, or `a span`."""

    @property
    def id(self) -> str:
        how = "in process" if "GRADEML_IN_PROCESS" in self.environ else "relay"
        return f"{self.name}, {self.protocol.partition('/')[0]}, {how}"


def answering(**answer: object) -> Callable[[str], Answer]:
    return lambda signal: Answer(**answer)  # type: ignore[arg-type]


def once(first: Callable[[], Answer]) -> Callable[[str], Answer]:
    """A collector that answers the first request in one way, and takes all others."""
    asked: list[str] = []

    def answer(signal: str) -> Answer:
        asked.append(signal)
        return first() if len(asked) == 1 else Answer()

    return answer


RELEASED = threading.Event()
"""Set when all is over, for the collectors that hang."""


def hangs(signal: str) -> Answer:
    RELEASED.wait(120)
    return Answer(http=503, grpc="UNAVAILABLE")


KEPT = "traces are kept until it takes them: "
SHORT = {"OTEL_EXPORTER_OTLP_TIMEOUT": "2"}
IN_PROCESS = {"GRADEML_IN_PROCESS": "1"}
HOMELESS = {"GRADEML_SPOOL_DIR": "", "XDG_STATE_HOME": "", "HOME": "/proc/nobody"}
BUSY = {"Retry-After": "60"}
MOODS = [
    Mood("takes all"),
    Mood("takes all", GRPC),
    Mood("takes all", environ=IN_PROCESS),
    Mood("absent", absent=True, says=KEPT + "no connection", in_spool=True),
    Mood("absent", GRPC, absent=True, says=KEPT + "no connection", in_spool=True),
    Mood("absent", absent=True, says=KEPT + "no connection", in_spool=True, environ=IN_PROCESS),
    Mood("absent", GRPC, absent=True, says=KEPT + "no connection", in_spool=True, environ=IN_PROCESS),
    Mood("absent, no home", absent=True, says="/tmp/grademl-", in_spool=True, environ=HOMELESS),
    Mood("hangs", answer=hangs, says=KEPT, environ=SHORT, in_spool=True),
    Mood("hangs", GRPC, answer=hangs, says=KEPT, environ=SHORT, in_spool=True),
    Mood("hangs", answer=hangs, says=KEPT, environ=SHORT | IN_PROCESS, in_spool=True),
    Mood("hangs", GRPC, answer=hangs, says=KEPT, environ=SHORT | IN_PROCESS, in_spool=True),
    Mood("bad request", answer=answering(http=400), says="are refused: HTTP 400", lost="everything"),
    Mood("bad request", GRPC, answer=answering(grpc="INVALID_ARGUMENT"), says="INVALID", lost="everything"),
    Mood("unauthorized", answer=answering(http=401), says=KEPT + "HTTP 401", in_spool=True),
    Mood("unauthorized", GRPC, answer=answering(grpc="UNAUTHENTICATED"), says=KEPT, in_spool=True),
    Mood("takes little at once", max_bytes=4000),
    Mood("takes little at once", GRPC, max_bytes=4000),
    Mood("is busy", answer=answering(http=429, headers=BUSY), says=KEPT + "HTTP 429", in_spool=True),
    Mood(
        "is busy until a date",
        answer=lambda signal: Answer(http=503, headers={"Retry-After": formatdate(time.time() + 60)}),
        says=KEPT + "HTTP 503",
        in_spool=True,
    ),
    Mood("is busy", GRPC, answer=answering(grpc="UNAVAILABLE", retry_s=60), says=KEPT, in_spool=True),
    Mood("is away for a moment", answer=once(lambda: Answer(http=503)), says=KEPT, perhaps=True),
    Mood(
        "is away for a moment", GRPC, answer=once(lambda: Answer(grpc="UNAVAILABLE")), says=KEPT, perhaps=True
    ),
    Mood("resets a connection", answer=once(lambda: Answer(reset=True)), says=KEPT, perhaps=True),
    Mood(
        "takes a part",
        answer=once(lambda: Answer(rejected=1)),
        says="traces are rejected in part: no more room for those; 1 spans are lost",
        lost="a span",
    ),
    Mood("is not trusted", scheme="https", says=KEPT + "TLS failed", in_spool=True),
    Mood("is not trusted", GRPC, scheme="https", says=KEPT, in_spool=True),
    Mood("is not trusted", GRPC, scheme="https", says=KEPT, in_spool=True, environ=IN_PROCESS),
    Mood("redirects", answer=answering(http=307), says="a redirect, which is not", lost="everything"),
    Mood("answers rubbish", answer=answering(raw=b"\0 rubbish\r\n\r\n", http=418), says=KEPT, in_spool=True),
]


@dataclass
class Outcome:
    """What came of one training; spans by their ids."""

    code: int
    err: str
    recorded: list[str]
    arrived: list[str]
    spooled: list[str]
    unsent: dict[str, int]

    @property
    def lost(self) -> int:
        return self.unsent.get("dropped", 0) + self.unsent.get("refused", 0)


def spooled(scene: Scene) -> list[str]:
    requests = [ExportTraceServiceRequest.FromString(body) for body in spooled_requests(scene)]
    return [span.span_id.hex() for request in requests for span in spans_of(request)]


def spooled_requests(scene: Scene, signal: str = "traces") -> list[bytes]:
    """Bodies of the requests in the spool, the oldest first."""
    folders = (scene.folder / "spool", *(scene.folder / "tmp").glob("grademl-*/spool"))
    paths = [path for folder in folders for path in folder.glob(f"otlp-*/*-{signal}-*.otlp")]
    found = []
    for path in sorted(paths, key=lambda path: path.name):
        with suppress(FileNotFoundError):  # sent meanwhile
            found.append(path.read_bytes()[4:])
    return found


def last_metrics(store: Path) -> dict[str, list[dict[str, Any]]]:
    """Points of each metric of the run itself, in the last line of the file store that has any."""
    (path,) = store.glob("*/metrics.jsonl")
    lines = [line for line in path.read_bytes().split(b"\n")[:-1] if semconv.METRIC_STEPS.encode() in line]
    metrics = json.loads(lines[-1])["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    data = {each["name"]: each.get("sum") or each.get("gauge") or each["histogram"] for each in metrics}
    return {name: each["dataPoints"] for name, each in data.items()}


def unsent(store: Path) -> dict[str, int]:
    points = last_metrics(store).get("grademl.tracer.unsent", [])
    return {point["attributes"][0]["value"]["stringValue"]: int(point["asInt"]) for point in points}


def scene_of(folder: Path, port: int, mood: Mood) -> Scene:
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    settings = {
        "GRADEML_EXPORTER": "file,otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"{mood.scheme}://user:pass-word@127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": mood.protocol,
        "TMPDIR": str(folder / "tmp"),
        "GRADEML_EXIT_WAIT": "20",  # on a busy machine a relay takes its time to start; nothing else does
        **mood.environ,
    }
    return Scene(folder, settings)


def receiver_of(mood: Mood, port: int = 0) -> AbstractContextManager[Receiver]:
    if mood.protocol == GRPC and mood.scheme == "http":
        return grpc_receiver(port=port, max_bytes=mood.max_bytes)
    return http_receiver(port, untrusted() if mood.scheme == "https" else None)


def untrusted() -> ssl.SSLContext:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(tls)
    return tls


def train(scene: Scene) -> tuple[int, str]:
    """Train to the end, and return exit code and stderr."""
    program = scene.start("return", STEPS)
    try:
        _, err = program.communicate(timeout=HANG_S)
    except subprocess.TimeoutExpired:
        program.kill()
        raise
    return program.returncode, err


def observe(mood: Mood, folder: Path) -> Outcome:
    """Train with a collector in this mood, until everything has found its place."""
    with receiver_of(mood) as receiver:
        receiver.answer, receiver.max_bytes = mood.answer, mood.max_bytes
        scene = scene_of(folder, free_port() if mood.absent else receiver.port, mood)
        try:
            code, err = train(scene)
            if "GRADEML_IN_PROCESS" not in mood.environ:
                until(lambda: scene.says("finished "))
            if not mood.in_spool:
                until(lambda: not spooled(scene))
            recorded = [span.span_id for span in scene.spans()]
            arrived = [span_id.hex() for span_id in receiver.span_ids]
            return Outcome(code, err, recorded, arrived, spooled(scene), unsent(scene.store))
        finally:
            scene.clear()


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Outcome]]]:
    """All moods at once, a few at a time: most of the time is spent waiting."""
    with ThreadPoolExecutor(4) as pool:
        yield {mood.id: pool.submit(observe, mood, tmp_path_factory.mktemp("mood")) for mood in MOODS}
        RELEASED.set()


@pytest.mark.parametrize("mood", MOODS, ids=lambda mood: mood.id)
def test_moods(mood: Mood, outcomes: dict[str, Future[Outcome]]) -> None:
    outcome = outcomes[mood.id].result()

    assert outcome.code == 0
    assert theirs(outcome.err) == ""
    lines = ours(outcome.err)
    assert len(lines) == (1 if mood.says else 0) or (mood.perhaps and not lines), lines
    assert "pass-word" not in outcome.err
    for line in lines:
        assert mood.says in line
        assert "collector at " in line
        assert "127.0.0.1:" in line
    assert len(set(outcome.recorded)) == len(outcome.recorded) > STEPS
    assert len(set(outcome.arrived)) == len(outcome.arrived)
    assert len(set(outcome.spooled)) == len(outcome.spooled)
    assert not set(outcome.arrived) & set(outcome.spooled)
    assert set(outcome.arrived) | set(outcome.spooled) <= set(outcome.recorded)
    assert len(outcome.arrived) + len(outcome.spooled) + outcome.lost == len(outcome.recorded)
    expected = {"nothing": 0, "a span": 1, "everything": len(outcome.recorded)}
    assert outcome.lost == expected[mood.lost]
    assert bool(outcome.spooled) == mood.in_spool
    assert outcome.unsent.get("spooled", 0) >= len(outcome.spooled)


# --- Coming back ------------------------------------------------------------------------------------------


@pytest.fixture
def away(tmp_path: Path) -> Iterator[Scene]:
    """A training whose collector was away; its relay still lives, kept by another that has not begun yet."""
    scene = scene_of(tmp_path, free_port(), Mood("away"))
    keeper = subprocess.Popen(
        [sys.executable, "-m", "tests.support.ring_program", "relay", "0", "wait", "otlp"],
        env=scene.environ,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    try:
        assert train(scene)[0] == 0
        until(lambda: scene.says("finished "))
        yield scene
    finally:
        keeper.kill()
        keeper.communicate()
        scene.clear()


def port_of(scene: Scene) -> int:
    return int(scene.settings["OTEL_EXPORTER_OTLP_ENDPOINT"].rpartition(":")[2])


def bodies(receiver: Receiver) -> list[bytes]:
    return [request.SerializeToString(deterministic=True) for request in receiver.traces]


def rewritten(requests: list[bytes]) -> list[bytes]:
    """Requests as `bodies` writes them."""
    parsed = (ExportTraceServiceRequest.FromString(body) for body in requests)
    return [request.SerializeToString(deterministic=True) for request in parsed]


def test_same_relay_resends_once(away: Scene) -> None:
    kept = spooled_requests(away)
    assert len(kept) >= 3  # detail, windows and the run travel apart
    with http_receiver(port_of(away)) as receiver:
        until(lambda: not spooled_requests(away) and not spooled_requests(away, "metrics"))
    assert sorted(bodies(receiver)) == sorted(rewritten(kept))
    assert receiver.metrics  # the last ones, which hold all others


def test_relay_of_the_next_run_resends(away: Scene) -> None:
    first = {span.span_id for span in away.spans()}
    kept = rewritten(spooled_requests(away))
    away.kill_relay()
    with http_receiver(port_of(away)) as receiver:
        code, err = train(away)
        assert (code, ours(err)) == (0, [])
        until(lambda: not spooled_requests(away))
    assert sorted(body for body in bodies(receiver) if body in kept) == sorted(kept)
    assert len(receiver.span_ids) == len(set(receiver.span_ids))
    assert {span_id.hex() for span_id in receiver.span_ids} == {span.span_id for span in away.spans()} > first


def test_verdict_that_comes_late_is_heard(tmp_path: Path) -> None:
    """The collector answers nothing before the training is over: it would hang if it waited."""
    over = threading.Event()

    def late(signal: str) -> Answer:
        assert over.wait(60)
        return Answer()

    with http_receiver() as receiver:
        receiver.answer = late
        scene = scene_of(tmp_path, receiver.port, Mood("late", environ={"OTEL_EXPORTER_OTLP_TIMEOUT": "60"}))
        try:
            code, _ = train(scene)
            assert code == 0
            until(lambda: scene.says("finished "))
            recorded = [span.span_id for span in scene.spans()]
            assert sorted(spooled(scene)) == sorted(recorded)
            over.set()
            until(lambda: not spooled(scene))
        finally:
            over.set()
            scene.clear()
    assert sorted(span_id.hex() for span_id in receiver.span_ids) == sorted(recorded)
    assert unsent(scene.store) == {"spooled": len(recorded)}


def test_what_is_sent_again_because_no_verdict_was_heard_is_the_same_to_the_byte(tmp_path: Path) -> None:
    with http_receiver() as receiver:
        receiver.answer = once(
            lambda: Answer(late_s=3.0)
        )  # it takes the request; nobody waits for the answer
        mood = Mood("unheard", environ={"OTEL_EXPORTER_OTLP_TIMEOUT": "0.5", "OTEL_METRICS_EXPORTER": "none"})
        scene = scene_of(tmp_path, receiver.port, mood)
        try:
            code, _ = train(scene)
            assert code == 0
            until(lambda: scene.says("finished "))
            until(lambda: not spooled(scene))
            recorded = {span.span_id for span in scene.spans()}
        finally:
            scene.clear()
    times = Counter(bodies(receiver))
    assert sorted(times.values()) == [*[1] * (len(times) - 1), 2]
    assert {span_id.hex() for span_id in receiver.span_ids} == recorded


def test_relay_that_is_killed_while_it_resends_repeats_one_request_at_most(away: Scene) -> None:
    recorded = {span.span_id for span in away.spans()}
    kept = rewritten(spooled_requests(away))
    with http_receiver(port_of(away)) as receiver:
        held = threading.Event()

        def hold_the_second(signal: str) -> Answer:
            if signal == "traces" and len(receiver.traces) == 1:
                held.wait(30)
            return Answer()

        receiver.answer = hold_the_second
        until(lambda: [path for path, _ in receiver.attempts].count("/v1/traces") == 2)
        for pid in away.relays():
            os.kill(pid, signal.SIGKILL)
        held.set()  # it takes the second; nobody is there to hear it
        assert train(away)[0] == 0
        until(lambda: not spooled_requests(away))
    times = Counter(body for body in bodies(receiver) if body in kept)
    assert set(times) == set(kept)
    assert sum(times.values()) <= len(kept) + 1
    assert recorded < {span_id.hex() for span_id in receiver.span_ids}


def test_collector_that_is_away_in_the_middle_of_a_run(tmp_path: Path) -> None:
    mood = Mood("comes and goes")
    port = free_port()
    scene = scene_of(tmp_path, port, mood)
    program = scene.start("wait", 0)
    try:
        with http_receiver(port) as first:
            until(lambda: first.traces)
        until(lambda: spooled(scene))
        with http_receiver(port) as second:
            until(lambda: second.traces and not spooled(scene))
            code, err = scene.stop(program)
            until(lambda: scene.says("finished ") and not spooled(scene))
    finally:
        program.kill()
        scene.clear()
    assert (code, ours(err)) == (0, [])
    arrived = [span_id.hex() for span_id in first.span_ids + second.span_ids]
    assert sorted(arrived) == sorted(span.span_id for span in scene.spans())


# --- A spool without room ---------------------------------------------------------------------------------


def test_full_disk_under_the_spool_is_counted_and_said(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    mount = f"mount -t tmpfs -o size=40k none {place}"
    mood = Mood("absent", environ={"GRADEML_SPOOL_DIR": str(place / "spool"), "TMPDIR": str(place)})
    scene = scene_of(tmp_path, free_port(), mood)
    scene.prefix = in_private_mounts(mount)
    program = scene.start("return", 1200)
    try:
        _, err = program.communicate(timeout=60)
        until(lambda: scene.says("finished "))
        (relay,) = scene.relays()
        paths = Path(f"/proc/{relay}/root{place}").rglob("*-traces-*.otlp")
        kept = [ExportTraceServiceRequest.FromString(path.read_bytes()[4:]) for path in paths]
    finally:
        scene.clear()
    spans = [span for request in kept for span in spans_of(request)]
    recorded = [span.span_id for span in scene.spans()]
    counts = unsent(scene.store)
    assert program.returncode == 0
    assert 0 < len(spans) < len(recorded)
    assert len(spans) + counts["dropped"] == len(recorded)
    assert "run" in {span.name for span in spans}
    (line,) = ours(err)
    assert "traces are dropped: no connection" in line
    assert line.endswith(f"{counts['dropped']:,} spans are lost")


def test_store_that_cannot_be_written_is_one_line_at_the_start(tmp_path: Path) -> None:
    """In a folder that is read-only, with nothing configured: nothing is recorded, the training goes on."""
    place = tmp_path / "read-only"
    place.mkdir()
    scene = Scene(tmp_path / "scene", {"GRADEML_STORE": "", "GRADEML_EXPORTER": "file"})
    scene.prefix = in_private_mounts(
        f"mount -t tmpfs none {place}", f"mount -o remount,ro {place}", f"cd {place}"
    )
    code, err = train(scene)
    assert (code, scene.done) == (0, STEPS)
    (line,) = err.splitlines()
    assert line.startswith(f"grademl: nothing is recorded: {place}/grademl-runs: expected a folder that can")
    assert scene.relays() == []


def test_file_store_goes_on_when_a_full_disk_has_room_again(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    scene = Scene(tmp_path, {"GRADEML_STORE": str(place / "runs"), "OTEL_METRIC_EXPORT_INTERVAL": "250"})
    scene.prefix = in_private_mounts(f"mount -t tmpfs -o size=160k none {place}")
    program = scene.start("wait", 0)
    try:
        until(lambda: scene.relays())
        (relay,) = scene.relays()
        inside = Path(f"/proc/{relay}/root{place}")
        until(lambda: nearly_full(inside))
        time.sleep(1)  # some of what comes now has no place
        enter = [*as_root(), "nsenter", f"--target={relay}", "--mount"]
        subprocess.run([*enter, "mount", "-o", "remount,size=64m", str(place)], check=True)
        before = lost_in(inside)
        until(lambda: lost_in(inside) > before)  # a metric has arrived again
        code, err = scene.stop(program)
        until(lambda: scene.says("finished "))
        (traces,) = inside.glob("runs/*/traces.jsonl")
        spans = read_lines(traces)
        lost = unsent(inside / "runs")["dropped"]
    finally:
        program.kill()
        scene.clear()
    assert code == 0
    (run,) = (span for span in spans if span.name == "run")
    assert len(spans) + lost == run["grademl.spans.emitted"]
    assert run["grademl.tracer.unsent"] == lost > 0
    (line,) = ours(err)
    assert f"traces.jsonl: 0 MiB are left of the disk, which are for the program; {lost:,} spans" in line


def nearly_full(place: Path) -> bool:
    """Whether a disk has little more than what is left to the program."""
    status = os.statvfs(place)
    return status.f_bavail * 10 < status.f_blocks


def lost_in(place: Path) -> int:
    """How many spans the last line of metrics says are lost."""
    return unsent(place / "runs").get("dropped", 0)
