# SPDX-License-Identifier: Apache-2.0
"""What long work shows of itself: one line on standard error, on a terminal only, after a second."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TextIO

from grademl_otel.analyzers.terminal import is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_QUIET_S: Final = 1.0
"""Work that is over by then shows nothing."""


class ProgressLine:
    """Is called as `sources.base.Progress`; `close` removes the line."""

    def __init__(
        self,
        stream: TextIO | None = None,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._shown = _is_terminal(self._stream, environ)
        self._clock = clock
        self._since = clock()
        self._bar: Bar | None = None
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if not self._shown or self._clock() - self._since < _QUIET_S:
            return
        if self._bar is None:
            self._bar = _bar(self._stream)
            self._bar.start()
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what, total=total)
        self._bar.update(self._tasks[what], completed=done, total=total)

    def close(self) -> None:
        """Remove the line, so that an answer or an error can be printed."""
        self._shown = False
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _is_terminal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    return is_terminal(stream) and environ.get("TERM") not in (None, "", "dumb")


def _bar(stream: TextIO) -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(file=stream)
    return Bar(
        SpinnerColumn("dots" if console.encoding.startswith("utf") else "line"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        refresh_per_second=5,
    )
