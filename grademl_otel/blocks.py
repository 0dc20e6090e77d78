# SPDX-License-Identifier: Apache-2.0
"""Blocks of the user's own: ``with grademl_otel.run(name=...)`` is a run, a block inside a block is a trial.

An outermost block is a run of its own: what is active when it is entered ends, unless nothing has worked in
it yet (a model and its loaders are made ready before the block). The run begins with the first ML event in
the block, its span with the block. A block that is entered while another one is active, in this thread or
not, is a trial: a span in that one's run, whose steps go on being counted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from grademl_otel.wrapping import in_blocks

if TYPE_CHECKING:
    from grademl_otel.lifecycle import Session
    from grademl_otel.recorder import Recorder

F = TypeVar("F", bound=Callable[..., Any])


class run:
    """One run, or inside another block one trial of it: a context manager, sync or async, or a decorator.

    ``name`` is shown with it. Never raises, and does next to nothing where nothing is recorded. At the end of
    a run it waits until the telemetry is on its way, as the end of a program does. As a decorator each call
    of the function (a coroutine function, too; not a generator) is a block.
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = name
        self._entered: list[Block | None] = []

    def __enter__(self) -> run:
        self._entered.append(_enter(self._name))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        block = self._entered.pop() if self._entered else None
        if block is not None:
            block.leave(kind)

    async def __aenter__(self) -> run:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __call__(self, function: F) -> F:
        return in_blocks(function, lambda: run(self._name), stretches=False)


def _enter(name: str | None) -> Block | None:
    lifecycle = sys.modules.get("grademl_otel.lifecycle")
    if lifecycle is None or not lifecycle.session.installed:
        return None
    try:
        return Block(lifecycle.session, name)
    except Exception as error:
        from grademl_otel.messages import warn

        warn(f"a block is no run of its own: {type(error).__name__}: {error}")
        return None


class Block:
    """A block that was entered."""

    def __init__(self, session: Session, name: str | None) -> None:
        self._session = session
        self._name = name
        self._pid = os.getpid()
        self._at = perf_counter_ns()
        self._outermost = session.block is None
        self._trial: tuple[Recorder, int] | None = None
        if self._outermost:
            self._make_room()
        self._take_back = session.on_start(self._run_began)
        if self._outermost:
            session.block = self

    def leave(self, kind: type[BaseException] | None) -> None:
        """The block is left, by an exception of type ``kind`` if it is not None; never raises."""
        session = self._session
        if os.getpid() != self._pid:
            return  # of the process that this one was forked from
        try:
            self._take_back()
            error = None if kind is None or issubclass(kind, GeneratorExit | SystemExit) else kind.__name__
            if not self._outermost:
                if self._trial is not None and self._trial[0] is session.recorder:
                    self._trial[0].close_trial(self._trial[1], error)
            elif session.block is self:
                session.block = None
                session.end(error)
                session.names.block(entered=False)
        except Exception as failure:
            from grademl_otel.messages import warn

            warn(f"the end of a block is not recorded: {type(failure).__name__}: {failure}")

    def _make_room(self) -> None:
        session = self._session
        recorder, info = session.recorder, session.info
        if recorder is not None and info is not None:
            # Ranks have to begin the run together, whatever each has done before.
            together = session.is_named and info.world_size > 1
            if together or recorder.has_worked():
                session.end()
        session.names.block(entered=True)
        session.next_begins(self._at)

    def _run_began(self, recorder: Recorder, info: object) -> None:
        if os.getpid() != self._pid:
            return
        if not self._outermost:
            self._trial = recorder, recorder.open_trial(self._name or "", self._at)
        elif self._name:
            recorder.name_run(self._name)
