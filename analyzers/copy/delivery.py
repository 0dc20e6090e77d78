# SPDX-License-Identifier: Apache-2.0
"""Sends requests one after the other, again where OTLP says so, and counts what became of what is in them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from grademl_otel.analyzers.errors import SourceError
from grademl_otel.export.senders import NO_CONNECTION, Sender, Verdict

_TRIES: Final = 6
_TRIES_TO_CONNECT: Final = 2
"""Of a first request: an address where nothing listens is more likely wrong than away."""
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0


class Deliverable(Protocol):
    """A request: of spans, or of metrics."""

    @property
    def count(self) -> int:
        """How many spans or points are in it."""

    def body(self) -> bytes: ...

    def halves(self) -> Sequence[Deliverable]:
        """Return smaller ones in its place; none where there are none."""


class Unsupported(SourceError):
    """The other end has no place for such requests."""


class Delivery:
    """A sender with patience. ``where`` names the other end in errors."""

    def __init__(self, sender: Sender, where: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sender = sender
        self._where = where
        self._sleep = sleep
        self.accepted = 0
        self.rejected = 0
        self.requests = 0
        self.reason = ""
        """Why the last of what was not taken was not, in the other end's words."""

    def send(self, request: Deliverable) -> None:
        """Deliver ``request``; SourceError when it cannot be now, and so what follows it could not either.

        A request that is refused for what is in it is counted, and what follows is sent.
        """
        verdict = self._patiently(request.body())
        halves = request.halves() if verdict.outcome == "too large" else ()
        if halves:
            for half in halves:
                self.send(half)
            return
        if verdict.outcome in ("retry", "unsupported"):
            of = Unsupported if verdict.outcome == "unsupported" else SourceError
            raise of(f"{self._where}: {verdict.reason}; {_advice(verdict)}".rstrip("; "))
        count = request.count
        rejected = min(verdict.rejected, count) if verdict.outcome == "ok" else count
        self.requests += 1
        self.rejected += rejected
        self.accepted += count - rejected
        self.reason = verdict.reason if rejected else self.reason

    def _patiently(self, body: bytes) -> Verdict:
        """Return the first verdict that is not to try again, or the last."""
        tries = 0
        while True:
            verdict = self._sender.send(body)
            tries += 1
            new = verdict.reason == NO_CONNECTION and not self.requests
            if (
                verdict.outcome != "retry"
                or verdict.lasting
                or tries >= (_TRIES_TO_CONNECT if new else _TRIES)
            ):
                return verdict
            pause = random.uniform(0.5, 1.0) * _FIRST_PAUSE_S * 2**tries
            self._sleep(min(max(pause, verdict.retry_after_s or 0.0), _LONGEST_PAUSE_S))


def _advice(verdict: Verdict) -> str:
    """Return the sender's advice, which speaks of the recorder's settings, in the command's words."""
    return (
        verdict.advice.replace("the path in OTEL_EXPORTER_OTLP_ENDPOINT", "the path of --to")
        .replace("OTEL_EXPORTER_OTLP_ENDPOINT", "--to")
        .replace("the credentials in OTEL_EXPORTER_OTLP_HEADERS", "the credentials in --header")
    )
