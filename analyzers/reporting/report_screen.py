# SPDX-License-Identifier: Apache-2.0
"""The first screen: verdict, gain, where the time went, evidence, critical path, what was not judged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from grademl_otel import semconv as sc
from grademl_otel.analyzers.diagnosis.finding import (
    CRITICAL,
    WARNING,
    Abstained,
    Evidence,
    Finding,
    Gain,
    Verdict,
)
from grademl_otel.analyzers.graph.runs.main_lane import OTHER, STEP_PHASES
from grademl_otel.analyzers.reporting import header, path_screen
from grademl_otel.analyzers.reporting.breakdown import breakdown_table, worth_telling
from grademl_otel.analyzers.reporting.canvas import BAR, Canvas, Table, bar, table
from grademl_otel.analyzers.reporting.document import (
    DeviceInfo,
    DevicePhase,
    MemoryInfo,
    RankCounts,
    ReportDocument,
    StepInfo,
)
from grademl_otel.analyzers.reporting.jaeger_hint import to_jaeger
from grademl_otel.analyzers.reporting.ranks import about_ranks, ranks_table
from grademl_otel.analyzers.units import clock, count, milliseconds, percent, seconds, size

STEPS = "steps"
IN_VERDICT = frozenset(
    {"data.wait.share", "ranks.lost.share", "arrives.last.share", "arrives.late", "collective.transfer.share"}
)
"""Evidence that the verdict has told already."""
_STYLES = {CRITICAL: "bold red", WARNING: "bold yellow"}
_SMALL_SHARE = 0.001
_PATH_KEYS = 4
_IDLE = "outside of phases"
_IDLE_SIGNAL = "device.idle_in_wait.share"
_INDENT = len("VERDICT  ")


def draw(canvas: Canvas, document: ReportDocument) -> None:
    """Write the report of a run; of other traces, their critical path."""
    if document.run is None:
        path_screen.draw(canvas, document, "phase")
        return
    header.draw(canvas, document)
    canvas.blank()
    step_ns = None if document.step is None else document.step.mean_ns
    draw_verdict(canvas, document.verdict, document.findings, step_ns)
    canvas.blank()
    tables = [_budget(document)] if document.lane_budget else []
    if document.step is not None:
        tables.append(_step(document.step, document.completeness.ranks))
        if document.step.device is not None:
            tables.append(_device(document.step.device))
    canvas.tables(tables)
    if document.ranks is not None and about_ranks(document.findings):
        canvas.blank()
        canvas.tables([ranks_table(document.ranks)])
    if worth_telling(document.breakdown):
        canvas.blank()
        canvas.tables([breakdown_table(document.breakdown)])
    canvas.blank()
    for finding in document.findings:
        evidence = " · ".join(evidence_in_words(finding, document))
        canvas.line(evidence, label="Evidence" if len(document.findings) == 1 else finding.id)
    canvas.line(path_in_words(document), label="Critical path")
    if document.run.memory:
        canvas.line(memory_in_words(document.run.memory), label="Device memory")
    draw_abstained(canvas, document.abstained)
    if (command := to_jaeger(document.source)) is not None:
        canvas.verbatim(f"This run in Jaeger: {command}")


def draw_verdict(
    canvas: Canvas, verdict: Verdict | None, findings: Sequence[Finding], step: int | None
) -> None:
    """Write the verdict, what its finding would gain of a ``step`` of so many ns, and what to do."""
    if verdict is None:
        return
    style = _STYLES.get(verdict.severity or "", "bold")
    for number, line in enumerate(verdict.lines):
        canvas.line(line, label="" if number else "VERDICT", style=style, indent=_INDENT)
    head = findings[0] if findings else None
    if head is None:
        return
    if head.gain is not None and step is not None:
        canvas.line(gain_in_words(head.gain, step), label="GAIN", style="bold", indent=_INDENT)
    for number, fix in enumerate(head.fix):
        canvas.line(
            f"{fix[:1].upper()}{fix[1:]}.", label="" if number else "FIX", style="bold", indent=_INDENT
        )


def draw_abstained(canvas: Canvas, abstained: Sequence[Abstained]) -> None:
    """Write what was not judged, rules that lack the same in one line."""
    for names, missing, how_to_get in not_judged(abstained):
        canvas.line(f"{', '.join(names)} ({missing}). To get it: {how_to_get}.", label="Not judged")


def not_judged(abstained: Sequence[Abstained]) -> list[tuple[list[str], str, str]]:
    """Return (rules, what they all lack, how to get it)."""
    rules: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in abstained:
        rules[one.missing, one.how_to_get].append(one.rule)
    return [(names, missing, how_to_get) for (missing, how_to_get), names in rules.items()]


def gain_in_words(gain: Gain, step: int) -> str:
    """Return what a finding would gain of a ``step`` of so many ns."""
    return (
        f"at most {percent(gain.fraction)} of the step"
        f" ({milliseconds(step)} -> {milliseconds(step * (1 - gain.fraction))}):"
        f" an upper bound, not a prediction. Next limit: {_limit(gain.next_limit)}."
    )


def evidence_in_words(finding: Finding, document: ReportDocument) -> list[str]:
    """Return the evidence that the verdict does not tell."""
    host = document.step is not None and document.step.host_time
    return [
        _idle(one) if host and one.signal == _IDLE_SIGNAL else in_words(one)
        for one in finding.evidence
        if one.signal not in IN_VERDICT
    ]


def _limit(phase: str) -> str:
    return "the Python between the phases (other)" if phase == OTHER else phase


def _budget(document: ReportDocument) -> Table:
    """Return the lane budget with the steps' phases as one row; the mean over ranks if there are several."""
    ranks = len({entry.rank for entry in document.lane_budget})
    total: dict[str, int] = defaultdict(int)
    for entry in document.lane_budget:
        of_steps = entry.per_step_ns is not None or entry.phase in STEP_PHASES
        total[STEPS if of_steps else entry.phase] += entry.ns
    wall = document.window.wall_ns * ranks or 1
    rows = sorted(total.items(), key=lambda item: -item[1])
    who = "training thread" if ranks == 1 else f"training threads, mean of {ranks:,} ranks"
    return table(
        f"Where the {clock(document.window.wall_ns)} went ({who})",
        [("", "left"), ("", "right"), ("", "right")],
        [
            (f"  {name}", seconds(ns / ranks), percent(ns / wall))
            for name, ns in rows
            if ns / wall >= _SMALL_SHARE
        ],
    )


def _step(step: StepInfo, ranks: RankCounts) -> Table:
    spread = (
        f"mean {milliseconds(step.mean_ns)}, p50 {milliseconds(step.p50_ns)}, p95 {milliseconds(step.p95_ns)}"
    )
    few = f", only {count(step.n, 'step')}" if step.few else ""
    host = ", host time" if step.host_time else ""
    if ranks.expected is not None and len(ranks.present) < ranks.expected:
        few += f", {len(ranks.present):,} of {ranks.expected:,} ranks"
    return table(
        f"Step, steady ({spread}{few}{host})",
        [("", "left"), ("", "right"), ("", "right"), ("", BAR)],
        [
            (
                f"  {'  ' if phase.within else ''}{phase.phase}",
                milliseconds(phase.mean_ns),
                percent(phase.share),
                "" if phase.within else bar(phase.share),
            )
            for phase in step.phases
        ],
    )


def _device(device: DeviceInfo) -> Table:
    """Return what the device did in the same steps."""
    later = device.behind_p50_ns
    pace = f"done {milliseconds(later)} after the host" if later > 0 else "done before the host"
    idle = DevicePhase(_IDLE, device.idle_ns / device.step_ns if device.step_ns else 0.0, device.idle_ns)
    return table(
        f"On the device (mean of {count(device.n, 'step')}, {pace})",
        [("", "left"), ("", "right"), ("", "right"), ("", BAR)],
        [
            (f"  {phase.phase}", milliseconds(phase.mean_ns), percent(phase.share), bar(phase.share))
            for phase in (*device.phases, idle)
        ],
    )


def _idle(evidence: Evidence) -> str:
    return f"the device is idle in {percent(evidence.value)} of the wait"


def in_words(evidence: Evidence) -> str:
    """Return one signal as people read it."""
    if evidence.signal == "queue.empty.share":
        return f"queue empty at next() in {round(evidence.value * evidence.n):,} of {evidence.n:,} steps"
    if evidence.signal == "batch.unready.share":
        return f"{percent(evidence.value)} of the wait was for batches not yet made"
    if evidence.signal == "workers.busy.share":
        return f"workers busy {percent(evidence.value)}"
    if evidence.signal == "batch.make.p50":
        return f"a batch takes {milliseconds(evidence.value)} to make (p50)"
    if evidence.signal == "loader.workers":
        return f"num_workers={evidence.value:.0f}"
    if evidence.signal == _IDLE_SIGNAL:
        return "nothing else computes during the wait (CPU run)"
    if evidence.signal == "arrives.chance":
        return f"by chance with {percent(evidence.value)}"
    if evidence.signal == "cause.covered.share":
        return f"together {percent(evidence.value)} of being late"
    if evidence.signal == "others.wait.share":
        return f"the others wait {percent(evidence.value)} of their steps"
    if evidence.signal == "collectives":
        return f"{evidence.value:.3g} collectives a step"
    if evidence.signal == "collective.bytes":
        return f"{evidence.value / 1e6:.3g} MB a step"
    if evidence.signal.endswith(".more"):
        phase = evidence.signal.removesuffix(".more")
        return f"{phase} {milliseconds(evidence.value)} longer than the others'"
    if evidence.unit == "ns":
        return f"{evidence.signal} {milliseconds(evidence.value)} a step"
    if evidence.signal in ("compile.share", "compile.again.share"):
        return f"{evidence.signal.removesuffix('.share')} {percent(evidence.value)} of the run"
    name = evidence.signal.removesuffix(".share")
    value = percent(evidence.value) if evidence.unit == "1" else f"{evidence.value:g} {evidence.unit}"
    return f"{name} {value} of the step" if evidence.signal.endswith(".share") else f"{name} {value}"


def path_in_words(document: ReportDocument) -> str:
    """Return the largest keys of the path, and what paces the run."""
    shown = [entry for entry in document.summary[:_PATH_KEYS] if entry.path_ns]
    parts = [f"{entry.key} {percent(entry.path_share)}" for entry in shown]
    if shown and shown[0].key in sc.WORKER_PHASES and (workers := _workers(document)):
        parts[0] += f" (the run is paced by {workers})"
    if (rest := sum(entry.path_share for entry in document.summary[_PATH_KEYS:])) > 0:
        parts.append(f"the rest {percent(rest)}")
    return " · ".join(parts)


def memory_in_words(memory: list[MemoryInfo]) -> str:
    """Return what was allocated at most, of the device with most; the others have as much or less."""
    most = max(memory, key=lambda one: one.peak)
    where = f" (rank {most.rank}, device {most.device}, most of {len(memory):,})" if len(memory) > 1 else ""
    return f"at most {size(most.peak)} allocated, {size(most.reserved)} reserved at last{where}"


def _workers(document: ReportDocument) -> str | None:
    """Return the loader's workers in words; None without workers."""
    most = max((loader.workers for loader in document.run.loaders), default=0) if document.run else 0
    return count(most, "loader worker") if most else None
