# SPDX-License-Identifier: Apache-2.0
"""How the end of the program is learned of: by `atexit`, from `multiprocessing`, and in the excepthook."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from grademl_otel.tracebacks import hide_our_frames


class ProgramEnd:
    """Calls ``callback`` at the end of the program, in order or by an exception; not at a death by signal."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.error: str | None = None
        """Name of the exception that ends the program, once that is known."""
        self._callback = callback
        self._finalizer: Any = None
        self._excepthook: Any = None
        self._previous_excepthook = sys.excepthook

    def watch(self) -> None:
        """Be told from now on. Often enough at each run: what others have set up since comes after us."""
        self.be_first()
        util = sys.modules.get("multiprocessing.util")
        if util is not None and self._finalizer is None and child_of_multiprocessing():
            # Children of multiprocessing may end with os._exit, which knows no atexit.
            self._finalizer = util.Finalize(None, self._end_child, exitpriority=100)
        self._chain_excepthook()

    def be_first(self) -> None:
        """Have the end come to us before all that has been registered by now.

        At the first ML event that is after nearly every import: atexit runs backwards, and the user's threads
        have been joined before.
        """
        atexit.unregister(self._callback)
        atexit.register(self._callback)

    def unwatch(self) -> None:
        """Be told no more."""
        atexit.unregister(self._callback)
        finalizer, self._finalizer = self._finalizer, None
        if finalizer is not None:
            finalizer.cancel()
        if sys.excepthook is self._excepthook:
            sys.excepthook = self._previous_excepthook

    def forked(self) -> None:
        """In a forked child: `multiprocessing` there has forgotten what is to be called."""
        self._finalizer = None

    def _chain_excepthook(self) -> None:
        """Note what ends the program, then do what would have been done."""
        if sys.excepthook is self._excepthook:
            return  # inherited through a fork
        previous = self._previous_excepthook = sys.excepthook

        def excepthook(
            kind: type[BaseException], error: BaseException, traceback: TracebackType | None
        ) -> None:
            try:
                if not hasattr(sys, "ps1"):  # at a prompt the program goes on
                    self.error = kind.__name__
                traceback = hide_our_frames(error)
            except Exception:
                pass
            previous(kind, error, traceback)

        sys.excepthook = self._excepthook = excepthook

    def _end_child(self) -> None:
        """The end of a child of multiprocessing, whose errors never come to the excepthook."""
        kind = sys.exc_info()[0]
        if kind is not None and not issubclass(kind, SystemExit):
            self.error = kind.__name__
        self._callback()


def child_of_multiprocessing() -> bool:
    """Whether `multiprocessing` made this process."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None
