# SPDX-License-Identifier: Apache-2.0
"""An end to waiting for a gRPC server that has stopped to answer: gRPC itself bounds only whole calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock, Thread
from typing import Any, Final

_LOOK_S: Final = 0.5


class Watch:
    """Cancels calls whose server has been silent for too long; gRPC bounds only the whole."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._lock = Lock()
        self.heard: dict[Any, float] = {}
        self._running = False

    def over(self, call: Any) -> _Watched:
        """Watch ``call`` while the block lasts; the block says when it heard something."""
        return _Watched(self, call)

    def begin(self, call: Any) -> None:
        with self._lock:
            self.heard[call] = time.monotonic()
            if not self._running:
                self._running = True
                Thread(target=self._look, name="grademl-watch", daemon=True).start()

    def forget(self, call: Any) -> None:
        with self._lock:
            self.heard.pop(call, None)

    def _look(self) -> None:
        """Look after the calls, until there has been none for a while."""
        idle = 0
        while True:
            time.sleep(min(_LOOK_S, self._silence_s / 4))
            with self._lock:
                idle = 0 if self.heard else idle + 1
                if idle > 8:
                    self._running = False
                    return
                since = time.monotonic() - self._silence_s
                silent = [call for call, heard in self.heard.items() if heard < since]
            for call in silent:
                call.cancel()


class _Watched:
    def __init__(self, watch: Watch, call: Any) -> None:
        self._watch = watch
        self._call = call

    def __enter__(self) -> Callable[[], None]:
        self._watch.begin(self._call)
        return self

    def __call__(self) -> None:
        self._watch.heard[self._call] = time.monotonic()

    def __exit__(self, *error: object) -> None:
        self._watch.forget(self._call)
