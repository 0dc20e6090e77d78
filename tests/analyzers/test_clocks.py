# SPDX-License-Identifier: Apache-2.0
"""Clocks of hosts: told with their error, applied everywhere alike, never where they may as well agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel import analyzers
from grademl_otel.analyzers.cli.app import run as command
from grademl_otel.analyzers.diagnosis import stragglers
from grademl_otel.analyzers.graph import lane_budget, trace_paths
from grademl_otel.analyzers.graph.ranks import compare_ranks
from grademl_otel.analyzers.model import clock_ties
from grademl_otel.analyzers.model.clocks import ClockRule, clocks_of_traces
from grademl_otel.analyzers.model.columns import KIND_CLIENT, KIND_INTERNAL, KIND_SERVER, SpanColumns
from grademl_otel.analyzers.model.run import Run, build_run
from grademl_otel.analyzers.reporting.document import CriticalPathDocument
from grademl_otel.analyzers.reporting.text import render
from grademl_otel.analyzers.sources import Selection, open_source
from tests.support import losses
from tests.support.build import S, columns
from tests.support.fake_jaeger import FakeJaeger, serve
from tests.support.synthetic import MS, US, Training, simulate
from tests.support.synthetic import S as SECOND

TRAINING = Training(
    ranks=4, epochs=1, steps_per_epoch=40, rows_per_part=20, buckets=2, compute_scale={3: 2.0}, eval_batches=2
)
HOSTS = {2: "node-1", 3: "node-1"}
SHIFTS = [-30 * MS, 7200 * SECOND]


@pytest.fixture(scope="module")
def recorded() -> bytes:
    """A run on two hosts whose clocks agree; rank 3 is slow."""
    return losses.on_hosts(simulate(TRAINING).otlp_lines(), HOSTS)


def written(folder: Path, lines: bytes) -> Path:
    path = folder / "traces.jsonl"
    path.write_bytes(lines)
    return path


def run_of(folder: Path, lines: bytes, rule: ClockRule | None = None) -> Run:
    run = build_run(open_source(str(written(folder, lines))).read(Selection()), clocks=rule)
    assert run is not None
    return run


def told(document: CriticalPathDocument) -> dict[str, Any]:
    """What an answer says, without where it was read and what it says of clocks."""
    plain = analyzers.to_dict(document)
    del plain["source"], plain["completeness"]["clocks"], plain["window"]["origin_unix_ns"]
    return plain


# --- Runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", SHIFTS)
@pytest.mark.parametrize("host", ["node-0", "node-1"])
def test_every_answer_is_the_same_whatever_a_clock_shows(
    recorded: bytes, by: int, host: str, tmp_path: Path
) -> None:
    true = written(tmp_path, recorded)
    answers = [told(analyzers.report(true)), told(analyzers.critical_path(true, by="rank"))]
    ranks = analyzers.to_dict(analyzers.ranks(true))
    skewed = written(tmp_path, losses.shifted(recorded, host, by))
    assert [told(analyzers.report(skewed)), told(analyzers.critical_path(skewed, by="rank"))] == answers
    assert analyzers.to_dict(analyzers.ranks(skewed))["ranks"] == ranks["ranks"]
    (clock,) = analyzers.report(skewed).completeness.clocks[1:]
    expected = by if host == "node-1" else -by
    assert clock.applied
    assert abs(clock.offset_ns - expected) <= clock.error_ns
    assert (clock.host, clock.pairs) == ("node-1", 80)


def test_a_shifted_clock_is_one_line(recorded: bytes, tmp_path: Path) -> None:
    path = written(tmp_path, losses.shifted(recorded, "node-1", -30 * MS))
    for document in (analyzers.report(path), analyzers.critical_path(path), analyzers.ranks(path)):
        assert "clock  node-1 -30.0 ms +- 0.2, 80 pairs" in render(document)
    assert "\nclock " not in render(analyzers.report(written(tmp_path, recorded)))


def test_what_was_read_stays_as_it_was(recorded: bytes, tmp_path: Path) -> None:
    telemetry = open_source(str(written(tmp_path, losses.shifted(recorded, "node-1", SHIFTS[1])))).read(
        Selection()
    )
    start = telemetry.spans.start.copy()
    run = build_run(telemetry)
    assert run is not None
    assert (telemetry.spans.start == start).all()
    assert (run.spans.end - run.spans.start == telemetry.spans.end - telemetry.spans.start).all()
    assert run.end - run.start < 10 * SECOND < int(start.max() - start.min())


@pytest.mark.parametrize("by", SHIFTS)
def test_budgets_tile_the_wall_time_without_idle_hours(recorded: bytes, by: int, tmp_path: Path) -> None:
    run = run_of(tmp_path, losses.shifted(recorded, "node-1", by))
    rows = [row for row in lane_budget(run) if row.within is None]
    for rank in run.ranks:
        assert sum(row.ns for row in rows if row.rank == rank) == run.end - run.start
    assert "idle" not in {row.phase for row in rows if row.share > 0.01}


def test_clocks_that_may_agree_are_not_shifted(recorded: bytes, tmp_path: Path) -> None:
    """Less than an all-reduce takes: nothing that was seen is impossible."""
    run = run_of(tmp_path, losses.shifted(recorded, "node-1", 100 * US))
    assert run.clocks is not None
    assert [clock.applied for clock in run.clocks.clocks] == [False, False]


def test_off_takes_clocks_as_they_are(recorded: bytes, tmp_path: Path) -> None:
    run = run_of(tmp_path, losses.shifted(recorded, "node-1", SHIFTS[1]), ClockRule(shift=False))
    assert run.clocks is not None
    other = run.clocks.clocks[1]
    assert (other.applied, other.error_ns is not None and other.error_ns >= 7200 * SECOND) == (False, True)
    assert run.end - run.start > 7200 * SECOND
    assert stragglers.judge(run).findings == [], "nothing is told across such an error"


def test_what_ranks_wait_is_told_by_their_own_clocks_where_those_differ(
    recorded: bytes, tmp_path: Path
) -> None:
    """Taken as they are two hours apart: transfers and waits are those of a clock that all share."""
    true = analyzers.ranks(written(tmp_path, recorded)).ranks
    path = written(tmp_path, losses.shifted(recorded, "node-1", SHIFTS[1]))
    document = analyzers.ranks(path, clocks=ClockRule(shift=False))
    assert true is not None
    assert document.ranks is not None
    assert document.ranks.source == true.source == "collectives"
    for found, expected in zip(document.ranks.ranks, true.ranks, strict=True):
        assert expected.wait_ns is not None
        assert expected.transfer_ns is not None
        assert found.wait_ns == pytest.approx(expected.wait_ns, abs=2 * US)
        assert found.transfer_ns == pytest.approx(expected.transfer_ns, abs=2 * US)
    assert document.verdict is None
    assert [one.rule for one in document.abstained] == ["ranks.straggler"]


def test_changing_ranks_are_not_called_alike_where_clocks_hide_them(tmp_path: Path) -> None:
    """Each step waits for another rank: across a large error that is doubted, never denied."""
    slow = Training(ranks=2, epochs=1, steps_per_epoch=60, eval_batches=0, buckets=1, allreduce_ns=200 * US)
    lines = losses.on_hosts(simulate(slow).otlp_lines(), {1: "node-1"})
    run = run_of(tmp_path, losses.shifted(lines, "node-1", SHIFTS[1]), ClockRule(shift=False))
    (found, *_) = compare_ranks(run)
    turns = np.arange(len(found))[:, None] % 2 == np.arange(2)
    changing = replace(found, late=np.where(turns, found.length // 2, 0))
    doubted = stragglers._within_error(run, [changing])
    assert [one.rule for one in doubted] == ["ranks.imbalance"]
    assert "the slowest of a step seems" in doubted[0].missing


def test_when_ranks_came_is_not_told_where_clocks_do_not_tell(recorded: bytes, tmp_path: Path) -> None:
    bare = losses.without(recorded, losses.named("collective"))
    near = analyzers.ranks(written(tmp_path, losses.shifted(bare, "node-1", -30 * MS)))
    far = analyzers.ranks(written(tmp_path, losses.shifted(bare, "node-1", SHIFTS[1])))
    alone = analyzers.ranks(
        written(tmp_path, losses.without(recorded, losses.named("collective"))), ranks=(2, 3)
    )
    for document in (near, far):
        assert document.ranks is not None
        assert {(one.late_ns, one.last_steps) for one in document.ranks.ranks} == {(None, None)}
        assert " ? " in render(document)
    assert alone.ranks is not None
    assert all(one.late_ns is not None for one in alone.ranks.ranks), "they share a clock"


def test_a_given_offset_goes_before_what_spans_tell(recorded: bytes, tmp_path: Path) -> None:
    rule = ClockRule.parse(["node-1=-30.5"])
    run = run_of(tmp_path, losses.shifted(recorded, "node-1", -30 * MS), rule)
    assert run.clocks is not None
    other = run.clocks.clocks[1]
    assert (other.offset_ns, other.error_ns, other.applied) == (-30_500_000, 0, True)


@pytest.mark.parametrize("text", ["node-1", "=3", "node-1=", "node-1=fast", "node-1=nan", "node-1=1e400"])
def test_what_no_clock_rule_is(
    text: str, recorded: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["report", str(written(tmp_path, recorded)), "--clocks", text]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_host_that_is_not_here(recorded: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["report", str(written(tmp_path, recorded)), "--clocks", "node-7=3"]) == 5
    assert "there are node-0, node-1" in capsys.readouterr().err
    assert command(["report", str(written(tmp_path, recorded)), "--clocks", "node-0=3"]) == 2
    assert "offsets of the others" in capsys.readouterr().err


def test_the_option_is_that_of_every_answer(
    recorded: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(written(tmp_path, losses.shifted(recorded, "node-1", -30 * MS)))
    for verb in ("report", "critical-path", "ranks"):
        assert command([verb, path, "--clocks", "off"]) == 0
        assert "clock  " not in capsys.readouterr().out
        assert command([verb, path, "--clocks", "node-1=-29"]) == 0
        assert "clock  node-1 -29.000 ms +- 0.000" in capsys.readouterr().out


def test_a_clock_that_drifts_is_told_with_an_error_as_large(recorded: bytes, tmp_path: Path) -> None:
    first = TRAINING.start
    drifting = losses.shifted(recorded, "node-1", lambda time: 7200 * SECOND + (time - first) // 150)
    run = run_of(tmp_path, drifting)
    assert run.clocks is not None
    other = run.clocks.clocks[1]
    assert other.applied
    assert other.error_ns is not None
    assert 3 * MS < other.error_ns < 100 * MS
    judgement = stragglers.judge(run)
    assert judgement.findings == []
    assert "by which the clocks of the hosts may be off" in judgement.abstained[0].missing


def test_a_clock_that_was_set_in_the_middle(recorded: bytes, tmp_path: Path) -> None:
    middle = TRAINING.start + 500 * MS
    stepped = losses.shifted(recorded, "node-1", lambda time: 80 * MS if time > middle else 0)
    run = run_of(tmp_path, stepped)
    assert run.clocks is not None
    assert run.clocks.error_ns >= 80 * MS
    assert stragglers.judge(run).findings == []


def test_an_end_that_is_heard_of_late_does_not_make_a_drift_larger() -> None:
    """Of 100 collectives of 0.5 ms one host hears of one 60 ms late; its clock gains 3 ms meanwhile."""
    number = np.arange(100)
    last = number * 100 * MS
    early = last - 20 * MS
    issue = (np.where(number % 2, last, early), np.where(number % 2, early, last))
    end, gained = last + MS // 2, number * 30 * US
    late = np.where(number == 50, 60 * MS, 0)
    found = clock_ties.Meetings.of(
        np.repeat((0, 1), 100),
        np.concatenate([issue[0], issue[1] + gained]),
        np.concatenate([end, end + gained + late]),
        np.tile(number, 2),
    )
    tie = found.between(1, 0)
    assert tie is not None
    assert not tie.may_agree
    assert all(abs(gained - tie.offset_ns) <= tie.error_ns)
    assert tie.error_ns < 5 * MS


def test_hosts_that_nothing_ties_but_that_ran_at_one_time(recorded: bytes, tmp_path: Path) -> None:
    """No collective was recorded: two hours apart they are put side by side, give or take the run."""
    bare = losses.without(recorded, losses.named("collective"))
    run = run_of(tmp_path, losses.shifted(bare, "node-1", SHIFTS[1]))
    assert run.clocks is not None
    other = run.clocks.clocks[1]
    assert other.applied
    assert other.error_ns is not None
    assert abs(other.offset_ns - SHIFTS[1]) <= other.error_ns < 3 * SECOND
    assert run.end - run.start < 3 * SECOND
    lost = losses.without(losses.shifted(bare, "node-1", SHIFTS[1]), losses.named("run"))
    assert run_of(tmp_path, lost).end - run_of(tmp_path, lost).start < 3 * SECOND
    near = run_of(tmp_path, losses.shifted(bare, "node-1", -30 * MS))
    assert near.clocks is not None
    assert (near.clocks.clocks[1].error_ns, near.clocks.clocks[1].applied) == (None, False)
    assert near.completeness.notes == [
        "nothing ties the clock of node-1 to that of node-0: times are as each showed them"
    ]


def test_of_very_many_collectives_some_tell(
    recorded: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock_ties, "_ENOUGH", 80)
    run = run_of(tmp_path, losses.shifted(recorded, "node-1", -30 * MS))
    assert run.clocks is not None
    other = run.clocks.clocks[1]
    assert (other.applied, other.pairs) == (True, 20)
    assert abs(other.offset_ns + 30 * MS) <= (other.error_ns or 0)


@pytest.mark.parametrize("by", SHIFTS)
def test_a_run_read_from_a_jaeger(recorded: bytes, by: int, tmp_path: Path) -> None:
    skewed = losses.shifted(recorded, "node-1", by)
    with serve(FakeJaeger(lines=skewed)) as server:
        document = analyzers.report(server.url)
    assert document.completeness.verdict == "complete"
    assert document.completeness.clocks[1].applied
    assert told(document) == told(analyzers.report(written(tmp_path, skewed)))


# --- Traces of others --------------------------------------------------------------------------------------


def calls(
    count: int, skew: int, *, network: int = 200, work: int = 5_000, host: str = "b", late: int = 0
) -> list[S]:
    """A root that calls a server on another host ``count`` times, one after the other; times in us."""
    a, b = {"service.name": "web", "host.name": "a"}, {"service.name": "db", "host.name": host}
    each = work + 2 * network + 100
    spans = [S("root", 0, count * each * US, kind=KIND_SERVER, resource=a)]
    for n in range(count):
        start = n * each * US
        end = start + (work + 2 * network) * US
        spans.append(S(f"call{n}", start, end, "root", "GET", kind=KIND_CLIENT, resource=a))
        inner = start + network * US + skew
        served = inner + (work + late) * US
        spans.append(S(f"serve{n}", inner, served, f"call{n}", "query", kind=KIND_SERVER, resource=b))
        spans.append(S(f"disk{n}", inner, served - US, f"serve{n}", "read", kind=KIND_INTERNAL, resource=b))
    return spans


def on_path(spans: SpanColumns) -> dict[str, int]:
    ((_, path),) = trace_paths(spans)
    sums: dict[str, int] = {}
    for section in path.sections:
        sums[section.phase] = sums.get(section.phase, 0) + section.duration
    return sums


@pytest.mark.parametrize("skew", [-30 * MS, 7200 * SECOND, 3 * MS])
def test_a_path_across_hosts_is_that_of_the_times_by_one_clock(skew: int) -> None:
    true, spans = columns(calls(12, 0)), columns(calls(12, skew))
    clocks = clocks_of_traces(spans)
    assert [clock.host for clock in clocks.clocks] == ["a", "b"]
    other = clocks.clocks[1]
    assert (other.applied, other.pairs, other.error_ns) == (True, 12, 200 * US)
    assert abs(other.offset_ns - skew) <= 200 * US
    corrected = clocks.correct(spans)
    assert (corrected.end - corrected.start == true.end - true.start).all()
    assert on_path(corrected) == on_path(true)
    assert on_path(spans) != on_path(true)
    assert (spans.start == columns(calls(12, skew)).start).all()


@pytest.mark.parametrize("skew", [0, 150 * US, -150 * US])
def test_calls_that_are_possible_as_they_are(skew: int) -> None:
    spans = columns(calls(12, skew))
    clocks = clocks_of_traces(spans)
    assert [clock.applied for clock in clocks.clocks] == [False, False]
    assert clocks.correct(spans) is spans


def test_servers_that_go_on_after_their_answer_prove_nothing() -> None:
    spans = columns(calls(12, 0, late=900))
    assert [clock.error_ns for clock in clocks_of_traces(spans).clocks] == [0, None]


def test_one_call_in_two_hundred_may_be_odd() -> None:
    some = calls(200, 0)
    odd = next(ix for ix, span in enumerate(some) if span.id == "serve7")
    moved = replace(some[odd], start=some[odd].start + 700 * US, end=some[odd].end + 700 * US)
    spans = columns([*some[:odd], moved, *some[odd + 1 :]])
    assert not clocks_of_traces(spans).applied


def test_hosts_that_never_meet_those_of_another_trace_are_told_by_each_other() -> None:
    """Nothing compares times of two traces: within each those of its hosts must agree."""
    apart = [
        replace(
            span, id=f"{span.id}'", parent=span.parent and f"{span.parent}'",
            resource={**span.resource, "host.name": f"{span.resource['host.name']}'"},
        )
        for span in calls(12, 500 * MS)
    ]  # fmt: skip
    spans = columns([*calls(30, 0), *apart])
    clocks = clocks_of_traces(spans)
    assert [(clock.host, clock.applied, clock.pairs) for clock in clocks.clocks] == [
        ("a", False, 0), ("a'", False, 0), ("b", False, 30), ("b'", True, 12),
    ]  # fmt: skip
    assert clocks.clocks[1].error_ns is None
    assert abs(clocks.clocks[3].offset_ns - 500 * MS) <= 200 * US


def test_services_without_a_host_are_told_apart_by_their_names() -> None:
    spans = columns(
        [replace(s, resource={"service.name": str(s.resource["service.name"])}) for s in calls(5, 40 * MS)]
    )
    clocks = clocks_of_traces(spans)
    assert [(clock.host, clock.applied) for clock in clocks.clocks] == [("web", False), ("db", True)]


def test_off_and_given_for_traces() -> None:
    spans = columns(calls(5, 40 * MS))
    assert not clocks_of_traces(spans, ClockRule(shift=False)).applied
    given = clocks_of_traces(spans, ClockRule.parse(["b=40"]))
    assert on_path(given.correct(spans)) == on_path(columns(calls(5, 0)))


def test_one_clock_and_none() -> None:
    assert clocks_of_traces(columns([])).clocks == []
    (only,) = clocks_of_traces(columns([S("a", 0, 1)])).clocks
    assert (only.error_ns, only.applied) == (0, False)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_offset_lies_within_its_error_and_no_server_outside_its_client(data: st.DataObject) -> None:
    """Whatever the network took either way: the true offset is within the error; the path tiles the root."""
    skew = data.draw(st.integers(-(10**12), 10**12))
    spans: list[S] = []
    at = begin = 2 * 10**12
    for n in range(data.draw(st.integers(1, 12))):
        there, work, back = (data.draw(st.integers(0, 10**7)) for _ in range(3))
        end = at + there + work + back
        a, b = {"host.name": "a"}, {"host.name": "b"}
        spans.append(S(f"call{n}", at, end, "root", kind=KIND_CLIENT, resource=a))
        inner = at + there + skew
        spans.append(S(f"serve{n}", inner, inner + work, f"call{n}", kind=KIND_SERVER, resource=b))
        at = end + 10
    found = columns([S("root", begin, at, resource={"host.name": "a"}), *spans])
    clocks = clocks_of_traces(found)
    other = clocks.clocks[1]
    assert other.error_ns is not None
    assert abs(other.offset_ns - skew) <= other.error_ns
    corrected = clocks.correct(found)
    servers = np.flatnonzero(corrected.kind == KIND_SERVER)
    clients = corrected.parent_ix[servers]
    assert (corrected.start[servers] >= corrected.start[clients] - 1).all()
    assert (corrected.end[servers] <= corrected.end[clients] + 1).all()
    ((_, path),) = trace_paths(corrected)
    assert sum(section.duration for section in path.sections) == path.total_ns == at - begin
