# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's management library in this process: loaded, initialized, and again after the driver was reset.

Its Python side is nvidia-ml-py, whose module is called pynvml. (The package called pynvml is another one, out
of date.) Nothing is imported before `Library.open`.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from grademl_otel.instrumentations.gpu.probes import Verdict

UNINITIALIZED: Final = 1
INVALID_ARGUMENT: Final = 2
NOT_SUPPORTED: Final = 3
NOT_FOUND: Final = 6
DRIVER_NOT_LOADED: Final = 9
TIMEOUT: Final = 10
LIBRARY_NOT_FOUND: Final = 12
GPU_IS_LOST: Final = 15
RESET_REQUIRED: Final = 16
MISMATCH: Final = 18
GPU_NOT_FOUND: Final = 28

_UNSUPPORTED: Final = frozenset(
    # No such argument, function, version of a structure; of virtual GPUs ECC; deprecated.
    (INVALID_ARGUMENT, NOT_SUPPORTED, 13, 25, 22, 26)
)
NONE: Final = frozenset((DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND))
"""There are no GPUs of NVIDIA here, or nobody who could read them."""
_DEVICE: Final = NONE | {UNINITIALIZED, GPU_IS_LOST, RESET_REQUIRED, MISMATCH, GPU_NOT_FOUND}

_LOST_AGAIN_S: Final = (60.0, 600.0)
"""So long after the last time, at first and at most, the library is initialized anew because of a GPU that
was lost: it may be back."""

_IDLE_S: Final = 1.0
"""So long for calls to end before that."""


class Missing(Exception):
    """nvidia-ml-py is not here, or is not what it should be."""


def code(error: BaseException) -> int | None:
    """Return the number of an NVMLError; None for other errors."""
    value = getattr(error, "value", None)
    return value if isinstance(value, int) and type(error).__name__.startswith("NVMLError") else None


def verdict(error: Exception) -> Verdict:
    """Return what an error of a call means."""
    number = code(error)
    if number in _UNSUPPORTED or isinstance(error, (AttributeError, NotImplementedError)):
        return Verdict.UNSUPPORTED  # the second: this version of nvidia-ml-py has no such function
    if type(error).__name__ == "NVMLLibraryMismatchError":
        return Verdict.UNSUPPORTED
    return Verdict.DEVICE if number in _DEVICE else Verdict.CALL


class Library:
    """The library of this process. Any thread may call any of this.

    ``generation`` grows with each initialization: handles of devices are of one generation.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._module: ModuleType | None = None
        self._ready = False
        self._lock = threading.RLock()
        self._idle = threading.Condition(threading.Lock())
        self._calls = 0
        self._lost_again_at = 0.0
        self._lost_pause = _LOST_AGAIN_S[0]

    @property
    def api(self) -> Any:
        """The module pynvml; of a library that was opened."""
        return self._module

    def open(self) -> None:
        """Initialize it if it is not. Raises `Missing`, or NVMLError where that cannot be."""
        if not self._ready:
            with self._lock:
                self._initialize()

    def _initialize(self) -> None:
        if self._ready:
            return  # another thread has done it
        if self._module is None:
            self._module = _imported()
        self._module.nvmlInit()
        self.generation += 1
        self._ready = True

    def close(self) -> None:
        """Let go of it, if it is initialized."""
        with self._lock:
            if not self._ready or self._module is None:
                return
            self._ready = False
            try:
                self._module.nvmlShutdown()
            except Exception:
                pass  # it is not initialized any more

    @contextmanager
    def call(self) -> Iterator[None]:
        """Hold the library open for the calls of this block."""
        with self._lock, self._idle:  # not while it is being closed
            self._calls += 1
        try:
            yield
        finally:
            with self._idle:
                self._calls -= 1
                self._idle.notify_all()

    def failed(self, generation: int, error: Exception) -> None:
        """Close it after an error that says that its next initialization would help; outside of `call`."""
        number = code(error)
        if number in (GPU_IS_LOST, RESET_REQUIRED):
            self._close_when_idle(generation)
        elif number in (UNINITIALIZED, DRIVER_NOT_LOADED, MISMATCH):
            with self._lock:
                if generation == self.generation:
                    self.close()

    def _close_when_idle(self, generation: int) -> None:
        """Other GPUs may be in the middle of a call, which closing would break; one may hang in one.

        Nobody waits for the end of these calls but who comes with the error.
        """
        with self._lock:
            now = time.monotonic()
            if generation != self.generation or now < self._lost_again_at:
                return
            self._lost_again_at = now + self._lost_pause
            self._lost_pause = min(2 * self._lost_pause, _LOST_AGAIN_S[1])
        with self._idle:
            self._idle.wait_for(lambda: not self._calls, timeout=_IDLE_S)
        with self._lock:
            if generation == self.generation and not self._calls:  # no call begins while this is locked
                self.close()


def why_missing() -> str | None:
    """Return why GPUs of NVIDIA cannot be read for want of a package; None: it is here."""
    try:
        found = importlib.util.find_spec("pynvml")
    except (ImportError, ValueError, AttributeError):
        found = None
    if found is None:
        return "nvidia-ml-py is not installed: pip install 'grademl-otel[gpu]'"
    if found.submodule_search_locations is not None:
        return (
            "the package pynvml is out of date and in the way: pip uninstall pynvml; pip install nvidia-ml-py"
        )
    return None


def _imported() -> ModuleType:
    reason = why_missing()
    if reason is not None:
        raise Missing(reason)
    return importlib.import_module("pynvml")
