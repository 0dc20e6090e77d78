# SPDX-License-Identifier: Apache-2.0
"""Collectives of 2 and of 4 ranks: what was issued when, by whom, and which are the same on all ranks."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from grademl_otel import semconv
from tests.support import training
from tests.support.rawspans import RawSpan, Value, read_lines

torch = pytest.importorskip("torch")
if not torch.distributed.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)
if not hasattr(torch.distributed.ProcessGroup, "register_post_hook"):
    pytest.skip("process groups of this torch have no hooks", allow_module_level=True)

from tests.support.collective_program import LATE_S, STEPS  # noqa: E402

PROGRAM = training.ROOT / "tests" / "support" / "collective_program.py"
NAMES = [step.__name__ for step in STEPS]
SECOND = 1_000_000_000

Said = tuple[str, int, bool, int]
"""Operation, bytes, whether it is blocking, members."""


@dataclass(frozen=True)
class Job:
    """What the ranks of one job did."""

    world: int
    finished: training.Finished
    spans: list[RawSpan]

    def rank_of(self, span: RawSpan) -> int:
        rank: int = span.resource[semconv.RANK].value
        return rank

    def named(self, name: str) -> Iterator[RawSpan]:
        return (span for span in self.spans if span.name == name)

    def collectives(self, step: str) -> dict[int, list[RawSpan]]:
        """Those of a step by rank, in their order."""
        number = NAMES.index(step)
        found: dict[int, list[RawSpan]] = {rank: [] for rank in range(self.world)}
        for span in sorted(self.named(semconv.COLLECTIVE), key=lambda span: span.start):
            if span[semconv.STEP_NUMBER] == number:
                found[self.rank_of(span)].append(span)
        return found

    def by_key(self) -> dict[str, list[RawSpan]]:
        found = defaultdict(list)
        for span in self.named(semconv.COLLECTIVE):
            found[span[semconv.COLLECTIVE_KEY]].append(span)
        return found

    def column(self, rank: int, name: str) -> list[int]:
        """A column of the rank's step table; times are Unix ns."""
        found: list[int] = []
        parts = [span for span in self.named(semconv.WINDOW) if self.rank_of(span) == rank]
        for window in sorted(parts, key=lambda span: span.start):
            rows = len(window.attributes.get(semconv.TABLE_PREFIX + "start_us", Value("int[]", [])).value)
            absent = Value("int[]", [0])  # no row of the part has one
            values = window.attributes.get(semconv.TABLE_PREFIX + name, absent).value
            values = values * rows if len(values) == 1 else values
            if name.endswith("first_us"):
                values = [window.start + 1000 * value for value in values]
            found += values
        return found


def launched(world: int, folder: Path, *instrument: str) -> training.Finished:
    told = folder / "told"
    told.mkdir()
    torchrun = [str(training.BIN / "torchrun"), "--standalone", "--nproc-per-node", str(world)]
    command = [*instrument, *torchrun, str(PROGRAM), str(told)]
    settings = {"GRADEML_EXPORTER": "file", "GRADEML_RING_DIR": str(folder / "rings")}
    return training.run(command, folder, training.clean_environ(folder, settings)).ok()


@pytest.fixture(scope="module", params=[2, 4], ids="{} ranks".format)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp(f"ranks{request.param}")
    finished = launched(request.param, folder, str(training.BIN / "opentelemetry-instrument"))
    (store,) = (folder / "runs").iterdir()
    return Job(request.param, finished, read_lines(store / "traces.jsonl"))


def said(span: RawSpan) -> Said:
    return (
        span[semconv.COLLECTIVE_OP],
        span[semconv.BYTES],
        span[semconv.COLLECTIVE_BLOCKING],
        span[semconv.COLLECTIVE_SIZE],
    )


# --- One rank ---------------------------------------------------------------------------------------------


def expected(step: str, rank: int, world: int) -> list[Said]:
    """What a rank does in a step: the program, read by a human."""
    first, last = rank == 0, rank == world - 1
    if step == "all_reduces":
        return [("all_reduce", 32, True, world), ("all_reduce", 8, False, world)]
    if step == "one_and_all":
        sizes = {"broadcast": 32, "reduce": 32, "gather": 12, "scatter": 12, "barrier": 0}
        return [(name, size, True, world) for name, size in (*sizes.items(), ("monitored_barrier", 0))]
    if step == "parts":
        names = ["all_gather", "all_gather", "reduce_scatter", "reduce_scatter"]
        return [*((name, 16 * world, True, world) for name in names), ("all_to_all", 4 * world, True, world)]
    if step == "between_two":
        sent = [("send", 12, True, 2), ("send", 16, False, 2), ("send", 20, False, 2), ("send", 24, True, 2)]
        got = [("recv", 12, True, 2), ("recv", 20, False, 2), ("recv", 16, False, 2), ("recv", 24, True, 2)]
        ring: list[Said] = [("barrier", 0, True, world), ("send", 28, False, 2), ("recv", 28, False, 2)]
        return [*(sent if first else got if last else []), *ring]
    if step == "groups":
        evens = [("all_reduce", 8, True, math.ceil(world / 2))] if rank % 2 == 0 else []
        pair = [("all_reduce", 12, True, 2)] if first or last else []
        return [*evens, *pair, ("all_reduce", 16, True, 1), ("all_reduce", 20, True, world)]
    if step == "coalesced":
        return [("all_reduce", 20, False, world)]
    if step == "functionals":
        return [("all_reduce", 12, False, world)]
    if step == "ends_later":
        return [] if last else [("all_reduce", 36, False, world)]
    if step == "later":
        return [("all_reduce", 36, True, world)] if last else []
    raise LookupError(step)


@pytest.mark.parametrize("step", [name for name in NAMES[:10] if name != "objects"])
def test_what_each_rank_did_in_its_order(job: Job, step: str) -> None:
    for rank, spans in job.collectives(step).items():
        assert [said(span) for span in spans] == expected(step, rank, job.world), rank


def test_object_collectives_are_those_that_they_are_made_of(job: Job) -> None:
    for spans in job.collectives("objects").values():
        assert [span[semconv.COLLECTIVE_OP] for span in spans] == ["broadcast"] * 2 + ["all_gather"] * 2
        assert all(span[semconv.COLLECTIVE_BLOCKING] for span in spans)


def test_buckets_of_ddp(job: Job) -> None:
    bytes_of_a_layer = 4 * (64 * 64 + 64)
    buckets: list[Said] = [("all_reduce", 2 * bytes_of_a_layer, False, job.world)] * 2
    for step in ("late_in_data", "late_in_forward", "late_in_backward"):
        for spans in job.collectives(step).values():
            assert [said(span) for span in spans] == buckets
    for spans in job.collectives("ddp_first").values():
        assert [said(span) for span in spans] == [("all_reduce", 4 * bytes_of_a_layer, False, job.world)]


def test_modules_optimizers_and_tensors_that_are_spread_over_the_ranks(job: Job) -> None:
    found = job.collectives("sharded")
    count = Counter(span[semconv.COLLECTIVE_OP] for span in found[0])
    assert count["all_gather"] >= 2  # both kinds of FSDP
    assert count["reduce_scatter"] >= 2
    assert count["broadcast"] >= 2  # ZeRO: the owner of each parameter
    assert count["scatter"] == 1  # of a DTensor
    assert count["all_reduce"] >= 1
    assert all(
        [said(span) for span in spans] == [said(span) for span in found[0]] for spans in found.values()
    )


def test_lanes_and_parents(job: Job) -> None:
    by_id = {span.span_id: span for span in job.spans}
    for span in job.named(semconv.COLLECTIVE):
        parent = by_id[span.parent_id]
        assert parent.trace_id == span.trace_id
        assert parent[semconv.STEP_NUMBER] == span[semconv.STEP_NUMBER]
        if span[semconv.COLLECTIVE_BLOCKING]:
            assert span[semconv.LANE] == "main"
            assert parent.start <= span.start <= span.end <= parent.end
        else:
            assert span[semconv.LANE] == "comm"
            assert parent.name == semconv.STEP
    parents = {by_id[span.parent_id].name for span in job.collectives("sharded")[0]}
    assert {"forward", "backward", "step"} <= parents


def test_all_are_seen_to_complete(job: Job) -> None:
    assert all(span[semconv.COLLECTIVE_COMPLETED] for span in job.named(semconv.COLLECTIVE))


def test_waits_for_what_was_issued_before(job: Job) -> None:
    waits = Counter(
        (job.rank_of(span), NAMES[span[semconv.STEP_NUMBER]]) for span in job.named(semconv.COLLECTIVE_WAIT)
    )
    last = job.world - 1
    for rank in range(job.world):
        assert waits[rank, "all_reduces"] == 1
        assert waits[rank, "one_and_all"] == 0
        assert waits[rank, "functionals"] == 1
        assert waits[rank, "between_two"] == (4 if rank in (0, last) else 2)
        assert waits[rank, "later"] == (rank != last)


def test_one_that_ends_after_its_step_is_part_of_it(job: Job) -> None:
    steps = {
        job.rank_of(span): span
        for span in job.named(semconv.STEP)
        if NAMES[span["grademl.step"]] == "ends_later"
    }
    for rank, spans in job.collectives("ends_later").items():
        for span in spans:
            assert steps[rank].start <= span.start <= steps[rank].end < span.end


def test_the_step_table_counts_them(job: Job) -> None:
    for rank in range(job.world):
        counts = job.column(rank, "collective.count")
        assert counts == [len(job.collectives(name)[rank]) for name in NAMES]
        firsts = job.column(rank, "collective.first_us")
        for name, count, first in zip(NAMES, counts, firsts, strict=True):
            if count:
                assert 0 <= job.collectives(name)[rank][0].start - first <= 1000


# --- Across ranks -----------------------------------------------------------------------------------------


def test_a_key_names_one_collective_on_all_its_members(job: Job) -> None:
    found = job.by_key()
    assert len(found) > len(NAMES)
    for spans in found.values():
        ranks = [job.rank_of(span) for span in spans]
        assert len(set(ranks)) == len(ranks) == spans[0][semconv.COLLECTIVE_SIZE]
        assert len({(span[semconv.BYTES], span[semconv.COLLECTIVE_SIZE]) for span in spans}) == 1
        operations = {span[semconv.COLLECTIVE_OP] for span in spans}
        assert len(operations) == 1 or operations == {"send", "recv"}


def test_none_of_a_key_ends_before_all_have_arrived(job: Job) -> None:
    for spans in job.by_key().values():
        if spans[0][semconv.COLLECTIVE_OP] in ("all_reduce", "all_gather", "barrier"):
            assert min(span.end for span in spans) > max(span.start for span in spans) - 1_000_000  # clocks


def test_numbers_of_a_group_grow(job: Job) -> None:
    for rank in range(job.world):
        numbers = defaultdict(list)
        for span in sorted(job.named(semconv.COLLECTIVE), key=lambda span: span.start):
            if job.rank_of(span) == rank and span[semconv.COLLECTIVE_OP] not in ("send", "recv"):
                group, _, number = span[semconv.COLLECTIVE_KEY].partition(":")
                numbers[group].append(int(number))
        assert len(numbers) == 2 + (rank % 2 == 0) + (rank in (0, job.world - 1))
        assert all(each == sorted(set(each)) for each in numbers.values())


@pytest.mark.parametrize(
    ("step", "bucket"), [("late_in_data", 0), ("late_in_forward", 0), ("late_in_backward", 1)]
)
def test_a_late_rank_is_the_last_to_arrive(job: Job, step: str, bucket: int) -> None:
    found = [spans[bucket] for spans in job.collectives(step).values()]
    assert len({span[semconv.COLLECTIVE_KEY] for span in found}) == 1
    *others, late = (span.start for span in found)
    assert late - max(others) > 0.9 * LATE_S * SECOND
    if bucket == 0:  # of every step, also of those without spans
        *others, late = (
            job.column(rank, "collective.first_us")[NAMES.index(step)] for rank in range(job.world)
        )
        assert late - max(others) > 0.9 * LATE_S * SECOND


# --- The program ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", [2], indirect=True, ids="{} ranks".format)
def test_the_program_is_not_changed(job: Job, tmp_path: Path) -> None:
    plain = launched(job.world, tmp_path)
    assert sorted(job.finished.out.splitlines()) == sorted(plain.out.splitlines())
    assert "RuntimeError ['timed_out', " in plain.out
    lines = [line for line in job.finished.err.splitlines() if line.startswith("grademl: ")]
    assert len(lines) == 1
    assert "Traceback" not in job.finished.err
