# SPDX-License-Identifier: Apache-2.0
"""Ledgers of parts as one of the whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Final

from grademl_otel.analyzers.model.columns import Ledger

_LARGEST: Final = frozenset({"moved_most_ns"})


def merged(ledgers: Iterable[Ledger]) -> Ledger:
    """Return the sum: numbers are added, lists joined without repeats, the first reason kept, flags or-ed."""
    empty = Ledger()
    some = [ledger for ledger in ledgers if ledger != empty]
    return Ledger(
        **{field.name: _sum(field.name, [getattr(x, field.name) for x in some]) for field in fields(Ledger)}
    )


def _sum(name: str, values: list[Any]) -> Any:
    default = getattr(Ledger(), name)
    if name in _LARGEST:
        return max(values, default=default)
    if isinstance(default, bool):
        return any(values)
    if isinstance(default, int):
        return sum(values)
    if isinstance(default, list):
        return list(dict.fromkeys(item for value in values for item in value))
    return next((value for value in values if value is not None), default)
