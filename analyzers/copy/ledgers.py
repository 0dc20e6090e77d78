# SPDX-License-Identifier: Apache-2.0
"""Ledgers of parts as one of the whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from grademl_otel.analyzers.model.columns import Ledger


def merged(ledgers: Iterable[Ledger]) -> Ledger:
    """Return the sum: numbers are added, lists and dicts joined, the first reason kept, flags or-ed."""
    total = Ledger()
    for ledger in ledgers:
        for field in fields(Ledger):
            own, other = getattr(total, field.name), getattr(ledger, field.name)
            setattr(total, field.name, _sum(own, other))
    return total


def _sum(own: Any, other: Any) -> Any:
    if isinstance(own, bool):
        return own or other
    if isinstance(own, int):
        return own + other
    if isinstance(own, list):
        return [*own, *(item for item in other if item not in own)] if other else own
    if isinstance(own, dict):
        return {
            **own,
            **{key: _sum(own[key], value) if key in own else value for key, value in other.items()},
        }
    return other if own is None else own
