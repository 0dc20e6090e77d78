# SPDX-License-Identifier: Apache-2.0
"""The rows of an answer in the formats of `grademl query`, written as they come."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import IO, Any, Final

import msgspec
import pyarrow as pa

from grademl_otel.analyzers.printable import clean_json
from grademl_otel.analyzers.reporting.tables import csv_lines, markdown_heading, markdown_line
from grademl_otel.analyzers.sql.database import Rows
from grademl_otel.analyzers.sql.head import Head
from grademl_otel.analyzers.sql.values import as_cell, as_json, as_text

SCHEMA: Final = "grademl.query/1"
KEY: Final = b"grademl.query"
"""Key in the metadata of a Parquet file: JSON on the source and how complete it is."""
_AT_ONCE: Final = 4096
"""So many rows are written together."""

Notes = Callable[[], Sequence[str]]
"""What is to be said after the last row: why tables are empty."""


def json_of(head: Head, rows: Rows, notes: Notes) -> Iterator[str]:
    """Yield the document `grademl.query/1`, a row a line."""
    opening = msgspec.json.format(_head(head, columns=rows.columns), indent=2).decode()
    yield clean_json(opening.removesuffix("\n}")) + ',\n  "rows": ['
    separator = "\n    "
    for row in rows.values():
        yield separator + _compact([as_json(value) for value in row])
        separator = ",\n    "
    yield ("\n  ]" if separator.startswith(",") else "]") + f',\n  "notes": {_compact(list(notes()))}\n}}\n'


def json_lines_of(rows: Rows) -> Iterator[str]:
    """Yield a JSON object a row; its keys are the columns."""
    for row in rows.values():
        values = {name: as_json(value) for name, value in zip(rows.names, row, strict=True)}
        yield _compact(values) + "\n"


def csv_of(rows: Rows) -> Iterator[str]:
    """Yield CSV: exact numbers, nothing for null, and text that no spreadsheet takes for a formula."""
    yield csv_lines([rows.names])
    values = rows.values()
    while some := list(islice(values, _AT_ONCE)):
        yield csv_lines([as_cell(value) for value in row] for row in some)


def markdown_of(rows: Rows) -> Iterator[str]:
    """Yield a table of Markdown."""
    yield "".join(f"{line}\n" for line in markdown_heading(rows.names))
    for row in rows.values():
        yield markdown_line([as_text(value) for value in row]) + "\n"


def write_parquet(head: Head, rows: Rows, file: IO[bytes]) -> None:
    """Write Parquet with the types of Arrow; its metadata say how complete the source is."""
    import pyarrow.parquet as pq  # which other formats do without

    schema = pa.schema(
        [field.with_name(name) for field, name in zip(rows.schema, rows.names, strict=True)],
        metadata={KEY: _head(head)},
    )
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in rows.batches:
            writer.write_batch(pa.record_batch(batch.columns, schema=schema))


def _head(head: Head, **more: Any) -> bytes:
    return msgspec.json.encode(
        {
            "schema": SCHEMA,
            "source": head.source,
            "completeness": head.completeness,
            "incomplete_because": head.incomplete_because,
            "warnings": head.warnings,
            **more,
        }
    )


def _compact(value: Any) -> str:
    return clean_json(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
