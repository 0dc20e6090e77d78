# SPDX-License-Identifier: Apache-2.0
"""Rule 1: the trainer waits for its data loader.

Form (a), no workers: batches are made in the main thread, so all of `data.wait` is lost to the step.
Form (b), workers: the batch was not ready when asked for in half of the steps, and the workers were busy.
In-order delivery lets W workers that run in step hand over W batches at once, so that only every W-th step
waits; the limit for W > 1 is therefore 0.8 / W where that is less than a half.

The wait counts only while the device is idle. On a CPU-only run it is: the thread that waits is the device.
Elsewhere that needs events of the device, and the rule abstains.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from grademl_otel import semconv as sc
from grademl_otel.analyzers.diagnosis.facts import LoaderFacts, StepFacts, loader_facts, step_facts
from grademl_otel.analyzers.diagnosis.finding import (
    CONFIDENT_STEPS,
    CRITICAL,
    CRITICAL_SHARE,
    WARN_SHARE,
    Abstained,
    Evidence,
    Finding,
    Gain,
    Judgement,
    Verdict,
    Where,
    severity_of,
)
from grademl_otel.analyzers.model.run import Run
from grademl_otel.analyzers.units import milliseconds, percent

RULE: Final = "input.loader"
BUSY_SHARE: Final = 0.8
"""Workers that make batches for less of their time than this are not the limit."""
MANY_WORKERS: Final = 16
"""Above this, making a batch cheaper is the first advice and more workers the second."""


def judge(run: Run) -> Judgement:
    """Judge every rank; one finding for all that are held up by their loader."""
    hit: list[tuple[StepFacts, LoaderFacts]] = []
    abstained: dict[str, Abstained] = {}
    for rank in run.ranks:
        steps = step_facts(run, rank)
        if steps is None or severity_of(steps.wait_share, steps.n) is None:
            continue
        loader = loader_facts(run, rank)
        doubt = _doubt(run, steps, loader)
        if doubt is not None:
            abstained.setdefault(doubt.missing, doubt)
        elif loader is not None:
            hit.append((steps, loader))
    if not hit:
        return Judgement([], list(abstained.values()))
    steps, loader = max(hit, key=lambda pair: pair[0].wait_share)
    severity = severity_of(steps.wait_share, steps.n) or CRITICAL
    gain = _gain(steps, loader)
    finding = Finding(
        id=RULE,
        severity=severity,
        where=Where(sorted(pair[0].rank for pair in hit)),
        evidence=_evidence(steps, loader),
        fix=_fixes(steps, loader),
        gain=gain,
    )
    return Judgement([finding], list(abstained.values()), Verdict(RULE, severity, _sentences(steps, loader)))


def _doubt(run: Run, steps: StepFacts, loader: LoaderFacts | None) -> Abstained | None:
    """Return why the wait of ``steps`` may not be held against the loader; None when it may."""
    waited = f"data.wait is {percent(steps.wait_share)} of the step"
    if not on_cpu(run):
        return Abstained(
            RULE,
            f"{waited}, but whether device {run.device or '(unknown)'} was idle meanwhile is not recorded",
            "run some hundred steps on one batch kept in memory: if they are no faster, the wait is hidden",
        )
    if loader is None:
        return Abstained(
            RULE,
            f"{waited}, but what the main thread waited for is not recorded",
            "feed the model from a torch.utils.data.DataLoader, whose workers are recorded",
        )
    if not loader.workers:
        return None
    if not loader.n_asked:
        return Abstained(
            RULE,
            f"{waited}, but steps that take several batches do not tell whether the queue was empty",
            "record some steps with one batch a step",
        )
    if loader.busy_share < BUSY_SHARE:
        return Abstained(
            RULE,
            f"{waited}, yet the {loader.workers} workers were busy {percent(loader.busy_share)} of the time:"
            " something between workers and trainer holds the batches up",
            "look at what runs in the main process beside training (pin_memory, sending large batches)",
        )
    if loader.empty_share < empty_limit(loader.workers):
        return Abstained(
            RULE,
            f"{waited}, but the queue was empty in only {loader.empty:,} of {loader.n_asked:,} steps",
            "look at single slow batches: grademl critical-path --by section",
        )
    return None


def on_cpu(run: Run) -> bool:
    """Whether the run computed on the CPU alone, so that a waiting main thread proves an idle device."""
    return (run.device or "").split(":")[0] == "cpu"


def empty_limit(workers: int) -> float:
    """Return the part of the steps that must have found the queue empty."""
    return min(0.5, 0.8 / workers) if workers else 0.0


def _evidence(steps: StepFacts, loader: LoaderFacts) -> list[Evidence]:
    limit = (
        CRITICAL_SHARE if steps.n >= CONFIDENT_STEPS and steps.wait_share >= CRITICAL_SHARE else WARN_SHARE
    )
    evidence = [Evidence("data.wait.share", steps.wait_share, limit, "1", steps.n)]
    if loader.workers:
        evidence += [
            Evidence(
                "queue.empty.share", loader.empty_share, empty_limit(loader.workers), "1", loader.n_asked
            ),
            Evidence("workers.busy.share", loader.busy_share, BUSY_SHARE, "1", loader.n_made),
        ]
    return [
        *evidence,
        Evidence("batch.make.p50", loader.batch_p50_ns, None, "ns", loader.n_made),
        Evidence("device.idle_in_wait.share", 1.0, 0.8, "1", steps.n),
        Evidence("loader.workers", float(loader.workers), None, "{worker}", steps.n),
    ]


def needed_workers(steps: StepFacts, loader: LoaderFacts) -> int:
    """Return the least number of workers that make a step's batches while the rest of it runs."""
    compute = steps.step_ns - steps.wait_ns
    return max(loader.workers + 1, ceil(loader.make_ns / compute) if compute > 0 else MANY_WORKERS)


def _gain(steps: StepFacts, loader: LoaderFacts) -> Gain:
    """Return the closed-form bound T = max(C, L / W') for the workers advised: overlap without friction."""
    compute = steps.step_ns - steps.wait_ns
    workers = min(needed_workers(steps, loader), MANY_WORKERS)
    made = loader.make_ns / max(workers, loader.workers + 1)
    fraction = max(0.0, 1.0 - max(compute, made) / steps.step_ns)
    return Gain(fraction, (0.0, fraction), "bound", steps.busiest if compute >= made else sc.DATA_FETCH)


def _fixes(steps: StepFacts, loader: LoaderFacts) -> list[str]:
    compute = steps.step_ns - steps.wait_ns
    needed = needed_workers(steps, loader)
    extra = needed - loader.workers
    cores = f"needs {extra} free core{'s' * (extra > 1)}; how many there are is not recorded"
    more = f"DataLoader(num_workers={min(needed, MANY_WORKERS)}), now {loader.workers} ({cores})"
    if needed > MANY_WORKERS:
        more = (
            f"more workers alone would take {needed} of them; up to the number of free cores, each one helps"
            f" (num_workers is {loader.workers})"
        )
    how = "decode or resize once and store the result, cache, read larger files"
    cheaper = f"make a batch cheaper ({milliseconds(loader.make_ns)} now): {how}"
    if loader.workers:  # only then does the next batch have the rest of the step to get ready in
        keeps_up = milliseconds(compute * loader.workers)
        cheaper = f"make a batch cheaper, from {milliseconds(loader.make_ns)} to under {keeps_up}: {how}"
    return [more, cheaper] if needed <= MANY_WORKERS else [cheaper, more]


def _sentences(steps: StepFacts, loader: LoaderFacts) -> list[str]:
    share = percent(steps.wait_share)
    compute = milliseconds(steps.step_ns - steps.wait_ns)
    if not loader.workers:
        return [
            f"The trainer waits for data {share} of each step. The loader is the limit, not the computation.",
            f"DataLoader num_workers=0 makes batches in the main thread: {milliseconds(steps.wait_ns)} of a"
            f" {milliseconds(steps.step_ns)} step, while nothing is computed.",
        ]
    pace = milliseconds(loader.make_ns / loader.workers)
    return [
        f"The trainer waits for data {share} of each step. The loader is the limit, not the computation.",
        f"DataLoader num_workers={loader.workers} makes a batch every {pace};"
        f" a step needs one every {compute}.",
    ]
