# SPDX-License-Identifier: Apache-2.0
"""The recorder: marks, totals, lanes of threads, and that nothing of it reaches the user."""

from __future__ import annotations

import _thread
import os
import threading
from itertools import count
from time import perf_counter_ns

import pytest

from grademl_otel import marks, recorder, semconv
from grademl_otel.config import Settings
from grademl_otel.loops import LoaderFacts
from grademl_otel.recorder import Recorder
from grademl_otel.ring.writer import RingWriter
from grademl_otel.steps import EVALUATION, INCOMPLETE, TRAIN
from tests.support.listwriter import ListTransport, ListWriter

SECOND = 1_000_000_000


@pytest.fixture
def written() -> ListWriter:
    return ListWriter()


@pytest.fixture
def transport() -> ListTransport:
    return ListTransport()


@pytest.fixture
def recording(written: ListWriter, transport: ListTransport) -> Recorder:
    return Recorder(written, transport, count(2))


def test_a_phase_is_one_mark_and_part_of_the_totals(recording: Recorder, written: ListWriter) -> None:
    forward = marks.phase_kind(semconv.FORWARD)
    recording.phase(forward, 7, 100, 350, 3, 5, 0, 9)
    recording.phase(forward, 7, 400, 450, 3, -1, 0, 9)
    assert written.marks[0] == (marks.phase_kind(semconv.FORWARD), 7, 100, 350, 3, 5, 0, 9)
    recording.finish()
    assert written.totals[marks.ACC_PHASE_SUM_NS + semconv.PHASE_INDEX[semconv.FORWARD]] == 300
    assert written.totals[marks.ACC_PHASE_COUNT + semconv.PHASE_INDEX[semconv.FORWARD]] == 2


def test_rows_by_kind(recording: Recorder, written: ListWriter) -> None:
    recording.row(1, 1, 0, 3_000_000, 0, TRAIN, 4, 2, 32)
    recording.row(2, 1, 0, 2_000_000, 1, TRAIN, 1, 2, 8)
    recording.row(3, 1, 0, 1_000, 2, EVALUATION, 1, 3, 16)
    recording.row(4, 1, 0, 1_000, 2, INCOMPLETE, 1, 2, 8)
    first = written.marks[0]
    assert (first.kind, first.row, first.x, first.z) == (marks.ROW, 1, 0, 32)
    assert marks.unpack_row(first.y) == (0, 4, 2)
    totals = written.totals
    assert totals[marks.ACC_STEPS] == 2
    assert totals[marks.ACC_EVAL_STEPS] == 1
    assert totals[marks.ACC_INCOMPLETE] == 1
    assert totals[marks.ACC_SAMPLES] == 40
    assert totals[marks.ACC_STEP_SUM_NS] == 5_000_000
    histogram = totals[marks.ACC_HISTOGRAM : marks.ACC_SLOTS]
    assert sum(histogram) == 2
    assert histogram[1] == 1  # 2 ms lies in (1 ms, 2 ms]
    assert histogram[2] == 1


def test_the_totals_of_a_phase_leave_at_once_and_those_of_a_row_with_it(
    recording: Recorder, written: ListWriter
) -> None:
    backward = marks.phase_kind(semconv.BACKWARD)
    recording.phase(backward, 1, 0, 10, 1, -1, 0, 0)
    assert written.totals[marks.ACC_PHASE_COUNT + semconv.PHASE_INDEX[semconv.BACKWARD]] == 1
    assert written.totals[marks.ACC_STEPS] == 0
    recording.row(1, 1, 0, 10, 0, TRAIN, 1, 0, 0)
    assert written.totals[marks.ACC_STEPS] == 1


def test_the_transport_is_looked_after_once_a_second(recording: Recorder, transport: ListTransport) -> None:
    for number in range(40):
        now = 10 * SECOND + number * SECOND // 10
        recording.row(number, 1, now - 5, now, number, TRAIN, 1, 0, 0)
    assert len(transport.ticks) == 4


def test_a_pass_carries_what_its_loader_says(recording: Recorder, written: ListWriter) -> None:
    facts = LoaderFacts(1, workers=2, prefetch=4, batch_size=None, persistent=True, in_order=False)
    epoch = marks.SCOPE_INDEX[semconv.EPOCH]
    recording.pass_opened(5, 1, 0, epoch, 3, 1000, facts)
    recording.pass_closed(5, 1, epoch, 2000, 8, 1)
    opened, closed = written.of_kind(marks.SCOPE_OPEN), written.of_kind(marks.SCOPE_CLOSE)
    assert opened == [(marks.SCOPE_OPEN, 1, 1000, 1000, 5, recorder.RUN_SCOPE, epoch, 3)]
    assert closed == [(marks.SCOPE_CLOSE, 1, 2000, 2000, 5, 0, epoch, 0)]
    assert written.scope_values(5) == {
        semconv.LOADER_ID: 1,
        semconv.LOADER_WORKERS: 2,
        semconv.LOADER_PREFETCH: 4,
        semconv.LOADER_PERSISTENT: 1,
        semconv.LOADER_IN_ORDER: 0,
        semconv.STEPS_TOTAL: 8,
        semconv.EVAL_STEPS_TOTAL: 1,
    }


def test_own_cost_is_measured_now_and_then(recording: Recorder, written: ListWriter) -> None:
    measured = []
    for number in range(200):
        if recording.measuring:
            measured.append(number)
            recording.spent(perf_counter_ns() - 1000)
        recording.row(number, 1, 0, SECOND, number, TRAIN, 1, 0, 0)
    assert measured == [*range(8), *range(24, 32), 65, 129, 193]
    assert written.totals[marks.ACC_COST_NS] >= 200 * 1000


def test_one_interrupted_measurement_does_not_stand_for_other_rows(
    recording: Recorder, written: ListWriter
) -> None:
    second = 1_000_000_000
    for number in range(129):
        if recording.measuring:
            recording.spent(perf_counter_ns() - (second if number in (3, 65) else 1000))
        recording.row(number, 1, 0, SECOND, number, TRAIN, 1, 0, 0)
    assert 2 * second < written.totals[marks.ACC_COST_NS] < 3 * second


def test_threads_have_lanes_of_their_own(recording: Recorder, written: ListWriter) -> None:
    lanes = [recording.here().lane]
    other = threading.Thread(target=lambda: lanes.append(recording.here().lane))
    other.start()
    other.join()
    assert [written.strings[lane] for lane in lanes] == ["main", "thread-1"]
    assert recording.here() is recording.here()


def test_a_thread_that_is_gone_leaves_its_lane_to_the_next(recording: Recorder, written: ListWriter) -> None:
    recording.here()
    lanes = []
    for _ in range(5):
        other = threading.Thread(target=lambda: lanes.append(recording.here().lane))
        other.start()
        other.join()
    assert [written.strings[lane] for lane in lanes] == ["thread-1"] * 5


def test_a_thread_of_autograd_works_for_the_thread_that_waits_in_backward(recording: Recorder) -> None:
    machine = recording.here()
    recording.backward_owner, machine.in_backward = machine, True
    seen: list[object] = []
    done = threading.Event()

    def work() -> None:
        seen.append(recording.here())
        threading.current_thread()  # makes a stand-in for a thread that is not Python's
        seen.append(recording.here())
        done.set()

    _thread.start_new_thread(work, ())
    assert done.wait(60)
    assert seen == [machine, machine]


def test_a_thread_that_begins_to_train_during_a_backward_of_another_works_for_itself(
    recording: Recorder,
) -> None:
    machine = recording.here()
    recording.backward_owner, machine.in_backward = machine, True
    seen: list[object] = []
    other = threading.Thread(target=lambda: seen.append(recording.here()))
    other.start()
    other.join()
    assert seen != [machine]
    assert len(seen) == 1


def test_a_fork_that_python_does_not_know_writes_nothing(
    written: ListWriter, transport: ListTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    recording = Recorder(written, transport, count(2), lambda: told.append(True))
    monkeypatch.setattr(os, "getpid", lambda: recording.pid + 1)
    recording.row(1, 1, 0, 10, 0, TRAIN, 1, 0, 0)
    recording.phase(1, 1, 0, 10, 1, -1, 0, 0)
    assert written.marks == []
    assert told == [True]


def test_what_a_child_asks_of_the_recorder_of_its_parent_is_not_another_fork(
    written: ListWriter, transport: ListTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    recording = Recorder(written, transport, count(2), lambda: told.append(True))
    recording.mute()  # by Python's own fork
    monkeypatch.setattr(os, "getpid", lambda: recording.pid + 1)
    recording.here()
    assert told == []


def test_a_muted_recorder_writes_nothing(recording: Recorder, written: ListWriter) -> None:
    recording.mute()
    recording.phase(1, 1, 0, 10, 1, -1, 0, 0)
    recording.row(1, 1, 0, 10, 0, TRAIN, 1, 0, 0)
    recording.here().begin_forward(1, 2)
    recording.finish()
    assert written.marks == []
    assert written.running == []


def test_a_machine_in_use_does_not_keep_the_others_from_their_end(
    recording: Recorder, written: ListWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_use() -> None:
        raise RuntimeError("deque mutated during iteration")

    monkeypatch.setattr(recording.here(), "finish", in_use)

    def train() -> None:
        machine = recording.here()
        machine.begin_optimizer(1)
        machine.stepped(5, 1, 2)

    other = threading.Thread(target=train)
    other.start()
    other.join()
    recording.finish()
    assert written.row_kinds() == {TRAIN: 1}
    assert written.totals[marks.ACC_STEPS] == 1
    assert written.totals[marks.ACC_LOST] == 1


def test_into_a_real_ring(tmp_path: object) -> None:
    ring = RingWriter.in_memory(Settings.from_env({}))
    recording = Recorder(ring, ListTransport(), count(2))
    machine = recording.here()
    machine.begin_forward(10, 1)
    machine.end_forward(10, 20, True, 1, recording.text("Net"))
    machine.begin_backward(20)
    machine.end_backward(20, 30)
    machine.begin_optimizer(30)
    machine.stepped(5, 30, 40)
    recording.finish()
    reader = ring.reader()
    kinds = [mark[0] for mark in reader.read(100)]
    names = (semconv.FORWARD, semconv.BACKWARD, semconv.OPTIMIZER)
    assert kinds == [*map(marks.phase_kind, names), marks.ROW]
    assert reader.accumulators()[marks.ACC_STEPS] == 1
