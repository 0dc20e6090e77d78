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
    """As SQL writes it: BIGINT, INTEGER, UINTEGER, DOUBLE, BOOLEAN, VARCHAR."""
    about: str
    """What it is, with its unit, and what null means where it can be null."""
    nullable: bool = False
    coded: bool = False
    """Text of which there are few, stored as a dictionary."""


@dataclass(frozen=True)
class TableSchema:
    """One table: a row is what ``about`` says."""

    name: str
    about: str
    columns: Sequence[Column]

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


def number(name: str, about: str, nullable: bool = False) -> Column:
    """Return a column of integers of 64 bits: times, lengths, indices, counts."""
    return Column(name, "BIGINT", about, nullable)


def fraction(name: str, about: str, nullable: bool = False) -> Column:
    return Column(name, "DOUBLE", about, nullable)


def flag(name: str, about: str, nullable: bool = False) -> Column:
    return Column(name, "BOOLEAN", about, nullable)


def text(name: str, about: str, nullable: bool = False) -> Column:
    return Column(name, "VARCHAR", about, nullable)


def word(name: str, about: str, nullable: bool = False) -> Column:
    """Return a column of text of which there are few."""
    return Column(name, "VARCHAR", about, nullable, coded=True)
