# SPDX-License-Identifier: Apache-2.0
"""What is lost is named with its size, what it could change is not printed, nothing is "complete" then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel import analyzers
from grademl_otel import semconv as sc
from grademl_otel.analyzers.cli.app import run as command
from grademl_otel.analyzers.errors import NothingFound
from grademl_otel.analyzers.graph import trace_roots
from grademl_otel.analyzers.model.foreign import judge_foreign, whole_traces
from grademl_otel.analyzers.reporting.document import PathInfo, PopulationInfo, ReportDocument
from grademl_otel.analyzers.reporting.text import render
from grademl_otel.analyzers.selection import StepRange
from grademl_otel.analyzers.sources import Selection, open_source
from tests.support import losses
from tests.support.fake_jaeger import FakeJaeger, serve
from tests.support.synthetic import MS, Span, Training, simulate

TRAINING = Training(
    ranks=4,
    epochs=1,
    steps_per_epoch=120,
    rows_per_part=20,
    buckets=1,
    workers=2,
    fetch_ns=40 * MS,
    eval_batches=3,
)
"""Each step waits half of its time for the loader."""
SMALL = Training(ranks=2, epochs=1, steps_per_epoch=24, rows_per_part=8, eval_batches=2, checkpoint_ns=2 * MS)


@pytest.fixture(scope="module")
def whole() -> bytes:
    return losses.on_hosts(simulate(TRAINING).otlp_lines(), {2: "node-1", 3: "node-1"})


def report(folder: Path, lines: bytes, **options: Any) -> ReportDocument:
    path = folder / "traces.jsonl"
    path.write_bytes(lines)
    return analyzers.report(path, **options)


def untold(document: ReportDocument) -> dict[str, str]:
    return {one.rule: one.missing for one in document.abstained}


def numbers(document: ReportDocument) -> list[object]:
    """Everything that is made from the lengths of steps."""
    per_step = [entry.per_step_ns for entry in document.lane_budget]
    gains = [finding.gain for finding in document.findings]
    return [one for one in (document.step, document.ranks, *per_step, *gains) if one is not None]


def budget(document: ReportDocument, rank: int) -> dict[str, int]:
    return {entry.phase: entry.ns for entry in document.lane_budget if entry.rank == rank}


def test_the_undamaged_twin_tells_everything(whole: bytes, tmp_path: Path) -> None:
    document = report(tmp_path, whole)
    assert (document.completeness.verdict, document.incomplete_because) == ("complete", [])
    assert document.verdict is not None
    assert document.verdict.id == "input.loader"
    assert document.step is not None
    assert document.findings[0].gain is not None
    text = render(document)
    assert "data  complete (120 of 120 steps, 120 in detail; 4 of 4 ranks" in text
    assert "Step, steady (mean" in text
    assert "untraced" not in text


LOSSES: dict[str, tuple[losses.Lost, list[str], int]] = {
    "a window": (
        losses.window(2),
        [
            "ranks 0, 1, 2, 3: 64 of 120 training steps are missing",
            "ranks 0, 1, 2, 3: 1 of 4 windows are missing: 2",
            "ranks 0, 1, 2, 3: 4 of 1,100 spans are missing",
        ],
        0,
    ),
    "the first window of a rank": (
        losses.window(0, rank=3),
        ["rank 3: 16 of 120 training steps are missing", "rank 3: 1 of 4 windows are missing: 0"],
        3,
    ),
    "the last window of a rank": (
        losses.window(3, rank=0),
        ["rank 0: 8 of 120 training steps are missing", "rank 0: 3 of 3 evaluation steps are missing"],
        0,
    ),
    "a part": (
        losses.window(2, part=1, rank=1),
        ["rank 1: 20 of 120 training steps are missing", "rank 1: window 2 lacks parts 1 of 4"],
        1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", LOSSES)
def test_missing_steps_are_named_and_their_numbers_are_not(what: str, whole: bytes, tmp_path: Path) -> None:
    lost, reasons, rank = LOSSES[what]
    document = report(tmp_path, losses.without(whole, lost))
    assert document.completeness.verdict == "incomplete"
    text = "\n".join(document.incomplete_because)
    for reason in reasons[:2]:
        assert reason in text
    assert "of training are not covered" in text
    assert document.step is None
    assert document.ranks is None
    assert all(finding.gain is None for finding in document.findings)
    assert [entry for entry in document.lane_budget if entry.rank == rank and entry.per_step_ns] == []
    assert f"steps of rank {rank} are missing" in untold(document)["step"]
    # Of time that nobody knows of it is said that nobody knows.
    assert budget(document, rank)["untraced"] > 50 * MS
    screen = render(document)
    assert "data  INCOMPLETE" in screen
    assert "Step, steady" not in screen
    assert "GAIN" not in screen
    assert "p95" not in screen
    for entry_rank in range(4):
        assert sum(budget(document, entry_rank).values()) == document.window.wall_ns


def test_the_size_of_a_hole_is_that_of_its_steps(whole: bytes, tmp_path: Path) -> None:
    complete = report(tmp_path, whole)
    document = report(tmp_path, losses.without(whole, losses.window(0)))
    hole = budget(document, 0)["untraced"]
    lost = sum(row.duration for row in simulate(TRAINING).rows_of(0, "train")[:16])
    assert hole == pytest.approx(lost, abs=1 * MS)
    assert budget(document, 0)["start-up"] == budget(complete, 0)["start-up"], (
        "the pass tells when that ended"
    )


def test_chosen_steps_of_which_nothing_is_missing_are_told(whole: bytes, tmp_path: Path) -> None:
    lines = losses.without(whole, losses.window(2, rank=1))  # steps 48 to 111
    told = report(tmp_path, lines, steps=StepRange(0, 48))
    assert told.completeness.verdict == "incomplete"
    assert told.step is not None
    assert told.ranks is not None
    assert "step" not in untold(told)
    assert all(entry.phase != "untraced" for entry in told.lane_budget)
    beyond = report(tmp_path, lines, steps=StepRange(0, 60))
    assert beyond.step is None
    assert untold(beyond)["step"].startswith("12 of 60 steps of rank 1 are missing")
    assert report(tmp_path, lines, ranks=(0, 2)).step is not None


def test_a_finding_stands_if_the_missing_part_cannot_change_it(whole: bytes, tmp_path: Path) -> None:
    """A loader that is waited for half of the time: with a few steps gone still; with most nobody knows."""
    few = report(tmp_path, losses.without(whole, losses.window(0, rank=1)))
    assert few.verdict is not None
    assert few.verdict.id == "input.loader"
    assert few.verdict.lines[-1].endswith("whatever they were, that holds.")
    assert few.findings[0].gain is None
    most = report(
        tmp_path, losses.without(whole, lambda r, s: losses.window(2)(r, s) or losses.window(1)(r, s))
    )
    assert most.verdict is not None
    assert most.verdict.id == "incomplete"
    assert most.findings == []
    assert "input.loader" in untold(most)


def test_what_holds_for_all_ranks_needs_all_of_them(tmp_path: Path) -> None:
    lines = simulate(Training(ranks=3, epochs=1, steps_per_epoch=40, eval_batches=0, buckets=1)).otlp_lines()
    complete = report(tmp_path, lines)
    assert complete.verdict is not None
    assert complete.verdict.id == "compute.bound"
    document = report(tmp_path, losses.without(lines, losses.ranks(1)))
    assert document.incomplete_because[0] == "1 of 3 ranks sent nothing: 1"
    assert document.verdict is not None
    assert document.verdict.id == "incomplete"
    assert untold(document)["compute.bound"] == "1 of 3 ranks sent nothing"
    screen = render(document)
    assert "2 of 3 ranks; " in screen
    assert ", 2 of 3 ranks)" in next(line for line in screen.splitlines() if "Step, steady (mean" in line)
    assert analyzers.ranks(tmp_path / "traces.jsonl").verdict is None


def test_spans_alone_leave_the_census(whole: bytes, tmp_path: Path) -> None:
    """Detail is a sample: without half of it the steps are told all the same, and what is missing, too."""
    lost = losses.named(sc.FORWARD, sc.DATA_FETCH, rank=2)
    document = report(tmp_path, losses.without(whole, lost))
    assert document.completeness.verdict == "incomplete"
    assert any("rank 2: 246 of" in reason for reason in document.incomplete_because)
    assert document.step is not None
    assert document.step.n == report(tmp_path, whole).step.n  # type: ignore[union-attr]


@pytest.mark.parametrize("limit", [{"spans": 40}, {"size": 20_000}])
def test_traces_that_a_server_cuts(limit: dict[str, int], whole: bytes, tmp_path: Path) -> None:
    cut, traces = losses.cut_traces(whole, **limit)
    assert traces
    document = report(tmp_path, cut)
    assert document.completeness.verdict == "incomplete"
    assert any("spans are missing" in reason for reason in document.incomplete_because)
    gone = len(losses.spans_of(whole)) - len(losses.spans_of(cut))
    spans = document.completeness.spans
    assert spans.expected is not None
    assert spans.expected - spans.received == gone


def test_lost_marks_are_as_good_as_lost_steps(tmp_path: Path) -> None:
    few = report(tmp_path, simulate(Training(epochs=1, steps_per_epoch=60, tracer_dropped=2)).otlp_lines())
    assert few.step is not None
    many = report(tmp_path, simulate(Training(epochs=1, steps_per_epoch=60, tracer_dropped=90)).otlp_lines())
    assert many.step is None
    assert "of the marks of rank 0 are lost" in untold(many)["step"]


def test_reading_that_stops_before_the_end_is_known(whole: bytes, tmp_path: Path) -> None:
    document = report(tmp_path, whole, max_spans=900)
    assert document.completeness.verdict == "incomplete"
    assert numbers(document) == []
    assert untold(document)["step"].startswith("reading stopped before the end of rank")


def test_a_run_whose_end_did_not_arrive_is_not_idle_after_it(whole: bytes, tmp_path: Path) -> None:
    lost = losses.without(
        whole, lambda r, s: r[sc.RANK] == 1 and s["name"] in (sc.RUN, sc.EPOCH, sc.EVALUATE)
    )
    document = report(tmp_path, losses.without(lost, losses.window(3, rank=1)))
    assert "rank 1 has not reported an end" in "\n".join(document.incomplete_because)
    assert budget(document, 1).keys() & {"idle", "teardown"} == set()
    assert budget(document, 1)["untraced"] > 0


def test_missing_evaluation_makes_no_epoch_gap(tmp_path: Path) -> None:
    training = Training(epochs=2, steps_per_epoch=20, eval_batches=4, rows_per_part=1)
    lines = simulate(training).otlp_lines()

    def lost(resource: dict[str, Any], span: Span) -> bool:
        said = losses.plain(span["attributes"])
        return span["name"] == sc.EVALUATE or said.get("grademl.table.flags") in ([4], [12])

    whole_budget = budget(report(tmp_path, lines), 0)
    document = report(tmp_path, losses.without(lines, lost))
    assert any("evaluation steps are missing" in reason for reason in document.incomplete_because)
    assert "epoch gap" in whole_budget
    assert budget(document, 0).get("epoch gap", 0) <= whole_budget["epoch gap"]


def test_strict_is_code_4_and_the_answer_is_there(
    whole: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_bytes(losses.without(whole, losses.window(1)))
    for verb in ("report", "critical-path", "ranks", "runs"):
        assert command([verb, str(path), "--strict"]) == 4
        out = capsys.readouterr()
        assert "data  INCOMPLETE" in out.out
        assert out.err.count("\n") == 1
    path.write_bytes(whole)
    for verb in ("report", "critical-path", "ranks", "runs"):
        assert command([verb, str(path), "--strict"]) == 0
        assert "data  complete" in capsys.readouterr().out


# --- From a Jaeger ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("v3", [True, False])
def test_the_same_losses_from_a_jaeger(v3: bool, tmp_path: Path) -> None:
    lines = simulate(Training(ranks=2, epochs=1, steps_per_epoch=60, rows_per_part=20)).otlp_lines()
    cases = [
        (losses.without(lines, losses.window(1)), "ranks 0, 1: 1 of 3 windows are missing: 1"),
        (losses.without(lines, losses.ranks(1)), "1 of 2 ranks sent nothing: 1"),
        (losses.cut_traces(lines, spans=7)[0], "spans are missing"),
    ]
    with serve(FakeJaeger(lines=lines, v3=v3)) as server:
        assert analyzers.report(server.url).completeness.verdict == "complete"
        for broken, reason in cases[:: 1 if v3 else 2]:
            server.lines = broken
            document = analyzers.report(server.url)
            assert document.completeness.verdict == "incomplete"
            assert reason in "\n".join(document.incomplete_because)
            by_file = report(tmp_path, broken)
            assert document.completeness.windows_missing == by_file.completeness.windows_missing
            assert document.completeness.steps.measured == by_file.completeness.steps.measured
            assert (document.step is None) == (by_file.step is None)


def test_what_others_lack_in_the_same_file_is_no_matter_of_the_run(whole: bytes, tmp_path: Path) -> None:
    """Beside the run others: an SDK dropped attributes, a span never ended, one has no id."""
    (first, second, third) = requests(3).splitlines(keepends=True)
    second = losses.each(second, lambda r, s: {**s, "endTimeUnixNano": "0"})
    third = losses.each(third, lambda r, s: {**s, "spanId": ""})
    first = losses.each(first, lambda r, s: {**s, "droppedAttributesCount": 3})
    document = report(tmp_path, whole + first + second + third)
    assert (document.completeness.verdict, document.incomplete_because) == ("complete", [])
    own = losses.each(whole, lambda r, s: {**s, "endTimeUnixNano": "0"} if s["name"] == sc.EPOCH else s)
    assert "4 spans with impossible times were left out" in report(tmp_path, own).incomplete_because


# --- Traces of others ------------------------------------------------------------------------------------


def requests(count: int) -> bytes:
    """Return traces of three spans: a request, its handler, its query."""
    lines = []
    for n in range(count):
        ids = [f"{3 * n + k + 1:016x}" for k in range(3)]
        spans = [
            {
                "traceId": f"{n + 1:032x}",
                "spanId": ids[k],
                **({"parentSpanId": ids[k - 1]} if k else {}),
                "name": name,
                "kind": 1,
                "startTimeUnixNano": str(10**18 + n * 10**9 + k * MS),
                "endTimeUnixNano": str(10**18 + n * 10**9 + (10 + n - k) * MS),
                "attributes": [],
                "status": {},
            }
            for k, name in enumerate(("GET", "handle", "query"))
        ]
        lines.append(losses.request({"service.name": "web"}, spans))
    return b"".join(lines)


def test_percentiles_are_of_whole_traces(tmp_path: Path) -> None:
    lines = requests(20)
    document = report(tmp_path, lines)
    assert document.completeness.verdict == "unverifiable"
    assert untold(document).keys() == {"diagnosis"}
    cut = losses.without(lines, lambda r, s: s["name"] == "handle" and int(s["traceId"], 16) > 15)
    document = report(tmp_path, cut)
    assert document.completeness.verdict == "incomplete"
    assert document.incomplete_because == ["5 spans name a parent that is not here"]
    assert untold(document)["population"].startswith("parts of 5 of 20 traces are missing")
    first = report(tmp_path, losses.without(lines, lambda r, s: int(s["traceId"], 16) > 15))
    assert isinstance(document.path, PopulationInfo)
    assert document.path == first.path


def test_no_percentile_when_every_trace_is_cut(tmp_path: Path) -> None:
    document = report(tmp_path, losses.without(requests(20), losses.named("GET")))
    assert isinstance(document.path, PopulationInfo)
    assert {entry.p50_ns for entry in document.path.population} == {None}
    assert "percentiles" in untold(document)
    assert " ? " in render(document)


def test_no_percentile_when_reading_stopped(tmp_path: Path) -> None:
    document = report(tmp_path, requests(20), max_spans=41)
    assert document.completeness.verdict == "incomplete"
    assert isinstance(document.path, PopulationInfo)
    assert {entry.p95_ns for entry in document.path.population} == {None}
    assert untold(document)["percentiles"].startswith("reading stopped")


def test_a_trace_with_impossible_times_is_not_whole(tmp_path: Path) -> None:
    """Its span was left out: what is told of its path is not told of others together with it."""
    wrong = losses.each(
        requests(20), lambda r, s: {**s, "endTimeUnixNano": "0"} if s["spanId"] == f"{3:016x}" else s
    )
    document = report(tmp_path, wrong)
    assert document.incomplete_because == ["1 span with impossible times was left out"]
    assert untold(document)["population"].startswith("parts of 1 of 20 traces are missing")


def test_a_trace_that_lacks_spans_says_so(tmp_path: Path) -> None:
    document = report(tmp_path, losses.without(requests(1), losses.named("handle")))
    assert isinstance(document.path, PathInfo)
    assert "path.shares" in untold(document)


# --- Whatever is lost ------------------------------------------------------------------------------------

_WHOLE = simulate(SMALL).otlp_lines()
_COUNT = len(losses.spans_of(_WHOLE))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_is_lost_it_is_never_complete(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A single span, some of them, all of a name, a rank, a tail: never is the verdict that nothing is."""
    folder = tmp_path_factory.mktemp("lost")
    names = sorted({span["name"] for _, span in losses.spans_of(_WHOLE)})
    single = st.sets(st.integers(0, _COUNT - 1), min_size=1, max_size=5).map(_numbered)
    shares = st.tuples(st.floats(0.01, 0.99), st.integers(0, 99)).map(lambda both: losses.some(*both))
    named = st.sets(st.sampled_from(names), min_size=1).map(lambda some: losses.named(*some))
    rank = st.integers(0, 1).map(losses.ranks)
    tail = st.integers(1, _COUNT - 1).map(lambda first: _numbered(set(range(first, _COUNT))))
    lost = data.draw(st.one_of(single, shares, named, rank, tail))
    lines = losses.without(_WHOLE, lost)
    if lines == _WHOLE:
        return
    try:
        document = report(folder, lines)
    except NothingFound:
        return
    assert document.completeness.verdict != "complete"
    assert document.incomplete_because


def _numbered(numbers: set[int]) -> Callable[[dict[str, Any], Span], bool]:
    """Lose the spans with these places in the lines."""
    count = iter(range(_COUNT))
    return lambda resource, span: next(count) in numbers


# --- Detail is a sample, the table a census ---------------------------------------------------------------


def test_totals_of_detail_are_brought_to_the_table_rank_by_rank(tmp_path: Path) -> None:
    """Rank 0 waits 9 ms for the slow one in each step; of the detail much is lost, of rank 0 more."""
    training = Training(
        ranks=2,
        epochs=1,
        steps_per_epoch=60,
        eval_batches=0,
        buckets=1,
        compute_scale={1: 2.0},
        allreduce_ns=0,
    )
    lines = simulate(training).otlp_lines()

    def lost(resource: dict[str, Any], span: Span) -> bool:
        step = losses.plain(span["attributes"]).get(sc.STEP_NUMBER, 0)
        return (
            span["name"] not in (sc.RUN, sc.WINDOW, sc.EPOCH) and step % (3 if resource[sc.RANK] else 2) == 1
        )

    parts = []
    for some in (lines, losses.without(lines, lost)):
        document = report(tmp_path, some)
        assert document.step is not None
        (waits,) = (one for one in document.step.phases if one.phase == "ranks.wait")
        parts.append(waits.mean_ns)
    assert document.completeness.verdict == "incomplete"
    assert document.completeness.steps.detailed_all_ranks < 60
    assert parts[0] == pytest.approx(9 * MS / 2, rel=0.01)
    assert parts[1] == pytest.approx(parts[0], rel=0.02)


def test_a_cut_trace_is_told_with_what_is_here_of_it(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_bytes(requests(3))
    telemetry = open_source(str(path)).read(Selection())
    telemetry.ledger.partial_traces += [f"{2:032x}", f"{9:032x}"]
    found = judge_foreign(telemetry)
    assert found.verdict == "incomplete"
    assert found.reasons == [
        f"2 traces were cut or not given by the server: {2:032x} (3 spans here), {9:032x} (0 spans here)"
    ]
    assert whole_traces(telemetry, trace_roots(telemetry.spans)).tolist() == [True, False, True]
