# SPDX-License-Identifier: Apache-2.0
"""What the page is put together from: tables whose exact values can be saved, and charts with one each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

Exact = str | int | float | None


@dataclass(frozen=True)
class Heading:
    """One column of a table."""

    name: str
    """In CSV: with the unit, such as ``start_ns``."""
    title: str
    """For people."""
    numeric: bool = False
    prose: bool = False
    """Whether its cells are sentences, which are not shortened as names are."""


@dataclass(frozen=True)
class Cell:
    """What a cell shows, and the exact value behind it."""

    shown: str
    value: Exact
    share: float | None = None
    """0 to 1, drawn as a bar beside the text; None for no bar."""
    phase: str | None = None
    """Class of `charts.palette`, whose colour the bar has, or a swatch before the text."""
    within: bool = False
    """Whether it names a part of what is in the row above."""


@dataclass(frozen=True)
class DataTable:
    """A table that can be read, and saved as CSV."""

    id: str
    """Within the page; also the name of the CSV file."""
    caption: str
    headings: Sequence[Heading]
    rows: Sequence[Sequence[Cell]]
    omitted: str = ""
    """What is not in it, in words; empty when all is."""


@dataclass(frozen=True)
class Chart:
    """A drawing with the table of what is drawn."""

    id: str
    title: str
    about: str
    """What is drawn, and how it was reduced, in a sentence."""
    figure: Markup
    """SVG, and the buttons that it needs."""
    table: DataTable | None = None


@dataclass(frozen=True)
class Charts:
    """The charts of a page; None where there is nothing to draw."""

    budget: Chart | None = None
    path: Chart | None = None
    steps: Chart | None = None
    distribution: Chart | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    """Plain values for the script, as JSON in ``<script type="application/json" id="charts-data">``."""
