# SPDX-License-Identifier: Apache-2.0
"""What a source is: something that lists the runs it holds and reads a selection of its spans as columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from grademl_otel.analyzers.model.columns import Telemetry
from grademl_otel.analyzers.model.run import RunSummary


@dataclass(frozen=True)
class SourceOptions:
    """How to reach a source, whatever is asked of it."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent to the host of the address and to no other; never printed."""
    timeout_s: float = 30.0
    """Longest silence of a server; connecting has 5 s of it at most."""
    max_spans: int = 1_000_000
    max_bytes: int = 1 << 30
    """Largest single document or answer."""
    max_traces: int = 1_000
    """Largest number of foreign traces fetched from a server."""


@dataclass(frozen=True)
class Selection:
    """Which spans are wanted. Everything is optional, and all that is given must hold."""

    run: str | None = None
    """Run id or the beginning of one; None or ``latest`` is the latest."""
    attempt: int | None = None
    trace_ids: tuple[int, ...] = ()
    service: str | None = None
    operation: str | None = None
    start: int | None = None
    """Unix ns; traces (our runs: runs) that end before are left out."""
    end: int | None = None
    """Unix ns; traces (our runs: runs) that start after are left out."""

    @property
    def run_id(self) -> str | None:
        """The beginning of a run id, or None for the latest."""
        return None if self.run in (None, "", "latest") else self.run


@dataclass(frozen=True)
class Listing:
    """What a source holds: runs of ours, the latest first, and the services of foreign traces."""

    runs: list[RunSummary]
    services: list[str]
    warnings: list[str] = field(default_factory=list)


class Source(Protocol):
    """A place that telemetry is read from.

    Both methods raise `SourceError` when the place cannot be read and `NothingFound` when it holds nothing
    that matches.
    """

    @property
    def uri(self) -> str:
        """The address, without secrets."""

    def list(self) -> Listing:
        """Return what is there without reading all of it where the source can."""

    def read(self, selection: Selection) -> Telemetry:
        """Return the spans that match; of a run all spans, so that its completeness can be judged."""
