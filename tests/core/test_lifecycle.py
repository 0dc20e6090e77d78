# SPDX-License-Identifier: Apache-2.0
"""When a run starts, what it says of itself, how it ends, and what a fork makes of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import grademl_otel
from grademl_otel import marks, semconv
from grademl_otel.config import Settings
from grademl_otel.destination import Destination
from grademl_otel.identity import Place
from grademl_otel.lifecycle import IDLE_NS, Session
from grademl_otel.loops import LoaderFacts
from grademl_otel.marks import RunInfo
from grademl_otel.recorder import Recorder
from tests.support import training
from tests.support.listwriter import ListTransport, ListWriter

RUN_ID = "0123456789abcdef0123456789abcdef"
SAVE = marks.phase_kind(semconv.CHECKPOINT_SAVE)


class Opened:
    """What the session asked for when it opened its ring."""

    def __init__(self) -> None:
        self.writer = ListWriter()
        self.transport = ListTransport()
        self.calls: list[tuple[Settings, Destination, Any]] = []

    def __call__(self, settings: Settings, destination: Destination, provider: Any) -> tuple[ListWriter, Any]:
        self.calls.append((settings, destination, provider))
        return self.writer, self.transport

    @property
    def info(self) -> RunInfo:
        (mark,) = self.writer.of_kind(marks.RUN_INFO)
        return RunInfo.from_json(self.writer.strings[mark.x])


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("OTEL_", "GRADEML_", "SLURM_", "RANK", "WORLD_SIZE", "TORCHELASTIC")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GRADEML_EXPORTER", "file")


@pytest.fixture
def opened() -> Opened:
    return Opened()


@pytest.fixture
def session(opened: Opened) -> Iterator[Session]:
    session = Session(opened)
    assert session.install()
    yield session
    session.uninstall()


def test_a_run_starts_once_at_the_first_event(session: Session, opened: Opened) -> None:
    assert session.recorder is None
    recorder = session.begin(training=False)
    assert recorder is not None
    assert session.begin(training=True) is recorder
    assert len(opened.calls) == 1
    (scope,) = opened.writer.of_kind(marks.SCOPE_OPEN)
    assert marks.SCOPES[scope.y] == semconv.RUN
    assert scope.t0 == session.loaded_at


def test_what_a_run_says_of_itself(
    session: Session, opened: Opened, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRADEML_RUN_ID", RUN_ID)
    session.framework = ("torch", "2.0")
    session.begin(training=True)
    info = opened.info
    assert (info.run_id, info.attempt, info.rank, info.local_rank, info.world_size) == (RUN_ID, 0, 0, 0, 1)
    assert info.exporters == ("file",)
    assert Path(info.store).is_absolute()
    assert (info.traces, info.metrics) == (True, True)
    resource = info.resource
    assert resource[semconv.RUN_ID] == RUN_ID
    assert resource[semconv.FRAMEWORK_NAME] == "torch"
    assert resource["process.pid"] == os.getpid()
    assert resource["host.name"]
    assert resource["service.name"]
    for key in (semconv.ATTEMPT, semconv.RANK, semconv.LOCAL_RANK, semconv.WORLD_SIZE):
        assert type(resource[key]) is int
    line = capsys.readouterr().err
    assert line == f"grademl: recording run {RUN_ID} to ./grademl-runs; report: grademl\n"


@pytest.mark.parametrize(("store", "source"), [("other runs", "'./other runs'"), ("/srv/runs", "/srv/runs")])
def test_the_report_on_another_store_is_named_with_it(
    store: str,
    source: str,
    session: Session,
    opened: Opened,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GRADEML_STORE", store)
    session.begin(training=True)
    assert capsys.readouterr().err.endswith(f"; report: grademl {source}\n")


def test_a_rank_of_a_job(
    session: Session, opened: Opened, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GRADEML_RUN_ID", RUN_ID)
    assert session.begin(training=True) is not None
    assert (opened.info.rank, opened.info.world_size) == (1, 2)
    assert capsys.readouterr().err == ""  # only rank 0 speaks


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_SDK_DISABLED", "true"),
        ("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "grademl_torch"),
        ("GRADEML_EXPORTER", "none"),
        ("GRADEML_RELAY", "1"),
    ],
)
def test_nothing_is_installed_against_the_users_will(
    name: str, value: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    session = Session(opened)
    assert not session.install()
    assert session.begin(training=True) is None
    assert opened.calls == []


def test_no_traces_and_no_metrics_is_no_run(
    session: Session, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    assert session.begin(training=True) is None
    assert session.begin(training=True) is None
    assert opened.calls == []


def test_a_loader_worker_never_has_a_run(session: Session, opened: Opened) -> None:
    session.in_worker = True
    assert session.begin(training=True) is None
    session.early(SAVE, 1, 2, 3)
    assert opened.calls == []


def test_a_ring_that_cannot_be_opened_costs_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: Any) -> Any:
        raise OSError("no space")

    session = Session(fail)
    session.install()
    assert session.begin(training=True) is None
    assert session.begin(training=True) is None
    assert capsys.readouterr().err == "grademl: nothing is recorded: OSError: no space\n"


def test_a_checkpoint_loaded_before_the_run_is_part_of_it(session: Session, opened: Opened) -> None:
    session.early(SAVE, 100, 200, 4096)
    session.begin(training=True)
    (save,) = opened.writer.phases(semconv.CHECKPOINT_SAVE)
    assert (save.t0, save.t1, save.row, save.y) == (100, 200, 0, 4096)


def test_an_orderly_end(session: Session, opened: Opened) -> None:
    session.device = lambda: "cpu"
    session.begin(training=True)
    session.end()
    session.end()
    assert session.recorder is None
    (close,) = opened.writer.of_kind(marks.SCOPE_CLOSE)
    assert opened.writer.marks[-1] is close
    assert (close.x, close.z) == (0, 0)
    assert opened.transport.closed
    (text,) = opened.writer.of_kind(marks.SCOPE_TEXT)
    assert [opened.writer.strings[text.x], opened.writer.strings[text.y]] == [semconv.DEVICE, "cpu"]


def test_the_next_event_after_the_end_starts_another_run(session: Session, opened: Opened) -> None:
    first = session.begin(training=True)
    session.end()
    now = time.perf_counter_ns()
    session.early(SAVE, now, now, 0)  # it followed the first run, and is no part of the second
    second = session.begin(training=False, at=now)
    assert second is not None
    assert second is not first
    infos = [RunInfo.from_json(opened.writer.strings[m.x]) for m in opened.writer.of_kind(marks.RUN_INFO)]
    assert infos[0].run_id != infos[1].run_id
    starts = [mark.t0 for mark in opened.writer.of_kind(marks.SCOPE_OPEN)]
    assert starts == [session.loaded_at, now]
    assert not opened.writer.phases(semconv.CHECKPOINT_SAVE)
    session.exit()
    assert session.begin(training=True) is None  # the program is at its end


def test_others_are_told_of_each_run(
    session: Session, opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[Any] = []

    def fail(*_: Any) -> None:
        raise ValueError("odd")

    session.on_start(fail)
    first = session.begin(training=True)
    take_back = session.on_start(lambda recorder, info: told.append((recorder, info)))
    session.on_end(lambda: told.append(session.recorder))
    assert told == [(first, opened.info)]  # late, so at once
    session.end()
    assert told[1:] == [first]  # told while it still writes
    take_back()
    take_back()
    session.begin(training=True)
    assert len(told) == 2
    assert capsys.readouterr().err.count("fail is skipped: ValueError: odd") == 2


def step(recorder: Recorder, at: int) -> None:
    """One training step of a loop without a loader."""
    machine = recorder.here()
    machine.begin_backward(at)
    machine.end_backward(at, at + 1)
    machine.pause()


def test_ten_idle_minutes_end_a_run_at_its_last_event(session: Session, opened: Opened) -> None:
    now = time.perf_counter_ns()
    first = session.begin(training=True, at=now)
    assert first is not None
    assert session.begin(training=True, at=now + 2 * IDLE_NS) is first  # nothing has happened in it yet
    step(first, now)
    assert session.begin(training=True, at=now + IDLE_NS) is first
    late = now + IDLE_NS + 2
    second = session.begin(training=True, at=late)
    assert second is not first
    (close,) = opened.writer.of_kind(marks.SCOPE_CLOSE)
    assert (close.t1, close.x) == (now + 1, 0)
    assert opened.writer.of_kind(marks.SCOPE_OPEN)[-1].t0 == late


def test_a_live_loop_is_never_idle(session: Session, opened: Opened) -> None:
    now = time.perf_counter_ns()
    recorder = session.begin(training=True, at=now)
    assert recorder is not None
    machine = recorder.here()
    pass_ = machine.iterator_made(LoaderFacts(0), now)
    machine.begin_wait(pass_, now)
    machine.end_wait(pass_, now, now + 1, 4)
    step(recorder, now + 2)
    assert session.begin(training=True, at=now + 3 * IDLE_NS) is recorder
    machine.release(pass_, now + 3)  # the loop was left by a break, and its iterator is gone
    assert session.begin(training=True, at=now + 3 * IDLE_NS) is not recorder


def test_an_idle_program_ended_with_its_last_event(session: Session, opened: Opened) -> None:
    long_ago = time.perf_counter_ns() - 2 * IDLE_NS
    recorder = session.begin(training=True, at=long_ago)
    assert recorder is not None
    step(recorder, long_ago)
    session.exit()
    (close,) = opened.writer.of_kind(marks.SCOPE_CLOSE)
    assert close.t1 == long_ago + 1


# --- Ranks that train before their process group exists ---------------------------------------------------


@pytest.fixture
def rank(session: Session, monkeypatch: pytest.MonkeyPatch) -> Session:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    return session


def infos(opened: Opened) -> list[tuple[bool, RunInfo]]:
    """Whether each RUN_INFO is firm, and what it says."""
    found = opened.writer.of_kind(marks.RUN_INFO)
    return [(mark.y != marks.PROVISIONAL, RunInfo.from_json(opened.writer.strings[mark.x])) for mark in found]


def group_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grademl_otel.agreement.group_exists", lambda: True)
    place = Place(1, 1, 2, 0)
    monkeypatch.setattr("grademl_otel.agreement.agree", lambda *_: (RUN_ID, place))


def test_a_run_is_named_when_the_group_exists(
    rank: Session, opened: Opened, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[RunInfo] = []
    rank.on_start(lambda recorder, info: told.append(info))
    recorder = rank.begin(training=True)
    assert recorder is not None
    step(recorder, time.perf_counter_ns())
    assert ([firm for firm, _ in infos(opened)], told) == ([False], [])
    group_comes(monkeypatch)
    rank.look_around()
    rank.look_around()
    assert [firm for firm, _ in infos(opened)] == [False, True]
    assert (told[0].run_id, told[0].rank, told[0].world_size) == (RUN_ID, 1, 2)
    assert rank.begin(training=True) is recorder  # one run, its first steps included
    assert capsys.readouterr().err == ""


def test_a_rank_whose_group_never_comes_is_alone(
    rank: Session, opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rank.begin(training=True) is not None
    rank.end()
    (_, first), (firm, last) = infos(opened)
    assert firm
    assert (last.run_id, last.rank, last.world_size) == (first.run_id, 0, 1)
    assert last.resource["grademl.job.rank"] == 1
    assert capsys.readouterr().err.count(last.run_id) == 1


def test_a_group_that_comes_very_late_begins_the_jobs_run(
    rank: Session, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = rank.begin(training=True)
    assert alone is not None
    for number in range(300):
        step(alone, time.perf_counter_ns() + number)
    rank.look_around()
    assert [firm for firm, _ in infos(opened)] == [False, True]
    group_comes(monkeypatch)
    rank.look_around()
    job = rank.begin(training=True, at=time.perf_counter_ns())
    assert job is not alone
    assert infos(opened)[-1][1].run_id == RUN_ID


# --- Blocks -----------------------------------------------------------------------------------------------


@pytest.fixture
def blocks(session: Session, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr("grademl_otel.lifecycle.session", session)
    return session


def names(opened: Opened) -> list[tuple[int, str]]:
    """(serial of the scope, the user's name for it)."""
    strings = opened.writer.strings
    texts = opened.writer.of_kind(marks.SCOPE_TEXT)
    return [(mark.row, strings[mark.y]) for mark in texts if strings[mark.x] == semconv.RUN_NAME]


def train(session: Session) -> None:
    at = time.perf_counter_ns()
    recorder = session.begin(training=True, at=at)
    assert recorder is not None
    step(recorder, at)


def test_a_block_is_a_run(blocks: Session, opened: Opened) -> None:
    train(blocks)
    before = time.perf_counter_ns()
    with grademl_otel.run(name="first"):
        assert blocks.recorder is None  # what was active has ended
        train(blocks)
    assert blocks.recorder is None
    with grademl_otel.run("second"):
        pass  # nothing happens: no run
    runs = [mark for mark in opened.writer.of_kind(marks.SCOPE_OPEN) if mark.y == 0]
    assert len(runs) == 2
    assert before <= runs[1].t0 < opened.writer.rows[-1].t0  # it begins with the block
    assert names(opened) == [(1, "first")]


def test_what_is_made_ready_before_a_block_is_part_of_its_run(blocks: Session, opened: Opened) -> None:
    prepared = blocks.begin(training=False)
    with grademl_otel.run("only"):
        train(blocks)
        assert blocks.recorder is prepared
    assert names(opened) == [(1, "only")]


def test_a_block_in_a_block_is_a_trial(blocks: Session, opened: Opened) -> None:
    with grademl_otel.run("sweep"):
        for number in range(2):
            with suppress(ValueError), grademl_otel.run(f"trial {number}"):
                train(blocks)
                if number:
                    raise ValueError
                with grademl_otel.run():
                    train(blocks)
    opens = [(marks.SCOPES[mark.y], mark.row, mark.x) for mark in opened.writer.of_kind(marks.SCOPE_OPEN)]
    assert opens == [(semconv.RUN, 1, 0), *((semconv.TRIAL, *each) for each in ((2, 1), (3, 2), (4, 1)))]
    closes = [(mark.row, opened.writer.strings[mark.z]) for mark in opened.writer.of_kind(marks.SCOPE_CLOSE)]
    assert closes == [(3, ""), (2, ""), (4, "ValueError"), (1, "")]
    assert [mark.x for mark in opened.writer.rows] == [0, 1, 2]
    assert sorted(names(opened)) == [(1, "sweep"), (2, "trial 0"), (4, "trial 1")]


def test_an_exception_leaves_a_block_as_it_is(blocks: Session, opened: Opened) -> None:
    error = KeyError("x")

    @grademl_otel.run("wrapped")
    def work(value: int) -> int:
        train(blocks)
        if value:
            raise error
        return 7

    assert work(0) == 7
    with pytest.raises(KeyError) as caught:
        work(1)
    assert caught.value is error
    closes = [(mark.x, opened.writer.strings[mark.z]) for mark in opened.writer.of_kind(marks.SCOPE_CLOSE)]
    assert closes == [(0, ""), (1, "KeyError")]


def test_async_blocks(blocks: Session, opened: Opened) -> None:
    @grademl_otel.run("decorated")
    async def work() -> int:
        await asyncio.sleep(0)
        train(blocks)
        return 7

    async def main() -> int:
        async with grademl_otel.run("block"):
            train(blocks)
        return await work()

    assert asyncio.run(main()) == 7
    assert [name for _, name in names(opened)] == ["block", "decorated"]


def test_a_block_where_nothing_is_installed(blocks: Session, opened: Opened) -> None:
    blocks.uninstall()
    with grademl_otel.run("nothing"):
        assert blocks.begin(training=True) is None
    assert opened.calls == []


def test_a_block_that_cannot_be_recorded_costs_a_line(
    blocks: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("odd")

    monkeypatch.setattr(blocks, "on_start", fail)
    with grademl_otel.run("odd"):
        pass
    assert capsys.readouterr().err == "grademl: a block is no run of its own: RuntimeError: odd\n"


def test_the_end_by_an_exception(session: Session, opened: Opened) -> None:
    shown: list[str] = []
    before = sys.excepthook
    sys.excepthook = lambda kind, error, traceback: shown.append(str(error))
    try:
        session.begin(training=True)
        error = ValueError("diverged")
        sys.excepthook(ValueError, error, None)
        session.end()
        assert shown == ["diverged"]
        (close,) = opened.writer.of_kind(marks.SCOPE_CLOSE)
        assert close.x == 1
        assert opened.writer.strings[close.z] == "ValueError"
        session.uninstall()
        sys.excepthook(ValueError, error, None)
        assert shown == ["diverged", "diverged"]
    finally:
        sys.excepthook = before


def test_a_second_run_does_not_chain_the_excepthook_to_itself(session: Session, opened: Opened) -> None:
    shown: list[str] = []
    before = sys.excepthook
    sys.excepthook = lambda kind, error, traceback: shown.append(str(error))
    try:
        session.begin(training=True)
        session.after_fork()
        session.begin(training=True)
        ours = sys.excepthook
        sys.excepthook = lambda *error: ours(*error)  # a hook of the user's, which goes on to ours
        session.after_fork()
        session.begin(training=True)
        sys.excepthook(ValueError, ValueError("diverged"), None)
        assert shown == ["diverged"]
    finally:
        sys.excepthook = before


def test_a_device_is_told_as_soon_as_steps_are_done(session: Session, opened: Opened) -> None:
    session.device = lambda: "cpu"
    recorder = session.begin(training=True)
    assert recorder is not None
    machine = recorder.here()
    now = time.perf_counter_ns()
    machine.begin_backward(now)
    machine.end_backward(now, now + 1)
    machine.finish()
    assert opened.writer.of_kind(marks.SCOPE_TEXT)
    assert opened.transport.ticks


def test_a_users_own_provider_is_told_from_the_configurators(
    session: Session, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRADEML_EXPORTER")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    provider = TracerProvider(resource=Resource({"service.name": "mine", "k": (1, 2)}))
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)
    session.note_provider(provider)
    assert session._provider_in_place() == (provider, False)
    provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    assert session._provider_in_place() == (provider, True)
    session.begin(training=True)
    (_, destination, taken) = opened.calls[0]
    assert destination.through_provider
    assert taken is provider
    assert opened.info.resource["service.name"] == "mine"
    assert opened.info.resource["k"] == [1, 2]


def test_threads_that_begin_together_make_one_run_and_all_are_in_it(
    session: Session, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = session._start

    def slow_start(*args: Any) -> Any:
        time.sleep(0.1)
        return start(*args)

    monkeypatch.setattr(session, "_start", slow_start)
    barrier = threading.Barrier(8)
    got = []

    def begin() -> None:
        barrier.wait()
        got.append(session.begin(training=True))

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened.calls) == 1
    assert session.recorder is not None
    assert got == [session.recorder] * 8


def test_what_trains_while_a_run_is_ended_is_in_another_run(
    session: Session, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.begin(training=True)
    before, info = opened.writer, opened.info

    def delivered(wait_s: float) -> bool:
        opened.writer, opened.transport = ListWriter(), ListTransport()
        thread = threading.Thread(target=session.begin, args=(True,))
        thread.start()
        thread.join()
        return True

    monkeypatch.setattr(opened.transport, "close", delivered)
    session.end()
    assert session.recorder is not None
    assert opened.info.run_id != info.run_id
    assert not opened.transport.closed
    assert before.of_kind(marks.SCOPE_CLOSE)
    assert not opened.writer.of_kind(marks.SCOPE_CLOSE)


def test_an_event_inside_the_start_does_not_start_another(
    session: Session, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, inside = session._start, []

    def interrupted_start(*args: Any) -> Any:  # as by a signal handler that trains
        inside.append(session.begin(training=True))
        return start(*args)

    monkeypatch.setattr(session, "_start", interrupted_start)
    assert session.begin(training=True) is not None
    assert inside == [None]
    assert len(opened.calls) == 1


def _in_child(check: Callable[[], bool]) -> int:
    """Fork, run ``check`` in the child, and return 0 when it was true."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if check() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_a_run_only_when_it_trains(session: Session, opened: Opened) -> None:
    recorder = session.begin(training=True)
    written = len(opened.writer.marks)

    def check() -> bool:
        session.after_fork()
        silent = session.recorder is None and opened.transport.abandoned
        session.early(SAVE, 1, 2, 3)
        none = session.begin(training=False) is None
        own = session.begin(training=True)
        return silent and none and own is not None and own is not recorder and len(opened.calls) == 2

    assert _in_child(check) == 0
    assert len(opened.writer.marks) == written
    assert session.recorder is recorder


# --- Whole processes -------------------------------------------------------------------------------------


def _python(folder: Path, code: str, *, instrumented: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    if instrumented:
        command.insert(0, str(training.BIN / "opentelemetry-instrument"))
    return subprocess.run(
        command,
        cwd=folder,
        env=training.clean_environ(folder, {"GRADEML_RING_DIR": str(folder / "rings")}),
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_importing_the_package_imports_no_framework_and_no_analyzer(tmp_path: Path) -> None:
    code = (
        "import sys, grademl_otel, grademl_otel.lifecycle, grademl_otel.hooks\n"
        "import grademl_otel.instrumentations.torch, grademl_otel.resource_detectors.detectors\n"
        "heavy = {'torch', 'numpy', 'networkx', 'click', 'rich', 'requests', 'grademl_otel.analyzers'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = _python(tmp_path, code, instrumented=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_a_program_without_training_leaves_nothing_behind(tmp_path: Path) -> None:
    done = _python(tmp_path, "import sys; print('torch' in sys.modules)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")
    assert list(tmp_path.iterdir()) == []


def test_who_will_not_wait_at_the_exit_need_not(
    session: Session, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(wait_s: float) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(opened.transport, "close", interrupted)
    assert session.begin(training=True) is not None
    session.exit()
    assert session.recorder is None
    assert session.begin(training=True) is None
