# SPDX-License-Identifier: Apache-2.0
"""`grademl export --to perfetto`, read by Perfetto's own trace processor: what is on which track, when."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from grademl_otel import semconv as sc
from grademl_otel.analyzers.cli.app import run as cli
from grademl_otel.analyzers.exports import perfetto
from grademl_otel.analyzers.exports.perfetto.rows import side_by_side, tracks_of
from grademl_otel.analyzers.exports.perfetto.slices import BY_PARENT, BY_TIME, FLAT, Draft, Process, pids
from grademl_otel.analyzers.graph import run_path
from grademl_otel.analyzers.graph.path import KINDS
from grademl_otel.analyzers.model.columns import Ledger, Telemetry
from grademl_otel.analyzers.model.facts import Run
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.selection import StepRange
from grademl_otel.analyzers.subject import Subject, read_subject

from ..support.build import R, run_from
from ..support.synthetic import MS, US, Training, simulate
from ..support.telemetry import EPOCH_UNIX_NS, attributes
from ..support.trace_processor import Row, TraceProcessor, trace_processor

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DETAILED = Training(
    ranks=3,
    epochs=2,
    steps_per_epoch=8,
    buckets=2,
    checkpoint_ns=5 * MS,
    compute_scale={1: 1.5},
    fetch_scale={0: 20.0},
)
"""All steps have spans; rank 1 computes slowly, the loader of rank 0 is slow: each waits for the other."""
SAMPLED = Training(ranks=2, epochs=2, steps_per_epoch=16, micro=2, detail_level=3, explicit=True)
"""Of most steps only the table tells, and of their phases the sum of two."""
SINGLE = replace(SAMPLED, ranks=1, micro=1, explicit=False, detail_level=4)
"""The same, but every phase ran once."""
PROFILE = Path(__file__).parents[1] / "data" / "profiles" / "gpu_rank_1.json"
T0 = EPOCH_UNIX_NS

Ask = Callable[[str], list[Row]]
Load = Callable[[Subject], Ask]


@pytest.fixture(scope="module")
def engine(browser: Browser) -> Iterator[TraceProcessor]:
    with trace_processor(browser) as found:
        yield found


@pytest.fixture(scope="module")
def load(engine: TraceProcessor) -> Load:
    """Load what is written of a subject; the trace processor must have nothing to complain of."""
    loaded: list[Subject] = []

    def loading(about: Subject) -> Ask:
        if loaded[-1:] != [about]:
            engine.load(written(about)[0])
            loaded.append(about)
            assert engine.query(BAD) == []
            assert engine.query("select count(*) n from slice where dur < 0") == [{"n": 0}]
        return engine.query

    return loading


BAD = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
SLICES = """
    select s.id, s.ts, s.dur, s.name, s.category, s.depth, s.parent_id, t.name as track, t.id as track_id,
        p.name as process, p.pid,
        extract_arg(s.arg_set_id, 'debug.span_id') as span_id,
        extract_arg(s.arg_set_id, 'debug.step') as step,
        extract_arg(s.arg_set_id, 'debug.item') as item,
        extract_arg(s.arg_set_id, 'debug.count') as count,
        extract_arg(s.arg_set_id, 'debug.busy_ns') as busy_ns,
        extract_arg(s.arg_set_id, 'debug.told_by') as told_by,
        extract_arg(s.arg_set_id, 'debug.evidence') as evidence,
        extract_arg(s.arg_set_id, 'debug.rank') as rank,
        extract_arg(s.arg_set_id, 'debug.lane') as lane,
        extract_arg(s.arg_set_id, 'debug.edge') as edge
    from slice s join track t on s.track_id = t.id left join process_track pt on pt.id = t.id
        left join process p on p.upid = pt.upid
"""
LANES = f"{SLICES} where p.name is not null and s.category is not 'path' order by s.id"
PATH = f"{SLICES} where t.name = 'critical path' order by s.ts"
FLOWS = """
    select o.ts as out_ts, o.dur as out_dur, o.id as out_id, o.track_id as out_track, o.name as out_name,
        i.ts as in_ts, i.dur as in_dur, i.id as in_id, i.track_id as in_track, i.name as in_name,
        i.category as in_category, i.parent_id as in_parent,
        extract_arg(i.arg_set_id, 'debug.confidence') as confidence
    from flow f join slice o on o.id = f.slice_out join slice i on i.id = f.slice_in
"""


def written(about: Subject) -> tuple[bytes, dict[str, int]]:
    file = io.BytesIO()
    counts = perfetto.write(about, file)
    return file.getvalue(), counts


def subject_of(training: Training, folder: Path, **options: Any) -> Subject:
    return read_subject(Query.of(str(simulate(training).write_store(folder)), **options))


@pytest.fixture(scope="module")
def detailed(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return subject_of(DETAILED, tmp_path_factory.mktemp("detailed"))


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return subject_of(SAMPLED, tmp_path_factory.mktemp("sampled"))


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return subject_of(SINGLE, tmp_path_factory.mktemp("single"))


def run_in(about: Subject) -> Run:
    assert about.run is not None
    return about.run


def span(
    number: int,
    parent: int = 0,
    at: tuple[int, int] = (0, 1),
    name: str = "work",
    trace: int = 1,
    service: str = "shop",
    resource: Mapping[str, Any] | None = None,
    **said: Any,
) -> dict[str, Any]:
    """A span of others, as one resource of OTLP/JSON; times in us from `T0`."""
    one = {
        "traceId": f"{trace:032x}",
        "spanId": f"{number:016x}",
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(T0 + at[0] * US),
        "endTimeUnixNano": str(T0 + at[1] * US),
        "attributes": attributes({key.replace("__", "."): value for key, value in said.items()}),
    }
    if parent:
        one["parentSpanId"] = f"{parent:016x}"
    of = attributes({"service.name": service, **(resource or {})})
    return {"resource": {"attributes": of}, "scopeSpans": [{"spans": [one]}]}


def traces(folder: Path, spans: Sequence[dict[str, Any]], **options: Any) -> Subject:
    path = folder / "spans.jsonl"
    path.write_text(json.dumps({"resourceSpans": list(spans)}) + "\n")
    return read_subject(Query.of(str(path), **options))


# --- A run --------------------------------------------------------------------------------------------------


def test_every_span_of_a_run_is_a_slice_with_its_times(load: Load, detailed: Subject) -> None:
    run, rows = run_in(detailed), load(detailed)(LANES)
    spans = run.spans
    expected = {
        (spans.span_id_hex(ix), int(spans.start[ix]), int(spans.end[ix] - spans.start[ix]))
        for ix in run.span_ixs.tolist()
    }
    assert {(row["span_id"], row["ts"], row["dur"]) for row in rows} == expected
    assert len(rows) == len(run.span_ixs) == len(expected)
    named = Counter(row["name"].partition(" ")[0] for row in rows)
    assert named == Counter(spans.name(ix) for ix in run.span_ixs.tolist())


def test_ranks_are_processes_and_lanes_are_tracks(load: Load, detailed: Subject) -> None:
    run, ask = run_in(detailed), load(detailed)
    lane_of = {
        run.spans.span_id_hex(ix): run.spans.attributes(ix).get(sc.LANE) for ix in run.span_ixs.tolist()
    }
    for row in ask(LANES):
        assert row["track"] == (lane_of[row["span_id"]] or "windows")
    processes = ask("select name, pid from process where name is not null")
    pid_of = {f"rank {rank}": run.spans.resource(ix)["process.pid"] for rank, ix in run.run_spans.items()}
    assert {row["name"]: row["pid"] for row in processes} == pid_of
    lanes = ask(
        "select t.name, m.name as parent from process_track t left join track m on m.id = t.parent_id"
        " join process p using (upid) where p.name = 'rank 1' and t.id in (select track_id from slice)"
    )
    parents = {row["name"]: row["parent"] for row in lanes}
    assert parents.pop("main") != "main"
    assert {"comm", "loader-worker-0", "loader-worker-1", "windows"} <= parents.keys()
    assert set(parents.values()) == {"main"}


def test_what_a_main_lane_did_nests(load: Load, detailed: Subject) -> None:
    rows = {row["id"]: row for row in load(detailed)(SLICES)}
    kinds: Counter[tuple[str, str | None]] = Counter()
    for row in rows.values():
        if row["track"] != "main" or row["category"] == "path":
            continue
        above = rows[row["parent_id"]]["name"].partition(" ")[0] if row["parent_id"] is not None else None
        kinds[row["name"].partition(" ")[0], above] += 1
        if above is not None:
            held = rows[row["parent_id"]]
            assert held["ts"] <= row["ts"]
            assert row["ts"] + row["dur"] <= held["ts"] + held["dur"]
    assert kinds["run", None] == kinds["epoch", "run"] / DETAILED.epochs == DETAILED.ranks
    steps = DETAILED.ranks * DETAILED.epochs * DETAILED.steps_per_epoch
    evaluated = DETAILED.ranks * DETAILED.epochs * DETAILED.eval_batches
    assert kinds["step", "epoch"] == kinds["backward", "step"] == steps
    assert kinds["step", "evaluate"] == evaluated
    assert kinds["forward", "step"] == steps + evaluated
    assert not [pair for pair in kinds if pair[1] is None and pair[0] != "run"]


def test_the_path_is_a_track_of_its_own_that_arrows_go_along(load: Load, detailed: Subject) -> None:
    ask, path = load(detailed), run_path(run_in(detailed))
    rows = ask(PATH)
    told = [
        (
            row["ts"],
            row["ts"] + row["dur"],
            row["name"],
            row["category"],
            row["rank"],
            row["lane"],
            row["step"],
        )
        for row in rows
    ]
    expected = [
        (one.start, one.end, one.phase, one.kind, one.rank, one.lane, one.step) for one in path.sections
    ]
    assert told == expected
    assert sum(row["dur"] for row in rows) == path.total_ns
    edges = [one.entered_by for one in path.sections]
    assert [(row["edge"], row["evidence"]) for row in rows] == [(one.edge, one.evidence) for one in edges]
    place = {row["id"]: at for at, row in enumerate(rows)}
    arrows = [row for row in ask(FLOWS) if row["in_id"] in place]
    assert sorted((place[row["out_id"]], place[row["in_id"]]) for row in arrows) == [
        (at, at + 1) for at in range(len(rows) - 1)
    ]


def test_arrows_lead_from_lane_to_lane_where_the_path_jumps(load: Load, detailed: Subject) -> None:
    ask, sections = load(detailed), run_path(run_in(detailed)).sections
    lanes = {row["id"]: row for row in ask(SLICES)}
    marks = [row for row in ask(FLOWS) if row["in_category"] == "path"]
    jumps = [
        (before.end, (before.rank, before.lane), (after.rank, after.lane), before.entered_by.edge)
        for before, after in pairwise(sections)
        if (before.rank, before.lane) != (after.rank, after.lane)
    ]
    assert len(marks) == len(jumps) > DETAILED.steps_per_epoch
    waited = 0
    for mark, (at, source, target, edge) in zip(
        sorted(marks, key=lambda row: (row["in_ts"], row["out_ts"])), sorted(jumps), strict=True
    ):
        began, held = lanes[mark["out_id"]], lanes[mark["in_parent"]]
        assert (began["process"], began["track"]) == (f"rank {source[0]}", source[1])
        assert (held["process"], held["track"]) == (f"rank {target[0]}", target[1])
        assert mark["in_name"] == edge
        assert began["ts"] < at <= began["ts"] + began["dur"]
        # Nothing is in a worker's lane before its first fetch: the arrow ends there.
        assert mark["in_ts"] == max(at, held["ts"]) < held["ts"] + held["dur"]
        waited += held["ts"] < began["ts"]
    assert waited
    assert {jump[3] for jump in jumps} >= {"collective"}
    across = {(jump[1][0], jump[2][0]) for jump in jumps}
    assert {(1, 0), (0, 1)} <= across  # from the slow one to that which waited for it
    assert {mark["confidence"] for mark in marks} == {1.0}


def test_the_lanes_of_the_path_are_told_in_stretches(load: Load, detailed: Subject) -> None:
    rows = load(detailed)(f"{SLICES} where t.name = 'lanes of the path' order by s.ts")
    path = run_path(run_in(detailed))
    assert sum(row["dur"] for row in rows) == path.total_ns
    assert all(one["name"] != other["name"] for one, other in pairwise(rows))
    names = {f"rank {one.rank} {one.lane}" for one in path.sections}
    assert {row["name"] for row in rows} == names


# --- The step table -----------------------------------------------------------------------------------------


def test_every_row_of_the_table_is_a_step(load: Load, sampled: Subject) -> None:
    steps = run_in(sampled).steps
    rows = load(sampled)(f"{LANES.replace('order by', 'and s.name glob ? order by')}".replace("?", "'step*'"))
    told = Counter(row["process"] for row in rows)
    assert told == Counter(f"rank {rank}" for rank in steps.rank.tolist())
    trained = [row for row in rows if row["name"] != "step (evaluate)"]
    assert {row["name"] for row in trained} == {f"step {row['step']}" for row in trained}
    from_table = [row for row in rows if row["span_id"] is None]
    assert {row["category"] for row in from_table} == {"step,table"}
    assert {row["told_by"] for row in from_table} == {"step table"}
    assert len(from_table) > len(rows) / 2
    starts = {
        (f"rank {rank}", at // US) for rank, at in zip(steps.rank.tolist(), steps.start.tolist(), strict=True)
    }
    assert {(row["process"], row["ts"] // US) for row in rows} == starts


def test_sums_are_called_sums(load: Load, sampled: Subject) -> None:
    steps = run_in(sampled).steps
    rows = load(sampled)(LANES)
    sums = [row for row in rows if row["name"] == "forward x2"]
    assert sums
    assert {row["category"] for row in sums} == {"work,table,sum"}
    assert {row["evidence"] for row in sums} == {"inferred"}
    assert {row["count"] for row in sums} == {2}
    train = (steps.flags & (sc.FLAG_EVALUATE | sc.FLAG_DETAILED)) == 0
    busy = Counter(steps.busy[sc.FORWARD][train & (steps.count[sc.FORWARD] == 2)].tolist())
    assert Counter(row["busy_ns"] for row in sums) == busy
    assert all(abs(row["dur"] - row["busy_ns"]) <= 2 * US for row in sums)
    waits = [row for row in rows if row["name"] == "data.wait x2"]
    assert {row["category"] for row in waits} == {"wait,table,sum"}


def test_phases_that_ran_once_have_their_place(load: Load, single: Subject) -> None:
    run = run_in(single)
    steps, spans = run.steps, run.spans
    rows = load(single)(LANES)
    for phase in (sc.FORWARD, sc.BACKWARD, sc.OPTIMIZER, sc.DATA_WAIT):
        told = [row for row in rows if row["name"] == phase and row["told_by"]]
        of_span = [ix for ix in run.span_ixs.tolist() if spans.name(ix) == phase]
        assert len(told) == np.count_nonzero(steps.count[phase]) - len(of_span) > 0
        times = dict(zip(steps.first[phase].tolist(), steps.busy[phase].tolist(), strict=True))
        for row in told:
            first = min(times, key=lambda at: abs(at - row["ts"]))
            assert abs(first - row["ts"]) <= 2 * US
            assert abs(row["dur"] - row["busy_ns"]) <= 2 * US
            assert times[first] == row["busy_ns"]


def test_items_of_the_table_are_in_their_workers_lanes(load: Load, single: Subject) -> None:
    steps = run_in(single).steps
    rows = [row for row in load(single)(LANES) if row["name"] == sc.DATA_FETCH]
    items = {
        f"{serial}:{batch}": f"loader{loader or ''}-worker-{worker}"
        for serial, batch, loader, worker in zip(
            steps.item_pass.tolist(), steps.item_batch.tolist(), steps.item_loader.tolist(),
            steps.item_worker.tolist(), strict=True,
        )
    }  # fmt: skip
    assert {row["item"]: row["track"] for row in rows} == items
    assert len(rows) == len(items)


def test_a_row_whose_span_tells_a_phase_has_it_once(load: Load, sampled: Subject) -> None:
    rows = load(sampled)(LANES)
    told: Counter[tuple[Any, ...]] = Counter()
    by_id = {row["id"]: row for row in rows}
    for row in rows:
        above = by_id.get(row["parent_id"])
        if above is not None and above["name"].startswith("step"):
            told[above["id"], row["name"].partition(" x")[0], row["told_by"]] += 1
    both = {(step, phase) for step, phase, source in told if source} & {
        (step, phase) for step, phase, source in told if not source
    }
    assert told
    assert not both


def test_devices_of_the_table_are_beside(load: Load, tmp_path: Path, single: Subject) -> None:
    phases = {sc.FORWARD: (2 * MS, 3 * MS, 1), "device.forward": (4 * MS, 5 * MS, 1)}
    twice = {sc.FORWARD: (12 * MS, 3 * MS, 2), "device.forward": (14 * MS, 5 * MS, 2)}
    moved = [
        {name: (T0 + first, busy, count) for name, (first, busy, count) in one.items()}
        for one in (phases, twice)
    ]
    run = run_from(
        [
            R(T0, T0 + 10 * MS, step=0, phases=moved[0]),
            R(T0 + 10 * MS, T0 + 20 * MS, step=1, phases=moved[1]),
        ],
        T0,
        T0 + 30 * MS,
    )
    about = Subject(Telemetry("memory", run.spans, Ledger()), run, single.query)
    rows = [row for row in load(about)(LANES) if row["track"] == "device"]
    assert [(row["name"], row["ts"], row["dur"], row["step"]) for row in rows] == [
        ("device.forward", T0 + 4 * MS, 5 * MS, 0),
        ("device.forward x2", T0 + 14 * MS, 5 * MS, 1),
    ]
    assert [row["category"] for row in rows] == ["work,table", "work,table,sum"]


# --- Spans of others ----------------------------------------------------------------------------------------


def test_services_are_processes_and_threads_are_tracks(load: Load, tmp_path: Path) -> None:
    about = traces(
        tmp_path,
        [
            span(1, at=(0, 100), name="GET /", service="front", thread__id=7, thread__name="io"),
            span(2, 1, (10, 60), name="query", service="store", thread__id=7),
            span(3, 1, (70, 90), name="render", service="front", thread__id=7, thread__name="io"),
            span(4, 1, (70, 95), name="log", service="front"),
        ],
    )
    rows = load(about)(LANES)
    assert {(row["name"], row["process"], row["track"], row["depth"]) for row in rows} == {
        ("GET /", "front", "thread 7 io", 0),
        ("query", "store", "thread 7", 0),
        ("render", "front", "thread 7 io", 1),
        ("log", "front", "spans", 0),
    }
    assert {row["category"] for row in rows} == {"internal"}


def test_what_overlaps_is_neither_lost_nor_changed(load: Load, tmp_path: Path) -> None:
    """Children that end after their parents, siblings side by side, equal bounds, moments, other traces."""
    times = {
        1: (0, (0, 100)), 2: (1, (10, 50)), 3: (1, (40, 80)), 4: (1, (40, 130)), 5: (2, (10, 50)),
        6: (5, (10, 50)), 7: (1, (100, 100)), 8: (1, (20, 20)), 9: (3, (80, 80)), 10: (1, (0, 100)),
    }  # fmt: skip
    one = [span(number, parent, at, f"s{number}") for number, (parent, at) in times.items()]
    other = [span(20, 0, (30, 60), "other", trace=2), span(21, 20, (40, 60), "inner", trace=2)]
    about = traces(tmp_path, [*one, *other])
    rows = load(about)(LANES)
    expected = {f"s{number}": at for number, (_, at) in times.items()} | {
        "other": (30, 60),
        "inner": (40, 60),
    }
    assert {row["name"]: ((row["ts"] - T0) // US, row["dur"] // US) for row in rows} == {
        name: (begin, end - begin) for name, (begin, end) in expected.items()
    }
    assert len(rows) == len(expected)
    name_of = {row["id"]: row["name"] for row in rows}
    parents = {row["name"]: name_of.get(row["parent_id"]) for row in rows}
    wanted = {f"s{number}": f"s{parent}" for number, (parent, _) in times.items()} | {"inner": "other"}
    # Whatever is shown within another is its child; what overlaps is on a track of the same name.
    assert all(above in (None, wanted.get(name)) for name, above in parents.items())
    assert parents["s2"] == "s1" or parents["s10"] == "s1"
    assert parents["s6"] == "s5"
    assert parents["inner"] == "other"
    assert {row["track"] for row in rows} == {"spans"}


def test_many_random_traces_come_out_as_they_went_in(load: Load, tmp_path: Path) -> None:
    chance, spans, expected = random.Random(5), [], []
    for number in range(1, 401):
        parent = chance.randrange(max(0, number - 20), number) if number % 10 else 0
        begin = chance.randrange(1000)
        at = begin, begin + chance.choice([0, 1, 7, 50, 300])
        trace, service = 1 + (number - 1) // 40, f"s{chance.randrange(3)}"
        parent = parent if parent > (trace - 1) * 40 else 0
        spans.append(span(number, parent, at, f"n{number}", trace, service))
        expected.append((f"n{number}", T0 + at[0] * US, (at[1] - at[0]) * US))
    rows = load(traces(tmp_path, spans))(LANES)
    assert sorted((row["name"], row["ts"], row["dur"]) for row in rows) == sorted(expected)


def test_traces_have_a_path_each(load: Load, tmp_path: Path) -> None:
    spans = [
        *(span(1, at=(0, 100), name="a"), span(2, 1, (20, 100), "b", service="store")),
        *(span(3, at=(50, 90), name="c", trace=2), span(4, at=(200, 250), name="d", trace=3)),
    ]
    about = traces(tmp_path, spans)
    ask = load(about)
    rows = ask(PATH)
    assert sum(row["dur"] for row in rows) == (100 + 40 + 50) * US
    assert len({row["track_id"] for row in rows}) == 2  # two at a time
    pairs = {(row["out_name"], row["in_name"]) for row in ask(FLOWS) if row["in_category"] != "path"}
    assert pairs == {("a", "b")}  # none from one trace to another
    (mark,) = [row for row in ask(FLOWS) if row["in_category"] == "path"]
    assert (mark["out_name"], mark["in_name"], mark["in_ts"]) == ("a", "child", T0 + 20 * US)


def test_impossible_times_are_counted_and_left_out(load: Load, tmp_path: Path) -> None:
    about = traces(tmp_path, [span(1, at=(0, 10)), span(2, 1, (9, 3)), span(3, 1, (2, 3))])
    assert written(about)[1]["impossible spans"] == 1
    assert len(load(about)(LANES)) == written(about)[1]["spans"] == 2


def test_a_profile_has_threads_and_streams(load: Load) -> None:
    about = read_subject(Query.of(str(PROFILE)))
    rows = load(about)(LANES)
    spans = about.telemetry.spans
    lanes = Counter((spans.attributes(ix)[sc.LANE], spans.name(ix)) for ix in range(len(spans)))
    assert Counter((row["track"], row["name"]) for row in rows) == lanes
    assert {row["process"] for row in rows} == {"pytorch profiler rank 1"}
    assert {row["category"] for row in rows if row["track"].startswith("stream-")} >= {"kernel"}


# --- Hostile input, metrics, selection ----------------------------------------------------------------------


def test_what_names_and_values_hold_is_text(load: Load, tmp_path: Path) -> None:
    name = "a\x00b\x1b[31m<script>\u202e'; drop table slice; --" + "x" * 3000
    said: dict[str, Any] = {
        "k\x00ey": "v\x00\u2028",
        "big": "9" * 4000,
        "many": 2**70,
        "list": [1, "a"],
        "n" * 2000: True,
    }
    spans = [span(1, at=(0, 9), name=name, service="s\x00\x1b", **said), span(2, 1, (1, 2), name="")]
    about = traces(tmp_path, spans)
    ask = load(about)
    first, second = ask(LANES)
    assert first["name"].startswith("a?b?[31m<script>?'; drop table")
    assert len(first["name"]) > 3000
    assert second["name"] in ("", None)
    assert first["process"] == "s??"
    args = {row["key"]: row["display_value"] for row in ask("select key, display_value from args")}
    assert args["debug.k?ey"] == "v??"
    assert args["debug.list"] == '[1,"a"]'
    assert len(args["debug.big"]) == 503
    assert args["debug.many"] == str(2**70)


def test_attributes_are_bounded(load: Load, tmp_path: Path) -> None:
    about = traces(tmp_path, [span(1, **{f"key{number}": number for number in range(100)})])
    args = {row["key"]: row["display_value"] for row in load(about)("select key, display_value from args")}
    assert len([key for key in args if key.startswith("debug.key")]) == 40
    assert args["debug.attributes left out"] == "60"


def test_a_name_for_every_span_stays_bounded(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perfetto.packets, "_MOST_WORDS", 5)
    monkeypatch.setattr(perfetto.slices, "_MOST_LANES", 3)
    said: list[dict[str, Any]] = [{"thread__id": number, f"key{number}": number} for number in range(1, 21)]
    about = traces(tmp_path, [span(at, at=(0, at), name=f"n{at}", **one) for at, one in enumerate(said, 1)])
    ask = load(about)
    rows = ask(LANES)
    assert {row["name"] for row in rows} == {f"n{number}" for number in range(1, 21)}
    assert {row["track"] for row in rows} == {"thread 1", "thread 2", "other lanes"}
    keys = {row["key"] for row in ask("select key from args")}
    assert {f"debug.key{number}" for number in range(1, 21)} <= keys


def point(at_ms: int, value: Any, start_ms: int | None = 0, **said: Any) -> dict[str, Any]:
    told = {"timeUnixNano": str(T0 + at_ms * MS), "attributes": attributes(said)}
    if start_ms is not None:
        told["startTimeUnixNano"] = str(T0 + start_ms * MS)
    return told | (value if isinstance(value, dict) else {"asDouble": value})


def test_metrics_are_counters(load: Load, tmp_path: Path) -> None:
    store = simulate(replace(SINGLE, epochs=1, steps_per_epoch=4)).write_store(tmp_path)
    cumulative = {"aggregationTemporality": 2}
    metrics = [
        {"name": "load", "unit": "1", "gauge": {"dataPoints": [point(0, 0.5), point(1000, 0.75)]}},
        {
            "name": "sent",
            "unit": "By",
            "sum": {
                **cumulative,
                "isMonotonic": True,
                "dataPoints": [
                    point(1000, 100.0), point(3000, 500.0), point(4000, 30.0, start_ms=3500),
                ],
            },
        },
        {
            "name": "open",
            "sum": {**cumulative, "isMonotonic": False, "dataPoints": [point(0, 3.0), point(500, 1.0)]},
        },
        {
            "name": "took",
            "unit": "s",
            "histogram": {
                **cumulative,
                "dataPoints": [
                    point(1000, {"sum": 6.0, "count": "3"}, kind="x"),
                    point(2000, {"sum": 16.0, "count": "5"}, kind="x"),
                    point(3000, {"sum": 16.0, "count": "5"}, kind="x"),
                ],
            },
        },
    ]  # fmt: skip
    resource = {"attributes": attributes({sc.RUN_ID: SINGLE.run_id, sc.ATTEMPT: 0, sc.RANK: 0})}
    request = {"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": metrics}]}]}
    host = {"name": "free", "unit": "By", "gauge": {"dataPoints": [point(0, 7.0)]}}
    request["resourceMetrics"].append({"scopeMetrics": [{"metrics": [host]}]})
    (store.parent / "metrics.jsonl").write_text(json.dumps(request) + "\n")
    about = read_subject(Query.of(str(store.parent)))
    rows = load(about)(
        "select t.name, t.unit, c.ts, c.value, p.name as process from counter c"
        " join process_counter_track t on c.track_id = t.id join process p using (upid) order by t.name, ts"
    )
    assert written(about)[1]["samples"] == len(rows) + 1
    (of_host,) = load(about)(
        "select c.value, t.name from counter c join track t on t.id = c.track_id where t.name = 'free'"
    )
    assert of_host["value"] == 7.0
    assert {row["process"] for row in rows} == {"rank 0"}
    told = [(row["name"], row["unit"], (row["ts"] - T0) // MS, row["value"]) for row in rows]
    assert told == [
        ("load", "1", 0, 0.5),
        ("load", "1", 1000, 0.75),
        ("open", "", 0, 3.0),
        ("open", "", 500, 1.0),
        ("sent per second", "By/s", 0, 100.0),
        ("sent per second", "By/s", 1000, 200.0),
        ("sent per second", "By/s", 3500, 60.0),
        ("took {kind=x} mean", "s", 0, 2.0),
        ("took {kind=x} mean", "s", 1000, 5.0),
    ]


def test_a_part_of_a_run(load: Load, tmp_path: Path) -> None:
    about = subject_of(DETAILED, tmp_path, ranks=(0, 2), steps=StepRange(4, 6))
    rows = load(about)(LANES)
    assert {row["process"] for row in rows} == {"rank 0", "rank 2"}
    steps = {row["name"] for row in rows if row["category"] == "step"}
    assert {"step 4", "step 5"} <= steps <= {"step 3", "step 4", "step 5", "step 6"}


def test_spans_of_others_in_a_run_s_traces_come_along(load: Load, tmp_path: Path) -> None:
    simulated = simulate(replace(SINGLE, detail_level=0, epochs=1, steps_per_epoch=2))
    store = simulated.write_store(tmp_path)
    step = next(one for _, one in simulated.spans if one["name"] == sc.STEP)
    begin = (int(step["startTimeUnixNano"]) - T0) // US + 1
    theirs = span(99, int(step["spanId"], 16), (begin, begin + 50), "GET", int(step["traceId"], 16), "client")
    with store.open("a") as file:
        file.write(json.dumps({"resourceSpans": [theirs]}) + "\n")
    rows = load(read_subject(Query.of(str(store))))(LANES)
    assert [(row["process"], row["dur"]) for row in rows if row["name"] == "GET"] == [("client", 50 * US)]


def test_incomplete_data_are_told_at_the_top(load: Load, tmp_path: Path, detailed: Subject) -> None:
    simulated = simulate(replace(SINGLE, epochs=1, steps_per_epoch=4))
    simulated.spans = [(rank, one) for rank, one in simulated.spans if one["name"] != sc.RUN]
    about = read_subject(Query.of(str(simulated.write_store(tmp_path))))
    reasons = about.completeness.reasons
    assert about.completeness.verdict == "incomplete"
    rows = load(about)(f"{SLICES} where t.name in ('incomplete data', 'reasons') order by s.id")
    assert [row["name"] for row in rows] == [f"incomplete: {reasons[0]}", *reasons]
    (whole,) = load(about)("select min(ts) as ts, max(ts + dur) - min(ts) as dur from slice")
    assert {(row["ts"], row["dur"]) for row in rows} == {(whole["ts"], whole["dur"])}
    assert not load(detailed)(f"{SLICES} where t.name = 'incomplete data'")


def test_equal_subjects_give_equal_bytes(tmp_path: Path, sampled: Subject) -> None:
    again = subject_of(SAMPLED, tmp_path)
    assert written(again) == written(sampled) == written(sampled)


def test_the_command_writes_a_file_that_opens(engine: TraceProcessor, tmp_path: Path) -> None:
    store = simulate(replace(SINGLE, epochs=1, steps_per_epoch=3)).write_store(tmp_path)
    out = tmp_path / "run.perfetto-trace"
    assert cli(["export", str(store), "--to", "perfetto", "-o", str(out)]) == 0
    engine.load(out.read_bytes())
    (found,) = engine.query("select count(*) n from slice where name glob 'step *' and category like 'step%'")
    assert found["n"] == 3 + SINGLE.eval_batches


# --- Which track --------------------------------------------------------------------------------------------


def slices_of(times: Sequence[tuple[int, int]], nesting: str, above: Sequence[int] = ()) -> Any:
    draft = Draft()
    lane = draft.lane(draft.process("p", lambda: Process("p", None, ())), "lane", nesting)
    start, end = np.array(times, np.int64).reshape(-1, 2).T
    one = np.array([0], np.int64)
    parents = np.array(above if len(above) else [-1] * len(times), np.int64)
    draft.add(np.array([lane]), start, end, one, one, one, lambda ix, name: (), one, above=parents)
    return draft.finish()


def placed(times: Sequence[tuple[int, int]], nesting: str, above: Sequence[int] = ()) -> list[int]:
    """Return the track of each; ``times`` are sorted by start, longest first."""
    found: list[int] = tracks_of(slices_of(times, nesting, above), np.arange(len(times)), nesting).tolist()
    return found


def test_tracks_by_time_nest_what_lies_in_another() -> None:
    assert placed([(0, 10), (1, 5), (2, 3), (5, 10), (10, 12)], BY_TIME) == [0] * 5
    assert placed([(0, 10), (5, 15), (6, 8), (12, 13)], BY_TIME) == [0, 1, 0, 0]


def test_tracks_by_parent_nest_only_children() -> None:
    assert placed([(0, 10), (1, 5), (2, 3), (6, 9)], BY_PARENT, [-1, 0, -1, 0]) == [0, 0, 1, 0]
    assert placed([(0, 10), (1, 12), (2, 8), (3, 7)], BY_PARENT, [-1, 0, 0, 0]) == [0, 1, 0, 2]


def test_flat_tracks_hold_one_at_a_time() -> None:
    assert placed([(0, 10), (1, 5), (5, 6), (10, 11)], FLAT) == [0, 1, 1, 0]
    assert side_by_side(np.array([5, 0, 1]), np.array([6, 10, 5])).tolist() == [1, 0, 1]


@pytest.mark.parametrize("nesting", [BY_TIME, BY_PARENT, FLAT])
def test_in_a_track_slices_nest_or_are_apart(nesting: str) -> None:
    chance = random.Random(nesting)
    times = [(begin, begin + chance.randrange(60)) for begin in (chance.randrange(500) for _ in range(400))]
    times.sort(key=lambda one: (one[0], -one[1]))
    above = [chance.randrange(-1, at) if at else -1 for at in range(len(times))]
    tracks = placed(times, nesting, above)
    for track in set(tracks):
        mine = [times[at] for at in range(len(times)) if tracks[at] == track]
        for at, (_begin, end) in enumerate(mine):
            for other_begin, other_end in mine[at + 1 :]:
                assert other_begin >= end or other_end <= end
                assert nesting != FLAT or other_begin >= end


def test_process_ids_are_told_apart() -> None:
    found = pids([Process("a", 7, ()), Process("b", 7, ()), Process("c", 8, ()), Process("d", None, ())])
    assert found[2] == 8
    assert len(set(found)) == 4
    assert min(found[0], found[1], found[3]) >= 1 << 22


def test_kinds_of_sections_are_categories(load: Load, detailed: Subject) -> None:
    assert {row["category"] for row in load(detailed)(PATH)} <= set(KINDS)
