# SPDX-License-Identifier: Apache-2.0
"""What a run has recorded and what not, why, and how to get it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel import semconv as sc
from grademl_otel.analyzers.model.evidence import count_of
from grademl_otel.analyzers.model.recording import in_words, percent_kept
from grademl_otel.analyzers.model.run import Run
from grademl_otel.analyzers.units import count, percent

YES: Final = "yes"
IN_PART: Final = "in part"
NO: Final = "no"
NOT_HERE: Final = "not here"
"""There is nothing of the kind to record."""

_TRAINING: Final = (sc.FORWARD, sc.BACKWARD, sc.OPTIMIZER)


@dataclass(frozen=True)
class Signal:
    """One kind of fact of a run."""

    what: str
    state: str
    """yes, in part, no, or not here."""
    detail: str
    how_to_get: str | None = None
    """What to do for more of it; None where nothing is amiss."""


def signals(run: Run) -> list[Signal]:
    """Return what is recorded of ``run`` and what not, always the same kinds in the same order."""
    return [
        _steps(run),
        _phases(run),
        _detail(run),
        _loader(run),
        _device(run),
        _collectives(run),
        _marks(run),
        _spans(run),
    ]


def _steps(run: Run) -> Signal:
    table = run.steps
    training = (table.flags & (sc.FLAG_EVALUATE | sc.FLAG_INCOMPLETE)) == 0
    if not training.any():
        return Signal(
            "steps",
            NO,
            "no training step was seen: nothing called backward or an optimizer",
            "a loop without PyTorch tells its steps itself: `with grademl_otel.step():`, see docs/manual.md",
        )
    rows = int(np.count_nonzero(training & (table.rank == run.ranks[0])))
    of = f"{count(rows, 'training step')} of rank {run.ranks[0]}"
    if run.reduced:
        return Signal(
            "steps",
            IN_PART,
            f"{of}; {'; '.join(in_words(run.reduced))}",
            "steps are short: raise GRADEML_BUDGET to let recording cost more, see docs/levels.md",
        )
    missing = run.completeness.steps_expected
    if missing is not None and run.completeness.steps_measured < missing:
        measured = f"{run.completeness.steps_measured:,} of {missing:,}"
        return Signal("steps", IN_PART, f"{measured} training steps are here", "see what is missing above")
    return Signal("steps", YES, f"{of}, every one in the step table")


def _phases(run: Run) -> Signal:
    seen = {name for name in run.steps.count if _any(run, name)}
    if run.user_phases & seen and not seen & set(_TRAINING):
        return Signal("phases", YES, f"named by the program: {', '.join(sorted(run.user_phases & seen))}")
    missing = [name for name in _TRAINING if name not in seen]
    if not missing:
        return Signal("phases", YES, ", ".join(name for name in sc.PHASES if name in seen))
    here = ", ".join(name for name in sc.PHASES if name in seen) or "none"
    how = "the run's stderr says which hook did not fit (docs/versions.md); or name them: docs/manual.md"
    return Signal("phases", IN_PART if seen else NO, f"{here}; not {', '.join(missing)}", how)


def _detail(run: Run) -> Signal:
    found, of = run.completeness.steps_detailed_all_ranks, run.completeness.steps_expected
    if not run.step_spans:
        how = "the sampler of OTEL_TRACES_SAMPLER drops steps, or the source has lost them"
        return Signal("steps in detail", NO, "no step has spans of its own; the table has them all", how)
    each = " on every rank" if len(run.ranks) > 1 else ""
    if found == of:
        return Signal("steps in detail", YES, f"all {count(found, 'training step')}{each}")
    whole = f"{count(found, 'training step')}" + ("" if of is None else f" of {of:,}")
    return Signal("steps in detail", YES, f"{whole}{each}: a sample, the step table counts all")


def _loader(run: Run) -> Signal:
    if not run.loaders and not _any(run, sc.DATA_WAIT):
        return Signal("data loading", NOT_HERE, "no DataLoader was iterated over")
    workers = [loader.workers for loader in run.loaders.values()]
    fetched = _any(run, sc.DATA_FETCH)
    if fetched:
        of = "the main thread" if not any(workers) else f"{max(workers)} workers"
        return Signal("data loading", YES, f"waits, and what {of} did for each batch")
    how = "batches come from a loader that is not PyTorch's, or its workers are not those of PyTorch"
    return Signal("data loading", IN_PART, "waits, not what the workers did", how)


def _device(run: Run) -> Signal:
    what = "device times"
    phases = [name for name in run.steps.count if name.startswith(sc.DEVICE_PREFIX) and _any(run, name)]
    if phases:
        return Signal(what, YES, ", ".join(name.removeprefix(sc.DEVICE_PREFIX) for name in phases))
    if run.device is None or run.device.startswith("cpu"):
        return Signal(what, NOT_HERE, f"the device is {run.device or 'not known: none was used'}")
    how = "unset GRADEML_DEVICE_TIME=0; only CUDA devices are timed, see docs/devices.md"
    return Signal(what, NO, f"of {run.device} only what the host enqueued is known", how)


def _collectives(run: Run) -> Signal:
    if len(run.ranks) < 2 and (run.completeness.ranks_expected or 1) < 2:
        return Signal("collectives", NOT_HERE, "one process")
    if _any(run, sc.COLLECTIVE) or _any(run, sc.COLLECTIVE_WAIT):
        total = int(run.steps.count[sc.COLLECTIVE].sum()) if sc.COLLECTIVE in run.steps.count else 0
        return Signal("collectives", YES, count(total, "collective"))
    how = "they are seen where torch.distributed runs them; others are not, see docs/collectives.md"
    return Signal("collectives", NO, f"none, of {count(len(run.ranks), 'rank')}", how)


def _marks(run: Run) -> Signal:
    cost = run.completeness.tracer_cost_fraction
    share = "" if cost is None else f"; recording took {percent(cost)} of the time"
    lost = run.completeness.tracer_dropped
    if not lost:
        return Signal("marks", YES, f"none was lost{share}")
    how = "raise GRADEML_RING_BYTES; was the machine out of processors?"
    return Signal("marks", IN_PART, f"{lost:,} were overwritten before they were read{share}", how)


def _spans(run: Run) -> Signal:
    unsent = sum(_of_runs(run, sc.TRACER_UNSENT))
    left_out = sum(_of_runs(run, sc.PASSES_LEFT_OUT)) + sum(_of_runs(run, sc.PHASES_LEFT_OUT))
    expected, received = run.completeness.spans_expected, run.completeness.spans_received
    if unsent:
        how = "the collector refused them or could not be reached: see docs/collectors.md"
        return Signal("spans", IN_PART, f"{unsent:,} never left the recorder", how)
    if expected is not None and received < expected:
        how = "they left the recorder: look at the collector and at the server's limits"
        return Signal("spans", IN_PART, f"{received:,} of {expected:,} that were sent are here", how)
    if any(percent_kept(run.spans.attributes(ix)) is not None for ix in run.run_spans.values()):
        how = "raise GRADEML_SAMPLE_PERCENT of the gateway, see docs/collectors.md"
        return Signal("spans", IN_PART, f"{received:,}; a gateway keeps the detail of some steps only", how)
    if left_out:
        limit = f"a trace holds {sc.MAX_SPANS_PER_TRACE:,} at most, see docs/levels.md"
        return Signal("spans", IN_PART, f"{received:,}; {left_out:,} were left out", limit)
    return Signal("spans", YES, f"{received:,}" + ("" if expected is None else ", all that were sent"))


def _of_runs(run: Run, key: str) -> Iterable[int]:
    return (count_of(run.spans.attributes(ix), key) for ix in run.run_spans.values())


def _any(run: Run, phase: str) -> bool:
    counts = run.steps.count.get(phase)
    return counts is not None and bool(counts.any())
