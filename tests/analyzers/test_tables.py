# SPDX-License-Identifier: Apache-2.0
"""The tables of a subject: their schema for every kind of source, and that rows are what the analyses say."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from grademl_otel import analyzers
from grademl_otel import semconv as sc
from grademl_otel.analyzers.errors import UsageError
from grademl_otel.analyzers.graph import lane_budget, run_path, steady_rows
from grademl_otel.analyzers.model.columns import Ledger, SpanColumns, Telemetry
from grademl_otel.analyzers.model.facts import Run
from grademl_otel.analyzers.modelled import model_of
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.selection import StepRange
from grademl_otel.analyzers.subject import Subject, read_subject
from grademl_otel.analyzers.tables import TABLES, attributes_of, inherited, phase_paths, table, why_empty
from grademl_otel.analyzers.tables.arrow import schema_of
from tests.support.build import R, S, columns, run_from
from tests.support.synthetic import MS, Training, simulate

DATA = Path(__file__).parents[1] / "data"
TOOLS = Path(__file__).parents[2] / "tools"
DDP = Training(ranks=2, epochs=1, steps_per_epoch=6, eval_batches=2, buckets=2, checkpoint_ns=5 * MS)
JAEGER = DATA / "jaeger" / "v1_trace_pretty.json"
PROFILE = DATA / "profiles" / "gpu_rank_1.json"

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Query]:
    """Every kind of subject, by name."""
    folder = tmp_path_factory.mktemp("tables")

    def store(name: str, *trainings: Training) -> str:
        place = folder / name
        for training in trainings:
            simulate(training).write_store(place)
        return str(place)

    ddp = store("ddp", DDP)
    analyzers.pull(ddp, folder / "copy")
    mixed = store("mixed", DDP)
    (Path(mixed) / "other.json").write_bytes(JAEGER.read_bytes())
    later = replace(DDP, attempt=1, start=DDP.start + 10**10, ranks=1)
    hosts = replace(DDP, skew_ns={1: 40 * MS})
    return {
        "run": Query.of(ddp),
        "copy": Query.of(str(folder / "copy")),
        "ranks": Query.of(ddp, ranks=(1,)),
        "steps": Query.of(ddp, steps=StepRange(2, 4)),
        "attempts": Query.of(store("attempts", DDP, later)),
        "mixed": Query.of(mixed),
        "hosts": Query.of(store("hosts", hosts)),
        "killed": Query.of(store("killed", replace(DDP, ranks=1, buckets=0, killed_at=3))),
        "no steps": Query.of(store("idle", Training(epochs=0))),
        "traces": Query.of(str(JAEGER)),
        "trace of a run": Query.of(ddp, traces=[f"{sc.trace_id(DDP.run_id, 0, sc.TRACE_RUN):032x}"]),
        "profile": Query.of(str(PROFILE)),
    }


@pytest.fixture(scope="module")
def about(sources: dict[str, Query]) -> Callable[[str], Subject]:
    return cache(lambda name: read_subject(sources[name]))


SUBJECTS = (
    "run", "copy", "ranks", "steps", "attempts", "mixed", "hosts", "killed", "no steps", "traces",
    "trace of a run", "profile",
)  # fmt: skip
RUNS = SUBJECTS[:9]


def rows(about: Subject, name: str, *asked: str) -> Rows:
    found: Rows = table(about, name, asked or None).to_pylist()
    return found


def only(about: Subject, name: str, column: str) -> list[Any]:
    found: list[Any] = table(about, name, [column])[column].to_pylist()
    return found


def run_in(about: Subject) -> Run:
    assert about.run is not None
    return about.run


def of_spans(spans: SpanColumns, run: Run | None = None) -> Subject:
    return Subject(Telemetry("here", spans, Ledger()), run, Query())


# --- all of them ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SUBJECTS)
def test_every_table_has_exactly_the_columns_and_types_of_its_schema(
    about: Callable[[str], Subject], kind: str
) -> None:
    for name, schema in TABLES.items():
        whole = table(about(kind), name)
        whole.validate(full=True)
        assert whole.schema.equals(schema_of(schema)), name
        for column in schema.columns:
            assert column.nullable or not whole[column.name].null_count, (name, column.name)
        assert (why_empty(about(kind), name) is None) == (whole.num_rows > 0), name


@pytest.mark.parametrize("kind", ["run", "steps", "traces", "profile"])
def test_a_column_alone_is_that_of_the_whole_table(about: Callable[[str], Subject], kind: str) -> None:
    for name, schema in TABLES.items():
        whole = table(about(kind), name)
        for column in schema.column_names:
            alone = table(about(kind), name, [column])
            assert alone.column_names == [column]
            assert alone.equals(whole.select([column])), (name, column)


def test_tables_of_nothing_that_can_be_analyzed_have_their_schemas_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where no source is by default, of which there would be metrics
    monkeypatch.delenv("GRADEML_SOURCE", raising=False)
    found = of_spans(columns([S("a", 9, 3), S("b", 0, 0)]))
    for name, schema in TABLES.items():
        assert table(found, name).schema.equals(schema_of(schema)), name
        assert table(found, name).num_rows == (2 if name == "spans" else 0), name
        assert (why_empty(found, name) is None) == (name == "spans"), name


def test_columns_stand_in_the_order_of_the_schema_and_unknown_ones_are_refused(
    about: Callable[[str], Subject],
) -> None:
    assert table(about("run"), "spans", ["name", "span_ix"]).column_names == ["span_ix", "name"]
    with pytest.raises(KeyError, match="nam"):
        table(about("run"), "spans", ["nam"])
    with pytest.raises(KeyError, match="span"):
        table(about("run"), "span")


def test_no_column_is_a_word_that_sql_keeps_for_itself() -> None:
    with duckdb.connect() as own:  # what all share may be in the middle of an answer of another test's
        found = own.sql("SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'")
        kept = {word for (word,) in found.fetchall()}
    names = {*TABLES, *(column for schema in TABLES.values() for column in schema.column_names)}
    assert "window" in kept
    assert not names & kept


def test_only_the_columns_asked_for_are_made(
    about: Callable[[str], Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("made, and nobody asked for it")

    monkeypatch.setattr("grademl_otel.analyzers.tables.arrow._hex", refused)
    monkeypatch.setattr(phase_paths, "paths", refused)
    assert only(about("run"), "spans", "name")
    assert only(about("run"), "phases", "name")
    with pytest.raises(AssertionError):
        table(about("run"), "spans")
    with pytest.raises(AssertionError):
        table(about("run"), "phases")


def test_what_asks_for_the_schema_loads_neither_arrow_nor_graphs() -> None:
    code = (
        "import sys; from grademl_otel.analyzers.tables import TABLES; assert len(TABLES) > 9\n"
        "heavy = ('pyarrow', 'duckdb', 'pandas', 'grademl_otel.analyzers.graph.walk',"
        " 'grademl_otel.analyzers.execution')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_spans_of_a_copy_are_read_without_pandas_and_graphs(
    sources: dict[str, Query], tmp_path: Path
) -> None:
    analyzers.pull(JAEGER, tmp_path / "copy")
    code = (
        "import sys\n"
        "from grademl_otel.analyzers.queries import Query\n"
        "from grademl_otel.analyzers.subject import read_subject\n"
        "from grademl_otel.analyzers.tables import table\n"
        f"found = table(read_subject(Query.of({str(tmp_path / 'copy')!r})), 'spans')\n"
        "assert found.num_rows == 3\n"
        "heavy = ('pandas', 'networkx', 'grademl_otel.analyzers.graph.walk',"
        " 'grademl_otel.analyzers.execution')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_why_a_table_is_empty(about: Callable[[str], Subject]) -> None:
    traces = about("traces")
    for name in ("steps", "step_phases", "budget", "runs"):
        reason = why_empty(traces, name)
        assert reason is not None
        assert "of a run of ours only" in reason
    reason = why_empty(traces, "metrics")
    assert reason is not None
    assert "no metrics beside its spans" in reason
    idle = why_empty(about("no steps"), "steps")
    assert idle is not None
    assert "no step of run 0123456789abcdef" in idle


# --- spans and what hangs on them -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["run", "mixed", "traces", "profile"])
def test_spans_are_the_columns_that_were_read(about: Callable[[str], Subject], kind: str) -> None:
    spans = about(kind).telemetry.spans
    found = rows(about(kind), "spans")
    assert len(found) == len(spans)
    for ix, row in enumerate(found):
        assert row["span_ix"] == ix
        assert (row["trace_id"], row["span_id"]) == (spans.trace_id_hex(ix), spans.span_id_hex(ix))
        assert row["parent_id"] == (f"{int(spans.parent_id[ix]):016x}" if spans.parent_id[ix] else None)
        assert (row["name"], row["service"]) == (spans.name(ix), spans.service(ix))
        assert (row["start_ns"], row["end_ns"]) == (spans.start[ix], spans.end[ix])
        assert row["duration_ns"] == spans.end[ix] - spans.start[ix]
        resource = spans.resource(ix)
        assert row["run"] == resource.get(sc.RUN_ID)
        assert row["rank"] == resource.get(sc.RANK)
        assert row["attempt"] == (resource.get(sc.ATTEMPT, 0) if sc.RUN_ID in resource else None)


def test_spans_of_a_copy_are_those_of_its_source(about: Callable[[str], Subject]) -> None:
    numbers = {"span_ix", "parent_ix", "resource_ix", "scope_ix"}
    kept = [name for name in TABLES["spans"].column_names if name not in numbers]
    source, copy = (
        sorted(
            rows(about(kind), "spans", *kept), key=lambda row: (row["trace_id"], row["span_id"], row["kind"])
        )
        for kind in ("run", "copy")
    )
    assert source == copy
    for name in ("steps", "step_phases", "budget"):
        assert rows(about("run"), name) == rows(about("copy"), name)


def test_impossible_times_have_no_duration() -> None:
    found = of_spans(columns([S("a", 5, 8), S("b", 9, 3), S("c", 0, 0)]))
    assert only(found, "spans", "duration_ns") == [3, None, None]


def test_a_part_of_a_run_has_only_its_own_spans(about: Callable[[str], Subject]) -> None:
    ranks, steps = about("ranks"), about("steps")
    assert set(only(ranks, "spans", "rank")) == {1}
    assert len(rows(ranks, "spans")) == sum(rank == 1 for rank in only(about("run"), "spans", "rank"))
    assert set(only(ranks, "phases", "rank")) <= {1, None}
    run = run_in(steps)
    cut = rows(steps, "spans", "span_ix", "start_ns", "end_ns")
    assert {row["span_ix"] for row in cut} == set(run.span_ixs.tolist())
    assert all(row["start_ns"] < run.end and row["end_ns"] > run.start for row in cut)
    assert set(only(steps, "attributes", "span_ix")) <= {row["span_ix"] for row in cut}
    assert set(only(steps, "links", "span_ix")) <= {row["span_ix"] for row in cut}
    assert 0 < len(rows(steps, "links")) < len(rows(about("run"), "links"))


def test_times_of_all_hosts_are_by_one_clock(about: Callable[[str], Subject]) -> None:
    hosts = about("hosts")
    run = run_in(hosts)
    assert run.clocks is not None
    assert run.clocks.applied
    start, end = only(hosts, "spans", "start_ns"), only(hosts, "spans", "end_ns")
    assert np.array_equal(start, run.spans.start)
    assert np.array_equal(end, run.spans.end)
    assert not np.array_equal(start, hosts.telemetry.spans.start)
    # Every phase lies where its span does, also those of the rank with the other clock.
    phases = [row for row in rows(hosts, "phases") if row["span_ix"] is not None and row["name"] == "forward"]
    assert {row["rank"] for row in phases} == {0, 1}
    assert all(row["start_ns"] == start[row["span_ix"]] for row in phases)


def test_attributes_of_some_keys(about: Callable[[str], Subject]) -> None:
    chosen = attributes_of(about("run"), [sc.STEP_NUMBER, "nowhere"]).to_pylist()
    every = [row for row in rows(about("run"), "attributes") if row["key"] == sc.STEP_NUMBER]
    assert chosen == every
    assert len(chosen) > 10
    assert {row["type"] for row in chosen} == {"int"}


# --- steps ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RUNS)
def test_steps_are_those_of_the_run(about: Callable[[str], Subject], kind: str) -> None:
    run = run_in(about(kind))
    table_of_run, found = run.steps, rows(about(kind), "steps")
    assert len(found) == len(table_of_run)
    steady = {int(row) for rank in run.ranks for row in steady_rows(run, rank)}
    for ix, row in enumerate(found):
        assert (row["run"], row["attempt"]) == (run.run_id, run.attempt)
        assert (row["rank"], row["step"]) == (table_of_run.rank[ix], table_of_run.step[ix])
        assert row["duration_ns"] == row["end_ns"] - row["start_ns"]
        assert row["steady"] == (ix in steady)
        for phase, busy in table_of_run.busy.items():
            if phase in sc.PHASE_INDEX:
                assert row[f"{phase.replace('.', '_')}_ns"] == busy[ix]
    long = rows(about(kind), "step_phases")
    assert len(long) == sum(np.count_nonzero(count) for count in table_of_run.count.values())
    sums: dict[str, int] = {}
    for row in long:
        sums[row["phase"]] = sums.get(row["phase"], 0) + row["busy_ns"]
    assert sums == {phase: int(busy.sum()) for phase, busy in table_of_run.busy.items() if busy.any()}


def test_steps_are_what_the_training_did(about: Callable[[str], Subject]) -> None:
    truth = simulate(DDP)
    found = rows(about("run"), "steps")
    assert [(row["rank"], row["kind"]) for row in found] == [(row.rank, row.kind) for row in truth.rows]
    for row, true in zip(found, truth.rows, strict=True):
        assert abs(row["duration_ns"] - true.duration) <= 2_000  # step tables have microseconds
        assert abs(row["forward_ns"] - true.total(sc.FORWARD)) <= 1_000
        assert (row["batch"], row["worker"]) == (true.batch, true.worker)
        assert row["detailed"] == true.detailed


def test_what_was_not_measured_is_null() -> None:
    phases = {sc.DATA_WAIT: (0, 5, 1)}
    steps = [R(0, 9, step, level=level, phases=phases) for step, level in enumerate((0, 1, 2, 3))]
    run = run_from([replace(one, start=10 * ix, end=10 * ix + 9) for ix, one in enumerate(steps)], 0, 40)
    run.steps.count[sc.DATA_WAIT][:] = (1, 0, 0, 0)
    run.steps.busy[sc.DATA_WAIT][:] = (5, 0, 0, 0)
    found = of_spans(run.spans, run)
    assert only(found, "steps", "forward_ns") == [0, 0, None, None]
    assert only(found, "steps", "data_wait_ns") == [5, 0, 0, None]
    assert only(found, "steps", "checkpoint_save_ns") == [0, 0, 0, 0]
    assert only(found, "steps", "skipped") == [False, False, None, None]
    assert only(found, "steps", "batch") == [None] * 4


def test_a_phase_that_the_program_named_is_a_row_of_its_own() -> None:
    run = run_from([R(0, 100, phases={"tokenize": (10, 30, 3), sc.FORWARD: (50, 20, 1)})], 0, 100)
    run = replace(run, steps=replace(run.steps, user=frozenset({"tokenize"})))
    kept = ("phase", "busy_ns", "count", "first_ns", "user")
    found = [tuple(row[name] for name in kept) for row in rows(of_spans(run.spans, run), "step_phases")]
    assert sorted(found) == [("forward", 20, 1, 50, False), ("tokenize", 30, 3, 10, True)]


# --- the path, the budget, runs ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SUBJECTS)
def test_the_sections_of_each_path_tile_it(about: Callable[[str], Subject], kind: str) -> None:
    subject = about(kind)
    found = rows(subject, "path")
    if subject.run is not None:
        whole = {0: (subject.run.start, subject.run.end)}
    else:
        paths = subject.paths()
        whole = {ix: (path.start, path.end) for ix, (_, path) in enumerate(paths)}
    by_path: dict[int, Rows] = {}
    for row in found:
        by_path.setdefault(row["path_ix"], []).append(row)
    assert by_path.keys() == {ix for ix, (start, end) in whole.items() if end > start}
    for ix, sections in by_path.items():
        assert (sections[0]["start_ns"], sections[-1]["end_ns"]) == whole[ix]
        for one, following in itertools.pairwise(sections):
            assert one["end_ns"] == following["start_ns"]
        assert sum(row["duration_ns"] for row in sections) == whole[ix][1] - whole[ix][0]


def test_the_path_of_a_run_says_what_the_sections_do(about: Callable[[str], Subject]) -> None:
    run = run_in(about("run"))
    spans = run.spans
    for row, section in zip(rows(about("run"), "path"), run_path(run).sections, strict=True):
        assert (row["phase"], row["kind"]) == (section.phase, section.kind)
        assert (row["rank"], row["lane"], row["step"]) == (section.rank, section.lane, section.step)
        assert (row["item"], row["span_ix"]) == (section.item, section.span_ix)
        by = section.entered_by
        assert (row["edge"], row["evidence"], row["confidence"]) == (by.edge, by.evidence, by.confidence)
        ids = (None, None) if section.span_ix is None else (
            spans.trace_id_hex(section.span_ix), spans.span_id_hex(section.span_ix)
        )  # fmt: skip
        assert (row["trace_id"], row["span_id"]) == ids
        assert (row["run"], row["root_ix"], row["root_trace_id"]) == (run.run_id, None, None)


def test_the_paths_of_traces_name_their_roots(about: Callable[[str], Subject]) -> None:
    spans = about("traces").telemetry.spans
    found = rows(about("traces"), "path")
    assert {row["root_ix"] for row in found} == {root for root, _ in about("traces").paths()}
    assert all(row["root_trace_id"] == spans.trace_id_hex(row["root_ix"]) for row in found)
    assert {row["run"] for row in found} == {None}


@pytest.mark.parametrize("kind", RUNS)
def test_the_budget_is_the_wall_time(about: Callable[[str], Subject], kind: str) -> None:
    run = run_in(about(kind))
    found = rows(about(kind), "budget")
    for rank in run.ranks:
        mine = [row for row in found if row["rank"] == rank]
        assert sum(row["total_ns"] for row in mine if row["within"] is None) == run.end - run.start
    assert [(row["phase"], row["total_ns"], row["within"]) for row in found] == [
        (row.phase, row.ns, row.within) for row in lane_budget(run)
    ]
    (mine,) = [row for row in rows(about(kind), "runs") if row["subject"]]
    assert mine["duration_ns"] == run.end - run.start
    assert (mine["verdict"], mine["ranks"]) == (run.completeness.verdict, len(run.ranks))


def test_runs_are_all_that_were_read(about: Callable[[str], Subject]) -> None:
    found = rows(about("attempts"), "runs")
    assert [(row["attempt"], row["ranks"], row["subject"]) for row in found] == [(0, 2, False), (1, 1, True)]
    assert set(only(about("attempts"), "spans", "attempt")) == {0, 1}
    assert set(only(about("attempts"), "steps", "attempt")) == {1}
    (killed,) = rows(about("killed"), "runs")
    assert (killed["ended"], killed["steps"]) == ("killed", 3)
    assert rows(about("run"), "runs")[0]["steps"] == 2 * 6


# --- phases -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SUBJECTS)
def test_phases_are_those_of_the_execution_model(about: Callable[[str], Subject], kind: str) -> None:
    model = model_of(about(kind))
    phases, found = model.phases, rows(about(kind), "phases")
    assert len(found) == len(phases)
    for node, row in enumerate(found):
        assert row["path"] == phases.path(node)
        assert row["type"] == model.types.path(int(phases.type[node]))
        assert row["name"] == phases.name(node)
        assert row["depth"] == len(phases.ancestors(node))
        assert row["leaf"] == (not len(phases.children(node)))
        assert (row["start_ns"], row["end_ns"]) == (phases.start[node], phases.end[node])
        assert row["parent_ix"] == (int(phases.parent[node]) if node else None)
        line = [node, *phases.ancestors(node)]
        for key, within in (("attempt", ""), ("rank", "attempt"), ("step", "attempt")):
            assert row[key] == told(phases, line, key, within), (key, row["path"])
        ids = [dict(phases.tags(one)).get("id") for one in line if phases.name(one) == "run"]
        assert row["run"] == (ids[0] if ids else None)
    assert len({row["path"] for row in found}) == len(found)


def told(phases: Any, line: list[int], key: str, none_in: str) -> int | None:
    for node in line:
        counted = phases.all_kinds[int(phases.kind[node])].counted
        if counted == key:
            return int(phases.number[node])
        if counted == none_in:
            return None
    return None


@pytest.mark.parametrize("kind", ["run", "hosts", "killed", "attempts"])
def test_the_leaves_of_a_main_lane_are_its_time(about: Callable[[str], Subject], kind: str) -> None:
    found = rows(about(kind), "phases")
    lanes = {(row["attempt"], row["rank"]): row for row in found if row["name"] == "rank"}
    assert lanes
    for (attempt, rank), lane in lanes.items():
        leaves = [
            row["busy_ns"]
            for row in found
            if (row["attempt"], row["rank"]) == (attempt, rank) and row["leaf"] and not row["beside"]
        ]
        assert sum(leaves) == lane["duration_ns"]


def test_paths_beyond_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = [S(f"s{ix}", ix, 2_000 - ix, f"s{ix - 1}" if ix else None, name="call") for ix in range(200)]
    found = of_spans(columns(chain))
    longest = max(only(found, "phases", "path"), key=len)
    assert longest.startswith("/call/call/call")
    exact = sum(map(len, only(found, "phases", "path")))
    monkeypatch.setattr(phase_paths, "_MOST", exact)
    assert len(only(found, "phases", "path")) > 200
    monkeypatch.setattr(phase_paths, "_MOST", exact - 1)
    with pytest.raises(UsageError, match=r"paths of \d+ phases are .* of text: ask for a part"):
        table(found, "phases", ["path"])
    assert table(found, "phases", ["name", "depth"]).num_rows > 200


@pytest.mark.parametrize("seed", range(30))
def test_what_nodes_inherit(seed: int) -> None:
    chance = np.random.default_rng(seed)
    count = int(chance.integers(1, 60))
    parent = [-1]  # in preorder: the parent of each is on the line above the one before it
    for node in range(1, count):
        line = [node - 1]
        while parent[line[-1]] >= 0:
            line.append(parent[line[-1]])
        parent.append(line[int(chance.integers(len(line)) * chance.random())])
    size = np.ones(count, np.int64)
    for node in range(count - 1, 0, -1):
        size[parent[node]] += size[node]
    chosen = np.flatnonzero(chance.random(count) < 0.4)
    values, weights = chance.integers(0, 99, len(chosen)), chance.integers(-9, 99, count)
    of = dict(zip(chosen.tolist(), values.tolist(), strict=True))
    for node in range(count):
        line = [node]
        while parent[line[-1]] >= 0:
            line.append(parent[line[-1]])
        assert inherited.depths(size)[node] == len(line) - 1
        assert inherited.added_up(size, weights)[node] == weights[line].sum()
        expected = next((of[one] for one in line if one in of), -1)
        assert inherited.inherited(size, chosen, values)[node] == expected


# --- the page ---------------------------------------------------------------------------------------------


def test_the_page_of_tables_is_that_of_their_schemas() -> None:
    spec = importlib.util.spec_from_file_location("document_tables", TOOLS / "document_tables.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    there = tool.PAGE.read_text("utf-8")
    assert tool.page(there) == there, "run tools/document_tables.py"
    assert there.count("\n## ") == len(TABLES) + 1
