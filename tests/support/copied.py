# SPDX-License-Identifier: Apache-2.0
"""Sources in pieces, and telemetry compared column for column, for tests of copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from grademl_otel.analyzers.errors import SourceError
from grademl_otel.analyzers.model.columns import Ledger, SpanColumns, Telemetry
from grademl_otel.analyzers.sources.base import Listing, Piece, Probe, Selection
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.formats.documents import read_document

from .synthetic import MS, Training, lines, simulate


@dataclass
class InPieces:
    """A source whose pieces are OTLP/JSON lines; what has no final end may grow."""

    lines: dict[str, bytes]
    growing: set[str] = field(default_factory=set)
    failing: dict[str, str] = field(default_factory=dict)
    """Key -> why it cannot be read."""
    losses: dict[str, Callable[[Ledger], None]] = field(default_factory=dict)
    uri: str = "pieces"
    read_keys: list[str] = field(default_factory=list)
    """Of each piece that was read, in order."""
    before_piece: Callable[[str], None] = lambda key: None

    def pieces(self, selection: Selection, ledger: Ledger) -> Iterator[Piece]:
        return iter([Piece(key, key not in self.growing, None, self._reader(key)) for key in self.lines])

    def _reader(self, key: str) -> Callable[[SpanBuilder, Ledger], None]:
        def read(builder: SpanBuilder, ledger: Ledger) -> None:
            self.before_piece(key)
            self.read_keys.append(key)
            for line in self.lines[key].splitlines():
                read_document(line, builder)
            if key in self.losses:
                self.losses[key](ledger)
            if key in self.failing:
                raise SourceError(self.failing[key])

        return read

    def list(self) -> Listing:
        return Listing([], [])

    def read(self, selection: Selection) -> Telemetry:
        """Read all of it at once, as a source does that is not copied."""
        builder, ledger = SpanBuilder(10_000_000), Ledger()
        for piece in self.pieces(selection, ledger):
            piece.read(builder, ledger)
        return Telemetry(self.uri, builder.finish(ledger), ledger)

    def probe(self) -> Probe:
        return Probe("pieces")


ARRAYS = ("trace_hi", "trace_lo", "span_id", "parent_id", "start", "end", "kind", "status", "flags")


def told(spans: SpanColumns) -> list[tuple[Any, ...]]:
    """Return for each span all that is known of it, with nothing numbered by the order of reading."""
    links: dict[int, list[tuple[Any, ...]]] = {}
    ids = zip(*(ids.tolist() for ids in _link_ids(spans)), spans.links.kind, strict=True)
    for row, *link in ids:
        links.setdefault(row, []).append(tuple(link))
    parents = [spans.span_id_hex(ix) if ix >= 0 else str(ix) for ix in spans.parent_ix.tolist()]
    columns = zip(*(getattr(spans, name).tolist() for name in ARRAYS), strict=True)
    return [
        (
            *numbers,
            parents[ix],
            spans.name(ix),
            repr(spans.resource(ix)),
            repr(spans.scope(ix)),
            repr(spans.attributes(ix)),
            repr(spans.events(ix)),
            links.get(ix, []),
        )
        for ix, numbers in enumerate(columns)
    ]


def _link_ids(spans: SpanColumns) -> tuple[Any, ...]:
    links = spans.links
    return links.span_ix, links.trace_hi, links.trace_lo, links.span_id


def same(one: Telemetry, other: Telemetry, ordered: bool = True) -> None:
    """Assert that two readings say the same, column for column, losses included."""
    first, second = told(one.spans), told(other.spans)
    assert sorted(first) == sorted(second)
    assert one.ledger == other.ledger
    assert not ordered or first == second


def run_in_pieces(parts: int, training: Training | None = None) -> dict[str, bytes]:
    """Return the spans of a simulated run as so many pieces."""
    sim = simulate(training or Training(epochs=2, steps_per_epoch=20, workers=2, fetch_ns=39 * MS))
    bounds = np.linspace(0, len(sim.spans), parts + 1).astype(int).tolist()
    return {
        f"piece-{i:03d}": lines(sim.training, sim.spans[begin:end])
        for i, (begin, end) in enumerate(pairwise(bounds))
    }
