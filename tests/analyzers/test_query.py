# SPDX-License-Identifier: Apache-2.0
"""`grademl query`: answers in SQL, to the number; nothing else is reached; mistakes shown where they are."""

from __future__ import annotations

import base64
import csv
import io
import itertools
import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel import analyzers
from grademl_otel import semconv as sc
from grademl_otel.analyzers.api import query
from grademl_otel.analyzers.cli.app import run
from grademl_otel.analyzers.errors import NothingFound, UsageError
from grademl_otel.analyzers.execution import InvalidPattern, Pattern
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.sql import database as of_database
from grademl_otel.analyzers.sql.completion import Vocabulary, completions
from grademl_otel.analyzers.sql.database import Database
from grademl_otel.analyzers.sql.forms import KEY
from grademl_otel.analyzers.sql.lazy import LazyTable
from grademl_otel.analyzers.sql.macros import MACROS, VIEWS
from grademl_otel.analyzers.sql.mistakes import SqlError
from grademl_otel.analyzers.sql.paths import path_regex
from grademl_otel.analyzers.sql.statements import is_ended, statements_of
from grademl_otel.analyzers.subject import Subject, read_subject
from grademl_otel.analyzers.tables import TABLES
from grademl_otel.analyzers.tables import table as made_table
from tests.support.synthetic import MS, Training, simulate

from .test_execution_paths import COMPONENTS, PHASES, TYPES, small_trees
from .test_execution_tree import P, tree

ROOT = Path(__file__).parents[2]
JAEGER = ROOT / "tests" / "data" / "jaeger" / "v1_trace_pretty.json"
GRADEML = str(Path(sys.executable).parent / "grademl")
SLOW = Training(ranks=2, epochs=2, steps_per_epoch=12, workers=2, buckets=2, compute_scale={1: 1.5})

Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run of two ranks, of which the second is slow, with samples of their devices."""
    place = tmp_path_factory.mktemp("query") / "runs"
    simulate(SLOW).write_store(place)
    (folder,) = (one for one in place.iterdir() if one.is_dir())
    (folder / "metrics.jsonl").write_text(json.dumps({"resourceMetrics": [_samples(0), _samples(1)]}) + "\n")
    return str(place)


def _samples(rank: int) -> dict[str, Any]:
    def attribute(key: str, kind: str, value: str) -> dict[str, Any]:
        return {"key": key, "value": {kind: value}}

    points = [
        {"timeUnixNano": str(SLOW.start + number * 10 * MS), "asDouble": 0.25 + 0.5 * (number % 2)}
        for number in range(80)
    ]
    return {
        "resource": {
            "attributes": [
                attribute("service.name", "stringValue", "trainer"),
                attribute(sc.RUN_ID, "stringValue", SLOW.run_id),
                attribute(sc.ATTEMPT, "intValue", "0"),
                attribute(sc.RANK, "intValue", str(rank)),
            ]
        },
        "scopeMetrics": [
            {
                "scope": {"name": "meter"},
                "metrics": [{"name": "hw.gpu.utilization", "unit": "1", "gauge": {"dataPoints": points}}],
            }
        ],
    }


@pytest.fixture(scope="module")
def read(store: str) -> Subject:
    return read_subject(Query.of(store))


@pytest.fixture(scope="module")
def session(read: Subject) -> Iterator[Database]:
    with Database(read) as one:
        yield one


@pytest.fixture(scope="module")
def empty() -> Iterator[Database]:
    """A session in which only what statements bring is asked for."""
    with analyzers.database(JAEGER) as one:
        yield one


def asked(session: Database, sql: str) -> list[Row]:
    return session.query(sql).rows


# --- the tables -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_each_table_has_the_columns_and_types_of_its_schema(session: Database, name: str) -> None:
    found = session.query(f"FROM {name}")
    assert [(one.name, one.type) for one in found.columns] == [
        (one.name, one.type) for one in TABLES[name].columns
    ]


def test_only_the_columns_that_a_statement_needs_are_made(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, set[str]]] = []

    def spy(about: Any, name: str, columns: Sequence[str]) -> pa.Table:
        made.append((name, set(columns)))
        return made_table(about, name, columns)

    monkeypatch.setattr(of_database, "table", spy)
    with analyzers.database(store) as session:
        session.query("SELECT name, count(*) FROM spans WHERE duration_ns > 5 GROUP BY ALL")
        assert {name for name, _ in made} == {"spans"}
        assert set().union(*(columns for _, columns in made)) == {"name", "duration_ns"}
        made.clear()
        session.query("SELECT name, rank FROM spans")
        assert made == [("spans", {"rank"})]  # the name is there
        made.clear()
        session.query("SELECT count(*) FROM steps")
        assert [name for name, _ in made] == ["steps"]
        assert len(made[0][1]) == 1
        made.clear()
        session.query("SELECT overlap_ns FROM temporal_join('steps', 'path', ['rank'])")
        assert {name for name, _ in made} == {"steps", "path"}
        known = {"rank", "start_ns", "end_ns"}
        assert all(columns <= known for name, columns in made if name == "steps")


def test_filters_are_those_of_duckdb_whoever_applies_them(session: Database) -> None:
    everything = asked(session, "SELECT name, duration_ns, rank FROM spans")
    median = sorted(row[1] for row in everything)[len(everything) // 2]
    found = asked(
        session,
        f"SELECT duration_ns FROM spans WHERE name IN ('forward', 'backward') AND duration_ns >= {median}"
        " AND rank = 1 AND trace_id IS NOT NULL ORDER BY ALL",
    )
    expected = sorted(
        row[1:2]
        for row in everything
        if row[0] in ("forward", "backward") and row[1] >= median and row[2] == 1
    )
    assert found == expected
    assert found


# --- the examples of the page -----------------------------------------------------------------------------


def examples() -> list[str]:
    text = (ROOT / "docs" / "query.md").read_text()
    return re.findall(r"```sql\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def answers(session: Database) -> list[list[Row]]:
    return [asked(session, sql) for sql in examples()]


def test_each_example_of_the_page_has_rows(answers: list[list[Row]]) -> None:
    assert len(answers) >= 9
    assert [
        number for number, rows in enumerate(answers) if not rows and "gc" not in examples()[number]
    ] == []


def test_the_examples_say_what_the_analyses_do(
    answers: list[list[Row]], session: Database, store: str
) -> None:
    by_text = dict(zip(examples(), answers, strict=True))

    def answer(word: str) -> list[Row]:
        (rows,) = (rows for sql, rows in by_text.items() if word in sql)
        return rows

    late = answer("mostly")
    assert late[0][0] == 1
    assert late[0][2] > 0.9 * sum(row[2] for row in late)
    path = analyzers.critical_path(store)
    shares: dict[str, int] = {}
    for phase, _, ms, _ in answer("FROM path GROUP BY"):
        shares[phase] = shares.get(phase, 0) + round(ms * 1e6)
    assert sum(shares.values()) == path.path.total_ns
    busy = {int(row[0]): float(row[1]) for row in answer("at_once")}
    (union,) = asked(
        session,
        "SELECT sum(end_ns - start_ns) / 1e6"
        " FROM merged_intervals('(FROM spans WHERE name = ''data.fetch'')')",
    )
    assert sum(busy.values()) == pytest.approx(union[0])
    assert {row[0] for row in answer("hw.gpu.utilization")} == {"forward", "backward"}
    assert all(0.25 <= row[1] <= 0.75 for row in answer("hw.gpu.utilization"))


def test_the_python_of_the_page_runs(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "query.md").read_text(), re.DOTALL)
    monkeypatch.chdir(Path(store).parent)
    os.rename("runs", "grademl-runs")
    try:
        exec(code, {})
    finally:
        os.rename("grademl-runs", "runs")


def macro_table() -> str:
    lines = ["| macro | is |", "|---|---|"]
    lines += [f"| `{macro.call}` | {macro.about} |" for macro in MACROS]
    lines += [f"| `{view.name}` | a view: {view.about} |" for view in VIEWS]
    return "\n".join(lines)


def test_the_page_has_all_macros() -> None:
    text = (ROOT / "docs" / "query.md").read_text()
    assert text.partition("<!-- macros -->\n\n")[2].partition("\n<!-- /macros -->")[0] == macro_table()


# --- macros -----------------------------------------------------------------------------------------------

SERIES = """
CREATE OR REPLACE VIEW a AS FROM (VALUES (0, 4, 10), (4, 8, 20)) _(start_ns, end_ns, value);
CREATE OR REPLACE VIEW b AS FROM (VALUES (2, 6, 1)) _(start_ns, end_ns, value);"""


def test_the_worked_example(empty: Database) -> None:
    """Of GradeML's language: a temporal join, a temporal sum, an average over time."""
    joined = asked(
        empty,
        f"{SERIES} SELECT start_ns, end_ns, a_value, b_value FROM temporal_join('a', 'b') ORDER BY ALL",
    )
    assert joined == [(2, 4, 10, 1), (4, 6, 20, 1)]
    summed = asked(
        empty,
        f"{SERIES} SELECT start_ns, end_ns, sum(value) FROM time_slices('(FROM a UNION ALL FROM b)')"
        " GROUP BY start_ns, end_ns ORDER BY ALL",
    )
    assert summed == [(0, 2, 10), (2, 4, 11), (4, 6, 21), (6, 8, 20)]
    assert asked(empty, f"{SERIES} SELECT avg_over_time(value, start_ns, end_ns) FROM a") == [(15.0,)]


INTERVALS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 4), st.sampled_from("xy")), min_size=1, max_size=8
)


def values(rows: Sequence[Row]) -> str:
    listed = ", ".join(
        f"({start}, {start + length}, '{key}', {at})" for at, (start, length, key) in enumerate(rows)
    )
    return f"(SELECT * FROM (VALUES {listed}) _(start_ns, end_ns, key, n))".replace("'", "''")


def held(interval: Row, at: float) -> bool:
    return bool(interval[0] <= at < interval[1])


@given(INTERVALS, INTERVALS, st.booleans())
@settings(deadline=None, max_examples=25)
def test_a_temporal_join_is_that_of_all_pairs(
    empty: Database, one: list[Row], other: list[Row], by_key: bool
) -> None:
    """Instants, too: of no length, they end no loop and are not lost."""
    keys = ", ['key']" if by_key else ""
    found = asked(
        empty,
        "SELECT a_n, b_n, start_ns, end_ns, overlap_ns"
        f" FROM temporal_join('{values(one)}', '{values(other)}'{keys}) ORDER BY ALL",
    )
    expected = []
    for i, (s, length, key) in enumerate(one):
        for j, (t, width, other_key) in enumerate(other):
            if by_key and key != other_key:
                continue
            start, end = max(s, t), min(s + length, t + width)
            instants = [at for at, size in ((s, length), (t, width)) if not size]
            meets = start < end
            if instants:
                sides = ((s, s + length), (t, t + width))
                meets = all(
                    instants[0] == at if at == until else held((at, until), instants[0])
                    for at, until in sides
                )
            if meets:
                expected.append((i, j, start, end, end - start))
    assert found == sorted(expected)


@given(INTERVALS)
@settings(deadline=None, max_examples=20)
def test_slices_hold_what_holds_at_each_time_and_merging_is_their_union(
    empty: Database, rows: list[Row]
) -> None:
    slices = asked(
        empty,
        f"SELECT key, start_ns, end_ns, list(n ORDER BY n) FROM time_slices('{values(rows)}', ['key'])"
        " GROUP BY key, start_ns, end_ns",
    )
    for half in range(40):
        for key in "xy":
            at = half / 2
            here = [i for i, (s, length, k) in enumerate(rows) if k == key and held((s, s + length), at)]
            told = [one[3] for one in slices if one[0] == key and held(one[1:3], at)]
            assert told == ([here] if here else [])
    merged = asked(
        empty, f"SELECT key, start_ns, end_ns, rows FROM merged_intervals('{values(rows)}', ['key'])"
    )
    assert sum(one[3] for one in merged) == len(rows)
    for key in "xy":
        mine = sorted(one[1:3] for one in merged if one[0] == key)
        assert all(before[1] < after[0] for before, after in itertools.pairwise(mine))
        covered = {(one[1], one[2]) for one in slices if one[0] == key}
        assert sum(end - start for start, end in mine) == sum(end - start for start, end in covered)


def test_rows_that_end_before_they_start_are_in_no_join_and_null_keys_meet_nobody(empty: Database) -> None:
    bad = "(SELECT 5 AS start_ns, 3 AS end_ns, NULL AS k UNION ALL SELECT 1, NULL, 1)"
    good = "(SELECT 0 AS start_ns, 9 AS end_ns, NULL AS k)"
    assert asked(empty, f"FROM temporal_join('{bad}', '{good}')") == []
    assert len(asked(empty, f"FROM temporal_join('{good}', '{good}')")) == 1
    assert asked(empty, f"FROM temporal_join('{good}', '{good}', ['k'])") == []
    assert asked(empty, f"FROM time_slices('{bad}')") == []


def test_names_of_keys_are_names_whatever_is_in_them(empty: Database) -> None:
    table = '(SELECT 0 AS start_ns, 9 AS end_ns, 7 AS "a ""b")'
    assert asked(empty, f"SELECT \"a_a \"\"b\" FROM temporal_join('{table}', '{table}', ['a \"b'])") == [(7,)]
    assert asked(empty, f'SELECT "a ""b", rows FROM merged_intervals(\'{table}\', [\'a "b\'])') == [(7, 1)]


def test_averages_leave_out_what_is_not_known(empty: Database) -> None:
    rows = "FROM (VALUES (1, 3, 0, 2), (NULL, 5, 2, 9), (4, 1, 9, 10), (8, 0, 3, 3)) _(v, w, s, e)"
    assert asked(empty, f"SELECT weighted_avg(v, w), avg_over_time(v, s, e) {rows}") == [(7 / 4, 6 / 3)]
    nothing = "FROM (VALUES (1, 0, 3, 3)) _(v, w, s, e)"
    assert asked(empty, f"SELECT weighted_avg(v, w), avg_over_time(v, s, e), 1 / 0 {nothing}") == [
        (None,) * 3
    ]
    first = "find_or_default(v > 3, v, -1, s)"
    assert asked(empty, f"SELECT {first}, find_or_default(v > 9, v, -1, s) {rows}") == [(8, -1)]


def test_no_macro_hides_a_function_of_duckdb() -> None:
    there = {
        name
        for (name,) in duckdb.connect().execute("SELECT function_name FROM duckdb_functions()").fetchall()
    }
    # From 1.3 on DuckDB has it itself, and means the same.
    assert {macro.name for macro in MACROS} & there <= {"weighted_avg"}


def test_a_join_costs_what_overlaps(empty: Database) -> None:
    """200,000 rows of each side and one key: all pairs would be 40 billion."""
    one, other = (
        f"(SELECT i * 10 AS start_ns, i * 10 + {n} AS end_ns, 1 AS k FROM range(200000) _(i))" for n in (9, 4)
    )
    assert asked(empty, f"SELECT count(*) FROM temporal_join('{one}', '{other}', ['k'])") == [(200000,)]


# --- paths ------------------------------------------------------------------------------------------------

PATTERNS = (
    "/", ".", "/.", "**", "**/.", "./**", "*", "/run*", "/r*n*", "/run[*]", "/run[id=7*]", "nothing",
    "run*/epoch*/data.w*", "run*/*/*.wait[*]", "**/data.wait/**", "**/GET \\/cart", "**/GET*",
    "**/./data\\.transfer",
)  # fmt: skip


def selected(session: Database, paths: list[str], pattern: str) -> list[str]:
    escaped = pattern.replace("'", "''")
    listed = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
    return [
        path
        for (path,) in asked(
            session,
            f"SELECT path FROM (SELECT unnest([{listed}]) AS path) WHERE path_matches(path, '{escaped}')",
        )
    ]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_selects_the_paths_that_it_selects_in_the_tree(empty: Database, pattern: str) -> None:
    for some in (PHASES, TYPES):
        paths = [some.path(node) for node in range(len(some))]
        assert selected(empty, paths, pattern) == [some.path(node) for node in Pattern(pattern).matches(some)]


ODD = ("a", "ab", "a/b", "[a]", "a*", "\\", "..", ".", "é ü", "a'b", "a\nb", "#-~ &", "a.b", "$^(|)")


@given(small_trees(), st.lists(st.sampled_from((*COMPONENTS, ".")), min_size=1, max_size=4), st.data())
@settings(deadline=None, max_examples=15)
def test_any_pattern_selects_what_it_does_in_any_tree(
    empty: Database, given_: list[P], components: list[str], data: st.DataObject
) -> None:
    renamed = [
        P(one.parent, data.draw(st.sampled_from(ODD)), one.start, one.end, step=one.step) for one in given_
    ]
    for some in tree(*data.draw(st.sampled_from((given_, renamed))))[:2]:
        paths = [some.path(node) for node in range(len(some))]
        chosen = data.draw(st.sampled_from(paths))
        for pattern in ("/".join(components), chosen, f"{chosen.rstrip('/')}/*"):
            assert selected(empty, paths, pattern) == [
                some.path(node) for node in Pattern(pattern).matches(some)
            ]
        asked_of = data.draw(st.integers(0, len(some) - 1))
        own, above = some.path(asked_of), int(some.parent[asked_of])
        quoted = own.replace("'", "''")
        depth = len(list(some.ancestors(asked_of)))
        assert asked(empty, f"SELECT parent_of('{quoted}'), path_depth('{quoted}')") == [
            (None if above < 0 else some.path(above), depth)
        ]
        listed = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
        below = asked(
            empty,
            f"SELECT list_filter([{listed}], lambda p: is_ancestor_of('{quoted}', p)),"
            f" list_filter([{listed}], lambda p: is_child_of(p, '{quoted}'))",
        )
        mask = np.zeros(len(some), np.bool_)
        mask[asked_of] = True
        assert below[0][0] == [some.path(node) for node in np.flatnonzero(some.below(mask)).tolist()]
        assert below[0][1] == [some.path(node) for node in np.flatnonzero(some.parent == asked_of).tolist()]


def test_a_pattern_is_compiled_once(empty: Database) -> None:
    path_regex.cache_clear()
    assert asked(
        empty, "SELECT count(*) FILTER (WHERE path_matches('/a/' || i, '/a/*7')) FROM range(50000) _(i)"
    ) == [(5000,)]
    assert path_regex.cache_info().currsize == 1
    assert path_regex.cache_info().hits < 100  # once for a plan, not for a row


def test_what_is_wrong_with_a_pattern_is_said(empty: Database) -> None:
    with pytest.raises(SqlError, match="'a//b': a level without a name"):
        asked(empty, "SELECT path_matches('/a', 'a//b')")
    with pytest.raises(SqlError, match=r"'\.\.' needs the tree"):
        asked(empty, "SELECT path_matches('/a', 'a/../b')")
    with pytest.raises(InvalidPattern):
        path_regex("a[")


def test_parts_of_paths(empty: Database) -> None:
    path = r"/a/b\/c[x=1]/d"
    for n, prefix, suffix in (
        (0, "/", "/"), (1, "/a", "/d"), (2, r"/a/b\/c[x=1]", r"/b\/c[x=1]/d"), (9, path, path),
        (-1, r"/a/b\/c[x=1]", r"/b\/c[x=1]/d"), (-2, "/a", "/d"), (-9, "/", "/"),
    ):  # fmt: skip
        assert asked(empty, f"SELECT path_prefix('{path}', {n}), path_suffix('{path}', {n})") == [
            (prefix, suffix)
        ]
    assert asked(empty, "SELECT is_parent_of('/', '/a'), is_parent_of('/a', '/ab'),"
                        " is_ancestor_of('/a', '/ab/c'),"
                        " is_descendant_of('/a', '/'), is_descendant_of('/', '/')") == [
        (True, False, False, True, False)
    ]  # fmt: skip


# --- what SQL may do --------------------------------------------------------------------------------------

secret = "not for SQL"  # a name that no statement finds

CLOSED = (
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_parquet('{place}/*.parquet')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM 'https://127.0.0.1:9/x.parquet'",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM glob('/*')",
    "CREATE VIEW peek AS FROM read_csv('/etc/passwd')",
    "COPY (SELECT 1) TO '{place}/out.csv'",
    "COPY spans TO '{place}/out.parquet'",
    "COPY (SELECT 1) TO '{own}/out.csv'",
    "PREPARE later AS COPY (SELECT 1) TO '{own}/out.csv'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{own}/out.csv'",
    "ATTACH '{own}/other.db'",
    "CALL enable_logging(storage = 'file', storage_path = '{place}/log')",
    "FROM Enable_Logging()",
    "EXPORT DATABASE '{place}/exported'",
    "IMPORT DATABASE '{place}'",
    "ATTACH '{place}/other.db'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{place}/x.duckdb_extension'",
    "CREATE SECRET (TYPE s3)",
    "CREATE PERSISTENT SECRET (TYPE http)",
)
REFUSED = (
    "SELECT getenv('HOME')",
    "SELECT * FROM secret",
    "SET threads = 1",
    "SET enable_external_access = true",
    "RESET enable_external_access",
    "SET lock_configuration = false",
    "PRAGMA enable_profiling = 'json'",
    "SET VARIABLE",
    "CALL enable_profiling(save_location = '{place}/profile')",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "BEGIN",
)


@pytest.mark.parametrize("sql", CLOSED)
def test_files_the_network_and_extensions_are_closed(empty: Database, tmp_path: Path, sql: str) -> None:
    ((own,),) = asked(empty, "SELECT current_setting('temp_directory')")
    with pytest.raises(SqlError, match="--external opens them"):
        empty.query(sql.format(place=tmp_path, own=own))
    assert list(tmp_path.iterdir()) == list(Path(own).iterdir()) == []


@pytest.mark.parametrize("sql", REFUSED)
def test_settings_and_what_is_around_cannot_be_reached(read: Subject, tmp_path: Path, sql: str) -> None:
    with Database(read) as session:
        with pytest.raises(SqlError) as refused:
            session.query(sql.format(place=tmp_path))
        assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_files_are_open_to_who_asks(store: str, tmp_path: Path) -> None:
    with analyzers.database(store, external=True) as session:
        session.run(f"COPY (SELECT rank FROM steps) TO '{tmp_path}/ranks.csv'")
        assert asked(session, f"SELECT count(*) FROM '{tmp_path}/ranks.csv'") == asked(
            session, "SELECT count(*) FROM steps"
        )
        session.run("SET threads = 1")


def test_what_is_not_unicode_is_no_sql(empty: Database) -> None:
    with pytest.raises(UsageError, match="not UTF-8: character 9"):
        empty.run("SELECT '\udcff'")


@pytest.mark.parametrize(
    "sql",
    [
        "DROP VIEW spans",
        "CREATE OR REPLACE VIEW spans AS SELECT 1 AS name",
        "CREATE OR REPLACE TABLE steps AS SELECT 1 AS name",
        "CREATE TEMP TABLE steps AS SELECT 1 AS name",
        "CREATE OR REPLACE VIEW metric_intervals AS SELECT 1 AS name",
        "DELETE FROM spans",
        "INSERT INTO spans SELECT * FROM spans",
        "UPDATE spans SET name = 'x'",
        "ALTER VIEW spans RENAME TO other",
    ],
)
def test_the_tables_themselves_stay(read: Subject, sql: str) -> None:
    with Database(read) as session:
        before = asked(session, "SELECT (SELECT count(*) FROM spans), (SELECT count(*) FROM steps)")
        with pytest.raises(SqlError):
            session.run(sql)
        assert asked(session, "SELECT (SELECT count(*) FROM spans), (SELECT count(*) FROM steps)") == before
        assert "rate" in [one.name for one in session.query("FROM metric_intervals").columns]


def test_views_tables_and_macros_live_as_long_as_the_session(read: Subject) -> None:
    with Database(read) as session:
        session.run("CREATE VIEW v AS SELECT rank FROM steps; CREATE TABLE t AS FROM v; DROP VIEW v")
        session.run("INSERT INTO t SELECT 99; CREATE MACRO twice(x) AS 2 * x; SET VARIABLE n = 3")
        assert asked(session, "SELECT DISTINCT twice(rank) FROM t ORDER BY ALL") == [(0,), (2,), (198,)]
        assert asked(session, "SELECT getvariable('n')") == [(3,)]
        with pytest.raises(SqlError, match="no table v"):
            session.run("FROM v")
    with Database(read) as session, pytest.raises(SqlError, match="no table t"):
        session.run("FROM t")


def test_nothing_is_left_on_disk(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with analyzers.database(store) as session:
        assert [one.name.startswith("grademl-sql-") for one in tmp_path.iterdir()] == [True]
        (place,) = tmp_path.iterdir()
        assert place.stat().st_mode & 0o077 == 0
        assert asked(session, "SELECT current_setting('temp_directory')") == [(str(place),)]
    assert list(tmp_path.iterdir()) == []


def test_memory_is_bounded(session: Database) -> None:
    ((limit,),) = asked(session, "SELECT current_setting('memory_limit')")
    bare = duckdb.connect().execute("SELECT current_setting('memory_limit')").fetchone()
    assert bare is not None
    assert size_of(limit) <= 0.51 * size_of(bare[0])


def size_of(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[unit]


ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range * b.range < 0"


def test_an_interrupt_ends_a_statement_and_the_session_goes_on(read: Subject) -> None:
    with Database(read) as session:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), 2))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            asked(session, ENDLESS)
        timer.join()
        assert asked(session, "SELECT 1") == [(1,)]


# --- statements and mistakes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        (" ; -- nothing\n;;", []),
        ("SELECT 1", [("SELECT 1", 0)]),
        ("SELECT 'a;b'; FROM \"c;d\" -- e;f\n", [("SELECT 'a;b'", 0), ('FROM "c;d" -- e;f\n', 14)]),
        ("SELECT $$;$$; /* ; */ SELECT 'é';x", [("SELECT $$;$$", 0), ("SELECT 'é'", 22), ("x", 33)]),
    ],
)
def test_statements_are_cut_where_sql_ends_them(text: str, found: list[tuple[str, int]]) -> None:
    assert [(one.sql, one.offset) for one in statements_of(text)] == found


@pytest.mark.parametrize(
    ("text", "ended"),
    [("", True), ("SELECT 1", False), ("SELECT 1;", True), ("SELECT 1; -- x", True), ("SELECT ';", False),
     ("SELECT 1; SELECT", False), ("SELECT $$ ;", False)],
)  # fmt: skip
def test_a_statement_is_whole_at_its_semicolon(text: str, ended: bool) -> None:
    assert is_ended(text) is ended


@pytest.mark.parametrize(
    ("sql", "place", "says"),
    [
        ("SELECT nme FROM spans", (1, 8), "no column nme; did you mean name?"),
        ("SELECT s.nme\nFROM spans s", (1, 8), "no column nme; did you mean name?"),
        ("SELECT 1;\n\nSELECT durations_ns FROM steps", (3, 8), "did you mean duration_ns?"),
        ("SELECT qqq FROM links", (1, 8), "links has span_ix, linked_trace_id"),
        ("SELECT 'é', nme FROM spans", (1, 13), "did you mean name?"),
        ("FROM stepps", (1, 6), "no table stepps; did you mean steps?"),
        ("FROM qqq", (1, 6), "there are spans, steps"),
        ("SELECT * FORM spans", (1, 15), 'syntax error at or near "spans"'),
        ("SELECT\n  path_match(path, 'x') FROM phases", (2, 3), "did you mean path_matches?"),
        ("SELECT 1 +\n  'x'::INT", (2, 6), "Could not convert"),
        ("CREATE VIEW v AS SELECT nme FROM spans", (1, 25), "did you mean name?"),
        ("SELECT sum(count(*)) FROM spans", (1, 12), "nested"),
    ],
)
def test_a_mistake_is_shown_where_it_is(
    session: Database, sql: str, place: tuple[int, int], says: str
) -> None:
    with pytest.raises(SqlError) as mistake:
        session.query(sql)
    line, column = place
    assert says in str(mistake.value)
    assert f"line {line}, column {column}: " in str(mistake.value)
    excerpt = mistake.value.excerpt
    assert excerpt is not None
    shown, caret = excerpt.split("\n")
    assert shown == f"  {sql.splitlines()[line - 1]}"
    assert caret == " " * (2 + column - 1) + "^"


def test_a_place_in_a_long_line_is_shown_without_all_of_it(session: Database) -> None:
    with pytest.raises(SqlError) as mistake:
        session.query(f"SELECT {'1, ' * 400} nme FROM spans")
    shown, caret = str(mistake.value.excerpt).split("\n")
    assert len(shown) <= 102
    assert shown[caret.index("^") :].startswith("nme")


def test_the_precedence_is_that_of_sql(empty: Database) -> None:
    """Where GradeML's parser was wrong: `+` before `*`, lower-case operators, `a -1`, NOT."""
    found = asked(
        empty,
        "SELECT 1 + 2 * 3, x -1, not true or true, true and not false or false, x != 2 FROM (SELECT 5 AS x)",
    )
    assert found == [(7, 4, True, True, True)]


def test_what_reading_a_table_raises_is_told_as_itself(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> pa.Table:
        raise NothingFound("here: nothing")

    monkeypatch.setattr(of_database, "table", fail)
    with analyzers.database(store) as session:
        with pytest.raises(NothingFound, match="here: nothing"):
            asked(session, "SELECT name FROM spans")
        assert asked(session, "SELECT 1") == [(1,)]


def test_a_lazy_table_makes_each_column_once_and_finds_those_of_a_filter() -> None:
    made: list[list[str]] = []
    whole = pa.table({"a": [1, 2, 3], "b": [4, 5, 6], "c": [7, 8, 9]})

    def make(names: Any) -> pa.Table:
        made.append(sorted(names))
        return whole.select([name for name in whole.column_names if name in names])

    lazy = LazyTable(whole.schema, make)
    assert lazy.scanner(["b"], filter=pa.compute.field("a") > 1).to_table().to_pydict() == {"b": [5, 6]}
    assert lazy.scanner().to_table() == whole
    assert made == [["a", "b"], ["c"]]


# --- the command ------------------------------------------------------------------------------------------


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def grademl(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def call(*arguments: str, stdin: str = "") -> Ran:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        capfd.readouterr()
        code = run(["query", *arguments])
        out, err = capfd.readouterr()
        return Ran(code, out, err)

    return call


def test_sql_comes_from_an_option_a_file_or_standard_input(store: str, tmp_path: Path, grademl: Any) -> None:
    script = tmp_path / "script.sql"
    script.write_text("-- as some editors write it\nSELECT 42 AS answer;\n", encoding="utf-8-sig")
    ways = [
        grademl(store, "-c", "SELECT 42 AS answer", "-f", "csv"),
        grademl(store, "--file", str(script), "-f", "csv"),
        grademl(store, "-f", "csv", stdin="SELECT 42 AS answer"),
        grademl(store, "--file", "-", "-f", "csv", stdin="SELECT 42 AS answer;"),
    ]
    assert [(way.code, way.out, way.err) for way in ways] == [(0, "answer\n42\n", "")] * 4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-c", ""), "there is no SQL"),
        (("-c", "-- nothing"), "there is no SQL"),
        (("-c", "CREATE VIEW v AS SELECT 1"), "end with a SELECT"),
        (("-c", "SELECT 1", "--file", "x"), "-c and --file both give SQL"),
        (("--file", "nowhere.sql"), "--file nowhere.sql: no such file"),
        (("-c", "SELECT 1", "--attempt", "all"), "one attempt at a time"),
        (("-c", "SELECT nme FROM spans"), "SQL: line 1, column 8: no column nme; did you mean name?"),
        (("-c", "SELECT 1::INT; SELECT 'x'::INT"), "line 1, column 26: Could not convert"),
    ],
)
def test_wrong_use_is_one_line_and_exits_with_2(
    store: str, grademl: Any, arguments: Sequence[str], says: str
) -> None:
    ran = grademl(store, *arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    assert says in ran.err


def test_standard_input_is_either_the_source_or_the_sql(grademl: Any) -> None:
    ran = grademl("-", stdin="{}")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "give it with -c or --file" in ran.err


ALL_TYPES = """SELECT 1 AS small, 9007199254740993 AS big,
  170141183460469231731687303715884105727::HUGEINT AS huge, 1.10::DECIMAL(10, 2) AS exact,
  0.1::DOUBLE AS fraction, 'nan'::DOUBLE AS nan, '-inf'::DOUBLE AS less,
  true AS yes, NULL AS nothing, '=1+1' AS formula, 'a|b' || chr(27) AS text, '\\x00\\xFF'::BLOB AS bytes,
  TIMESTAMP_NS '2026-01-01 00:00:00.123456789' AS time, DATE '2026-01-01' AS day, [1, 2] AS list,
  {'a': 1, 'b': 'x'} AS struct, MAP {'k': 1} AS map, uuid() IS NOT NULL AS id, 1 AS small"""


def test_json_is_exact(store: str, grademl: Any) -> None:
    document = json.loads(grademl(store, "-c", ALL_TYPES, "--json").out)
    assert document["schema"] == "grademl.query/1"
    assert document["completeness"]["verdict"] == "complete"
    assert document["source"]["run"] == SLOW.run_id
    assert document["columns"][:4] == [
        {"name": "small", "type": "INTEGER"},
        {"name": "big", "type": "BIGINT"},
        {"name": "huge", "type": "HUGEINT"},
        {"name": "exact", "type": "DECIMAL(10,2)"},
    ]
    (row,) = document["rows"]
    assert row == [
        1, "9007199254740993", "170141183460469231731687303715884105727", "1.10", 0.1, "NaN", "-Infinity",
        True, None, "=1+1", "a|b\x1b", base64.b64encode(b"\x00\xff").decode(),
        "2026-01-01 00:00:00.123456789", "2026-01-01", [1, 2], {"a": 1, "b": "x"}, [["k", 1]], True, 1,
    ]  # fmt: skip
    (line,) = grademl(store, "-c", ALL_TYPES, "-f", "jsonl").out.splitlines()
    assert list(json.loads(line).values()) == row
    assert list(json.loads(line))[-1] == "small_1"


def test_csv_is_exact_and_harmless(store: str, grademl: Any) -> None:
    heading, row = csv.reader(io.StringIO(grademl(store, "-c", ALL_TYPES, "-f", "csv").out))
    told = dict(zip(heading, row, strict=True))
    assert told["big"] == "9007199254740993"
    assert told["exact"] == "1.10"
    assert told["fraction"] == "0.1"
    assert told["formula"] == "'=1+1"
    assert told["text"] == "a|b?"
    assert told["nothing"] == ""
    assert told["nan"] == "nan" or told["nan"] == "NaN"
    assert told["yes"] == "true"
    assert told["list"] == "[1, 2]"
    pivoted = grademl(store, "-c", "PIVOT (SELECT '=cmd()' AS x) ON x", "-f", "csv")
    assert pivoted.out.splitlines()[0] == "'=cmd()"


def test_markdown_shows_text_as_it_is(store: str, grademl: Any) -> None:
    out = grademl(store, "-c", "SELECT '<b>|`x' AS \"a|b\", -1.5 AS n", "-f", "markdown").out
    assert out == "| a\\|b | n |\n| --- | --- |\n| \\<b\\>\\|\\`x | -1.5 |\n"


def test_parquet_has_the_types_and_says_how_complete_it_is(store: str, tmp_path: Path, grademl: Any) -> None:
    place = tmp_path / "a.parquet"
    ran = grademl(
        store, "-c", "SELECT rank, start_ns, 1.5 AS x, 2 AS x FROM steps", "-f", "parquet", "-o", str(place)
    )
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    table = pq.read_table(place)
    assert table.column_names == ["rank", "start_ns", "x", "x_1"]
    assert table.schema.field("start_ns").type == pa.int64()
    assert table.num_rows == query(store, "FROM steps").to_arrow().num_rows
    assert json.loads(table.schema.metadata[KEY])["completeness"]["verdict"] == "complete"


@pytest.mark.parametrize("form", ["text", "json", "parquet"])
def test_a_place_that_cannot_be_written_leaves_nothing_behind(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grademl: Any, form: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ran = grademl(store, "-c", "SELECT 1", "-f", form, "-o", str(tmp_path / "nowhere" / "out"))
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert list(tmp_path.iterdir()) == []


def test_text_is_a_table_of_the_first_and_the_last_rows(store: str, grademl: Any) -> None:
    lines = grademl(store, "-c", "SELECT range AS n, 'x' || range AS t FROM range(1000)").out.splitlines()
    assert lines[0].split() == ["n", "t"]
    assert [int(line.split()[0]) for line in lines[1:101]] == [*range(100)]
    assert lines[101].split() == ["...", "..."]
    assert [int(line.split()[0]) for line in lines[102:202]] == [*range(900, 1000)]
    assert lines[202] == "(1,000 rows; 800 between are not shown, -f csv has all)"
    assert len(grademl(store, "-c", "SELECT * FROM range(200)").out.splitlines()) == 202
    assert grademl(store, "-c", "SELECT 1 AS a WHERE false").out.splitlines()[-1] == "(0 rows)"


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_text_fits_its_width_and_says_what_does_not(
    store: str, grademl: Any, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    out = grademl(store, "-c", "FROM steps LIMIT 2").out
    assert max(map(len, out.splitlines())) <= width
    shown = out.split("(no room for: ")[0].split("\n")[0].split()
    left_out = re.findall(r"\w+", out.partition("(no room for: ")[2].partition(")")[0])
    assert {*shown, *left_out} == {*TABLES["steps"].column_names}
    assert shown[0] == "run" or "run" in left_out


def test_what_a_terminal_would_obey_is_not_written(store: str, grademl: Any) -> None:
    out = grademl(store, "-c", "SELECT chr(27) || '[31m' AS \"a\x1bb\", chr(8238) AS c").out
    assert not re.search(r"[^\x20-\x7e\n]", out)


def test_rows_are_written_into_a_file_whole_or_not_at_all(store: str, tmp_path: Path, grademl: Any) -> None:
    place = tmp_path / "rows.jsonl"
    assert grademl(store, "-c", "FROM range(30000)", "-f", "jsonl", "-o", str(place)).code == 0
    assert sum(1 for _ in place.open()) == 30000
    place.write_text("before")
    ran = grademl(
        store, "-c", "SELECT (900 - range)::UTINYINT FROM range(30000)", "-f", "jsonl", "-o", str(place)
    )
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert [one.name for one in tmp_path.iterdir()] == ["rows.jsonl"]
    assert place.read_text() == "before"


def test_an_answer_without_rows_is_one_and_says_why_the_table_is_empty(store: str, grademl: Any) -> None:
    ran = grademl(str(JAEGER), "-c", "SELECT rank FROM steps", "-f", "csv")
    assert (ran.code, ran.out) == (0, "rank\n")
    *_, why = ran.err.splitlines()
    assert why.startswith("grademl: steps: of a run of ours only")
    document = json.loads(grademl(str(JAEGER), "-c", "SELECT rank FROM steps", "--json").out)
    assert document["rows"] == []
    assert document["notes"] == [why.removeprefix("grademl: ")]
    # The table has rows: that none of them was wanted needs no reason.
    ran = grademl(store, "-c", "SELECT rank FROM steps WHERE rank > 99", "-f", "csv")
    assert (ran.code, ran.out, ran.err) == (0, "rank\n", "")


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run of which a rank is missing."""
    place = tmp_path_factory.mktemp("cut") / "runs"
    simulate(SLOW).write_store(place)
    (store,) = place.glob("*/traces.jsonl")
    lines = store.read_bytes().splitlines(keepends=True)
    store.write_bytes(b"".join(lines[: len(lines) // 2]))
    return str(place)


def test_incomplete_data_are_said_first(cut: str, grademl: Any) -> None:
    ran = grademl(cut, "-c", "SELECT count(*) AS n FROM steps", "-f", "csv")
    assert ran.code == 0
    assert ran.out.startswith("n\n")
    assert ran.err.startswith("grademl: the data are incomplete: ")
    assert ran.err.count("\n") == 1
    ran = grademl(cut, "-c", "SELECT count(*) AS n FROM steps", "-f", "csv", "--strict")
    assert ran.code == 4
    assert ran.out.startswith("n\n")
    assert ran.err.count("\n") == 1
    document = json.loads(grademl(cut, "-c", "SELECT 1", "--json").out)
    assert document["completeness"]["verdict"] == "incomplete"
    assert document["incomplete_because"]
    result = query(cut, "SELECT 1 AS one")
    assert str(result).startswith("the data are incomplete: ")
    assert "the data are incomplete" in result._repr_html_()


@pytest.mark.parametrize(
    ("command", "needs"), [("'report'", []), ("'query', '-c', 'FROM steps', '-f', 'json'", ["duckdb"])]
)
def test_what_takes_long_to_load_is_loaded_by_who_needs_it(
    store: str, command: str, needs: list[str]
) -> None:
    program = (
        f"import sys; from grademl_otel.analyzers.cli.app import run; run([{command}, sys.argv[1]]);"
        " print(sorted({'duckdb', 'pandas', 'prompt_toolkit', 'pygments'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program, store], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(needs)


# --- Python -----------------------------------------------------------------------------------------------


def test_a_result_has_rows_columns_arrow_frames_and_html(store: str) -> None:
    result = query(store, "SELECT rank, NULLIF(step, 0) AS step, '<b>' AS name FROM steps ORDER BY ALL")
    assert len(result) == len(result.rows) == len([*result])
    assert result.rows[0] == (0, 1, "<b>")
    assert [one.name for one in result.columns] == result.to_arrow().column_names
    frame = result.to_pandas()
    assert [str(one) for one in frame.dtypes[:2]] == ["Int64", "Int64"]
    assert frame["step"].isna().sum() == len([row for row in result.rows if row[1] is None]) > 0
    html = result._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert "<script" not in html
    assert result.to_dict()["rows"][0] == [0, 1, "<b>"]
    assert repr(result) == f"<QueryResult: {len(result)} rows of rank, step, name>"
    assert result.tables == ["rows"]


def test_exact_values_in_python(empty: Database) -> None:
    ((big, exact, nothing),) = asked(empty, "SELECT 2::HUGEINT ** 100, 1.10::DECIMAL(9, 2), NULL")
    assert (exact, nothing) == (Decimal("1.10"), None)
    assert asked(empty, "SELECT 1267650600228229401496703205376::HUGEINT") == [(2**100,)]
    assert big == float(2**100)


def test_a_session_is_one_source_read_once_and_asked_often(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with analyzers.database(store) as session:
        monkeypatch.setattr("grademl_otel.analyzers.subject.open_query", None)
        assert (
            session.query("SELECT count(*) FROM spans").rows
            == session.query("SELECT count(*) FROM spans").rows
        )
        with pytest.raises(UsageError, match="end with a SELECT"):
            session.query("CREATE VIEW v AS SELECT 1")


def test_the_tables_are_those_of_the_selection(store: str) -> None:
    with Database(read_subject(Query.of(store, ranks=(1,)))) as session:
        assert asked(session, "SELECT DISTINCT rank FROM steps") == [(1,)]


# --- the prompt -------------------------------------------------------------------------------------------

KNOWN = Vocabulary(
    ["spans", "steps"],
    {"spans": ["name", "start_ns"], "steps": ["step", "start_ns"]},
    ["sum", "substr"],
    ["temporal_join"],
    ["data.wait", "it's"],
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SELECT na", ["name"]),
        ("SEL", ["SELECT"]),
        ("sel", ["select"]),
        ("SELECT su", ["substr(", "sum(", "summarize"]),
        ("FROM s", ["spans", "steps"]),
        ("FROM ", ["spans", "steps", "temporal_join("]),
        ("SELECT * FROM steps WHERE st", ["start_ns", "step", "steps"]),
        ("FROM spans s WHERE s.", ["name", "start_ns"]),
        ("FROM spans WHERE name = 'da", ["data.wait"]),
        ("FROM spans WHERE name = 'it", ["it''s"]),
        ("SELECT 'x' AS y, ", []),
    ],
)
def test_words_are_completed_by_where_they_stand(text: str, words: list[str]) -> None:
    assert sorted(word for _, word, _ in completions(text, KNOWN)) == words


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, *arguments: str, **environ: str) -> None:
        self._fd, side = pty.openpty()
        # The first terminal that the leader of a session opens is that of the session.
        opened = f'exec "$0" query "$@" < {os.ttyname(side)} > {os.ttyname(side)} 2>&1'
        self._process = subprocess.Popen(
            ["sh", "-c", opened, GRADEML, *arguments],
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", **environ},
            start_new_session=True,
        )
        self.seen, self._answers = "", 0
        self._read()
        os.close(side)

    def run(self, statement: str) -> None:
        """Type a statement, and wait until it is being answered: what is typed from then on is a signal."""
        before = self._answers
        self.type(f"{statement};\r")
        while self._answers == before:
            assert self._read(), self.seen
        time.sleep(0.5)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def until(self, pattern: str) -> str:
        """Return what is shown until ``pattern`` is, without colours and moves."""
        start = len(self.seen)
        while not re.search(pattern, self.seen[start:]):
            assert self._read(), f"no {pattern!r} in {self.seen[start:]!r}"
        return self.seen[start:]

    def code(self) -> int:
        """Return the exit code of the command, which ends by itself."""
        while self._read():
            pass
        os.close(self._fd)
        return self._process.wait(timeout=60)

    def _read(self) -> bool:
        """Wait for more; return False at the end."""
        assert select.select([self._fd], [], [], 60)[0], f"nothing more after {self.seen!r}"
        try:
            data = os.read(self._fd, 65536).decode(errors="replace")
        except OSError:  # the end, as Linux tells it
            return False
        if "\x1b[6n" in data:  # where is the cursor?
            os.write(self._fd, b"\x1b[1;1R")
        self._answers += data.count("\x1b[?2004l")  # pasting is over, and so is typing
        self.seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data)
        return bool(data)


def test_the_prompt_on_a_terminal(store: str, tmp_path: Path) -> None:
    terminal = Terminal(store, XDG_STATE_HOME=str(tmp_path))
    terminal.until("sql>")
    terminal.type("SELECT 6 * 7\r")
    terminal.until(r"\.\.\.>")
    terminal.type("AS answer;\r")
    assert "42" in terminal.until(r"\(1 row\)")
    terminal.type("SELECT nme FROM spans;\r")
    assert "did you mean name?" in terminal.until(r"\^\s")
    terminal.type("CREATE VIEW v AS SELECT 5 AS five; FROM v;\r")
    terminal.until(r"five[\s\S]*\(1 row\)")
    terminal.type("FROM metrics WHERE rank > 9;\r")
    terminal.until(r"\(0 rows\)")
    terminal.run(ENDLESS)
    terminal.type("\x03")
    terminal.until("grademl: interrupted")
    terminal.run(ENDLESS)
    terminal.type("\x03")
    terminal.until("grademl: interrupted")
    terminal.type(".tables\r")
    assert "`" not in terminal.until("made in this session")
    terminal.type(".schema budget\r")
    terminal.until(r"within\s+VARCHAR")
    terminal.type(".schem\r")
    terminal.until("did you mean .schema?")
    terminal.type("\\q\r")
    assert terminal.code() == 0
    history = tmp_path / "grademl" / "query-history"
    assert "+AS answer;" in history.read_text().splitlines()
    assert history.stat().st_mode & 0o077 == 0


def test_the_end_of_input_ends_the_prompt_and_there_need_be_no_colours_or_history(
    store: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    terminal = Terminal(store, NO_COLOR="1", XDG_STATE_HOME=str(tmp_path / "file"))
    terminal.until("sql>")
    terminal.type("SELECT 1 AS one;\r")
    terminal.until(r"\(1 row\)")
    terminal.type("\x03")
    terminal.until("sql>")
    terminal.type("\x04")
    assert terminal.code() == 0


def test_a_prompt_needs_a_terminal_on_both_sides(store: str) -> None:
    main, side = pty.openpty()
    try:
        done = subprocess.run(
            [GRADEML, "query", store], stdin=side, capture_output=True, text=True, check=False
        )
    finally:
        os.close(main)
        os.close(side)
    assert done.returncode == 2
    assert "a prompt is for a terminal" in done.stderr


def test_an_interrupt_ends_the_command_with_130(store: str, tmp_path: Path) -> None:
    command = [GRADEML, "query", store, "-c", ENDLESS, "-o", str(tmp_path / "out")]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("grademl-sql-*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(2)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "grademl: interrupted\n"
    assert list(tmp_path.iterdir()) == []
