# SPDX-License-Identifier: Apache-2.0
"""Which spans are those of one attempt of one run: by run id, attempt and, within it, lifetimes of processes.

A launcher that starts a job again under the same name and attempt leaves two lifetimes of each rank. The
last ones are the attempt; what ended before they began is left out, and told. Where they have the same ids,
which are derived from run and attempt, only one of them is here whole, and that is taken. Of two processes
that are one rank at the same time, the one whose run span has a trace context (a link to what it was launched
in) counts, else the one with most spans.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.model.clocks import ClockRule, Clocks, clocks_of_run
from grademl_otel.analyzers.model.columns import SpanColumns, Telemetry
from grademl_otel.analyzers.units import count

_LAUNCHED_IN: Final = "parent"
_LISTED: Final = 8
_MAX_RANKS: Final = 1 << 17


@dataclass(frozen=True)
class Identity:
    """Whose spans a resource's are."""

    run_id: str
    attempt: int
    rank: int
    world_size: int | None
    process: tuple[str, int | None]
    """Clock or host, and process id: two of one rank are two lifetimes of it."""


def identity(resource: dict[str, Any]) -> Identity | None:
    """Return whose spans those with ``resource`` are; None where they are of no run of ours."""
    run_id = resource.get(semconv.RUN_ID)
    if not isinstance(run_id, str) or not run_id or not run_id.isascii():
        return None
    host = resource.get(semconv.CLOCK_ID) or resource.get("host.name") or ""
    return Identity(
        run_id,
        whole(resource.get(semconv.ATTEMPT)) or 0,
        whole(resource.get(semconv.RANK), _MAX_RANKS) or 0,
        whole(resource.get(semconv.WORLD_SIZE), _MAX_RANKS),
        (str(host), whole(resource.get("process.pid"))),
    )


def whole(value: Any, limit: int = 1 << 31) -> int | None:
    """Return ``value`` if it is an integer from 0 to ``limit``, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit else None


class Owners:
    """Whose the spans of a source are, found out once for all of its attempts."""

    def __init__(self, spans: SpanColumns) -> None:
        self.identities = [identity(resource) for resource in spans.resources]
        self.attempts: dict[tuple[str, int], int] = {}
        """(run, attempt) -> its number."""
        numbers = [
            -1 if one is None else self.attempts.setdefault((one.run_id, one.attempt), len(self.attempts))
            for one in self.identities
        ]
        self._of_resource: IntArray = np.array(numbers, np.int64)
        of_span = self._of_resource[spans.resource_ix]
        self._order: IntArray = np.argsort(of_span, kind="stable")
        self._bounds = np.searchsorted(of_span[self._order], np.arange(len(self.attempts) + 1))
        self.possible = spans.possible
        ranks = np.array([one.rank if one else -1 for one in self.identities], np.int64)
        self.rank_of_span: IntArray = ranks[spans.resource_ix]

    def resources(self, number: int) -> BoolArray:
        """Return the mask of the resources of attempt ``number``."""
        mask: BoolArray = self._of_resource == number
        return mask

    def spans(self, number: int) -> IntArray:
        """Return the indices of its spans, ascending."""
        return self._order[self._bounds[number] : self._bounds[number + 1]]


class Attempt:
    """The spans of one attempt, by rank and by name; impossible times are left out."""

    def __init__(
        self, spans: SpanColumns, run_id: str, attempt: int, owners: Owners, collided: bool = False
    ) -> None:
        """``collided``: spans were left out in reading because others have their ids."""
        self.spans = spans
        self.run_id = run_id
        self.attempt = attempt
        self.identity_of = owners.identities
        self.rank_of_span = owners.rank_of_span
        number = owners.attempts[run_id, attempt]
        ours = owners.resources(number)
        self.clocks: Clocks | None = None
        self.conflicts: list[str] = []
        """What was left out of it, one line each."""
        self.ixs = owners.spans(number)
        self.possible_ixs: IntArray = self.ixs[owners.possible[self.ixs]]
        out = self._left_out(ours, collided)
        if out.any():
            self.ixs = self.ixs[~out[spans.resource_ix[self.ixs]]]
            self.possible_ixs = self.ixs[owners.possible[self.ixs]]
        self.ranks: list[int] = np.unique(self.rank_of_span[self.possible_ixs]).tolist()
        members = (owners.identities[ix] for ix in np.flatnonzero(ours & ~out).tolist())
        sizes = [one.world_size for one in members if one is not None and one.world_size is not None]
        self.world_size = max(sizes, default=None)
        shards = sorted({0, *map(semconv.run_shard, self.ranks)})
        traces = [semconv.trace_id(run_id, attempt, semconv.TRACE_RUN, 0, shard) for shard in shards]
        self._trace_hi = np.array([trace >> 64 for trace in traces], np.uint64)
        self._trace_lo = np.array([trace & (1 << 64) - 1 for trace in traces], np.uint64)

    def in_run_trace(self, ixs: IntArray) -> BoolArray:
        """Return for each of the spans ``ixs`` whether it is in a trace of the run itself, not of a step."""
        spans = self.spans
        found: BoolArray = np.isin(spans.trace_lo[ixs], self._trace_lo)
        return found & np.isin(spans.trace_hi[ixs], self._trace_hi)

    def correct(self, rule: ClockRule | None = None) -> None:
        """Bring the times of all hosts to those of one clock, as ``rule`` says."""
        found = clocks_of_run(self.spans, self.possible_ixs, self.ranks, rule)
        self.spans, self.clocks = found.correct(self.spans), replace(found, corrected=True)

    def untied(self) -> list[str]:
        """Return a line on the hosts whose clocks nothing ties to that of the first."""
        clocks = self.clocks.clocks if self.clocks is not None else []
        hosts = [clock.host for clock in clocks if clock.error_ns is None]
        if not hosts:
            return []
        listed = ", ".join(hosts[:_LISTED]) + (f" and {len(hosts) - _LISTED:,} more" * (len(hosts) > _LISTED))
        return [
            f"nothing ties the clock of {listed} to that of {clocks[0].host}: times are as each showed them"
        ]

    def corrected(self, time: int, rank: int) -> int:
        """Return ``time``, which a process of ``rank`` told in an attribute, by the same clock."""
        if self.clocks is None:
            return time
        clock = self.clocks.clocks[self.clocks.of_rank[rank]]
        return time - clock.offset_ns if clock.applied else time

    def named(self, name: str) -> IntArray:
        """Return the indices, ascending, of the spans called ``name``."""
        if name not in self.spans.names:
            return np.zeros(0, np.int64)
        called = self.spans.name_ix[self.possible_ixs] == self.spans.names.index(name)
        found: IntArray = self.possible_ixs[called]
        return found

    def run_spans(self) -> tuple[dict[int, int], list[str]]:
        """Return (rank -> index of its run span, the conflicts found)."""
        found: dict[int, int] = {}
        conflicts = []
        for ix in self.named(semconv.RUN).tolist():
            rank = self.rank(ix)
            if rank in found:
                conflicts.append(f"rank {rank} has several run spans; one with a trace context goes first")
                if self._in_context(ix) <= self._in_context(found[rank]):
                    continue
            found[rank] = ix
        return found, conflicts

    def span_id_of(self, kind: str, number: int, rank: int, part: int = 0) -> int:
        """Return the id that the run derives for one of its spans."""
        return semconv.span_id(self.run_id, self.attempt, kind, number, rank, part)

    def world_size_of(self, ix: int) -> int:
        """Return how many ranks the process of a span says that there are; 0 where it does not say."""
        of_span = self.identity_of[int(self.spans.resource_ix[ix])]
        return (of_span.world_size or 0) if of_span is not None else 0

    def rank(self, ix: int) -> int:
        return int(self.rank_of_span[ix])

    @property
    def started(self) -> int:
        """The first start of a span, in Unix ns."""
        return int(self.spans.start[self.possible_ixs].min())

    def _in_context(self, ix: int) -> bool:
        """Whether a run span has a link to what its process was launched in."""
        links = self.spans.links
        return any(links.kind[at] == _LAUNCHED_IN for at in np.flatnonzero(links.span_ix == ix).tolist())

    def _left_out(self, ours: BoolArray, collided: bool) -> BoolArray:
        """Return the mask of the resources whose processes are no part of the attempt, and note them."""
        out = np.zeros(len(ours), np.bool_)
        lives = self._lives(ours)
        again = {rank: some for rank, some in lives.items() if len(some) > 1}
        if not again:
            return out
        if collided:
            # Ids are derived from run and attempt: of the later process only what it did more is here.
            fewer = [life for some in again.values() for life in some if life is not max(some, key=_size)]
            self.conflicts.append(
                f"{_processes(len(fewer))} with the same run and attempt as others, so with their ids, were"
                f" left out ({count(sum(life.spans for life in fewer), 'span')}, and those that collided):"
                " give each start a GRADEML_RUN_ID of its own"
            )
            for life in fewer:
                out[life.resources] = True
            return out
        began = min(some[-1].start for some in again.values())
        earlier = [life for some in lives.values() for life in some if life.end <= began]
        if earlier:
            self.conflicts.append(
                f"{_processes(len(earlier))} with the same run and attempt ended before the last began:"
                f" {count(sum(life.spans for life in earlier), 'span')} left out"
            )
        for rank, some in again.items():
            beside = [life for life in some if life.end > began]
            kept = max(beside, key=lambda life: (life.in_context, life.spans))
            others = [life for life in beside if life is not kept]
            if others:
                pids = ", ".join(str(life.process[1]) for life in others)
                self.conflicts.append(
                    f"rank {rank} is {len(beside)} processes at once: {kept.process[1]} counts, {pids} not"
                )
            earlier += others
        for life in earlier:
            out[life.resources] = True
        return out

    def _lives(self, ours: BoolArray) -> dict[int, list[_Life]]:
        """Return rank -> its processes in order of their starts; only of ranks of which there are several."""
        resources: dict[tuple[int, tuple[str, int | None]], list[int]] = {}
        for ix in np.flatnonzero(ours).tolist():
            of_ix = self.identity_of[ix]
            assert of_ix is not None
            if of_ix.process[1] is not None:
                resources.setdefault((of_ix.rank, of_ix.process), []).append(ix)
        if len(resources) == len({rank for rank, _ in resources}):
            return {}
        spans, order = self.spans, self.possible_ixs
        lives: dict[int, list[_Life]] = {}
        of_run = (
            spans.name_ix[order] == spans.names.index(semconv.RUN)
            if semconv.RUN in spans.names
            else np.zeros(len(order), np.bool_)
        )
        for (rank, process), ixs in resources.items():
            mine = np.isin(spans.resource_ix[order], ixs)
            if mine.any():
                own = order[mine]
                context = any(self._in_context(ix) for ix in order[mine & of_run].tolist())
                bounds = int(spans.start[own].min()), int(spans.end[own].max())
                lives.setdefault(rank, []).append(_Life(rank, process, ixs, *bounds, len(own), context))
        return {rank: sorted(some, key=lambda life: (life.start, life.end)) for rank, some in lives.items()}


@dataclass(frozen=True)
class _Life:
    """A process, from its first span to its last."""

    rank: int
    process: tuple[str, int | None]
    resources: list[int]
    start: int
    end: int
    spans: int
    in_context: bool


def _size(life: _Life) -> int:
    return life.spans


def _processes(number: int) -> str:
    return f"{number:,} process{'es' * (number != 1)}"


def attempts(telemetry: Telemetry) -> Iterator[Attempt]:
    """Yield every attempt of every run with a span whose times are possible."""
    owners = Owners(telemetry.spans)
    for run_id, attempt in owners.attempts:
        collided = telemetry.ledger.conflicting > 0
        found = Attempt(telemetry.spans, run_id, attempt, owners, collided)
        if len(found.possible_ixs):
            yield found
