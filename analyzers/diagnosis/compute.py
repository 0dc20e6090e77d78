# SPDX-License-Identifier: Apache-2.0
"""The computation sets the pace: data arrives in time, and one phase of the step takes most of it.

This is a verdict of absence ("the loader is not the limit"), so it needs as many steps as a critical finding.
It promises no gain: what a cheaper phase would bring is for the replay to say. Nor does it call computing
what is waiting for other ranks, or, where no collective was recorded, may be that.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from grademl_otel import semconv as sc
from grademl_otel.analyzers.diagnosis.facts import StepFacts, not_measured, step_facts
from grademl_otel.analyzers.diagnosis.finding import (
    CONFIDENT_STEPS,
    INFO,
    WARN_SHARE,
    Evidence,
    Finding,
    Judgement,
    Verdict,
    Where,
)
from grademl_otel.analyzers.diagnosis.stragglers import observable
from grademl_otel.analyzers.graph.budget import steady_rows
from grademl_otel.analyzers.graph.device import DeviceStep, is_asynchronous
from grademl_otel.analyzers.graph.runs.collective_parts import COLLECTIVE_PARTS
from grademl_otel.analyzers.graph.runs.main_lane import OTHER
from grademl_otel.analyzers.model.run import Run
from grademl_otel.analyzers.units import milliseconds, percent

RULE: Final = "compute.bound"

_MOST: Final = 0.5
"""Of a phase: a part that takes that much of it is what to look into. Of the time from step to step: what
steps take at least, if they set the pace."""
_NO_CODE: Final = (sc.GC, *COLLECTIVE_PARTS)
"""Parts of a phase that say nothing of what the program computes in it."""


def judge(run: Run, inferred: bool = True) -> Judgement:
    """Conclude that computing sets the pace when no rank with enough steps waits for data.

    Without ``inferred`` only what was observed tells that ranks do not wait for each other meanwhile.
    """
    facts = [steps for rank in run.ranks if (steps := step_facts(run, rank)) is not None]
    if (unmeasured := not_measured(run, RULE, run.ranks)) is not None:
        return Judgement([], [unmeasured])
    if not facts or any(steps.n < CONFIDENT_STEPS or steps.exposed_share >= WARN_SHARE for steps in facts):
        return Judgement([], [])
    waiting = sum(steps.ranks_ns for steps in facts) / max(1.0, sum(steps.step_ns for steps in facts))
    if waiting >= WARN_SHARE:  # which ranks for, is for another rule to say; here only if none can
        lines = [f"The ranks wait for each other {percent(waiting)} of each step; for which is not known."]
        return Judgement([], [], Verdict("unknown", None, lines))
    slowest = max(facts, key=lambda steps: steps.step_ns)
    period, step = _pace(run, slowest.rank)
    if step < _MOST * period:
        return Judgement([], [], Verdict("unknown", None, _outside(period, step)))
    phase = slowest.busiest
    if phase in (sc.COLLECTIVE, sc.COLLECTIVE_WAIT):
        return Judgement([], [])
    share = slowest.compute_ns.get(phase, 0.0) / slowest.step_ns
    if len(run.ranks) > 1 and phase == sc.BACKWARD and not observable(run, inferred):
        return Judgement([], [], Verdict("not_observable", None, _not_observable(len(run.ranks), share)))
    finding = Finding(
        id=RULE,
        severity=INFO,
        where=Where([steps.rank for steps in facts]),
        evidence=[
            Evidence(
                "data.wait.share", max(steps.exposed_share for steps in facts), WARN_SHARE, "1", slowest.n
            ),
            Evidence(f"{phase}.share", share, None, "1", slowest.n),
        ],
        fix=_fixes(slowest, phase),
        gain=None,
    )
    return Judgement(
        [finding], [], Verdict(RULE, INFO, _sentences(slowest, phase, share, is_asynchronous(run)))
    )


def _pace(run: Run, rank: int) -> tuple[float, float]:
    """Return the medians of the time from one steady step to the next, and of those steps, in ns."""
    rows, steps = steady_rows(run, rank), run.steps
    followed = np.diff(steps.step[rows]) == 1  # none was lost between the two
    if not followed.any():
        return 0.0, 0.0
    one, other = rows[:-1][followed], rows[1:][followed]
    period, step = steps.start[other] - steps.start[one], steps.end[one] - steps.start[one]
    return float(np.median(period)), float(np.median(step))


def _outside(period: float, step: float) -> list[str]:
    return [
        f"From step to step {milliseconds(period)} pass, of which a step takes {milliseconds(step)}:"
        " what sets the pace is outside of the steps.",
        'No loader is seen there. Name what is done, to see it: `with grademl_otel.phase("fetch"):`.',
    ]


def _not_observable(ranks: int, share: float) -> list[str]:
    return [
        f"Backward takes {percent(share)} of each step. How much of it is computing is not observable:",
        f"no collectives were recorded, so it may be waiting for the slowest of the {ranks:,} ranks.",
    ]


def _fixes(steps: StepFacts, phase: str) -> list[str]:
    took = milliseconds(steps.compute_ns.get(phase, 0.0))
    if phase == OTHER:
        return [f"look at the Python between the phases of a step ({took} a step): logging, metrics, copies"]
    parts = {part: ns for part, ns in steps.parts_ns.get(phase, {}).items() if part not in _NO_CODE}
    fixes = []
    again = parts.pop(sc.RECOMPUTE, 0.0)
    if again >= WARN_SHARE * steps.step_ns:
        fixes.append(
            "checkpoint fewer activations, where memory allows:"
            f" running them again takes {milliseconds(again)} a step"
        )
    part = max(parts, key=lambda part: parts[part], default=phase)
    if parts.get(part, 0.0) >= _MOST * steps.compute_ns[phase]:
        where = f"{part} ({milliseconds(parts[part])} of the {took} of {phase} a step)"
    else:
        where = f"{phase} ({took} a step)"
    return [*fixes, f"look into {where} with torch.profiler"]


def _sentences(steps: StepFacts, phase: str, share: float, asynchronous: bool) -> list[str]:
    what = "Python between the phases" if phase == OTHER else phase
    arrives = (
        f"Data arrives in time (the trainer waits for it {percent(steps.exposed_share)} of the step):"
        f" a faster loader would save no more than that."
        if steps.wait_ns
        else "No step waits for a data loader."
    )
    lines = [f"The computation sets the pace: {what} takes {percent(share)} of each step.", arrives]
    if steps.idle is not None and steps.exposed_share < steps.wait_share:
        lines[1] = (
            f"The trainer waits for data {percent(steps.wait_share)} of the step, and the device is idle in"
            f" {percent(steps.idle.share)} of that: a faster loader would save no more."
        )
    if steps.device is not None:
        lines.append(_on_device(steps.device))
    elif asynchronous:
        lines.append(
            "These are host times: they say when work was given to the device, not how long it took."
        )
    return lines


def _on_device(device: DeviceStep) -> str:
    shares = ", ".join(f"{name} {percent(ns / device.step_ns)}" for name, ns in device.phases)
    idle = percent(device.idle_ns / device.step_ns)
    return f"On the device: {shares} of the step; {idle} is outside of these."
