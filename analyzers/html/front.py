# SPDX-License-Identifier: Apache-2.0
"""The first screen of the page in words: what it is about, how that ended, what the data are worth, verdict.

The words are those of the other forms of the answer, so that the page says what the terminal says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

from grademl_otel import semconv
from grademl_otel.analyzers.diagnosis.finding import Finding
from grademl_otel.analyzers.reporting import header
from grademl_otel.analyzers.reporting.document import ReportDocument
from grademl_otel.analyzers.reporting.report_screen import (
    evidence_in_words,
    gain_in_words,
    memory_in_words,
    path_in_words,
)
from grademl_otel.analyzers.subject import Subject
from grademl_otel.analyzers.units import count, percent

NOTES: Final = 8
"""Reservations about the data that are seen at once; the others unfold."""
MOST_NOTES: Final = 200
"""Reservations that the page shows at all."""
ENDED: Final = 8
"""Ranks that did not end in order, likewise."""
CLOCKS: Final = 8
"""Clocks of hosts, likewise."""
_HOSTS: Final = 4
_SHORT_COMMIT: Final = 12


@dataclass(frozen=True)
class Ended:
    """How a rank ended."""

    text: str
    badly: bool
    """Not one that may still go on."""


@dataclass(frozen=True)
class Gain:
    """What the first finding would gain."""

    figure: str
    """Large: the most of a step that is saved."""
    text: str


@dataclass(frozen=True)
class Front:
    """All of it; empty or None where there is nothing to say."""

    title: str
    kind: str
    """``run`` or ``traces``."""
    subject: Sequence[str]
    """What it is, a fact each, in a line below its name."""
    facts: Sequence[tuple[str, str]]
    """(name, value)."""
    ended: Sequence[Ended]
    more_ended: int
    verdict: str
    """On the data: complete, incomplete or unverifiable."""
    data: str
    """The counts that it goes by."""
    notes: Sequence[str]
    more_notes: int
    """Beyond those."""
    clocks: Sequence[str]
    """Of hosts whose times are shifted."""
    more_clocks: int
    severity: str
    lines: Sequence[str]
    """The verdict on the run."""
    gain: Gain | None
    fixes: Sequence[str]
    evidence: Sequence[str]
    path: str


def front(about: Subject, document: ReportDocument) -> Front:
    """Return the first screen of the page of ``document``, which is the report on ``about``."""
    head: Finding | None = document.findings[0] if document.findings else None
    verdict, complete, notes = document.verdict, document.completeness, document.notes
    ended, shifted = _ended(document), [one for one in complete.clocks[1:] if one.applied]
    return Front(
        title=_title(document),
        kind="traces" if document.source.run is None else "run",
        subject=header.subject(document)[1:],
        facts=_facts(about, document),
        ended=ended[:ENDED],
        more_ended=max(0, len(ended) - ENDED),
        verdict=complete.verdict,
        data=header.data_counts(complete),
        notes=notes[:MOST_NOTES],
        more_notes=max(0, len(notes) - MOST_NOTES),
        clocks=[header.clock_in_words(one) for one in shifted[:CLOCKS]],
        more_clocks=max(0, len(shifted) - CLOCKS),
        severity=(verdict.severity if verdict is not None else None) or "none",
        lines=_sentences(verdict.lines) if verdict is not None else [],
        gain=_gain(head, document),
        fixes=[f"{fix[:1].upper()}{fix[1:]}." for fix in head.fix] if head is not None and verdict else [],
        evidence=evidence_in_words(head, document) if head is not None else [],
        path=path_in_words(document),
    )


def _sentences(lines: Sequence[str]) -> list[str]:
    """Return ``lines`` such that the first one, which is large, ends with a sentence."""
    first, *rest = lines
    if first.endswith((".", "!", "?")):
        return [first, *rest]
    lead, end, begun = first.rpartition(". ")
    return [lead + end.strip(), " ".join([begun, *rest])] if end else [" ".join(lines)]


def _title(document: ReportDocument) -> str:
    run, source = document.run, document.source
    if source.run is None:
        return f"Traces of {source.uri}" if source.traces != 1 else f"A trace of {source.uri}"
    return (run.script if run is not None else "") or f"Run {source.run}"


def _facts(about: Subject, document: ReportDocument) -> list[tuple[str, str]]:
    """Return what there is to know of the run or the traces beside its name."""
    source, run = document.source, document.run
    facts = []
    if run is not None:
        facts.append(("Run", f"{source.run}" + (f", attempt {source.attempt}" if source.attempt else "")))
        if machine := _machine(about):
            facts.append(("Where", machine))
        if source_code := _source_code(about):
            facts.append(("Source", source_code))
        if run.memory:
            facts.append(("Device memory", memory_in_words(run.memory)))
    facts.append(("When", moment(int(document.window.origin_unix_ns))))
    return facts


def _machine(about: Subject) -> str:
    """Return the hosts of the run, and what it trained with, as far as its resources tell."""
    resources = _resources(about)

    def told(*keys: str) -> list[str]:
        return sorted({" ".join(str(one[key]) for key in keys if key in one) for one in resources} - {""})

    hosts = told("host.name")
    named = ", ".join(hosts[:_HOSTS]) + (f" and {len(hosts) - _HOSTS:,} more" if len(hosts) > _HOSTS else "")
    frameworks = told("grademl.framework.name", "grademl.framework.version")
    accelerators = sorted({_accelerators(one) for one in resources} - {""})
    each = " each" if len(hosts) > 1 else ""
    parts = [*([f"on {named}"] if hosts else []), *(f"{one}{each}" for one in accelerators), *frameworks]
    return " · ".join(parts)


def _resources(about: Subject) -> list[Mapping[str, Any]]:
    """Return the resources of the ranks' run spans, each once."""
    run = about.run
    if run is None:
        return []
    used = {int(run.spans.resource_ix[ix]) for ix in run.run_spans.values()}
    return [run.spans.resources[ix] for ix in sorted(used)]


def _accelerators(resource: Mapping[str, Any]) -> str:
    number, model = resource.get(semconv.ACCELERATOR_COUNT), resource.get(semconv.ACCELERATOR_MODEL)
    if not isinstance(number, int) or isinstance(number, bool) or number <= 0:
        return ""
    return f"{number:,} × {model or resource.get(semconv.ACCELERATOR_VENDOR) or 'accelerator'}"


def _source_code(about: Subject) -> str:
    """Return the commit that ran; ranks that ran others are told by that alone."""
    resources = _resources(about)
    told = sorted({str(one.get(semconv.SOURCE_REVISION) or "") for one in resources} - {""})
    if not told:
        return ""
    if len(told) > 1:
        return f"{len(told):,} commits: {', '.join(one[:_SHORT_COMMIT] for one in told[:_HOSTS])}"
    branches = sorted({str(one.get(semconv.SOURCE_BRANCH) or "") for one in resources} - {""})
    changed = any(one.get(semconv.SOURCE_DIRTY) is True for one in resources)
    branch = f" on {branches[0]}" if len(branches) == 1 else ""
    return f"commit {told[0][:_SHORT_COMMIT]}{branch}" + (", with changes" if changed else "")


def moment(ns: int) -> str:
    """Return a time in Unix ns as a date and a time of day, UTC."""
    try:
        at = datetime.fromtimestamp(ns // 1_000_000_000, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"{ns} ns since 1970"
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _ended(document: ReportDocument) -> list[Ended]:
    """Return how ranks ended that did not in order, those that may still go on last."""
    found = [
        Ended(line, one.how != "unknown")
        for one in document.ended
        if (line := header.ended_in_words(one)) is not None
    ]
    silent = header.silent_ranks(document.completeness)
    if line := header.waiting_in_vain(document.ended, silent):
        found.insert(0, Ended(line, True))
    return sorted(found, key=lambda one: not one.badly)


def _gain(head: Finding | None, document: ReportDocument) -> Gain | None:
    if head is None or head.gain is None or document.step is None:
        return None
    # The terminal's line, of which the figure is large here.
    figure = f"at most {percent(head.gain.fraction)}"
    return Gain(figure, gain_in_words(head.gain, document.step.mean_ns).removeprefix(figure).lstrip())


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return a list of ranks, runs of them as such: 0-3, 7."""
    parts: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in parts[:12]]
    return ", ".join(shown) + (f" and more, {count(len(set(ranks)), 'rank')}" if len(parts) > 12 else "")
