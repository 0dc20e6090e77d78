# SPDX-License-Identifier: Apache-2.0
"""Notebooks: runs that end with the cells of an IPython shell.

A notebook's process lives for days; a run in it is what a cell does. It begins with the cell in which
training begins. After a cell it goes on when a loop of it is alive (an iterator that may be asked for more,
a thread that still trains) or when the last cell that trained made one step: then somebody steps by hand.
Else it ends; a cell that is run again is a new run. A cell that fails or is interrupted ends the run that
it worked for. One that looks at a batch or tries a model out leaves nothing behind, see
`marks.RunInfo.needs_work`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Protocol

from grademl_otel import marks
from grademl_otel.messages import warn
from grademl_otel.recorder import Recorder
from grademl_otel.runinfo import announcement


class Runs(Protocol):
    """What cells need of the process' runs; see `lifecycle.Session`."""

    recorder: Recorder | None

    @property
    def info(self) -> marks.RunInfo | None: ...

    def next_begins(self, at: int) -> None: ...

    def end(self, error: str | None = None) -> None: ...


def follow_cells(session: Runs) -> Cells | None:
    """Follow the cells of the IPython shell that runs in this process; None where there is none."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return None if shell is None else Cells(session, shell)


class Cells:
    """Begins and ends runs with the cells of ``shell``; made in the middle of one, or between two."""

    def __init__(self, session: Runs, shell: Any):
        self._session = session
        self._events = shell.events
        self._namespace = shell.user_ns
        self._pid = os.getpid()
        self._began = perf_counter_ns()
        self._steps = 0
        """Training steps of the run at the start of the cell."""
        self._by_hand = False
        """The last cell that trained made one step."""
        self._told: Recorder | None = None
        self._callbacks: tuple[tuple[str, Callable[..., None]], ...] = (
            ("pre_run_cell", self._before),
            ("post_run_cell", self._after),
        )
        for event, callback in self._callbacks:
            self._events.register(event, callback)
        session.next_begins(self._began)

    def script(self, default: str) -> str:
        """The notebook's file name, as far as those who show notebooks tell it to their kernels."""
        if "ipykernel" not in sys.modules:
            return default
        path = self._namespace.get("__vsc_ipynb_file__") or os.environ.get("JPY_SESSION_NAME")
        return os.path.basename(str(path)) if path else "notebook"

    def leave(self) -> None:
        """Follow them no more."""
        for event, callback in self._callbacks:
            try:
                self._events.unregister(event, callback)
            except ValueError:
                pass  # somebody has reset the shell's events

    def _before(self, info: Any = None) -> None:
        self._began = perf_counter_ns()
        recorder = self._session.recorder
        if recorder is None:
            self._steps, self._by_hand = 0, False
        else:
            self._steps = recorder.finished_steps()
        self._session.next_begins(self._began)

    def _after(self, result: Any = None) -> None:
        try:
            recorder = self._session.recorder
            if recorder is None or os.getpid() != self._pid:
                return
            self._settle(recorder, getattr(result, "error_in_exec", None))
        except KeyboardInterrupt:
            pass  # the cell is done; what was interrupted is a wait of ours
        except Exception as error:
            warn(f"the run goes on after its cell: {type(error).__name__}: {error}")

    def _settle(self, recorder: Recorder, error: BaseException | None) -> None:
        """Decide after a cell whether the run goes on, and say once for each run where it is recorded."""
        info = self._session.info
        recorder.pause()
        worked = recorder.last_event() >= self._began
        failed = worked and error is not None and not isinstance(error, SystemExit)
        made = recorder.finished_steps() - self._steps
        if made:
            self._by_hand = made == 1
        goes_on = not failed and (self._by_hand or recorder.is_looping(self._began))
        worth_telling = recorder.has_worked()
        if not goes_on:
            self._session.end(type(error).__name__ if failed else None)
        if info is not None and info.rank == 0 and worth_telling and self._told is not recorder:
            self._told = recorder
            warn(announcement(info, "recording" if goes_on else "recorded"))
