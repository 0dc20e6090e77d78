# SPDX-License-Identifier: Apache-2.0
"""Values of an answer as JSON and as text: exactly, or as what says that it is not a number of JSON."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_EXACT: Final = 1 << 53
"""Beyond it a double, which is what many readers of JSON have for a number, skips integers."""
_WHOLE: Final = ("HUGEINT", "UHUGEINT")


def rows_of(batch: pa.RecordBatch, types: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of ``batch`` as Python values: times as text, decimals as Decimal, integers as int."""
    columns = [_values(column, of) for column, of in zip(batch.columns, types, strict=True)]
    return zip(*columns, strict=True) if columns else iter(())


def _values(column: pa.Array, of: str) -> list[Any]:
    if pa.types.is_timestamp(column.type):  # Python has no nanoseconds
        column = pc.cast(column, pa.string())
    values: list[Any] = column.to_pylist()
    if of in _WHOLE:
        return [None if value is None else int(value) for value in values]
    return values


def as_json(value: Any) -> Any:
    """Return ``value`` as JSON can hold it.

    Integers beyond 2^53 and decimals are text with all their digits, so that no reader rounds them; NaN and
    infinities are text, bytes base64, a map is a list of pairs.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return value if -_EXACT <= value <= _EXACT else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else _not_finite(value)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(key): as_json(one) for key, one in value.items()}
    if isinstance(value, list):
        return [as_json(one) for one in value]
    if type(value) is tuple:  # of a map
        return [as_json(one) for one in value]
    return str(value)


def as_text(value: Any) -> str:
    """Return ``value`` as text, exactly; nothing for null."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else _not_finite(value)
    if isinstance(value, (list, dict, tuple)):
        return json.dumps(as_json(value), ensure_ascii=False)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


def as_cell(value: Any) -> str | int | float | None:
    """Return ``value`` as a cell of CSV: a number stays one, which no spreadsheet takes for a formula."""
    number = isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)
    return value if number else as_text(value)


def as_seen(value: Any) -> str:
    """Return ``value`` as a screen shows it: fractions with the digits that people read, null as such."""
    if value is None:
        return "null"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.1f}"
    return as_text(value)


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
