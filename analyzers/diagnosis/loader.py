# SPDX-License-Identifier: Apache-2.0
"""Rule 1: the trainer waits for its data loader.

Form (a), no workers: batches are made in the main thread, so all of `data.wait` is lost to the step.
Form (b), workers: the batch was not ready when asked for in half of the steps, and the workers were busy.
In-order delivery lets W workers that run in step hand over W batches at once, so that only every W-th step
waits; the limit for W > 1 is therefore 0.8 / W where that is less than a half. Where the loader is late now
and then only, the finding is a warning at most.

Either needs the batch to be what was waited for: at least 80 % of the waiting was over when it was ready.
The wait counts only while the device is idle. On a CPU-only run it is: the thread that waits is the device.
Elsewhere that needs the device's times; without them the rule abstains. The first batch of a pass waits for
the workers to start, which is another cause, and is left out.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from grademl_otel.analyzers.diagnosis.facts import (
    LoaderFacts,
    StepFacts,
    loader_facts,
    not_measured,
    step_facts,
)
from grademl_otel.analyzers.diagnosis.finding import (
    CONFIDENT_STEPS,
    CRITICAL_SHARE,
    WARN_SHARE,
    WARNING,
    Abstained,
    Evidence,
    Finding,
    Gain,
    Judgement,
    Verdict,
    Where,
    severity_of,
)
from grademl_otel.analyzers.graph import steady_level
from grademl_otel.analyzers.model.run import Run
from grademl_otel.analyzers.units import count, milliseconds, percent

RULE: Final = "input.loader"
BUSY_SHARE: Final = 0.8
"""Workers that make batches for less of their time than this are not the limit."""
SATURATED_SHARE: Final = 0.95
"""Workers busy for at least this part never had to stop for a full queue: they set the pace."""
COVERED_SHARE: Final = 0.8
"""Part of the waiting that the evidence must cover for a cause to be named."""
MANY_WORKERS: Final = 16
"""Above this, making a batch cheaper is the first advice and more workers the second."""
HANDOVER_NS: Final = 1_000_000
"""What a batch from another process costs the main thread at most, as a rule: a batch made in less than that
had better be made where it is needed."""
MAINLY: Final = 0.5
"""Without workers nothing overlaps: the larger part of the step is its limit."""
NO_WAITS: Final = 3
"""Recording level at which not even waits are measured."""
_NAMED: Final = 8
"""Ranks listed in a sentence."""


def judge(run: Run) -> Judgement:
    """Judge every rank; one finding for all that are held up by their loader."""
    hit: list[tuple[StepFacts, LoaderFacts]] = []
    abstained: dict[str, Abstained] = {}
    for rank in run.ranks:
        steps = step_facts(run, rank)
        unmeasured = not_measured(run, RULE, [rank])
        if steady_level(run, rank) >= NO_WAITS and unmeasured is not None:
            abstained.setdefault(unmeasured.missing, unmeasured)
            continue
        if steps is None or severity_of(steps.exposed_share, steps.n) is None:
            continue
        loader = loader_facts(run, rank)
        doubt = _doubt(run, steps, loader, unmeasured)
        if doubt is not None:
            abstained.setdefault(doubt.missing, doubt)
        elif loader is not None:
            hit.append((steps, loader))
    if not hit:
        return Judgement([], list(abstained.values()))
    steps, loader = max(hit, key=lambda pair: pair[1].wait_share)
    severity = _severity(steps, loader)
    finding = Finding(
        id=RULE,
        severity=severity,
        where=Where(sorted(pair[0].rank for pair in hit)),
        evidence=_evidence(steps, loader),
        fix=_fixes(loader),
        gain=_gain(steps),
    )
    sentences = _sentences(steps, loader, _who(finding.where.ranks, run.ranks))
    return Judgement([finding], list(abstained.values()), Verdict(RULE, severity, sentences))


def _doubt(
    run: Run, steps: StepFacts, loader: LoaderFacts | None, unmeasured: Abstained | None
) -> Abstained | None:
    """Return why the wait for data may not be held against the loader; None when it may.

    ``unmeasured`` is why what the loader did was not recorded; None when it was.
    """
    if not on_cpu(run) and steps.idle is not None and not steps.idle.told:
        return Abstained(
            RULE,
            f"whether {_device(run)} was idle is not known of {percent(steps.idle.unknown_share)} of the"
            " waiting for data",
            "record more steps: of short ones only some are timed on the device",
        )
    if not on_cpu(run) and steps.idle is None:
        return Abstained(
            RULE,
            f"whether {_device(run)} was idle while the main thread waited for data is not recorded",
            "run some hundred steps on one batch kept in memory: if they are no faster, the wait is hidden",
        )
    if loader is None:
        return unmeasured or Abstained(
            RULE,
            "what the main thread waited for is not recorded",
            "feed the model from a torch.utils.data.DataLoader, whose workers are recorded",
        )
    if severity_of(loader.wait_share, loader.n) is None:
        return Abstained(
            RULE,
            "most of the waiting is for the first batch of each pass, while the workers start",
            "compare with DataLoader(persistent_workers=True), which keeps them",
        )
    if not loader.workers:
        return None
    if not loader.n_asked:
        # Steps of several batches have sums in the table, which do not tell one wait from the other.
        if loader.busy_share >= SATURATED_SHARE:
            return None
        return Abstained(
            RULE,
            "steps that take several batches do not tell whether the queue was empty,"
            f" and the workers were busy only {percent(loader.busy_share)} of the time",
            "record some steps with one batch a step",
        )
    if loader.unready_share < COVERED_SHARE:
        return Abstained(
            RULE,
            f"in {percent(1 - loader.unready_share)} of the waiting the batch was ready:"
            " handing it over to the trainer is what takes time",
            "look at what runs in the main process beside training (pin_memory, receiving large batches)",
        )
    return None


def _severity(steps: StepFacts, loader: LoaderFacts) -> str:
    """Return how bad it is: a loader that is late now and then is no critical matter.

    What an asynchronous device did in the meantime from earlier steps is no loss.
    """
    idle = 1.0 if steps.idle is None else steps.idle.share
    severity = severity_of(loader.wait_share * idle, loader.n) or WARNING
    return WARNING if _now_and_then(loader) else severity


def _now_and_then(loader: LoaderFacts) -> bool:
    """Whether batches were late in few of the steps, or the workers had time to spare."""
    if not loader.workers or not loader.n_asked:
        return False
    return loader.empty_share < empty_limit(loader.workers) or loader.busy_share < BUSY_SHARE


def on_cpu(run: Run) -> bool:
    """Whether the run computed on the CPU alone, so that a waiting main thread proves an idle device."""
    return (run.device or "").split(":")[0] == "cpu"


def _device(run: Run) -> str:
    return f"device {run.device}" if run.device else "the device, which is not known,"


def empty_limit(workers: int) -> float:
    """Return the part of the steps that must have found the queue empty."""
    return min(0.5, 0.8 / workers) if workers else 0.0


def _evidence(steps: StepFacts, loader: LoaderFacts) -> list[Evidence]:
    confident = loader.n >= CONFIDENT_STEPS and loader.wait_share >= CRITICAL_SHARE
    evidence = [
        Evidence(
            "data.wait.share", loader.wait_share, CRITICAL_SHARE if confident else WARN_SHARE, "1", loader.n
        )
    ]
    if loader.workers and loader.n_asked:
        limit = empty_limit(loader.workers)
        evidence += [
            Evidence("queue.empty.share", loader.empty_share, limit, "1", loader.n_asked),
            Evidence("batch.unready.share", loader.unready_share, COVERED_SHARE, "1", loader.n_asked),
        ]
    if loader.workers:
        busy_limit = BUSY_SHARE if loader.n_asked else SATURATED_SHARE
        evidence.append(Evidence("workers.busy.share", loader.busy_share, busy_limit, "1", loader.n_made))
    return [
        *evidence,
        Evidence("batch.make.p50", loader.batch_p50_ns, None, "ns", loader.n_made),
        Evidence(
            "device.idle_in_wait.share",
            1.0 if steps.idle is None else steps.idle.share,
            None,
            "1",
            steps.n if steps.idle is None else steps.idle.n,
        ),
        Evidence("loader.workers", float(loader.workers), None, "{worker}", steps.n),
    ]


def needed_workers(loader: LoaderFacts) -> int:
    """Return the least number of workers that make a step's batches while the rest of it runs."""
    needed = ceil(loader.make_ns / loader.compute_ns) if loader.compute_ns else MANY_WORKERS
    return max(loader.workers + 1, needed)


def _gain(steps: StepFacts) -> Gain:
    """Return the bound of a step that never waits: no number of workers and no cheaper batch can beat it."""
    return Gain(steps.exposed_share, (0.0, steps.exposed_share), "bound", steps.busiest)


def _fixes(loader: LoaderFacts) -> list[str]:
    """Return what to change, the most promising first."""
    needed, now = needed_workers(loader), loader.workers
    extra = needed - now
    more = (
        f"DataLoader(num_workers={needed}), now {now}"
        f" (needs {count(extra, 'free core')}; how many there are is not recorded)"
    )
    if needed > MANY_WORKERS:
        more = (
            f"more workers alone would take {needed} of them; up to the number of free cores, each one helps"
            f" (num_workers is {now})"
        )
    takes = milliseconds(loader.make_ns / loader.batches)
    how = "decode or resize once and store the result, cache, read larger files"
    if not now and loader.make_ns / loader.batches < HANDOVER_NS:
        how = "index tensors in memory a batch at a time, or take larger batches"
        return [
            f"make a batch cheaper ({takes} now; a worker process would need about as long to hand it over):"
            f" {how}"
        ]
    keeps_up = milliseconds(loader.compute_ns * now / loader.batches)
    if not now:  # nothing overlaps, so that any saving counts
        cheaper = f"make a batch cheaper ({takes} now): {how}"
    elif loader.make_ns > loader.compute_ns * now:
        cheaper = f"make a batch cheaper, from {takes} to under {keeps_up}: {how}"
    else:
        cheaper = f"make the slow batches cheaper (the mean of {takes} is enough, under {keeps_up}): {how}"
    return [more, cheaper] if needed <= MANY_WORKERS else [cheaper, more]


def _who(ranks: list[int], of: list[int]) -> str:
    """Return who waits, with its verb; ranks are named when not all of them do."""
    if len(ranks) == len(of):
        return "The trainer waits"
    if len(ranks) == 1:
        return f"Rank {ranks[0]} (of {len(of):,}) waits"
    named = ", ".join(map(str, ranks[:_NAMED])) + (", ..." if len(ranks) > _NAMED else "")
    return f"{len(ranks):,} of {len(of):,} ranks ({named}) wait"


def _sentences(steps: StepFacts, loader: LoaderFacts, who: str) -> list[str]:
    waits = f"{who} for data {percent(steps.wait_share)} of each step"
    if steps.idle is not None and steps.idle.share < COVERED_SHARE:
        waits += f", {percent(steps.exposed_share)} of it while the device has nothing to do"
    limit = f"{waits}. The loader is the limit, not the computation."
    if _now_and_then(loader):
        limit = f"{waits}: the loader is late in {loader.empty:,} of {loader.n_asked:,} steps."
    elif not loader.workers and loader.wait_share < MAINLY:
        limit = f"{waits}."
    lines = [limit, _pace(loader)]
    first_batches = steps.wait_share - loader.wait_ns * loader.n / (steps.step_ns * steps.n)
    if loader.workers and first_batches >= WARN_SHARE:
        lines.append(
            f"{percent(first_batches)} of the step are waits for the first batch of a pass, while the workers"
            " start: persistent_workers=True keeps them."
        )
    if steps.n < CONFIDENT_STEPS:
        lines.append(f"Too few steps ({steps.n}) to be sure: {CONFIDENT_STEPS} steady ones are needed.")
    return lines


def _pace(loader: LoaderFacts) -> str:
    """Return what the loader delivers beside what the steps ask for."""
    if not loader.workers:
        return (
            f"DataLoader num_workers=0 makes batches in the main thread: {milliseconds(loader.wait_ns)} of a"
            f" {milliseconds(loader.step_ns)} step, while nothing is computed."
        )
    who = f"DataLoader num_workers={loader.workers}"
    if loader.loaders > 1:
        who = f"The slowest of {loader.loaders} DataLoaders (num_workers={loader.workers})"
    made, needed = milliseconds(loader.make_ns / loader.workers), milliseconds(loader.compute_ns)
    if loader.batches > 1:
        batches = f"the {loader.batches:.2g} batches of a step"
        return f"{who} makes {batches} in {made}; the rest of the step takes {needed}."
    return f"{who} makes a batch every {made}; a step needs one every {needed}."
