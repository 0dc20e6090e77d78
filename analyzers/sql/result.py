# SPDX-License-Identifier: Apache-2.0
"""The answer to SQL as an object of Python: rows, Arrow, a frame, and how a notebook shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from grademl_otel.analyzers.reporting.canvas import Canvas
from grademl_otel.analyzers.shown import Shown, pandas
from grademl_otel.analyzers.sql.database import Database, ResultColumn, Rows
from grademl_otel.analyzers.sql.forms import json_of
from grademl_otel.analyzers.sql.head import Head, head_of
from grademl_otel.analyzers.sql.screen import draw, excerpt_of

if TYPE_CHECKING:
    import pandas as pd

_IN_NOTEBOOKS = 50
"""Rows that a notebook shows, at most."""


@dataclass(frozen=True, repr=False)
class QueryResult(Shown, screen="sql.screen"):
    """The rows that a statement selected, and what is known of the data that they are from."""

    columns: list[ResultColumn]
    """Name and type of each, as DuckDB writes types."""
    head: Head = field(repr=False)
    notes: list[str]
    """Why tables that were asked for are empty, where they are."""
    _batches: list[pa.RecordBatch]
    _schema: pa.Schema

    @staticmethod
    def of(database: Database, rows: Rows) -> QueryResult:
        """Read all of ``rows``."""
        batches = [*rows.batches]
        return QueryResult(rows.columns, head_of(database.about), database.why_empty(), batches, rows.schema)

    def __len__(self) -> int:
        return sum(batch.num_rows for batch in self._batches)

    def __repr__(self) -> str:
        return f"<QueryResult: {len(self):,} rows of {', '.join(self._rows().names)}>"

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows)

    @cached_property
    def rows(self) -> list[tuple[Any, ...]]:
        """The rows as tuples: int, float, str, bool, Decimal, bytes, list, dict; None for null.

        Timestamps are text, since Python's have no nanoseconds.
        """
        return [*self._rows().values()]

    def to_arrow(self) -> pa.Table:
        """Return the rows as a table of Arrow."""
        schema = pa.schema(
            [one.with_name(name) for one, name in zip(self._schema, self._rows().names, strict=True)]
        )
        return pa.Table.from_batches(
            [pa.record_batch(batch.columns, schema=schema) for batch in self._batches], schema
        )

    def to_pandas(self, table: str | None = None) -> pd.DataFrame:
        """Return the rows as a frame; integers stay exact where there are nulls, which are NA.

        Raises MissingPackage without pandas.
        """
        return self.to_arrow().to_pandas(types_mapper=_nullable(pandas()).get)

    @property
    def tables(self) -> list[str]:
        return ["rows"]

    def _rows(self) -> Rows:
        return Rows(self.columns, self._schema, iter(self._batches))

    def _encoded(self) -> bytes:
        return "".join(json_of(self.head, self._rows(), lambda: self.notes)).encode()

    def _drawn(self, canvas: Canvas, **options: Any) -> Canvas:
        if (line := self.head.reservation) is not None:
            canvas.line(line)
        draw(canvas, excerpt_of(self._rows(), **options))
        for line in self.notes:
            canvas.line(line)
        return canvas

    def _repr_html_(self) -> str:
        return self._drawn(Canvas(), most=_IN_NOTEBOOKS).html()


def _nullable(pd: Any) -> dict[pa.DataType, Any]:
    """Return the types of pandas that hold NA, by those of Arrow."""
    return {
        pa.int8(): pd.Int8Dtype(),
        pa.int16(): pd.Int16Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.uint8(): pd.UInt8Dtype(),
        pa.uint16(): pd.UInt16Dtype(),
        pa.uint32(): pd.UInt32Dtype(),
        pa.uint64(): pd.UInt64Dtype(),
        pa.float64(): pd.Float64Dtype(),
        pa.float32(): pd.Float32Dtype(),
        pa.bool_(): pd.BooleanDtype(),
    }
