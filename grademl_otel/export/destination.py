# SPDX-License-Identifier: Apache-2.0
"""One signal's way to a collector: its sender, and what is known of the other end."""

from __future__ import annotations

import random
import time
from typing import Final

from grademl_otel.destination import without_credentials
from grademl_otel.export.senders import Sender, Verdict
from grademl_otel.export.settings import OtlpSettings

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_SPREAD: Final = 0.2
"""A thousand hosts are not to come back to a collector in the same moment."""


class Destination:
    """A sender with the memory of what became of its last request."""

    def __init__(self, settings: OtlpSettings, sender: Sender):
        self.settings = settings
        self.sender: Sender | None = sender
        """None: the other end has no place for this signal, whose requests are dropped."""
        self.away = False
        self.last = Verdict("ok")
        """The last verdict that was not a plain yes."""
        self._pause = _FIRST_PAUSE_S
        self._next_attempt = 0.0

    def may_send(self) -> bool:
        """Return True when the other end is there, or it is time to look again."""
        return self.seconds_until_attempt() == 0.0

    def seconds_until_attempt(self) -> float:
        """Return in how many seconds a request may be sent; 0 when the other end is there."""
        return max(0.0, self._next_attempt - time.monotonic()) if self.away else 0.0

    def note(self, verdict: Verdict) -> None:
        """Learn from a verdict."""
        if verdict.outcome != "ok" or verdict.rejected:
            self.last = verdict
        if verdict.outcome != "retry":
            self.away = False
            self._pause = _FIRST_PAUSE_S
            return
        self.away = True
        pause = self._pause if verdict.retry_after_s is None else max(verdict.retry_after_s, self._pause)
        self._next_attempt = time.monotonic() + pause * random.uniform(1.0, 1.0 + _SPREAD)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)

    def close(self) -> None:
        """Close the sender, if there is one."""
        if self.sender is not None:
            self.sender.close()

    def give_up_signal(self) -> None:
        """Send nothing there any more."""
        self.close()
        self.sender = None

    def complaint(self, fate: str, verdict: Verdict, more: str = "") -> str:
        """Return one line: where, what becomes of the data, why, and what to do."""
        endpoint = without_credentials(self.settings.endpoint)
        line = f"collector at {endpoint}: {self.settings.signal} are {fate}: {verdict.reason}"
        return "; ".join(part for part in (line, more, verdict.advice) if part)
