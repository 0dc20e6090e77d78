# SPDX-License-Identifier: Apache-2.0
"""What a run did beside its main lanes, as phases: loader workers, collectives under way, devices.

Each lane is a phase of its rank, and takes none of its time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from grademl_otel import semconv as sc
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.execution.draft import Draft
from grademl_otel.analyzers.execution.model import BESIDE, DERIVED, INFERRED
from grademl_otel.analyzers.graph.runs.items import loader_items
from grademl_otel.analyzers.model.attempts import whole
from grademl_otel.analyzers.model.collectives import Collectives
from grademl_otel.analyzers.model.facts import Run

LOADER_WORKER: Final = "loader-worker"
COMM: Final = "comm"
DEVICE: Final = "device"
"""Lane of what a device did for steps of which only the table tells: not in which of its streams."""


def note(phase_of_span: IntArray, span_ix: IntArray, phases: IntArray) -> None:
    """Put down which of ``phases`` each span became; -1 is no span."""
    known = span_ix >= 0
    phase_of_span[span_ix[known]] = phases[known]


class Lanes:
    """The lanes of one attempt."""

    def __init__(self, draft: Draft, run: Run, ranks: Mapping[int, int], phase_of_span: IntArray) -> None:
        """``ranks``: rank -> its phase."""
        self._draft, self._run, self._ranks, self._phase_of_span = draft, run, ranks, phase_of_span

    def add(self, collectives: Collectives) -> None:
        self._add_items()
        self._add_collectives(collectives)
        self._add_devices()

    def _lane(self, rank: int, name: str, counted: str | None = None, number: int = -1, **label: Any) -> int:
        """Add the phase of a lane beside the main one."""
        draft = self._draft
        return draft.add_one(
            draft.kind(name, counted=counted),
            self._ranks[rank],
            number=number,
            label=draft.label(label),
            flags=DERIVED | BESIDE,
        )

    def _add_items(self) -> None:
        draft, items = self._draft, loader_items(self._run)
        items = items.take(np.flatnonzero(np.isin(items.rank, list(self._ranks))))
        if not len(items):
            return
        keys = np.stack([items.rank, items.loader, items.worker], axis=1)
        lanes, of_lane = np.unique(keys, axis=0, return_inverse=True)
        numbers = np.array(
            [
                self._lane(rank, LOADER_WORKER, "worker", worker, loader=loader or None)
                for rank, loader, worker in lanes.tolist()
            ],
            np.int64,
        )
        lane = numbers[of_lane.reshape(-1)]
        passes, of_pass = np.unique(items.pass_serial, return_inverse=True)
        label = np.array([draft.label({"pass": serial}) for serial in passes.tolist()], np.int64)[of_pass]
        fetches = draft.add(
            draft.kind(sc.DATA_FETCH, counted="batch"), lane, items.start, items.fetched,
            number=items.batch, label=label, span_ix=items.fetch_span,
        )  # fmt: skip
        note(self._phase_of_span, items.fetch_span, fetches)
        some = np.flatnonzero(items.end > items.collating)
        if len(some):
            collates = draft.add(
                draft.kind(sc.DATA_COLLATE, counted="batch"), lane[some], items.collating[some],
                items.end[some], number=items.batch[some], label=label[some],
                span_ix=items.collate_span[some],
            )  # fmt: skip
            note(self._phase_of_span, items.collate_span[some], collates)

    def _add_collectives(self, found: Collectives) -> None:
        draft = self._draft
        kinds = np.array([draft.kind(sc.COLLECTIVE, {"op": op or None}) for op in found.ops], np.int64)
        for rank in self._ranks:
            of_rank = found.of_rank(rank)
            mine = of_rank.start + np.flatnonzero(found.beside[of_rank])
            if not len(mine):
                continue
            added = draft.add(
                kinds[found.op[mine]], self._lane(rank, COMM), found.issue[mine], found.end[mine],
                span_ix=found.span_ix[mine],
            )  # fmt: skip
            note(self._phase_of_span, found.span_ix[mine], added)

    def _add_devices(self) -> None:
        """Add what asynchronous devices did: from spans, for steps without those from the table."""
        run, draft, spans, steps = self._run, self._draft, self._run.spans, self._run.steps
        names = {ix: name for ix, name in enumerate(spans.names) if name.startswith(sc.DEVICE_PREFIX)}
        names = {ix: name for ix, name in names.items() if name[len(sc.DEVICE_PREFIX) :] in sc.DEVICE_PHASES}
        mine = run.span_ixs[np.isin(spans.name_ix[run.span_ixs], list(names)) & spans.possible[run.span_ixs]]
        lanes: dict[tuple[int, str], int] = {}
        detailed: set[tuple[int, int]] = set()

        def lane_of(rank: int, name: str) -> int:
            if (rank, name) not in lanes:
                lanes[rank, name] = self._lane(rank, name)
            return lanes[rank, name]

        for ix in mine.tolist():
            attributes, rank = spans.attributes(ix), spans.resource(ix).get(sc.RANK)
            step, lane = whole(attributes.get(sc.STEP_NUMBER)), attributes.get(sc.LANE)
            if not isinstance(rank, int) or rank not in self._ranks or step is None:
                continue
            if not isinstance(lane, str):
                continue
            detailed.add((rank, step))
            self._phase_of_span[ix] = draft.add_one(
                draft.kind(names[int(spans.name_ix[ix])], counted="step"), lane_of(rank, lane),
                int(spans.start[ix]), int(spans.end[ix]), number=step, span_ix=ix,
            )  # fmt: skip
        width = int(steps.step.max(initial=0)) + 1
        told = [rank * width + step for rank, step in detailed if step < width]
        of_spans = np.isin(steps.rank * width + steps.step, np.array(told, np.int64))
        for phase in sc.DEVICE_PHASES:
            column = sc.DEVICE_PREFIX + phase
            if column not in steps.count:
                continue
            for rank in self._ranks:
                rows = steps.of_rank(rank)
                some = rows.start + np.flatnonzero((steps.count[column][rows] > 0) & ~of_spans[rows])
                if len(some):
                    draft.add(
                        draft.kind(column, counted="step"), lane_of(rank, DEVICE),
                        steps.first[column][some], (steps.first[column] + steps.busy[column])[some],
                        number=steps.step[some], flags=np.where(steps.count[column][some] > 1, INFERRED, 0),
                    )  # fmt: skip
