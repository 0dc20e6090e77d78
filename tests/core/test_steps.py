# SPDX-License-Identifier: Apache-2.0
"""Step inference, event by event with times of our own: rows, passes and where they begin and end."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grademl_otel.loops import LoaderFacts, Pass
from grademl_otel.marks import unpack_item
from grademl_otel.steps import (
    BACKWARD,
    DATA_WAIT,
    EPOCH,
    EVALUATE,
    EVALUATION,
    FORWARD,
    INCOMPLETE,
    TRAIN,
    ZERO_GRAD,
    StepMachine,
    Totals,
)

NET, TEACHER, DECODER = 11, 12, 13
SGD, ADAM = 21, 22


@dataclass
class Row:
    serial: int
    start: int
    end: int
    step: int
    kind: int
    micro: int
    pass_: int
    samples: int


@dataclass
class PassSpan:
    serial: int
    parent: int
    number: int
    start: int
    kind: int
    end: int | None = None
    steps: int = 0
    eval_steps: int = 0


@dataclass
class Recorded:
    """A sink that keeps everything."""

    rows: list[Row] = field(default_factory=list)
    passes: dict[int, PassSpan] = field(default_factory=dict)
    phases: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    """(kind, start, end, row, item)"""
    open: int = 0
    shown: list[int] = field(default_factory=list)
    """Serials of the rows that the thread was told to be in, one after the other."""

    def phase(
        self, kind: int, lane: int, t0: int, t1: int, row: int, item: int, own: int, detail: int
    ) -> None:
        self.phases.append((kind, t0, t1, row, item))

    def began(self, lane: int, kind: int, at: int) -> None:
        self.open += 1

    def ended(self, lane: int) -> None:
        self.open -= 1

    def row(
        self,
        serial: int,
        lane: int,
        t0: int,
        t1: int,
        step: int,
        kind: int,
        micro: int,
        pass_: int,
        samples: int,
    ) -> None:
        self.rows.append(Row(serial, t0, t1, step, kind, micro, pass_, samples))

    def pass_made(self, at: int) -> None: ...

    def pass_opened(
        self, pass_: int, lane: int, parent: int, kind: int, number: int, at: int, facts: LoaderFacts
    ) -> None:
        assert pass_ not in self.passes
        self.passes[pass_] = PassSpan(pass_, parent, number, at, kind)

    def pass_closed(self, pass_: int, lane: int, kind: int, at: int, steps: int, eval_steps: int) -> None:
        span = self.passes[pass_]
        assert span.end is None
        span.kind, span.end, span.steps, span.eval_steps = kind, at, steps, eval_steps

    def inside(self, machine: StepMachine, serial: int) -> None:
        self.shown.append(serial)

    @property
    def kinds(self) -> list[int]:
        return [row.kind for row in self.rows]


class Script:
    """A training script in miniature: each call is one event of 10 units, 1 unit after the last."""

    def __init__(self, totals: Totals | None = None) -> None:
        self.sink = Recorded()
        self.totals = totals or Totals()
        self.machine = StepMachine(self.sink, self.totals, count(2), lane=1)
        self.now = 1000

    def _span(self) -> tuple[int, int]:
        start = self.now + 1
        self.now = start + 10
        return start, self.now

    def iterate(self, loader: int) -> Pass:
        self.now += 1
        return self.machine.iterator_made(LoaderFacts(loader), self.now)

    def next(self, pass_: Pass, samples: int = 8) -> int:
        start, end = self._span()
        self.machine.begin_wait(pass_, start)
        return self.machine.end_wait(pass_, start, end, samples)

    def stop(self, pass_: Pass) -> None:
        """``next()`` raises StopIteration, and a `for` loop lets go of the iterator."""
        start, end = self._span()
        self.machine.begin_wait(pass_, start)
        self.machine.exhausted(pass_, end)
        self.machine.release(pass_, end)

    def let_go(self, pass_: Pass) -> None:
        self.machine.release(pass_, self.now)

    def forward(self, root: int = NET, grad: bool = True) -> None:
        start, end = self._span()
        self.machine.begin_forward(start, root)
        self.machine.end_forward(start, end, grad, root, 0)

    def backward(self) -> None:
        start, end = self._span()
        self.machine.begin_backward(start)
        self.machine.end_backward(start, end)

    def step(self, optimizer: int = SGD) -> None:
        start, end = self._span()
        self.machine.begin_optimizer(start)
        self.machine.stepped(optimizer, start, end)

    def inner(self) -> None:
        """Gradients are set to zero."""
        start, end = self._span()
        self.machine.begin_inner(ZERO_GRAD, start)
        self.machine.inner(ZERO_GRAD, start, end)

    def train(self, optimizer: int = SGD, root: int = NET) -> None:
        self.forward(root)
        self.backward()
        self.step(optimizer)

    def run(self) -> Recorded:
        self.machine.finish()
        assert self.sink.open == 0
        return self.sink


def test_rows_of_a_plain_loop_touch_and_belong_to_their_epoch() -> None:
    script = Script()
    script.machine.optimizer_made(SGD)
    for _ in range(2):
        batches = script.iterate(0)
        for _ in range(3):
            script.next(batches)
            script.train()
        script.stop(batches)
    sink = script.run()
    assert sink.kinds == [TRAIN] * 6
    assert [row.step for row in sink.rows] == list(range(6))
    assert [row.samples for row in sink.rows] == [8] * 6
    first, second = sink.passes.values()
    assert (first.kind, first.number, first.steps) == (EPOCH, 0, 3)
    assert (second.kind, second.number, second.steps) == (EPOCH, 1, 3)
    assert {row.pass_ for row in sink.rows[:3]} == {first.serial}
    for row, following in zip(sink.rows[:2], sink.rows[1:3], strict=True):
        assert row.end == following.start  # closed by next(), where the following wait begins
    assert first.end is not None
    assert first.start <= sink.rows[0].start
    assert first.end >= sink.rows[2].end
    assert second.start >= first.end


def test_each_wait_has_the_item_of_its_pass_and_batch() -> None:
    script = Script()
    batches = script.iterate(0)
    items = []
    for _ in range(3):
        items.append(script.next(batches))
        script.train()
    sink = script.run()
    assert [unpack_item(item) for item in items] == [(batches.serial, number) for number in range(3)]
    waits = [phase for phase in sink.phases if phase[0] == DATA_WAIT]
    assert [wait[3] for wait in waits] == [row.serial for row in sink.rows]
    assert [wait[4] for wait in waits] == items


def test_gradient_accumulation_is_one_step() -> None:
    script = Script()
    script.machine.optimizer_made(SGD)
    batches = script.iterate(0)
    for number in range(8):
        script.next(batches)
        script.forward()
        script.backward()
        if number % 4 == 3:
            script.step()
    script.stop(batches)
    sink = script.run()
    assert [(row.kind, row.micro, row.samples) for row in sink.rows] == [(TRAIN, 4, 32)] * 2


def test_a_step_after_the_loop_takes_the_leftover_gradients() -> None:
    script = Script()
    script.machine.optimizer_made(SGD)
    batches = script.iterate(0)
    for _ in range(3):
        script.next(batches)
        script.forward()
        script.backward()
    script.stop(batches)
    script.step()
    evaluation = script.iterate(1)
    script.next(evaluation)
    script.forward(grad=False)
    script.stop(evaluation)
    sink = script.run()
    assert [(row.kind, row.micro) for row in sink.rows] == [(TRAIN, 3), (EVALUATION, 1)]
    assert [span.kind for span in sink.passes.values()] == [EPOCH, EVALUATE]
    assert [span.parent for span in sink.passes.values()] == [0, 0]


def test_updates_by_hand_need_no_optimizer() -> None:
    script = Script()
    batches = script.iterate(0)
    for _ in range(4):
        script.next(batches)
        script.forward()
        script.backward()
    script.stop(batches)
    assert script.run().kinds == [TRAIN] * 4


def test_evaluation_within_an_epoch_lies_between_two_steps() -> None:
    script = Script()
    training = script.iterate(0)
    script.next(training)
    script.train()
    script.now += 100  # logging: still the step's time
    evaluation = script.iterate(1)
    began = script.now
    for _ in range(2):
        script.next(evaluation)
        script.forward(grad=False)
    script.stop(evaluation)
    script.next(training)
    script.train()
    script.stop(training)
    sink = script.run()
    step, first, second, following = sink.rows
    assert [row.kind for row in sink.rows] == [TRAIN, EVALUATION, EVALUATION, TRAIN]
    assert [row.step for row in sink.rows] == [0, 1, 1, 1]
    assert step.end == began
    assert first.start >= step.end
    assert following.start >= second.end
    epoch, evaluate = sorted(sink.passes.values(), key=lambda span: span.start)
    assert (epoch.kind, evaluate.kind, evaluate.parent) == (EPOCH, EVALUATE, epoch.serial)
    assert (epoch.steps, epoch.eval_steps, evaluate.steps, evaluate.eval_steps) == (2, 0, 0, 2)
    assert epoch.end is not None
    assert evaluate.end is not None
    assert epoch.start <= evaluate.start <= evaluate.end <= epoch.end


def test_two_loaders_zipped_are_one_pass() -> None:
    script = Script()
    left, right = script.iterate(0), script.iterate(1)
    for _ in range(3):
        script.next(left)
        script.next(right)
        script.train()
    script.stop(left)
    sink = script.run()
    assert sink.kinds == [TRAIN] * 3
    assert [row.samples for row in sink.rows] == [8] * 3
    assert list(sink.passes) == [left.serial]


def test_a_look_at_one_batch_is_no_part_of_the_next_loop() -> None:
    script = Script()
    look = script.iterate(0)
    script.next(look)
    script.let_go(look)
    batches = script.iterate(1)
    began = script.now
    for _ in range(3):
        script.next(batches)
        script.train()
    script.stop(batches)
    sink = script.run()
    assert sink.kinds == [TRAIN] * 3
    assert {row.pass_ for row in sink.rows} == {batches.serial}
    assert sink.rows[0].start > began
    assert list(sink.passes) == [batches.serial]


def test_two_loaders_that_take_turns_do_not_make_passes_without_end() -> None:
    script = Script()
    for optimizer in (SGD, ADAM):
        script.machine.optimizer_made(optimizer)
    left, right = script.iterate(0), script.iterate(1)
    for _ in range(6):
        script.next(left)
        script.train(SGD)
        script.next(right)
        script.train(ADAM, DECODER)
    script.stop(left)
    sink = script.run()
    assert len(sink.passes) == 2
    assert {row.pass_ for row in sink.rows[2:]} == {left.serial}
    assert len(sink.rows) == 7  # the first turn in two, from then on one row a turn


def test_one_validation_batch_now_and_then_is_an_evaluation_each_time() -> None:
    script = Script()
    training, validation = script.iterate(0), script.iterate(1)
    for _ in range(3):
        script.next(training)
        script.train()
        script.next(validation)
        script.forward(grad=False)
    script.stop(training)
    sink = script.run()
    assert sink.kinds == [TRAIN, EVALUATION] * 3
    kinds = [span.kind for span in sink.passes.values()]
    assert sorted(kinds) == sorted([EPOCH] + [EVALUATE] * 3)


def test_an_exception_leaves_an_incomplete_row() -> None:
    script = Script()
    batches = script.iterate(0)
    script.next(batches)
    script.train()
    script.next(batches)
    script.forward()
    script.let_go(batches)
    sink = script.run()
    assert sink.kinds == [TRAIN, INCOMPLETE]
    assert script.totals.incomplete == 1
    (epoch,) = sink.passes.values()
    assert epoch.kind == EPOCH


def test_a_batch_that_nobody_computes_on_is_no_row() -> None:
    script = Script()
    batches = script.iterate(0)
    for _ in range(5):
        script.next(batches)
    script.stop(batches)
    sink = script.run()
    assert sink.rows == []
    assert sink.passes == {}


def test_a_new_iterator_each_step_makes_one_pass_each() -> None:
    script = Script()
    for _ in range(4):
        batches = script.iterate(0)
        script.next(batches)
        script.let_go(batches)  # next(iter(loader)): gone before its batch is used
        script.train()
    sink = script.run()
    assert sink.kinds == [TRAIN] * 4
    assert [span.steps for span in sink.passes.values()] == [1] * 4
    assert [span.number for span in sink.passes.values()] == [0, 1, 2, 3]


def test_one_batch_trained_on_again_and_again_without_its_loader() -> None:
    script = Script()
    script.machine.optimizer_made(SGD)
    batches = script.iterate(0)
    script.next(batches)
    script.let_go(batches)
    for _ in range(5):
        script.train()
    sink = script.run()
    assert sink.kinds == [TRAIN] * 5
    assert [row.pass_ for row in sink.rows] == [batches.serial, 0, 0, 0, 0]


def test_a_break_ends_the_pass_before_what_follows() -> None:
    script = Script()
    training = script.iterate(0)
    script.next(training)
    script.train()
    script.let_go(training)
    broken_off = script.now
    script.now += 500
    evaluation = script.iterate(1)
    script.next(evaluation)
    script.forward(grad=False)
    script.stop(evaluation)
    epoch, evaluate = script.run().passes.values()
    assert epoch.end == broken_off
    assert evaluate.parent == 0


def test_the_same_loader_nested_in_itself() -> None:
    script = Script()
    outer = script.iterate(0)
    for _ in range(2):
        script.next(outer)
        inner = script.iterate(0)
        script.next(inner)
        script.train()
        script.next(inner)
        script.train()
        script.stop(inner)
    script.stop(outer)
    sink = script.run()
    assert sink.kinds == [TRAIN] * 4


def test_batches_read_ahead_stay_in_their_pass() -> None:
    script = Script()
    batches = script.iterate(0)
    script.next(batches)
    for _ in range(3):
        script.next(batches)
        script.train()
    script.stop(batches)
    script.train()  # on the batch that was held back
    evaluation = script.iterate(1)
    script.next(evaluation)
    script.forward(grad=False)
    script.stop(evaluation)
    sink = script.run()
    assert sink.kinds == [TRAIN] * 4 + [EVALUATION]
    assert [row.pass_ for row in sink.rows[:4]] == [batches.serial] * 4
    epoch, evaluate = sink.passes.values()
    assert (epoch.steps, evaluate.parent) == (4, 0)


@pytest.mark.parametrize("critic", [1, 5])
def test_without_a_loader_all_optimizers_make_one_step(critic: int) -> None:
    script = Script()
    for optimizer in (SGD, ADAM):
        script.machine.optimizer_made(optimizer)
    for _ in range(4):
        for _ in range(critic):
            script.train(SGD, DECODER)
        script.train(ADAM, NET)
    sink = script.run()
    assert sink.kinds == [TRAIN] * 4
    assert sink.passes == {}


def test_models_trained_one_after_another_do_not_wait_for_each_other() -> None:
    script = Script()
    for fold in range(3):
        for _ in range(4):
            script.train(SGD + fold, NET + fold)
    assert [row.step for row in script.run().rows] == list(range(12))


@pytest.mark.parametrize("gone", [False, True])
def test_a_step_does_not_wait_for_an_optimizer_that_is_built_after_it(gone: bool) -> None:
    script = Script()
    script.machine.optimizer_made(SGD)
    script.train()
    script.train()
    if gone:
        script.machine.optimizer_gone(SGD)
    script.machine.optimizer_made(ADAM)
    for _ in range(2):
        script.train(ADAM, TEACHER)
    assert [row.kind for row in script.run().rows] == [TRAIN] * 4


def test_two_models_that_are_trained_in_turn_make_one_step() -> None:
    script = Script()
    for _ in range(4):
        script.train(SGD, NET)
        script.train(ADAM, DECODER)
    # The second one is not known before its first step.
    assert len(script.run().rows) == 5


def test_an_optimizer_that_stands_still_or_is_gone_holds_nothing_up() -> None:
    script = Script()
    script.machine.optimizer_made(SGD)
    script.machine.optimizer_made(ADAM)
    for _ in range(30):
        script.train(SGD)
    assert len(script.sink.rows) == 30 - 16  # ADAM was waited for during 16 steps, which made one row
    script = Script()
    script.machine.optimizer_made(SGD)
    script.machine.optimizer_made(ADAM)
    script.machine.optimizer_gone(ADAM)
    for _ in range(5):
        script.train(SGD)
    assert len(script.run().rows) == 5


def test_inference_without_a_loader_is_one_row_a_call_of_the_same_module() -> None:
    script = Script()
    for _ in range(5):
        script.forward(NET, grad=False)
        script.forward(DECODER, grad=False)
    assert script.run().kinds == [EVALUATION] * 5


def test_inference_that_forgot_no_grad() -> None:
    script = Script()
    for _ in range(5):
        script.forward(NET, grad=True)
    assert script.run().kinds == [EVALUATION] * 5


def test_teacher_and_student_without_a_loader_are_one_step() -> None:
    script = Script()
    script.machine.optimizer_made(SGD)
    for _ in range(4):
        script.forward(TEACHER, grad=False)
        script.train()
    assert script.run().kinds == [TRAIN] * 4


def test_a_step_whose_optimizer_raised_leaves_no_open_phase() -> None:
    script = Script()
    batches = script.iterate(0)
    for fails in (True, False):
        script.next(batches)
        script.forward()
        script.backward()
        if fails:
            script.machine.begin_optimizer(script.now)
        else:
            script.step()
    sink = script.run()
    assert sink.kinds[-1] == TRAIN


def test_a_checkpoint_after_the_last_step_is_outside_of_it() -> None:
    script = Script()
    batches = script.iterate(0)
    script.next(batches)
    script.train()
    script.machine.begin_aside(11, script.now)
    script.machine.aside(11, script.now, script.now + 5, 100)
    script.now += 5
    script.stop(batches)
    script.machine.begin_aside(11, script.now)
    script.machine.aside(11, script.now, script.now + 5, 100)
    sink = script.run()
    saves = [phase for phase in sink.phases if phase[0] == 11]
    assert [save[3] for save in saves] == [sink.rows[0].serial, 0]


def test_step_numbers_are_shared_by_the_threads_of_a_process() -> None:
    totals = Totals()
    scripts = Script(totals), Script(totals)
    for script in scripts:
        script.machine.optimizer_made(SGD)
        for _ in range(3):
            script.train()
        script.run()
    numbers = [row.step for script in scripts for row in script.sink.rows]
    serials = [row.serial for script in scripts for row in script.sink.rows]
    assert numbers == list(range(6))
    assert len(set(serials)) == 6


def test_a_thread_that_steps_while_another_opens_its_pass_takes_no_number_twice() -> None:
    totals = Totals()
    other = Script(totals)
    other.machine.optimizer_made(SGD)

    class Interrupted(Recorded):
        def pass_made(self, at: int) -> None: ...

        def pass_opened(
            self, pass_: int, lane: int, parent: int, kind: int, number: int, at: int, facts: LoaderFacts
        ) -> None:
            other.train()
            other.run()
            super().pass_opened(pass_, lane, parent, kind, number, at, facts)

    sink = Interrupted()
    machine = StepMachine(sink, totals, count(1), 0)
    pass_ = machine.iterator_made(LoaderFacts(0), 1)
    machine.begin_wait(pass_, 2)
    machine.end_wait(pass_, 2, 3, 0)
    machine.stepped(SGD, 3, 4)  # a step without a backward: the pass is opened as the row closes
    machine.finish()
    assert sorted(row.step for row in (*sink.rows, *other.sink.rows)) == [0, 1]


EVENTS = [
    *("iterate", "next", "stop", "let_go", "forward", "forward_no_grad", "backward", "step", "other_step"),
    "inner",
]


# The smallest inputs that once went wrong: a pass that ended before its last row did; one without a row; a
# child older than its parent.
@example([("iterate", 0), ("next", 0), ("let_go", 0), ("step", 0), ("iterate", 0)])
@example(
    [
        *[("iterate", 0), ("iterate", 1), ("next", 0), ("let_go", 0)],
        *[("next", 0), ("backward", 0), ("next", 0)],
    ]
)
@example(
    [
        *[("iterate", 0), ("iterate", 1), ("iterate", 2), ("next", 0), ("next", 1), ("forward", 0)],
        *[("next", 2), ("backward", 0), ("next", 1)],
    ]
)
@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 3)), max_size=60))
def test_whatever_a_script_does_rows_are_sound(events: list[tuple[str, int]]) -> None:
    script = Script()
    passes: list[Pass] = []
    gone: set[int] = set()
    for event, which in events:
        if event == "iterate":
            passes.append(script.iterate(which))
        elif event in ("next", "stop", "let_go"):
            alive = [pass_ for pass_ in passes if id(pass_) not in gone]
            if not alive:
                continue
            pass_ = alive[which % len(alive)]
            getattr(script, event)(pass_)
            if event != "next":
                gone.add(id(pass_))
        elif event == "forward_no_grad":
            script.forward(NET + which, grad=False)
        elif event == "forward":
            script.forward(NET + which)
        elif event == "backward":
            script.backward()
        elif event == "inner":
            script.inner()
        else:
            script.step(SGD if event == "step" else ADAM)
    sink = script.run()

    serials = [row.serial for row in sink.rows]
    assert len(set(serials)) == len(serials)
    assert all(row.start < row.end for row in sink.rows)
    by_serial = {row.serial: row for row in sink.rows}
    for kind, start, end, serial, _ in sink.phases:
        mine = by_serial.get(serial)
        assert mine is None or kind != ZERO_GRAD or mine.start <= start <= end <= mine.end
    trained = [row for row in sink.rows if row.kind == TRAIN]
    assert [row.step for row in trained] == list(range(len(trained)))
    assert script.totals.steps == len(trained)
    # What happens after the end is part of no row, and no row is told again right after itself.
    assert sink.shown[-1:] in ([], [0])
    assert all(one != other for one, other in zip(sink.shown, sink.shown[1:], strict=False))
    assert len(sink.rows) == script.totals.steps + script.totals.eval_steps + script.totals.incomplete
    for row in sink.rows:
        assert row.pass_ == 0 or row.pass_ in sink.passes
    for span in sink.passes.values():
        assert span.end is not None
        assert span.start <= span.end
        mine = [row for row in sink.rows if row.pass_ == span.serial]
        assert mine
        assert span.steps == sum(row.kind == TRAIN for row in mine)
        assert span.kind == (EPOCH if any(row.kind != EVALUATION for row in mine) else EVALUATE)
        assert all(span.start <= row.start and row.end <= span.end for row in mine)
        if span.parent:
            parent = sink.passes[span.parent]
            assert parent.end is not None
            assert parent.start <= span.start
            assert span.end <= parent.end


def _rows_of(script: Script, kind: int) -> list[int]:
    """Indices among the rows of those that phases of ``kind`` lie in; -1: in none."""
    sink = script.run()
    serials = [row.serial for row in sink.rows]
    for of, start, end, serial, _ in sink.phases:
        if serial in serials:
            row = sink.rows[serials.index(serial)]
            assert row.start <= start <= end <= row.end, of
    return [serials.index(row) if row in serials else -1 for of, _, _, row, _ in sink.phases if of == kind]


def test_what_is_inside_a_step_belongs_to_the_open_row() -> None:
    script = Script()
    loader = script.iterate(0)
    script.inner()
    for _ in range(2):
        script.next(loader)
        script.inner()
        script.train()
        script.inner()
    script.stop(loader)
    script.inner()
    assert _rows_of(script, ZERO_GRAD) == [-1, 0, 0, 1, 1, -1]


def test_without_a_loader_it_belongs_to_the_next_row_when_the_update_is_done() -> None:
    script = Script()
    for _ in range(3):
        script.inner()
        script.train()
    script.inner()
    assert _rows_of(script, ZERO_GRAD) == [-1, 1, 2, -1]


def test_it_makes_no_row_and_stretches_none_over_what_comes_between() -> None:
    script = Script()
    script.machine.optimizer_made(SGD)
    for _ in range(2):
        script.inner()
    script.train()
    script.inner()
    loader = script.iterate(0)
    script.next(loader)
    script.train()
    script.stop(loader)
    script.train()
    script.inner()
    start = script.now + 1
    script.machine.begin_aside(BACKWARD, start)
    script.machine.aside(BACKWARD, start, start + 5, 0)
    script.now = start + 5
    script.train()
    assert _rows_of(script, ZERO_GRAD) == [-1, -1, -1, -1]
    assert len(script.sink.rows) == 4


def test_in_a_wait_it_belongs_to_the_row_of_the_batch() -> None:
    script = Script()
    loader = script.iterate(0)
    for batch in (True, True, False):
        script.machine.begin_wait(loader, script.now + 1)
        script.inner()
        if batch:
            script.machine.end_wait(loader, script.now - 11, script.now, 8)
            script.train()
        else:
            script.machine.exhausted(loader, script.now)
    script.train()
    assert _rows_of(script, ZERO_GRAD) == [0, 1, -1]


def test_one_that_raised_leaves_no_open_phase_when_the_one_around_it_ends() -> None:
    script = Script()
    script.machine.begin_inner(FORWARD, 1001)
    script.machine.begin_inner(ZERO_GRAD, 1002)
    script.machine.inner(BACKWARD, 1003, 1004)
    assert script.sink.open == 2
    script.machine.inner(FORWARD, 1001, 1005)
    script.run()


def test_a_thread_is_told_the_row_that_it_is_in() -> None:
    script = Script()
    loader = script.iterate(0)
    script.next(loader)
    script.forward()
    evaluation = script.iterate(1)
    script.next(evaluation)
    script.forward(grad=False)
    script.stop(evaluation)
    script.backward()
    script.step(SGD)
    script.next(loader)
    script.stop(loader)
    sink = script.run()
    # The evaluation waits for a batch in a row 3 that does not come: it is the next of the thread, whose
    # batch nobody computes on; and there is no batch for a row 4.
    assert sink.shown == [1, 2, 3, 1, 3, 4, 0]
    assert [row.serial for row in sink.rows] == [2, 1]


def test_a_row_without_a_loader_is_left_when_all_its_optimizers_have_stepped() -> None:
    script = Script()
    script.machine.optimizer_made(SGD)
    script.machine.optimizer_made(ADAM)
    for _ in range(2):
        script.forward()
        script.backward()
        script.step(SGD)
        script.backward()
        script.step(ADAM)
    sink = script.run()
    assert sink.shown == [1, 0, 2, 0]
