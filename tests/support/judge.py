# SPDX-License-Identifier: Apache-2.0
"""The judge of what the analyzer says of a simulated training: checks against the simulator's truth.

A check looks at one answer and yields what is wrong with it, one line each.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path as File
from typing import Final

from grademl_otel import semconv as sc
from grademl_otel.analyzers.diagnosis.engine import diagnose
from grademl_otel.analyzers.diagnosis.finding import Finding, Judgement
from grademl_otel.analyzers.graph import LaneBudgetRow, Path, lane_budget, run_path
from grademl_otel.analyzers.model.run import Run, build_run
from grademl_otel.analyzers.sources import Selection, open_source

from .simulator import Job, Simulation, simulate
from .simulator.tasks import NETWORK
from .simulator.training import STREAM, TRANSFER
from .simulator.truth import Place
from .telemetry import MS, US

LOADER: Final = "input.loader"
STRAGGLER: Final = "ranks.straggler"
COMPUTE: Final = "compute.bound"
COMMUNICATION: Final = "communication.exposed"

Check = Callable[[Simulation, "Answer"], Iterable[str]]
"""Yields what is wrong, one line each."""

_ROUNDING_NS: Final = 3 * US
"""What a time from a table may be off: two floored edges and a floored length."""


@dataclass(frozen=True)
class Answer:
    """What the analyzer says of a recorded training."""

    run: Run
    path: Path
    budget: list[LaneBudgetRow]
    judgement: Judgement

    def places(self) -> Counter[Place]:
        """Return the time that each place has of the path, named as the truth names them."""
        places: Counter[Place] = Counter()
        for section in self.path.sections:
            # Which stream a device's work was in is not in the table.
            lane = STREAM if section.lane == "device" else section.lane
            place = (section.rank, lane, section.phase)
            if section.kind == "transfer" and section.phase == sc.COLLECTIVE:
                place = (*NETWORK, TRANSFER)
            places[place] += section.duration
        return places

    def finding(self, rule: str) -> Finding | None:
        return next((one for one in self.judgement.findings if one.id == rule), None)


def answer_to(recorded: File) -> Answer:
    """Return what the analyzer says of the run in the file ``recorded``."""
    run = build_run(open_source(str(recorded)).read(Selection()))
    assert run is not None
    return Answer(run, run_path(run), lane_budget(run), diagnose(run))


def answer(made: Simulation) -> Answer:
    """Return what the analyzer says of a simulated training, by way of a file store."""
    with tempfile.TemporaryDirectory() as folder:
        return answer_to(made.write_store(File(folder)))


def tiles(made: Simulation, said: Answer) -> Iterable[str]:
    """The sections of the path follow each other without gap or overlap and are the wall time."""
    cursor = said.run.start
    for section in said.path.sections:
        if section.start != cursor or section.end <= section.start:
            yield f"path does not tile at {cursor}"
        cursor = section.end
    if cursor != said.run.end:
        yield "path does not end with the run"


def budget_is_true(made: Simulation, said: Answer) -> Iterable[str]:
    """Every rank's main lane did what the budget says, phase by phase."""
    said_of = {(row.rank, row.phase): row.ns for row in said.budget if row.within is None}
    truth = {(rank, phase): ns for rank, of in made.truth.budget.items() for phase, ns in of.items()}
    rounding = _ROUNDING_NS * (len(made.ranks[0].rows) + 1) if made.job.detail_level else 0
    clocks = 2 * MS if made.job.offsets else 0
    for place in sorted({*said_of, *truth}):
        off = said_of.get(place, 0) - truth.get(place, 0)
        if abs(off) > rounding + clocks:
            yield f"budget of {place} is {off / MS:+.3f} ms off"
    if made.job.hooks and not made.job.detail_level and not made.job.heard:
        parts_of = {(r.rank, r.within, r.phase): r.ns for r in said.budget if r.within is not None}
        true_parts = {(rank, *part): ns for rank, of in made.truth.inside.items() for part, ns in of.items()}
        for part in sorted({*parts_of, *true_parts}):
            off = parts_of.get(part, 0) - true_parts.get(part, 0)
            if abs(off) > clocks:
                yield f"{part} is {off / MS:+.3f} ms off"
    for rank in said.run.ranks:
        if sum(ns for (of, _), ns in said_of.items() if of == rank) != said.run.end - said.run.start:
            yield f"budget of rank {rank} is not the wall time"


def path_is_true(made: Simulation, said: Answer) -> Iterable[str]:
    """The path is the true one: to the nanosecond, up to what the rounding of tables makes of it."""
    job = made.job  # what a device did is told in microseconds
    exact = not (job.detail_level or job.offsets or job.device)
    yield from _off_by(0.0 if exact else 0.001, said.places(), made.truth.path)


def path_is_nearly(tolerance: float) -> Check:
    """No more than this part of the path is of another rank or phase than that of the true one.

    Who was last where all came nearly together is not told by what was recorded: so it is not asked which of
    a rank's workers it was, nor whose start-up.
    """

    def nearly(places: Counter[Place]) -> Counter[Place]:
        merged: Counter[Place] = Counter()
        for (rank, _, phase), ns in places.items():
            merged[None if phase == "start-up" else rank, "", phase] += ns
        return merged

    return lambda made, said: _off_by(tolerance, nearly(said.places()), nearly(made.truth.path))


def _off_by(tolerance: float, places: Counter[Place], truth: Counter[Place]) -> Iterable[str]:
    off = sum(abs(places[place] - truth[place]) for place in {*places, *truth}) / 2
    wall = sum(truth.values())
    if off > tolerance * wall:
        worst = sorted({*places, *truth}, key=lambda at: -abs(places[at] - truth[at]))[:3]
        compared = ", ".join(f"{at} {places[at] / wall:.1%} for {truth[at] / wall:.1%}" for at in worst)
        yield f"{off / wall:.3%} of the path is not the true one: {compared}"


def leads_with(*phases: str, ranks: Sequence[int] | None = None, lane: str = "") -> Check:
    """The path spends more in ``phases`` (of these ranks, in that lane) than in any other phase."""

    def check(made: Simulation, said: Answer) -> Iterable[str]:
        by_phase: Counter[tuple[bool, str]] = Counter()
        for (rank, of, phase), ns in said.places().items():
            meant = phase in phases and (ranks is None or rank in ranks) and lane in of
            by_phase[meant, "" if meant else phase] += ns
        (meant, phase), _ = by_phase.most_common(1)[0]
        if not meant:
            yield f"path leads with {phase}, not {'/'.join(phases)} of {ranks} {lane}"

    return check


def names(
    rule: str, *, ranks: Sequence[int] | None = None, cause: str | None = None, most: str = ""
) -> Check:
    """The report finds it, on these ranks, with this cause first, no graver than ``most``."""

    def check(made: Simulation, said: Answer) -> Iterable[str]:
        finding = said.finding(rule)
        if finding is None:
            yield f"no {rule}; found {[one.id for one in said.judgement.findings]}, {_abstained(said)}"
            return
        if ranks is not None and finding.where.ranks != list(ranks):
            yield f"{rule} names {finding.where.ranks}, not {list(ranks)}"
        longer = [one.signal for one in finding.evidence if one.signal.endswith(".more")]
        if cause is not None and longer[:1] != [f"{cause}.more"]:
            yield f"{rule} gives {longer} as cause, not {cause}"
        if most and finding.severity == "critical" != most:
            yield f"{rule} is {finding.severity} on what was inferred"

    return check


def opens_with(*rules: str) -> Check:
    """The verdict is one of these."""

    def check(made: Simulation, said: Answer) -> Iterable[str]:
        verdict = said.judgement.verdict
        if verdict is None or verdict.id not in rules:
            yield f"verdict {verdict and verdict.id}, not {'/'.join(rules)}; {_abstained(said)}"

    return check


def accuses_nobody(*rules: str, but: Sequence[int] = ()) -> Check:
    """None of these is found, unless of the ranks that it is true of."""

    def check(made: Simulation, said: Answer) -> Iterable[str]:
        for rule in rules:
            finding = said.finding(rule)
            if finding is not None and not (but and set(finding.where.ranks) <= set(but)):
                yield f"{rule} of {finding.where.ranks}, which is not so"

    return check


def not_observable(rule: str) -> Check:
    """The rule says that it is not observable, and names nobody."""

    def check(made: Simulation, said: Answer) -> Iterable[str]:
        if said.finding(rule) is not None:
            yield f"{rule} of what is not observable"
        if not any(one.rule == rule and "not observable" in one.missing for one in said.judgement.abstained):
            yield f"{rule} does not say that it is not observable; {_abstained(said)}"

    return check


def _abstained(said: Answer) -> str:
    return "abstained: " + "; ".join(f"{one.rule}: {one.missing}" for one in said.judgement.abstained)


def as_grave_as_it_is(made: Simulation, said: Answer) -> Iterable[str]:
    """What is held against a loader is how long is truly waited for it: under 10 % of the step nothing."""
    share = max(made.truth.wait_share.values())
    finding = said.finding(LOADER)
    told = next((e.value for e in finding.evidence if e.signal == "data.wait.share"), 0.0) if finding else 0.0
    if finding is not None and abs(told - share) > 0.02:
        yield f"waits are told as {told:.1%}, the truth is {share:.1%}"
    if finding is None and share > 0.11:
        yield f"waits are {share:.1%} and no finding; {_abstained(said)}"
    if finding is not None and share < 0.09:
        yield f"waits are {share:.1%} and a finding"
    opens = said.judgement.verdict.id if said.judgement.verdict is not None else None
    if opens != (LOADER if share > 0.1 else COMPUTE) and abs(share - 0.1) > 0.01:
        yield f"waits are {share:.1%} and the verdict is {opens}"
    if finding is not None and share > 0.22 and finding.severity != "critical":
        yield f"waits are {share:.1%} and only {finding.severity}"


def gain_is_a_bound(rule: str, fixed: Callable[[Job], Job]) -> Check:
    """No repair can bring more than the gain that the finding offers."""

    def check(made: Simulation, said: Answer) -> Iterable[str]:
        finding = said.finding(rule)
        if finding is not None and finding.gain is not None:
            truly = made.truth.gain(simulate(fixed(made.job)).truth)
            # Of the steps in detail, of which there are fewer where only some have it.
            if truly > finding.gain.interval[1] + (0.05 if made.job.detail_level else 0.02):
                yield f"{rule} offers at most {finding.gain.interval[1]:.1%}, a repair brings {truly:.1%}"

    return check


def budget_leads_with(phase: str) -> Check:
    """Every rank spends most of its time in this."""

    def check(made: Simulation, said: Answer) -> Iterable[str]:
        for rank in said.run.ranks:
            first = next(row.phase for row in said.budget if row.rank == rank and row.within is None)
            if first != phase:
                yield f"budget of rank {rank} leads with {first}, not {phase}"

    return check
