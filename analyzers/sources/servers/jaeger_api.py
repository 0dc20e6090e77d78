# SPDX-License-Identifier: Apache-2.0
"""What is asked of a Jaeger, whichever of its three query APIs answers. Always for raw traces.

Without ``raw`` Jaeger moves spans of other hosts to where it thinks that their clocks belong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from grademl_otel.analyzers.model.columns import Ledger
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.servers.answer import Answer
from grademl_otel.analyzers.sources.servers.http_client import Clock

ADVICE: Final = "is Jaeger running there? (query port is 16686, 4317/4318 take spans)"


@dataclass(frozen=True)
class Search:
    """What one span of a trace must be like."""

    service: str | None = None
    operation: str | None = None
    attributes: tuple[tuple[str, str], ...] = ()
    """Servers before v2.19 do not look at these in v3 over HTTP: they may give more."""

    def __str__(self) -> str:
        parts = [part for part in (self.service, self.operation) if part]
        return ", ".join(parts + [f"{key}={value}" for key, value in self.attributes]) or "any service"


@dataclass(frozen=True)
class Summary:
    """What the server says of a trace without giving it; times in Unix ns."""

    trace_id: int
    start: int
    end: int
    spans: int


class JaegerApi(Protocol):
    """One of Jaeger's query APIs. All raise SourceError; may be used from several threads."""

    @property
    def api(self) -> str:
        """As "api_v3 over HTTP"."""

    @property
    def finest_ns(self) -> int:
        """The unit of times in searches."""

    @property
    def has_summaries(self) -> bool | None:
        """Whether it has trace summaries, as servers from v2.19 on have; None while that is not known."""

    @property
    def clock(self) -> Clock | None:
        """What the server's clock said."""

    def services(self) -> list[str]:
        """Return the names of all services, sorted."""

    def trace(self, trace_id: int) -> Answer | None:
        """Return a whole trace, or None when there is no such trace."""

    def search(self, wanted: Search, start: int, end: int, limit: int) -> Answer | None:
        """Return up to ``limit`` whole traces that have a span which matches, or None; times in Unix ns."""

    def summaries(self, wanted: Search, start: int, end: int, limit: int) -> list[Summary] | None:
        """Return up to ``limit`` summaries of such traces; None when the server has no summaries."""

    def read(self, answer: Answer, builder: SpanBuilder, ledger: Ledger) -> None:
        """Add the spans of an answer. Raises Unreadable; what came before the fault has been added."""

    def abort(self) -> None:
        """Break off what is going on in other threads."""
