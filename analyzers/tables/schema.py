# SPDX-License-Identifier: Apache-2.0
"""The tables that queries, Parquet files and data frames share: their names, columns and what these mean.

This is the one source of the schema: docs/tables.md is made from it, and tests hold every table to it. It is
stable: what is written against it goes on working, a later version may only add.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

SCHEMA: Final = "grademl.tables/1"


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    type: str
    """As SQL writes it: BIGINT, DOUBLE, VARCHAR, BOOLEAN. Text may be stored as a dictionary."""
    about: str
    """What it is, with its unit, and what null means where it can be null."""
    nullable: bool = False


@dataclass(frozen=True)
class TableSchema:
    """One table: a row is what ``about`` says."""

    name: str
    about: str
    columns: Sequence[Column]

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)
