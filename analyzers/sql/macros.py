# SPDX-License-Identifier: Apache-2.0
"""What SQL here has beyond DuckDB's: averages over time, joins of intervals, patterns of paths.

After the functions of GradeML's query language (ICPE'21). Intervals are half open, ``[start_ns, end_ns)``,
in whole numbers; one of no length is an instant: it lies in ``[a, b)`` where a <= t < b, and meets another at
the same time. Rows that end before they start, or have no times, are in no answer. Tables are given by their
names: those of the source, views, or of a WITH.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import duckdb

from grademl_otel.analyzers.sql.paths import path_regex


@dataclass(frozen=True)
class Macro:
    """One macro."""

    call: str
    """Name and parameters, as a user writes them."""
    about: str
    sql: str
    """After ``AS``."""
    parameters: str = ""
    """As CREATE MACRO has them, where these are not those of ``call``."""
    native: str = ""
    """A call that works where DuckDB has it itself, as later versions do."""

    @property
    def name(self) -> str:
        return self.call.partition("(")[0]

    @property
    def is_table(self) -> bool:
        """Whether it stands in a FROM."""
        return self.sql.startswith("TABLE")

    @property
    def create(self) -> str:
        parameters = self.parameters or self.call.partition("(")[2].rstrip(")")
        return f"CREATE MACRO IF NOT EXISTS {self.name}({parameters}) AS {self.sql}"


_LEVELS: Final = r"regexp_extract_all(path, '(?s)/(?:\\.|[^\\/])+')"
_KEYS: Final = """array_to_string(['"' || replace(key, '"', '""') || '"' for key in keys], ', ')"""
"""The columns ``keys`` as a list of SQL; empty without any."""
_PARTITION: Final = f"coalesce('PARTITION BY ' || nullif({_KEYS}, ''), '')"
_SELECTED: Final = f"coalesce(nullif({_KEYS}, '') || ', ', '')"


def _same(one: str, other: str) -> str:
    """Return the text of a WHERE: the keys after ``one`` are equal to those after ``other``.

    As a CASE, lest the planner joins by the keys and compares all times of equal ones: intervals are joined
    by their times, whose cost is that of what overlaps.
    """
    left, right = (f"""'{side}' || replace(key, '"', '""')""" for side in (one, other))
    case = f"""'CASE WHEN ' || {left} || '" = ' || {right} || '" THEN true ELSE false END'"""
    return f"coalesce(' WHERE ' || nullif(array_to_string([{case} for key in keys], ' AND '), ''), '')"


def _side(side: str) -> str:
    return f"(SELECT COLUMNS(''(.*)'') AS ''{side}_\\1'' FROM ' || {side} || ' WHERE end_ns >= start_ns)"


_WITH_KEYS: Final = "keys := []::VARCHAR[]"

MACROS: Final = (
    Macro(
        "weighted_avg(value, weight)",
        "sum(value * weight) / sum(weight) of the rows that have a value; null where they weigh nothing",
        "sum(value * weight) / sum(weight) FILTER (WHERE value IS NOT NULL)",
        native="weighted_avg(1, 1)",
    ),
    Macro(
        "avg_over_time(value, start_ns, end_ns)",
        "average of values that hold from start to end, by how long they do; null where none does",
        """sum(value * (end_ns - start_ns)::DOUBLE) FILTER (WHERE end_ns > start_ns)
            / sum((end_ns - start_ns)::DOUBLE) FILTER (WHERE end_ns > start_ns AND value IS NOT NULL)""",
    ),
    Macro(
        "find_or_default(condition, value, otherwise, at_ns)",
        "the value of the first row by `at_ns` that satisfies the condition and has one, else `otherwise`",
        "coalesce(arg_min(value, at_ns) FILTER (WHERE condition), otherwise)",
    ),
    Macro(
        "temporal_join(a, b, keys)",
        "a row for each row of a and row of b that overlap and have equal keys: `start_ns`, `end_ns` and"
        " `overlap_ns` of what they share, then the columns of both, with `a_` and `b_` before their names",
        f"""TABLE FROM query('
            SELECT greatest(a_start_ns, b_start_ns) AS start_ns, least(a_end_ns, b_end_ns) AS end_ns,
                least(a_end_ns, b_end_ns) - greatest(a_start_ns, b_start_ns) AS overlap_ns, *
            FROM {_side("a")} JOIN {_side("b")}
            ON a_start_ns < greatest(b_end_ns, b_start_ns + 1)
            AND b_start_ns < greatest(a_end_ns, a_start_ns + 1)' || {_same('"a_', '"b_')})""",
        f"a, b, {_WITH_KEYS}",
    ),
    Macro(
        "time_slices(a, keys)",
        "the rows of a, cut wherever one of the same keys starts or ends: grouped by `start_ns` and `end_ns`,"
        " what holds at each time. An instant holds over no time",
        f"""TABLE FROM query('
            WITH _rows AS (SELECT * FROM ' || a || ' WHERE end_ns > start_ns),
            _points AS (SELECT DISTINCT ' || {_SELECTED} || 'unnest([start_ns, end_ns]) AS _at FROM _rows),
            _slices AS (SELECT *, lead(_at) OVER (' || {_PARTITION} || ' ORDER BY _at) AS _end FROM _points)
            SELECT _slices._at AS start_ns, _slices._end AS end_ns, _rows.* EXCLUDE (start_ns, end_ns)
            FROM _slices JOIN _rows ON _rows.start_ns <= _slices._at AND _slices._end <= _rows.end_ns'
            || {_same('_slices."', '_rows."')})""",
        f"a, {_WITH_KEYS}",
    ),
    Macro(
        "merged_intervals(a, keys)",
        "the times in which there is a row of a, by keys: rows that touch or overlap are one, `rows` of them",
        f"""TABLE FROM query('
            WITH _rows AS (SELECT ' || {_SELECTED} || 'start_ns, end_ns, max(end_ns) OVER ('
            || {_PARTITION} || ' ORDER BY start_ns, end_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS _until FROM ' || a || ' WHERE end_ns >= start_ns),
            _islands AS (SELECT *, count(*) FILTER (WHERE _until IS NULL OR _until < start_ns) OVER ('
            || {_PARTITION} || ' ORDER BY start_ns, end_ns ROWS UNBOUNDED PRECEDING) AS _island FROM _rows)
            SELECT ' || {_SELECTED} || 'min(start_ns) AS start_ns, max(end_ns) AS end_ns, count(*) AS rows
            FROM _islands GROUP BY ' || {_SELECTED} || '_island')""",
        f"a, {_WITH_KEYS}",
    ),
    Macro(
        "path_matches(path, pattern)",
        "whether a pattern of the path language selects this path, from the root",
        "regexp_full_match(path, path_regex(pattern))",
    ),
    Macro(
        "path_depth(path)",
        "how many levels it has; 0 for the root",
        f"len({_LEVELS})",
    ),
    Macro(
        "path_prefix(path, n)",
        "its first n levels; without its last -n where n is negative",
        f"""coalesce(nullif(array_to_string({_LEVELS}[1:
            CASE WHEN n < 0 THEN greatest(len({_LEVELS}) + n, 0) ELSE n END], ''), ''), '/')""",
    ),
    Macro(
        "path_suffix(path, n)",
        "its last n levels; without its first -n where n is negative",
        f"""coalesce(nullif(array_to_string({_LEVELS}[
            CASE WHEN n < 0 THEN 1 - n ELSE greatest(len({_LEVELS}) - n, 0) + 1 END:], ''), ''), '/')""",
    ),
    Macro(
        "parent_of(path)",
        "path of the parent; null for the root",
        "CASE WHEN path <> '/' THEN path_prefix(path, -1) END",
    ),
    Macro("is_parent_of(path, other)", "", "parent_of(other) IS NOT DISTINCT FROM path AND path IS NOT NULL"),
    Macro("is_child_of(path, other)", "", "is_parent_of(other, path)"),
    Macro(
        "is_ancestor_of(path, other)",
        "no path is its own ancestor",
        "other <> path AND starts_with(other, CASE path WHEN '/' THEN '/' ELSE path || '/' END)",
    ),
    Macro("is_descendant_of(path, other)", "", "is_ancestor_of(other, path)"),
)


@dataclass(frozen=True)
class View:
    """A view over the tables of the source."""

    name: str
    about: str
    sql: str


VIEWS: Final = (
    View(
        "metric_intervals",
        "metrics as what holds, or was added, from `start_ns` (since when) to `end_ns` (when measured);"
        " `rate` is `delta` a second. For temporal_join and avg_over_time",
        """SELECT * EXCLUDE (time_ns, start_ns, since_ns), since_ns AS start_ns, time_ns AS end_ns,
            delta / ((time_ns - since_ns) / 1e9) AS rate FROM metrics""",
    ),
)


def define(connection: duckdb.DuckDBPyConnection) -> None:
    """Make macros and views known; the tables must be. What DuckDB has under the same name stays."""
    with suppress(duckdb.NotImplementedException):  # it is there already
        connection.create_function("path_regex", path_regex, ["VARCHAR"], "VARCHAR")
    for macro in MACROS:
        if not _has(connection, macro):
            connection.execute(macro.create)
    for view in VIEWS:
        connection.execute(f"CREATE VIEW IF NOT EXISTS {view.name} AS {view.sql}")


def _has(connection: duckdb.DuckDBPyConnection, macro: Macro) -> bool:
    if not macro.native:
        return False
    try:
        connection.execute(f"SELECT {macro.native}")
    except duckdb.CatalogException:
        return False
    return True
