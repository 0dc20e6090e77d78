# SPDX-License-Identifier: Apache-2.0
"""Attempts and lifetimes of a run, its fits, how it ended: what is taken, what is left out, what is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grademl_otel import analyzers
from grademl_otel import semconv as sc
from grademl_otel.analyzers.cli.app import run as command
from grademl_otel.analyzers.errors import NothingFound, UsageError
from grademl_otel.analyzers.model.run import build_runs
from grademl_otel.analyzers.modelled import runs_of
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.reporting.document import ReportDocument
from grademl_otel.analyzers.reporting.text import render
from grademl_otel.analyzers.subject import read_subject
from tests.support import losses
from tests.support.synthetic import MS, Span, Training, attributes, simulate
from tests.support.synthetic import S as SECOND

TRAINING = Training(ranks=2, epochs=1, steps_per_epoch=40, eval_batches=0, buckets=1)


def later(training: Training, by: int = 20 * SECOND, **changes: Any) -> Training:
    return replace(training, start=training.start + by, **changes)


def written(folder: Path, *lines: bytes) -> Path:
    path = folder / "traces.jsonl"
    path.write_bytes(b"".join(lines))
    return path


def restarted(lines: bytes, own_ids: bool = True) -> bytes:
    """Return ``lines`` as of other processes of the same run and attempt."""
    out = []
    for line in lines.splitlines(keepends=True):
        request = json.loads(line)
        for group in request["resourceSpans"]:
            for attribute in group["resource"]["attributes"]:
                if attribute["key"] == "process.pid":
                    attribute["value"] = {"intValue": str(int(attribute["value"]["intValue"]) + 1000)}
            for scope in group["scopeSpans"]:
                for span in scope["spans"] if own_ids else ():
                    for key in ("spanId", "parentSpanId"):
                        if key in span:
                            span[key] = f"{int(span[key], 16) ^ 0xFFFF:016x}"
        out.append(json.dumps(request).encode() + b"\n")
    return b"".join(out)


# --- Attempts -----------------------------------------------------------------------------------------------


@pytest.fixture
def twice(tmp_path: Path) -> Path:
    """A run that was killed and started again."""
    first = simulate(replace(TRAINING, killed_at=30)).otlp_lines()
    return written(tmp_path, first, simulate(later(TRAINING, attempt=1)).otlp_lines())


def test_what_was_read_is_assembled_once(twice: Path) -> None:
    about = read_subject(Query.of(str(twice), attempt=0))
    again = build_runs(about.telemetry)
    runs = runs_of(about)
    assert [run.attempt for run in runs] == [run.attempt for run in again] == [0, 1]
    assert about.run is not None
    assert runs[0].steps is about.run.steps
    assert [run.rank_bounds for run in runs] == [run.rank_bounds for run in again]
    assert [run.completeness.verdict for run in runs] == [run.completeness.verdict for run in again]


def test_the_last_attempt_is_taken_unless_told_otherwise(twice: Path) -> None:
    last = analyzers.report(twice)
    assert (last.source.attempt, last.completeness.verdict) == (1, "complete")
    assert [ended.how for ended in last.ended] == ["exit", "exit"]
    assert last.window.wall_ns < 2 * SECOND, "the time between the attempts is part of neither"
    first = analyzers.report(twice, attempt=0)
    assert (first.source.attempt, [ended.how for ended in first.ended]) == (0, ["killed", "killed"])
    with pytest.raises(NothingFound, match="no attempt 7"):
        analyzers.report(twice, attempt=7)


def test_all_attempts_one_after_the_other(twice: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["report", str(twice), "--attempt", "all"]) == 0
    text = capsys.readouterr().out
    assert text.index("rank 0 killed") < text.index("attempt 1")
    assert text.count("data  complete") == 2
    assert command(["critical-path", str(twice), "--attempt", "all", "--json"]) == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [document["source"]["attempt"] for document in documents] == [0, 1]
    assert documents[1] == analyzers.to_dict(analyzers.critical_path(twice))
    assert command(["ranks", str(twice), "--attempt", "all", "-f", "csv"]) == 2
    assert "no csv form" in capsys.readouterr().err
    assert command(["critical-path", str(twice), "--attempt", "all", "--per-trace"]) == 2


def test_all_attempts_of_a_run_that_had_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, simulate(TRAINING).otlp_lines())
    assert command(["report", str(path), "--attempt", "all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == analyzers.to_dict(analyzers.report(path))


def test_an_attempt_that_cannot_be_answered_for_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = simulate(replace(TRAINING, ranks=1)).otlp_lines()
    path = written(tmp_path, alone, simulate(later(TRAINING, attempt=1)).otlp_lines())
    assert command(["ranks", str(path), "--attempt", "all"]) == 0
    assert capsys.readouterr().out.count("run 0123456789abcdef") == 1
    assert command(["ranks", str(written(tmp_path, alone)), "--attempt", "all"]) == 5


def test_a_list_tells_attempts_and_their_data(twice: Path) -> None:
    damaged = losses.without(twice.read_bytes(), lambda r, s: s["name"] == sc.RUN and r[sc.ATTEMPT] == 1)
    runs = analyzers.runs(written(twice.parent, damaged)).runs
    assert [(run.attempt, run.ended, run.verdict) for run in runs] == [
        (1, "unknown", "incomplete"),
        (0, "killed", "complete"),
    ]
    text = render(analyzers.runs(twice))
    assert text.startswith("data  INCOMPLETE (1 of 2 runs)")
    assert "incomplete" in text.splitlines()[-2]


def test_every_attempt_and_a_trace_contradict_each_other() -> None:
    with pytest.raises(UsageError, match="--attempt all"):
        Query.of(None, every_attempt=True, traces=["1"])


def test_one_answer_is_about_one_attempt(twice: Path) -> None:
    with pytest.raises(UsageError, match="each of them"):
        analyzers.report(twice, every_attempt=True)


# --- Lifetimes of processes ---------------------------------------------------------------------------------


def test_the_last_lifetime_of_the_processes_is_the_attempt(tmp_path: Path) -> None:
    first = simulate(replace(TRAINING, killed_at=30)).otlp_lines()
    second = restarted(simulate(later(TRAINING)).otlp_lines())
    document = analyzers.report(written(tmp_path, first, second))
    assert (document.completeness.verdict, document.completeness.steps.measured) == ("complete", 40)
    assert document.window.wall_ns < 2 * SECOND
    (line,) = document.completeness.conflicts
    assert line.startswith("2 processes with the same run and attempt ended before the last began: ")
    assert f"{len(losses.spans_of(first))} spans left out" in line


def test_lifetimes_with_the_same_ids_leave_one(tmp_path: Path) -> None:
    """Whoever sets one name for two starts: the first is here whole, of the second what it did more."""
    first = simulate(replace(TRAINING, killed_at=30)).otlp_lines()
    second = restarted(simulate(later(TRAINING)).otlp_lines(), own_ids=False)
    document = analyzers.report(written(tmp_path, first, second))
    assert document.completeness.verdict == "incomplete"
    assert [ended.how for ended in document.ended] == ["killed", "killed"]
    assert document.completeness.steps.measured == 30
    assert "GRADEML_RUN_ID of its own" in "\n".join(document.completeness.conflicts)


def test_a_rank_that_alone_was_started_again(tmp_path: Path) -> None:
    whole = simulate(replace(TRAINING, ranks=3, buckets=0)).otlp_lines()
    again = restarted(simulate(replace(later(TRAINING, 2 * SECOND), ranks=3, buckets=0)).otlp_lines())
    first_of_1 = losses.shifted(losses.without(whole, losses.ranks(0, 2)), "node-0", -10 * SECOND)
    others = losses.without(again, losses.ranks(1))
    second_of_1 = losses.without(again, losses.ranks(0, 2))
    document = analyzers.report(written(tmp_path, first_of_1, others, second_of_1))
    assert document.completeness.ranks.present == [0, 1, 2]
    assert document.completeness.verdict == "complete"
    assert document.window.wall_ns < 2 * SECOND


def test_two_processes_that_are_one_rank_at_the_same_time(tmp_path: Path) -> None:
    one = simulate(TRAINING).otlp_lines()

    def launched(resource: dict[str, Any], span: Span) -> Span:
        if span["name"] != sc.RUN:
            return span
        link = {"traceId": "77" * 16, "spanId": "88" * 8, "attributes": attributes({sc.LINK_KIND: "parent"})}
        return {**span, "links": [link]}

    other = losses.each(restarted(simulate(later(TRAINING, 50 * MS)).otlp_lines()), launched)
    document = analyzers.report(written(tmp_path, one, other))
    assert document.window.origin_unix_ns == str(TRAINING.start + 50 * MS), "that with a trace context counts"
    assert document.completeness.conflicts == [
        "rank 0 is 2 processes at once: 5000 counts, 4000 not",
        "rank 1 is 2 processes at once: 5001 counts, 4001 not",
    ]


# --- Fits ---------------------------------------------------------------------------------------------------


def fits(lines: bytes, bounds: list[tuple[int, int]]) -> bytes:
    """Add spans `fit` to the run's trace, of every rank alike; times from the start of the run."""
    runs = losses.spans_of(lines, [sc.RUN])
    out = [lines]
    for resource, run in runs:
        spans = []
        for number, (start, end) in enumerate(bounds):
            span_id = f"{0xF17_0000 + 256 * resource[sc.RANK] + number:016x}"
            spans.append(
                {
                    **run,
                    "name": sc.FIT,
                    "spanId": span_id,
                    "parentSpanId": run["spanId"],
                    "startTimeUnixNano": str(int(run["startTimeUnixNano"]) + start),
                    "endTimeUnixNano": str(int(run["startTimeUnixNano"]) + end),
                    "attributes": attributes({sc.LANE: "main"}),
                }
            )
        out.append(losses.request(resource, spans))
    return b"".join(out)


def test_the_latest_fit_is_the_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training = replace(TRAINING, epochs=2, epoch_gap_ns=200 * MS)
    sim = simulate(training)
    first, second = (row.start - training.start for row in sim.rows_of(0) if row.step in (0, 40))
    last = sim.rows_of(0)[-1].end - training.start
    bounds = [(first - 50 * MS, second - 150 * MS), (second - 50 * MS, last + 5 * MS)]
    path = written(tmp_path, fits(sim.otlp_lines(), bounds))
    latest = analyzers.report(path)
    assert (latest.source.fit, latest.run.fits if latest.run else None) == (2, 2)
    assert (latest.window.steps.first, latest.window.steps.last) == (40, 79)
    assert latest.window.wall_ns == bounds[1][1] - bounds[1][0]
    assert "fit 2 of 2" in render(latest)
    earlier = analyzers.report(path, fit=1)
    assert (earlier.source.fit, earlier.window.steps.first, earlier.window.steps.last) == (1, 0, 39)
    for rank in range(2):
        assert sum(e.ns for e in earlier.lane_budget if e.rank == rank) == earlier.window.wall_ns
    assert command(["report", str(path), "--fit", "3"]) == 5
    assert "it has 2 fits" in capsys.readouterr().err
    assert command(["report", str(path), "--fit", "0"]) == 2


def test_a_run_whose_fits_were_not_recorded_is_one(tmp_path: Path) -> None:
    path = written(tmp_path, simulate(TRAINING).otlp_lines())
    assert analyzers.report(path).source.fit == 0
    with pytest.raises(NothingFound, match="its fits were not recorded"):
        analyzers.report(path, fit=1)


# --- How it ended -------------------------------------------------------------------------------------------


def said(lines: bytes, rank: int, name: str, **values: Any) -> bytes:
    """Return ``lines`` with attributes set on the spans called ``name`` of ``rank``; None takes one away."""
    keys = {key.replace("__", "."): value for key, value in values.items()}

    def changed(resource: dict[str, Any], span: Span) -> Span:
        if span["name"] != name or resource[sc.RANK] != rank:
            return span
        kept = [one for one in span["attributes"] if one["key"] not in keys]
        return {**span, "attributes": kept + attributes(keys)}

    return losses.each(lines, changed)


def test_ranks_that_end_differently_open_every_answer(tmp_path: Path) -> None:
    """Rank 1 raises, rank 2 is killed while it waits for it, rank 3 hangs in the same collective."""
    training = Training(ranks=4, epochs=1, steps_per_epoch=40, eval_batches=0)
    lines = simulate(replace(training, killed_at=30, killed_in=sc.BACKWARD)).otlp_lines()
    lines = said(lines, 0, sc.RUN, grademl__open_phase=sc.COLLECTIVE)
    lines = said(lines, 2, sc.RUN, grademl__open_phase=sc.COLLECTIVE_WAIT)
    raised = {"grademl__terminated": None, "grademl__open_phase": None, "error__type": "ValueError"}
    lines = said(lines, 1, sc.RUN, grademl__ended="exception", **raised)
    lines = said(lines, 3, sc.WINDOW, grademl__open_phase=sc.COLLECTIVE, grademl__open_since=training.start)
    lines = losses.without(lines, losses.named(sc.RUN, rank=3))
    path = written(tmp_path, lines)
    expected = [
        "ended  rank 0 killed · while in collective · last step 29 · last sign of life at",
        "ended  rank 1 by an exception (ValueError) · last step 29 · last sign of life at",
        "ended  rank 2 killed · while in collective.wait · last step 29 · last sign of life at",
        "ended  rank 3 not yet, as far as is known · in collective since 0 us · last step 29 · last sign of",
        "ended  ranks 0, 2, 3 were in a collective; not in it: rank 1 (in other)",
    ]
    for document in (analyzers.report(path), analyzers.critical_path(path), analyzers.ranks(path)):
        lines_of_text = render(document, width=200).splitlines()
        for number, line in enumerate(expected, 1):
            assert lines_of_text[number].startswith(line)


def test_a_rank_that_hung_before_it_was_killed_was_there_meanwhile(tmp_path: Path) -> None:
    """Its run span ends at its last mark; a part without rows tells that it was there a minute later."""
    lines = simulate(replace(TRAINING, killed_at=30)).otlp_lines()
    windows = [(r, s) for r, s in losses.spans_of(lines, {sc.WINDOW}) if r[sc.RANK] == 1]
    resource, last = windows[-1]
    facts = losses.plain(last["attributes"])
    table = (
        sc.WINDOW_NUMBER,
        sc.WINDOW_STEPS_SO_FAR,
        sc.WINDOW_ROWS_SO_FAR,
        sc.TABLE_VERSION,
        sc.WINDOW_LAST,
    )
    said_again = {key: facts[key] for key in table} | {sc.WINDOW_PART: facts[sc.WINDOW_PART] + 1}
    heard = int(last["endTimeUnixNano"]) + 60 * SECOND
    sign = {**last, "spanId": "00000000000000ff", "endTimeUnixNano": str(heard)}
    sign |= {"startTimeUnixNano": last["endTimeUnixNano"], "attributes": attributes(said_again)}
    path = written(tmp_path, lines, losses.request(resource, [sign]))
    document = analyzers.report(path)
    assert [one.how for one in document.ended] == ["killed", "killed"]
    assert document.ended[1].last_mark_ns == heard - TRAINING.start
    budget = {entry.phase: entry.ns for entry in document.lane_budget if entry.rank == 1}
    assert budget["untraced"] > 59 * SECOND
    assert "idle" not in budget


def test_a_rank_of_which_nothing_came_may_be_the_one_waited_for(tmp_path: Path) -> None:
    lines = simulate(replace(TRAINING, killed_at=30)).otlp_lines()
    lines = said(lines, 0, sc.RUN, grademl__open_phase=sc.COLLECTIVE)
    document = analyzers.report(written(tmp_path, losses.without(lines, losses.ranks(1))))
    assert "rank 0 was in a collective; not in it: rank 1 (sent nothing)" in render(document, width=200)


def test_a_rank_that_is_silent_for_long_is_told(tmp_path: Path) -> None:
    lines = simulate(replace(TRAINING, teardown_ns=300 * SECOND, buckets=0)).otlp_lines()
    gone = losses.without(lines, lambda r, s: r[sc.RANK] == 1 and s["name"] in (sc.RUN, sc.EPOCH))
    document = analyzers.report(written(tmp_path, gone))
    silent = {ended.rank: ended.silent_ns for ended in document.ended}
    assert silent[0] == 0
    assert silent[1] == pytest.approx(300 * SECOND, abs=SECOND)
    text = render(document, width=200)
    assert "rank 1 not yet, as far as is known" in text
    assert "silent since, while others went on for 5 min 0 s" in text


def step_of(document: ReportDocument) -> tuple[int, int]:
    assert document.step is not None
    return document.step.n, document.step.p95_ns


def test_the_step_in_which_it_ended_is_in_no_statistics(tmp_path: Path) -> None:
    """The last row holds the wait for a rank that was gone, and no update."""
    sim = simulate(Training(epochs=1, steps_per_epoch=40, eval_batches=0, rows_per_part=40))
    lines = said(sim.otlp_lines(), 0, sc.RUN, grademl__ended="exception", error__type="RuntimeError")
    whole = step_of(analyzers.report(written(tmp_path, lines)))
    last = sim.rows_of(0)[-1]

    def cut_short(resource: dict[str, Any], span: Span) -> Span | None:
        facts = losses.plain(span["attributes"])
        if span["name"] == sc.OPTIMIZER and facts.get(sc.STEP_NUMBER) == last.step:
            return None
        if span["name"] != sc.WINDOW or facts[sc.WINDOW_STEPS_SO_FAR] != 40:
            return span
        counts = facts["grademl.table.optimizer.count"]
        rows = len(facts["grademl.table.dur_us"])
        counts = [*(counts * rows)[: rows - 1], 0]
        kept = [one for one in span["attributes"] if one["key"] != "grademl.table.optimizer.count"]
        return {**span, "attributes": kept + attributes({"grademl.table.optimizer.count": counts})}

    document = analyzers.report(written(tmp_path, losses.each(lines, cut_short)))
    assert step_of(document) == (whole[0] - 1, whole[1])
    assert "step 39 of rank 0 was never finished: it is in no statistics" in document.warnings
