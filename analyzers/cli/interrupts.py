# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and SIGTERM: the first ends the command in order, a second at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn either signal into KeyboardInterrupt, and the one after it into the end of the process."""
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers belong to the main thread
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # as under nohup, or in the background
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    raise KeyboardInterrupt
