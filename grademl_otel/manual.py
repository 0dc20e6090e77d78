# SPDX-License-Identifier: Apache-2.0
"""What nobody can infer, said by the program: ``grademl_otel.phase("tokenize")`` and ``grademl_otel.step()``.

Both are context managers, sync and async, and decorators. There is one object for each name, which any number
of threads and tasks may be in at once, or several times. What becomes of a phase or a step is told in
docs/manual.md. Nothing here raises; the program's own exceptions pass through.

As long as no hooks are installed, entering and leaving are built-in functions that do nothing: two calls of a
Python function would take longer than all the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, overload

from grademl_otel import marks, semconv
from grademl_otel.governor import UPDATES
from grademl_otel.graphs import nothing, traced_as, watch
from grademl_otel.guard import Guard
from grademl_otel.messages import complain
from grademl_otel.steps import EVALUATION, TRAIN
from grademl_otel.vocabulary import spelled
from grademl_otel.wrapping import in_blocks

if TYPE_CHECKING:
    from grademl_otel.recorder import Recorder
    from grademl_otel.steps import Said, StepMachine

F = TypeVar("F", bound=Callable[..., Any])

_MOST_KEPT: Final = 1024
"""Objects that are kept for their names; a program that makes up names all the time gets new ones."""
_ORDERLY: Final = (GeneratorExit, StopIteration, StopAsyncIteration, SystemExit)
"""Exceptions by which a block is left in order."""
_STEPS_END: Final = -1
"""What counts as the optimizer that ends an update, where the program says what a step is."""
_TRAIN: Final = "train"
_EVALUATE: Final = "evaluate"


class _Use:
    """A block that was entered."""

    __slots__ = ("kind", "machine", "name", "recorder", "said", "seen", "t0", "task", "text")

    def __init__(self, recorder: Recorder, t0: int) -> None:
        self.recorder = recorder
        self.machine: StepMachine = recorder.here()
        """Of the thread that entered it."""
        self.task = _task()
        self.t0 = t0
        self.name: str | None = None
        """Of a phase."""
        self.kind = 0
        """Of its mark; 0 where there is to be none."""
        self.text = 0
        self.seen = 0
        """Phases of that kind that had been recorded before."""
        self.said: Said | None = None

    def is_here(self) -> bool:
        """Whether it is this thread and task that have entered it."""
        return self.recorder.here() is self.machine and self.task is _task()


def _task() -> object:
    """The task that runs in this thread; None where there is none, or no asyncio."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None or asyncio._get_running_loop() is None else asyncio.current_task()


class _Block:
    """What phases and steps have in common: they are entered and left, and they decorate."""

    __slots__ = ("_uses",)

    _guard: ClassVar[Guard]
    _training: ClassVar[bool]
    """Whether being entered tells that this process trains."""

    def __init__(self) -> None:
        self._uses: list[_Use] = []

    def _begin(self, use: _Use) -> None:
        raise NotImplementedError

    def _end(self, use: _Use, t1: int, error: type[BaseException] | None) -> None:
        raise NotImplementedError

    def _enter(self) -> None:
        if not self._guard.on:
            return
        try:
            t0 = perf_counter_ns()
            session = sys.modules["grademl_otel.lifecycle"].session
            recorder = session.recorder
            if recorder is None or t0 > recorder.idle_at:
                recorder = session.begin(training=self._training, at=t0)
                if recorder is None:
                    return
            use = _Use(recorder, t0)
            self._uses.append(use)
            self._begin(use)
            if recorder.measuring:
                recorder.spent(t0)
        except Exception as error:
            self._guard.failed(error)

    def _exit(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._uses:
            return
        try:
            t1 = perf_counter_ns()
            use = self._left()
            self._end(use, t1, None if kind is None or issubclass(kind, _ORDERLY) else kind)
            if use.recorder.measuring:
                use.recorder.spent(t1)
        except Exception as failure:
            self._guard.failed(failure)

    def _left(self) -> _Use:
        """Take out the use that is left now: the last one of this thread and task.

        There may be none: a generator can be closed by any thread.
        """
        uses = self._uses
        use = uses[-1]
        if len(uses) > 1:
            use = next((each for each in reversed(uses) if each.is_here()), use)
        uses.remove(use)
        return use

    if TYPE_CHECKING:

        def __enter__(self) -> None: ...
        def __exit__(self, *exception: object) -> None: ...
    else:  # as long as nothing is installed, see `switch`
        __enter__ = [].clear
        __exit__ = "".format

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __call__(self, function: F, *_: object, **__: object) -> F:
        """Decorate ``function``, see `wrapping.in_blocks`."""
        try:
            return in_blocks(function, lambda: self)
        except Exception as error:
            self._guard.failed(error)
            return function


class Phase(_Block):
    """The phases of one name."""

    __slots__ = ("_name",)

    _guard = Guard("phases that the program names")
    _training = False

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __repr__(self) -> str:
        return f"grademl_otel.phase({self._name!r})"

    def __call__(self, function: F, *_: object, **__: object) -> F:
        if self._name:
            return super().__call__(function)
        return phase(spelled(getattr(function, "__name__", "")))(function)

    def _begin(self, use: _Use) -> None:
        machine, recorder, name = use.machine, use.recorder, self._name or spelled("")
        for around in machine.named:
            if around.name == name and around.task is use.task:
                return  # recursion: its time is that of the outermost
        kind, use.text = recorder.vocabulary.kind_of(name)
        if not use.text:
            if not recorder.measures(kind):
                return
            use.seen = recorder.vocabulary.seen(kind)
        use.name, use.kind = name, kind
        machine.named.append(use)
        recorder.began(machine.lane, kind, use.t0)

    def _end(self, use: _Use, t1: int, error: type[BaseException] | None) -> None:
        machine, recorder, kind = use.machine, use.recorder, use.kind
        if not kind:
            return
        if use not in machine.named:
            return  # its thread is gone, and all that ran in it was ended
        machine.named.remove(use)
        recorder.ended(machine.lane)
        if not use.text and recorder.vocabulary.seen(kind) != use.seen:
            return  # a hook saw it
        own = recorder.text(error.__name__) if error is not None and use.text else 0
        if recorder.level < UPDATES:
            row = machine.said_phase(kind, use.t0, t1, own, use.text)
        elif t1 - use.t0 < semconv.SLOW_STEP_NS:
            return  # a part of a step, as it may be
        else:
            row = 0
            recorder.phase(kind, machine.lane, use.t0, t1, row, -1, own, use.text)
        if not row:
            recorder.outside_rows(t1)


class Step(_Block):
    """The steps of one kind."""

    __slots__ = ("_kind", "_samples")

    _guard = Guard("steps that the program tells")
    _training = True

    def __init__(self, kind: str, samples: int) -> None:
        super().__init__()
        self._kind = kind
        self._samples = samples

    def __repr__(self) -> str:
        return f"grademl_otel.step(kind={self._kind!r}, samples={self._samples})"

    def _begin(self, use: _Use) -> None:
        machine, recorder = use.machine, use.recorder
        if any(around.name is None for around in machine.named):
            return  # a step in a step is part of it
        machine.named.append(use)
        use.kind = marks.ROW
        if recorder.level < UPDATES:
            kind = EVALUATION if self._kind == _EVALUATE else TRAIN
            use.said = said = machine.begin_said(kind, use.t0, self._samples)
            if said is not None and said.row is not None:
                recorder.note(marks.ROW_SAID, use.t0, said.row.serial, 0, 0, 0)

    def _end(self, use: _Use, t1: int, error: type[BaseException] | None) -> None:
        machine, recorder = use.machine, use.recorder
        if not use.kind:
            return
        if use not in machine.named:
            return
        machine.named.remove(use)
        trained = self._kind == _TRAIN and error is None
        if trained:
            machine.last_optimizer = _STEPS_END
        if use.said is not None:
            machine.end_said(use.said, t1, error is not None)
        elif trained and recorder.level == UPDATES:
            recorder.updated(_STEPS_END, t1)


def switch(on: bool) -> None:
    """Have blocks be recorded, or do nothing."""
    for name, recorded, idle in (
        ("__enter__", _Block._enter, [].clear),
        ("__exit__", _Block._exit, "".format),
    ):
        setattr(_Block, name, recorded if on else idle)
    if not on:
        forget()


def forget() -> None:
    """Let nothing come of the blocks that are entered: they are another process', or their run is over."""
    for block in (*_phases.values(), *_steps.values()):
        block._uses.clear()


# --- What the package shows -------------------------------------------------------------------------------

_phases: Final[dict[object, Phase]] = {}
_steps: Final[dict[object, Step]] = {}


@overload
def phase(name: F) -> F: ...
@overload
def phase(name: str | None = None) -> Phase: ...
def phase(name: Any = None) -> Any:
    """A phase ``name`` of the program: a context manager, sync or async, or a decorator.

    Without a name a decorator takes that of the function. Names are few: no numbers or files in them.
    """
    try:
        return _phases[name]
    except Exception:
        return _phase(name)


def _phase(name: Any) -> Any:
    if callable(name):
        return phase()(name)  # @phase without parentheses
    watch()
    made = Phase("" if name is None else spelled(name))
    if (name is None or type(name) is str) and len(_phases) < _MOST_KEPT:
        return _phases.setdefault(name, made)
    return made


@overload
def step(kind: F, samples: None = None) -> F: ...
@overload
def step(kind: str = _TRAIN, samples: int | None = None) -> Step: ...
def step(kind: Any = _TRAIN, samples: Any = None) -> Any:
    """A step of the program: a context manager, sync or async, or a decorator.

    What happens in it is one step, whatever would have been inferred; ``kind`` is ``train`` or ``evaluate``,
    ``samples`` how many it uses. Without it samples are counted as always, where a loader gives them out.
    """
    try:
        return _steps[kind] if samples is None else _steps[kind, samples]
    except Exception:
        return _step(kind, samples)


def _step(kind: Any, samples: Any) -> Any:
    if callable(kind):
        return step()(kind)
    known = isinstance(kind, str) and kind in (_TRAIN, _EVALUATE)
    if not known:
        complain(["step(kind=...) is 'train' or 'evaluate'; what is neither is taken for 'train'"])
    try:
        count = min(max(int(samples or 0), 0), 1 << 40)
    except Exception:
        count = 0
    made = Step(kind if known else _TRAIN, count)
    # A tensor as the number of samples is not kept: what it was computed from would be, too.
    if type(kind) is str and (samples is None or type(samples) is int) and len(_steps) < _MOST_KEPT:
        return _steps.setdefault(kind if samples is None else (kind, samples), made)
    return made


traced_as(phase, nothing)
traced_as(step, nothing)

_session: Final = getattr(sys.modules.get("grademl_otel.lifecycle"), "session", None)
if _session is not None and _session.installed:
    switch(True)
