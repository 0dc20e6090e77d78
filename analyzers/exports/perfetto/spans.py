# SPDX-License-Identifier: Apache-2.0
"""Spans as slices: those of our runs by rank and lane, those of others by service and thread."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

import numpy as np

from grademl_otel import semconv as sc
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.exports.perfetto.packets import Note
from grademl_otel.analyzers.exports.perfetto.slices import BY_PARENT, BY_TIME, FLAT, Draft, Process
from grademl_otel.analyzers.graph.path import KINDS, kind_of
from grademl_otel.analyzers.graph.trees.span_tree import THREAD
from grademl_otel.analyzers.model.attempts import identity, whole
from grademl_otel.analyzers.model.columns import STATUS_ERROR, SpanColumns
from grademl_otel.analyzers.sources.formats.kineto_values import CATEGORY

MAIN: Final = "main"
WINDOWS: Final = "windows"
"""Lane of the windows, which are no activities: they carry the step table."""
COMM: Final = "comm"
SPANS: Final = "spans"
"""Lane of spans that tell neither a lane nor a thread."""
SCOPE: Final = "scope"
STEP: Final = "step"

_KINDS: Final = ("unspecified", "internal", "server", "client", "producer", "consumer")
_MOST_ATTRIBUTES: Final = 40
_OURS: Final = "grademl."
_SCOPES: Final = (sc.RUN, sc.FIT, sc.TRIAL, sc.EPOCH, sc.EVALUATE, sc.PREDICT)
"""The outermost first."""
STEP_DEPTH: Final = len(_SCOPES) + 1
_LANES: Final = (MAIN, "loader", COMM, "stream-", "device", "checkpoint", "", WINDOWS)
"""How the names of lanes begin, in the order in which they are shown; anything else is at the empty one."""


def lane_order(name: str) -> tuple[Any, ...]:
    """Return by what lanes are sorted: the main one first, numbers as numbers."""
    kind = next((at for at, start in enumerate(_LANES) if start and name.startswith(start)), _LANES.index(""))
    parts = "".join(one if one.isdecimal() else " " for one in name).split()
    return (kind, [int(part[:18]) for part in parts if part.isascii()], name)


def category_of(name: str) -> str:
    """Return the category of an activity of a run."""
    if name in _SCOPES:
        return SCOPE
    if name in (sc.STEP, sc.WINDOW):
        return name
    if name in sc.WAIT_PHASES:
        return KINDS[1]
    return kind_of(name.removeprefix(sc.DEVICE_PREFIX))


class SpanNotes:
    """What is told of spans: ids, and their attributes."""

    def __init__(self, spans: SpanColumns) -> None:
        self._spans = spans
        self._ours = [identity(resource) is not None for resource in spans.resources]

    def __call__(self, ix: int, name: str) -> list[Note]:
        spans = self._spans
        told: list[Note] = [("trace_id", spans.trace_id_hex(ix)), ("span_id", spans.span_id_hex(ix))]
        if spans.status[ix] == STATUS_ERROR:
            told.append(("status", "error"))
        said = spans.attributes(ix)
        if self._ours[int(spans.resource_ix[ix])]:
            # A span of ours and a row of the table tell the same by the same key.
            said = {key.removeprefix(_OURS): value for key, value in said.items() if not _of_table(key)}
        told += islice(said.items(), _MOST_ATTRIBUTES)
        if len(said) > _MOST_ATTRIBUTES:
            told.append(("attributes left out", len(said) - _MOST_ATTRIBUTES))
        return told


def _of_table(key: str) -> bool:
    return key.startswith(sc.TABLE_PREFIX)


def add_spans_of_run(draft: Draft, spans: SpanColumns, ixs: IntArray, notes: SpanNotes) -> IntArray:
    """Add the spans ``ixs`` of ranks of one run; return their numbers."""
    if not len(ixs):
        return ixs
    lanes, names, categories = [], [], []
    depth = _depths(spans.parent_ix)[ixs] + STEP_DEPTH + 1
    for at, ix in enumerate(ixs.tolist()):
        name, said = spans.name(ix), spans.attributes(ix)
        process = process_of_rank(draft, spans.resource(ix))
        lane = said.get(sc.LANE)
        if not isinstance(lane, str) or not lane:
            lane = WINDOWS if name == sc.WINDOW else MAIN
        lanes.append(lane_of_rank(draft, process, lane))
        category = category_of(name)
        if category == SCOPE:
            depth[at] = _SCOPES.index(name)
        elif name == sc.STEP:
            depth[at] = STEP_DEPTH
        names.append(draft.name(shown(name, said)))
        categories.append(draft.category(category))
    return draft.add(
        np.array(lanes, np.int64), spans.start[ixs], spans.end[ixs], np.array(names, np.int64),
        np.array(categories, np.int64), depth, notes, ixs,
    )  # fmt: skip


def shown(name: str, said: dict[str, Any]) -> str:
    """Return what a span of a run is called on its track: steps and epochs with their numbers."""
    number = said.get(sc.STEP_NUMBER if name == sc.STEP else sc.EPOCH_NUMBER)
    if name == sc.STEP:
        kind = said.get(sc.STEP_KIND)
        return step_name(number, kind if isinstance(kind, str) else "")
    return f"{name} {number}" if name == sc.EPOCH and isinstance(number, int) else name


def step_name(number: Any, kind: str) -> str:
    """Return what a step is called; that of an evaluation has no number of its own."""
    if kind == sc.EVALUATE or not isinstance(number, int):
        return f"{sc.STEP} (evaluate)" if kind == sc.EVALUATE else sc.STEP
    return f"{sc.STEP} {number}" + (" (incomplete)" if kind == "incomplete" else "")


def key_of(resource: dict[str, Any]) -> tuple[str, str, int | None]:
    """Return what the process with ``resource`` is known by: of our runs the rank, else service and rank."""
    if identity(resource) is not None:
        return "rank", "", whole(resource.get(sc.RANK)) or 0
    service = str(resource.get("service.name") or "unknown service")
    return "service", service, whole(resource.get(sc.RANK))


def process_of_rank(draft: Draft, resource: dict[str, Any]) -> int:
    """Return the process of the rank whose spans have ``resource``, which is one of a run of ours."""
    key = key_of(resource)
    rank = key[-1] or 0

    def made() -> Process:
        return Process(
            f"rank {rank}", whole(resource.get("process.pid")), (0, rank), _labels(resource, service=True)
        )

    return draft.process(key, made)


def lane_of_rank(draft: Draft, process: int, name: str) -> int:
    nesting = FLAT if name.startswith(COMM) or name == WINDOWS else BY_TIME
    return draft.lane(process, name, nesting, lane_order(name))


def add_spans_of_others(draft: Draft, spans: SpanColumns, ixs: IntArray, notes: SpanNotes) -> IntArray:
    """Add the spans ``ixs``, which are of no run of ours; return their numbers."""
    if not len(ixs):
        return ixs
    resources, of_resource = np.unique(spans.resource_ix[ixs], return_inverse=True)
    processes = np.array([_process(draft, spans.resources[ix]) for ix in resources.tolist()], np.int64)
    process = processes[of_resource.reshape(-1)]
    kinds = np.array([draft.category(name) for name in _KINDS], np.int64)
    category = kinds[spans.kind[ixs]]
    lane = _lanes(draft, spans, ixs, process, category)
    first = len(draft)
    number = np.full(len(spans) + 1, -1, np.int64)
    number[ixs] = np.arange(len(ixs))
    parent = number[np.maximum(spans.parent_ix[ixs], -1)]
    parent[spans.parent_ix[ixs] < 0] = -1
    same = (parent >= 0) & (lane[parent] == lane)
    names = np.array([draft.name(name) for name in spans.names] or [0], np.int64)
    return draft.add(
        lane, spans.start[ixs], spans.end[ixs], names[spans.name_ix[ixs]], category,
        _depths(spans.parent_ix)[ixs], notes, ixs, above=np.where(same, first + parent, -1),
    )  # fmt: skip


def _process(draft: Draft, resource: dict[str, Any]) -> int:
    """Return the process of a service; of several ranks of one, as profiles are, each has its own."""
    key = key_of(resource)
    _, service, rank = key
    name = service if rank is None else f"{service} rank {rank}"

    def made() -> Process:
        return Process(
            name,
            whole(resource.get("process.pid")),
            (1, service, -1 if rank is None else rank),
            _labels(resource, service=False),
        )

    return draft.process(key, made)


def _labels(resource: dict[str, Any], service: bool) -> tuple[str, ...]:
    told = (resource.get("host.name"), resource.get("service.name") if service else None)
    return tuple(str(one) for one in told if one)


def _lanes(
    draft: Draft, spans: SpanColumns, ixs: IntArray, process: IntArray, category: IntArray
) -> IntArray:
    """Return the lane of each span: the one that it names, else its thread, else that of the service.

    ``category`` gets those that a profile tells.
    """
    known, of_process = np.unique(process, return_inverse=True)
    plain = [draft.lane(one, SPANS, BY_PARENT, lane_order(SPANS)) for one in known.tolist()]
    lane = np.array(plain, np.int64)[of_process.reshape(-1)]
    told = np.zeros(len(ixs), np.bool_)
    for key in (sc.LANE, THREAD):
        told |= spans.raw_attributes.that_may_have(key.encode(), ixs)
    for at in np.flatnonzero(told).tolist():
        said = spans.attributes(int(ixs[at]))
        own, thread = said.get(sc.LANE), said.get(THREAD)
        if isinstance(own, str) and own:
            name, nesting = own, BY_TIME
            if isinstance(kind := said.get(CATEGORY), str):
                category[at] = draft.category(kind)
        elif isinstance(thread, int | str) and not isinstance(thread, bool):
            named = said.get("thread.name")
            name = f"thread {thread}" + (f" {named}" if isinstance(named, str) and named else "")
            nesting = BY_PARENT
        else:
            continue
        lane[at] = draft.lane(int(process[at]), name, nesting, lane_order(name))
    return lane


def _depths(parent: IntArray) -> IntArray:
    """Return how many ancestors each span has: by doubling, so that no chain is walked one by one."""
    up = np.maximum(parent.astype(np.int64), -1)
    depth = (up >= 0).astype(np.int64)
    while True:
        at = np.flatnonzero(up >= 0)
        if not len(at):
            return depth
        depth[at] += depth[up[at]]
        up[at] = up[up[at]]
