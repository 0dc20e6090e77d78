# SPDX-License-Identifier: Apache-2.0
"""The answer of `grademl doctor` as data: what `--json` prints, and what its text is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from grademl_otel.analyzers.examination.here import Check
from grademl_otel.analyzers.examination.recorded import Signal
from grademl_otel.analyzers.reporting.document import ClockOffset, RunEntry
from grademl_otel.analyzers.shown import Records, Shown

DOCTOR_SCHEMA: Final = "grademl.doctor/1"
SERVERS: Final = frozenset({"Jaeger", "Tempo", "server"})
"""Kinds of sources that limit what they give; others only tell how much there is."""


@dataclass(frozen=True)
class ServerClock:
    """A server's clock against that of this machine."""

    offset_ns: int
    error_ns: int


@dataclass(frozen=True)
class SourceLook:
    """What a source says of itself; what it does not is null."""

    uri: str
    kind: str
    api: str | None
    """The way in that was chosen, and why."""
    version: str | None
    limits: dict[str, str]
    clock: ServerClock | None


@dataclass(frozen=True)
class NameCount:
    name: str
    count: int


@dataclass(frozen=True)
class SpansLook:
    """The spans that were read: those of the run looked at, or of the traces that match."""

    count: int
    traces: int
    first_unix_ns: str | None
    last_unix_ns: str | None
    names: list[NameCount]
    """The most frequent first; the rest is `more_names`."""
    more_names: int


@dataclass(frozen=True)
class RunLook:
    """The run that was looked at closely."""

    run: str
    attempt: int
    ended: str
    recorded: list[Signal]
    clocks: list[ClockOffset]
    """Of its hosts, against the first; empty where there is one."""


@dataclass(frozen=True, kw_only=True)
class DoctorDocument(Shown, screen="reporting.doctor_screen"):
    """Schema `grademl.doctor/1`."""

    schema: str = DOCTOR_SCHEMA
    source: SourceLook | None
    """Null where none was given and there is none by default."""
    services: list[str] = field(default_factory=list)
    """Of traces that are no run of ours."""
    runs: list[RunEntry] = field(default_factory=list)
    """The latest first."""
    spans: SpansLook | None = None
    run: RunLook | None = None
    verdict: str | None = None
    """On the completeness of what was read."""
    incomplete_because: list[str] = field(default_factory=list)
    here: list[Check] | None = None
    """Whether recording works on this machine; null where a source was given."""
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """A line each: what is wrong, and what to do."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to analyze in the source."""
        return not self.runs and not self.services and (self.spans is None or not self.spans.count)

    def _tables(self) -> Mapping[str, Records]:
        return {
            "recorded": Records(Signal, [] if self.run is None else self.run.recorded),
            "here": Records(Check, self.here or []),
            "runs": Records(RunEntry, self.runs),
            "names": Records(NameCount, [] if self.spans is None else self.spans.names),
        }
