# SPDX-License-Identifier: Apache-2.0
"""From what was found of resources to the answer of `grademl resources`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import FloatArray, IntArray
from grademl_otel.analyzers.attribution.answer import Found
from grademl_otel.analyzers.attribution.groupings import RESOURCE_TYPE, Grouped
from grademl_otel.analyzers.attribution.issues import Issue
from grademl_otel.analyzers.attribution.totals import ByKey, added, clipped, integral
from grademl_otel.analyzers.diagnosis.finding import Abstained
from grademl_otel.analyzers.execution.whole import ExecutionModel
from grademl_otel.analyzers.reporting.completeness import completeness_info
from grademl_otel.analyzers.reporting.document import SourceInfo, StepWindow, Window
from grademl_otel.analyzers.reporting.resources_document import (
    AffectedEntry,
    BottleneckEntry,
    IssueEntry,
    MetricEntry,
    PhaseEntry,
    ResourcesDocument,
    UseEntry,
)
from grademl_otel.analyzers.reporting.resources_verdict import verdict
from grademl_otel.analyzers.subject import Subject

MOST_ISSUES: Final = 100
_SECOND: Final = 1e9


def resources_document(about: Subject, found: Found) -> ResourcesDocument:
    """Return the answer that ``found`` is, on ``about``."""
    metrics, use = _metrics_and_use(found)
    phases, bottlenecks = _phases(found, found.bottlenecks.by(RESOURCE_TYPE))
    simulated = found.issues
    issues = [_issue(found.model, one) for one in simulated.all[:MOST_ISSUES]]
    omitted = {
        "phases": found.keys.omitted,
        "issues": len(simulated.all) - len(issues) + simulated.left_out,
    }
    run, telemetry = about.run, about.telemetry
    complete = about.completeness
    document = ResourcesDocument(
        source=SourceInfo(
            telemetry.uri,
            None if run is None else run.run_id,
            None if run is None else run.attempt,
            None if run is None else run.fit[0],
            len(np.unique(telemetry.spans.trace_ix if run is None else run.spans.trace_ix[run.span_ixs])),
        ),
        completeness=completeness_info(
            complete, about.clocks if run is None else run.clocks, ours=run is not None
        ),
        incomplete_because=complete.reasons,
        warnings=[*telemetry.ledger.warnings, *([] if run is None else run.completeness.notes)],
        window=Window(str(found.window[0]), found.length, StepWindow(None, None, 0)),
        by=found.keys.by,
        verdict=verdict(phases, bottlenecks, metrics),
        phases=phases,
        bottlenecks=bottlenecks,
        use=use,
        metrics=metrics,
        issues=issues,
        simulation=list(simulated.notes),
        omitted={name: number for name, number in omitted.items() if number},
        problems=list(found.attributed.problems),
        abstained=list(_untold(found)),
    )
    return document.about(about, found)


# --- Metrics, and what phases used of them --------------------------------------------------------------


def _metrics_and_use(found: Found) -> tuple[list[MetricEntry], list[UseEntry]]:
    entries: list[MetricEntry] = []
    of_type: dict[tuple[str, str], list[ByKey]] = {}
    used_of_type: dict[tuple[str, str], float] = {}
    for metric in found.metrics:
        one = found.resources.metrics[metric]
        used = unattributed = None
        if found.attributed.use(metric).is_used:
            attribution = found.attributed.attribution(metric)
            rest = found.attributed.background(metric)
            length = clipped(rest.edges, found.window)
            # When within an interval it was used is told by who wanted it: the window may cut one.
            used, unattributed = (
                integral(values, length) for values in (attribution.upsampled.value, rest.usage)
            )
            totals = ByKey.of(attribution, found.key_of_users(metric), len(found.keys.names), found.window)
            of_type.setdefault((one.type, one.unit), []).append(totals)
        entry = _metric(found, metric, used, unattributed)
        used_of_type[one.type, one.unit] = used_of_type.get((one.type, one.unit), 0.0) + entry.used
        entries.append(entry)
    sums = {key: added(parts) for key, parts in of_type.items()}
    use = [
        entry
        for number in range(len(found.keys.names))
        for (name, unit), of in sums.items()
        if of.has_rule[number]
        for entry in [_use(found.keys.names[number], name, unit, of, number, used_of_type[name, unit])]
    ]
    return entries, use


def _metric(found: Found, metric: int, placed: float | None, unattributed: float | None) -> MetricEntry:
    one, (low, high) = found.resources.metrics[metric], found.window
    seen = one.observed
    start, end = np.clip(seen.start, low, high), np.clip(seen.end, low, high)
    length = end - start
    there = length > 0
    observed = int(length.sum())
    used = float(seen.value @ (length / _SECOND))
    mean = used / (observed / _SECOND) if observed else None
    known = np.isfinite(seen.capacity)
    full = length[seen.value >= found.full_from * seen.capacity] if known else np.zeros(0, np.int64)
    return MetricEntry(
        resource=found.resources.path(one.resource),
        metric=one.type,
        unit=one.unit,
        capacity=float(seen.capacity) if known else None,
        mean=mean,
        peak=float(seen.value[there].max()) if observed else None,
        utilization=mean / seen.capacity if known and mean is not None else None,
        full_ns=int(full.sum()) if known else None,
        observed_ns=observed,
        coverage=observed / found.length if found.length else 0.0,
        used=used if placed is None else placed,
        unattributed=unattributed,
        sources=list(one.sources),
    )


def _use(key: str, metric: str, unit: str, of: ByKey, number: int, whole: float) -> UseEntry:
    used, available, observed = (float(each[number]) for each in (of.used, of.available, of.observed))
    known = np.isfinite(available)
    return UseEntry(
        key=key,
        metric=metric,
        unit=unit,
        used=used,
        available=available if known else None,
        utilization=used / available if known and available > 0 else None,
        mean=used / observed if observed else None,
        share=used / whole if whole else None,
        observed_ns=round(observed * _SECOND),
    )


# --- Bottlenecks ----------------------------------------------------------------------------------------


def _phases(found: Found, grouped: Grouped) -> tuple[list[PhaseEntry], list[BottleneckEntry]]:
    keys, number = found.keys, len(found.keys.names)
    key = keys.of_phase[grouped.phase]
    active, known, free, without = (
        _sums(key, values, number)
        for values in (grouped.active, grouped.known, grouped.never_full, grouped.without_overhead)
    )
    phases = [
        PhaseEntry(
            key=keys.names[at],
            phases=int(keys.phases[at]),
            busy_ns=_ns(active[at]),
            known_ns=_ns(known[at]),
            free_ns=_ns(free[at]),
            without_overhead_ns=_ns(without[at]),
        )
        for at in range(number)
    ]
    rows = grouped.rows
    groups = len(grouped.names)
    cell = np.where(keys.of_phase[rows.phase] >= 0, keys.of_phase[rows.phase] * groups + rows.group, -1)
    seen, full, globally, uniquely, gain = (
        _sums(cell, values, number * groups)
        for values in (rows.known, rows.full, rows.full_globally, rows.uniquely_full, rows.gain)
    )
    entries = []
    for at in range(number):
        own = [group for group in range(groups) if seen[at * groups + group] > 0]
        for group in sorted(own, key=lambda one: (-full[at * groups + one], grouped.names[one])):
            place = at * groups + group
            entries.append(
                BottleneckEntry(
                    key=keys.names[at],
                    resource=grouped.names[group],
                    known_ns=_ns(seen[place]),
                    full_ns=_ns(full[place]),
                    share=min(1.0, float(full[place] / seen[place])),
                    globally_ns=_ns(globally[place]),
                    uniquely_ns=_ns(uniquely[place]),
                    gain_ns=_ns(gain[place]),
                )
            )
    order = sorted(range(number), key=lambda at: (-phases[at].busy_ns, at))
    place_of = {keys.names[at]: place for place, at in enumerate(order)}
    entries.sort(key=lambda entry: place_of[entry.key])
    return [phases[at] for at in order], entries


def _sums(of: IntArray, values: FloatArray, count: int) -> FloatArray:
    """Return the sums of ``values`` by ``of``, without those of -1."""
    some = of >= 0
    return np.bincount(of[some], values[some], count).astype(float)


def _ns(seconds: float) -> int:
    return round(float(seconds) * _SECOND)


# --- What would help ------------------------------------------------------------------------------------


def _issue(model: ExecutionModel, one: Issue) -> IssueEntry:
    types, of = np.unique(model.phases.type[one.affected], return_inverse=True)
    gains, count = np.bincount(of, one.gains, len(types)), np.bincount(of, minlength=len(types))
    affected = [
        AffectedEntry(model.types.path(node), number, _ns(gain))
        for node, number, gain in zip(types.tolist(), count.tolist(), gains.tolist(), strict=True)
    ]
    return IssueEntry(
        kind=one.kind,
        of=model.types.path(one.target),
        cause=one.cause,
        phases=one.phases,
        removed_ns=_ns(one.removed),
        gain_ns=_ns(one.gain),
        least_ns=_ns(one.least),
        most_ns=_ns(one.most),
        relative=one.of_measured,
        relative_simulated=one.of_simulated,
        affected=sorted(affected, key=lambda entry: (-entry.gain_ns, entry.type)),
    )


# --- What is not told -----------------------------------------------------------------------------------

_KINDS: Final = (
    ("cpu", "record with GRADEML_HOST_INTERVAL above 0, or name a monitor of the host (--prometheus URL)"),
    ("disk", "record with GRADEML_HOST_INTERVAL above 0, or name a monitor of the host (--prometheus URL)"),
    (
        "network",
        "record with GRADEML_HOST_INTERVAL above 0, or name a monitor of the host (--prometheus URL)",
    ),
    (
        "gpu",
        "record with GRADEML_GPU_INTERVAL above 0 where the vendor's library is installed, or name a monitor"
        " of the GPUs (--prometheus URL, of dcgm-exporter)",
    ),
)


def _untold(found: Found) -> Iterator[Abstained]:
    """Yield the types of resources that nobody observed."""
    resources = found.resources
    there = {resources.resources[one.resource].type for one in resources.metrics if len(one.observed)}
    for kind, how in _KINDS:
        if kind not in there:
            yield Abstained(kind, f"no {kind} was observed", how)
