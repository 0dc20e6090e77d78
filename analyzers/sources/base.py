# SPDX-License-Identifier: Apache-2.0
"""What a source is: something that lists the runs it holds and reads a selection of its spans as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from grademl_otel.analyzers.model.columns import Ledger, Telemetry
from grademl_otel.analyzers.model.run import RunSummary
from grademl_otel.analyzers.secrecy import keep

if TYPE_CHECKING:
    from grademl_otel.analyzers.sources.buffer import SpanBuilder
    from grademl_otel.analyzers.sources.formats.metric_groups import MetricGroup

Progress = Callable[[str, int, "int | None"], None]
"""Told of long work: what is counted ("spans", "traces"), how many so far, of how many if known."""


def no_progress(what: str, done: int, total: int | None) -> None:
    """Tell nobody."""


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
    ca: str | None = None
    """File of the certificates to trust instead of the system's."""
    client_cert: str | None = None
    """File of the certificate to show to a server that asks for one, and of its key."""
    client_key: str | None = None
    """File of that key where it is not in the same one."""
    anonymous: bool = False
    """Show nothing of the environment's headers, login and certificates to the server."""
    progress: Progress = field(default=no_progress, repr=False)

    def __post_init__(self) -> None:
        keep(self.headers.values())


@dataclass(frozen=True)
class Selection:
    """Which spans are wanted. Everything is optional, and all that is given must hold."""

    run: str | None = None
    """Run id or the beginning of one; None or ``latest`` is the latest."""
    attempt: int | None = None
    trace_ids: tuple[int, ...] = ()
    service: str | None = None
    operation: str | None = None
    attributes: tuple[tuple[str, str], ...] = ()
    """(key, value as text); one span of a trace must have them all."""
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


@dataclass(frozen=True)
class Piece:
    """A part of a source that is copied as a whole: a trace or some, a range of a file."""

    key: str
    """Names it in this source, the same at every call; no secret in it."""
    final: bool
    """False where it may still grow: the next copy reads it again, and duplicates are dropped on reading."""
    expected: int | None
    """Spans in it, as the source says; None where it does not."""
    read: Callable[[SpanBuilder, Ledger], None]
    """Add its spans to a builder, and to the ledger what reading lost. Raises SourceError."""


TakeGroup = Callable[["MetricGroup"], None]
"""Takes metrics; raises Unreadable for what is none."""


@dataclass(frozen=True)
class MetricPart:
    """The metrics of one file of a source."""

    key: str
    """Names it in this source, the same at every call."""
    version: str
    """Another one once there is something else in it."""
    read: Callable[[TakeGroup], list[str]]
    """Hand on all that is in it; return one line each about what was left out."""


@dataclass(frozen=True)
class Probe:
    """What `grademl doctor` tells of a source."""

    kind: str
    """As "Jaeger", "Tempo", "files", "copy"."""
    api: str | None = None
    """The way chosen, and why, as "api_v3 over HTTP"."""
    version: str | None = None
    limits: Mapping[str, str] = field(default_factory=dict)
    """Name -> value, in words."""
    clock_offset_ns: int | None = None
    """The server's clock minus ours."""
    clock_error_ns: int | None = None
    services: tuple[str, ...] = ()
    runs: tuple[RunSummary, ...] = ()
    notes: tuple[str, ...] = ()
    """One line each, for people."""
    problems: tuple[str, ...] = ()
    """One line each: what is wrong and what to do; none for a source that can be read."""


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

    def pieces(self, selection: Selection, ledger: Ledger) -> Iterator[Piece]:
        """Yield what a copy of the selection consists of, in an order that a later call repeats.

        What finding them lost goes to ``ledger``, what reading one loses to the ledger that its `read` is
        given. Where the iterator has a length (`operator.length_hint`), that is how many there are. Raises
        SourceError, and NothingFound when nothing matches.
        """

    def probe(self) -> Probe:
        """Return what can be said of the source without reading its spans; problems are in it, not raised."""


@runtime_checkable
class MetricSource(Protocol):
    """A source that may hold metrics beside its spans, too."""

    def metric_parts(self, selection: Selection | None) -> Sequence[MetricPart]:
        """Return the metrics beside the spans of ``selection``. Raises as `Source.read` does."""
