# SPDX-License-Identifier: Apache-2.0
"""Span columns and runs from a few words, for tests of what starts from them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.model.columns import KIND_INTERNAL, Links, SpanColumns
from grademl_otel.analyzers.model.facts import Completeness, HowEnded, Loader, Run, Scope, StepTable
from grademl_otel.analyzers.model.raw import NOTHING, Event, RawColumn, RawStore
from grademl_otel.analyzers.model.run import build_run
from grademl_otel.analyzers.sources import Selection, open_source
from grademl_otel.analyzers.sources.batch import LinkBatch, SpanBatch

from .synthetic import Simulated, Training, simulate

_MASK64 = 2**64 - 1


@dataclass(frozen=True)
class S:
    """One span: its id (also its operation name, unless ``name`` says otherwise), parent and times."""

    id: str
    start: int
    end: int
    parent: str | None = None
    name: str | None = None
    trace: int = 1
    kind: int = KIND_INTERNAL
    attributes: Mapping[str, Any] = field(default_factory=dict)
    resource: Mapping[str, Any] = field(default_factory=dict)
    links: Sequence[tuple[str, str]] = ()
    """(id of the span pointed at, kind of link)."""


def columns(spans: Sequence[S]) -> SpanColumns:
    """Return the columns of ``spans``; a parent that is not among them makes an orphan."""
    index = {span.id: ix for ix, span in enumerate(spans)}
    ids = {span.id: ix + 1 for ix, span in enumerate(spans)}
    names = {name: ix for ix, name in enumerate(sorted({span.name or span.id for span in spans}))}
    resources: list[dict[str, Any]] = []
    numbers: dict[str, int] = {}
    resource_ix = []
    for span in spans:
        key = repr(sorted(span.resource.items()))
        if key not in numbers:
            numbers[key] = len(resources)
            resources.append(dict(span.resource))
        resource_ix.append(numbers[key])
    links = [(ix, target, kind) for ix, span in enumerate(spans) for target, kind in span.links]
    n = len(spans)
    return SpanColumns(
        trace_hi=np.zeros(n, dtype=np.uint64),
        trace_lo=np.array([span.trace for span in spans], dtype=np.uint64),
        span_id=np.array([ids[span.id] for span in spans], dtype=np.uint64),
        parent_id=np.array([ids.get(span.parent or "", 0) for span in spans], dtype=np.uint64),
        parent_ix=np.array(
            [-1 if span.parent is None else index.get(span.parent, -2) for span in spans], dtype=np.int64
        ),
        start=np.array([span.start for span in spans], dtype=np.int64),
        end=np.array([span.end for span in spans], dtype=np.int64),
        name_ix=np.array([names[span.name or span.id] for span in spans], dtype=np.int32),
        names=list(names),
        kind=np.array([span.kind for span in spans], dtype=np.int8),
        status=np.zeros(n, dtype=np.int8),
        resource_ix=np.array(resource_ix, dtype=np.int32),
        resources=resources,
        links=Links(
            span_ix=np.array([ix for ix, _, _ in links], dtype=np.int64),
            trace_hi=np.zeros(len(links), dtype=np.uint64),
            trace_lo=np.array([spans[index[target]].trace for _, target, _ in links], dtype=np.uint64),
            span_id=np.array([ids[target] for _, target, _ in links], dtype=np.uint64),
            kind=[kind for _, _, kind in links],
        ),
        flags=np.zeros(n, dtype=np.uint32),
        scope_ix=np.full(n, -1, dtype=np.int32),
        scopes=[],
        raw_attributes=raw_attributes([span.attributes for span in spans]),
        raw_events=RawStore([], np.full(n, NOTHING, np.int32), np.zeros(n, np.int32)),
    )


@dataclass(frozen=True)
class B:
    """One span of a batch, by numbers."""

    trace: int
    id: int
    parent: int
    start: int = 0
    end: int = 1
    kind: int = KIND_INTERNAL
    status: int = 0
    flags: int = 0
    name: str = ""
    raw: bytes = b""
    """Its attributes are {"raw": raw}."""
    events: bytes = b""
    """One event with such attributes; empty for none."""
    links: Sequence[tuple[int, int, str]] = ()
    """(trace, span, kind)"""


@dataclass(frozen=True)
class Verbatim:
    """A form of raw attributes that are what they are."""

    name: str = "verbatim"

    def attributes(self, raw: bytes) -> dict[str, Any]:
        return {"raw": raw}

    def events(self, raw: bytes) -> Sequence[Event]:
        return [Event(0, "", {"raw": raw})] if raw else []


def batch(spans: Sequence[B]) -> SpanBatch:
    """Return ``spans``, of the first resource and no scope."""
    n = len(spans)
    links = [(ix, *link) for ix, span in enumerate(spans) for link in span.links]
    return SpanBatch(
        trace_hi=np.array([span.trace >> 64 for span in spans], np.uint64),
        trace_lo=np.array([span.trace & _MASK64 for span in spans], np.uint64),
        span_id=np.array([span.id for span in spans], np.uint64),
        parent_id=np.array([span.parent for span in spans], np.uint64),
        start=np.array([span.start for span in spans], np.int64),
        end=np.array([span.end for span in spans], np.int64),
        names=[span.name for span in spans],
        kind=np.array([span.kind for span in spans], np.int8),
        status=np.array([span.status for span in spans], np.int8),
        flags=np.array([span.flags for span in spans], np.uint32),
        resource_ix=np.zeros(n, np.int32),
        scope_ix=np.full(n, -1, np.int32),
        attributes=_verbatim([span.raw for span in spans]),
        events=_verbatim([span.events for span in spans]) if any(span.events for span in spans) else None,
        links=LinkBatch(
            span_ix=np.array([ix for ix, *_ in links], np.int64),
            trace_hi=np.array([trace >> 64 for _, trace, _, _ in links], np.uint64),
            trace_lo=np.array([trace & _MASK64 for _, trace, _, _ in links], np.uint64),
            span_id=np.array([span for _, _, span, _ in links], np.uint64),
            kind=[kind for *_, kind in links],
        )
        if links
        else None,
    )


def _verbatim(raws: Sequence[bytes]) -> RawColumn:
    return RawColumn(Verbatim(), b"".join(raws), np.cumsum([0, *map(len, raws)], dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Given:
    """A form of raw attributes: the number of a span in a list of attributes given, then the keys."""

    given: Sequence[Mapping[str, Any]]
    name: str = "given"

    def attributes(self, raw: bytes) -> dict[str, Any]:
        return dict(self.given[int(raw.split()[0])])

    def events(self, raw: bytes) -> Sequence[Event]:
        return ()


def raw_attributes(given: Sequence[Mapping[str, Any]]) -> RawStore:
    """Return the store of spans with these attributes."""
    n = len(given)
    numbers = [" ".join([str(ix), *keys]).encode() for ix, keys in enumerate(given)]
    ends = np.cumsum([0, *map(len, numbers)], dtype=np.int64)
    raws = RawColumn(Given(given), b"".join(numbers), ends)
    return RawStore([raws], np.zeros(n, np.int32), np.arange(n, dtype=np.int32))


def run_of(simulated: Simulated | Training) -> Run:
    """Return a simulated run as the analyzer reads it back from its file store."""
    if isinstance(simulated, Training):
        simulated = simulate(simulated)
    with tempfile.TemporaryDirectory() as folder:
        store = simulated.write_store(Path(folder))
        run = build_run(open_source(str(store)).read(Selection()))
    assert run is not None
    return run


@dataclass(frozen=True)
class R:
    """One row of a step table; times in ns, phases as name -> (first, busy, count)."""

    start: int
    end: int
    step: int = 0
    rank: int = 0
    flags: int = 0
    item: tuple[int, int] = (-1, -1)
    loader: int = 0
    worker: int = -1
    level: int = 0
    phases: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)


def run_from(
    rows: Sequence[R],
    start: int,
    end: int,
    *,
    scopes: Sequence[Scope] = (),
    loaders: Sequence[Loader] = (),
    bounds: Mapping[int, tuple[int, int]] | None = None,
    spans: Sequence[S] = (),
    ended: str = "exit",
) -> Run:
    """Return a run with this step table; spans called `step` become its detail by their `grademl.step`."""
    rows = sorted(rows, key=lambda row: (row.rank, row.start))
    names = sorted({name for row in rows for name in row.phases})

    def ints(values: Sequence[int]) -> Any:
        return np.array(values, dtype=np.int64)

    def phase(part: int) -> dict[str, Any]:
        return {name: ints([row.phases.get(name, (0, 0, 0))[part] for row in rows]) for name in names}

    steps = StepTable(
        rank=ints([row.rank for row in rows]),
        step=ints([row.step for row in rows]),
        start=ints([row.start for row in rows]),
        end=ints([row.end for row in rows]),
        micro=ints([1] * len(rows)),
        flags=ints([row.flags for row in rows]),
        window=ints([0] * len(rows)),
        level=ints([row.level for row in rows]),
        item_pass=ints([row.item[0] for row in rows]),
        item_batch=ints([row.item[1] for row in rows]),
        item_loader=ints([row.loader for row in rows]),
        item_worker=ints([row.worker for row in rows]),
        first=phase(0),
        busy=phase(1),
        count=phase(2),
    )
    if bounds is None:
        bounds = dict.fromkeys(sorted({row.rank for row in rows} or {0}), (start, end))
    cols = columns(spans)
    details = {
        (int(span.resource.get(semconv.RANK, 0)), int(span.attributes[semconv.STEP_NUMBER]), span.start): ix
        for ix, span in enumerate(spans)
        if span.name == semconv.STEP
    }
    return Run(
        run_id="0" * 32,
        attempt=0,
        script="train.py",
        device="cpu",
        ranks=sorted(bounds),
        start=start,
        end=end,
        rank_bounds=dict(bounds),
        scopes=sorted(scopes, key=lambda scope: (scope.rank, scope.start)),
        run_spans={},
        loaders={loader.loader_id: loader for loader in loaders},
        steps=steps,
        step_spans=details,
        spans=cols,
        span_ixs=np.arange(len(cols), dtype=np.int64),
        completeness=Completeness(
            ended=[HowEnded(rank, ended, None, high) for rank, (_, high) in bounds.items()]
        ),
    )
