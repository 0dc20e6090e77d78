# SPDX-License-Identifier: Apache-2.0
"""What can be measured of traces of others, by name; docs/comparing.md tells what each means."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import FloatArray, IntArray
from grademl_otel.analyzers.comparison.measures import COUNT, FRACTION, NS, TRUTH, Quantity, absent, unknown
from grademl_otel.analyzers.comparison.resampling import MEAN, MEDIAN, Sample, Statistic
from grademl_otel.analyzers.model.columns import STATUS_ERROR
from grademl_otel.analyzers.model.facts import Completeness
from grademl_otel.analyzers.model.foreign import judge_foreign, whole_traces
from grademl_otel.analyzers.reporting.of_traces import spans_of_traces
from grademl_otel.analyzers.subject import Subject

_KINDS: Final = ("unspecified", "internal", "server", "client", "producer", "consumer")
Operation = tuple[str, str, str]
"""(service, name, kind) of a span."""


class TraceMeasures:
    """The quantities of the traces that match, in order of their starts; those of which parts are missing
    are left out of all that is timed.
    """

    def __init__(self, about: Subject) -> None:
        self.about, self.spans = about, about.telemetry.spans
        self.paths = about.paths()

    @cached_property
    def completeness(self) -> Completeness:
        """The verdict on all traces that match."""
        ixs = spans_of_traces(self.spans, self.paths.roots.tolist())
        return judge_foreign(self.about.telemetry, ixs)

    @cached_property
    def left_out(self) -> int:
        """Traces of which parts are known to be missing."""
        return len(self.paths) - int(np.count_nonzero(self._whole))

    @cached_property
    def _whole(self) -> IntArray:
        return whole_traces(self.about.telemetry, self.paths.roots.tolist()).astype(np.int64)

    @cached_property
    def _order(self) -> IntArray:
        """The whole traces, in order of their starts."""
        kept = np.flatnonzero(self._whole)
        order: IntArray = kept[np.lexsort((self.paths.roots[kept], self.paths.start[kept]))]
        return order

    @cached_property
    def _members(self) -> tuple[IntArray, IntArray]:
        """Spans with possible times of the whole traces, and the number of each one's trace in `_order`."""
        number = np.full(int(self.spans.trace_ix.max(initial=-1)) + 1, -1, np.int64)
        number[self.spans.trace_ix[self.paths.roots[self._order]]] = np.arange(len(self._order))
        unit = number[self.spans.trace_ix]
        ixs = np.flatnonzero((unit >= 0) & self.spans.possible)
        return ixs, unit[ixs]

    @cached_property
    def _of_operation(self) -> dict[Operation, IntArray]:
        """(service, name, kind) -> places in `_members` of its spans."""
        ixs, _ = self._members
        spans = self.spans
        services: dict[str, int] = {}
        of_resource = [
            services.setdefault(str(r.get("service.name", "")), len(services)) for r in spans.resources
        ]
        service = np.array(of_resource or [0], np.int64)[spans.resource_ix[ixs]]
        kinds = len(_KINDS)
        key = (service * (len(spans.names) + 1) + spans.name_ix[ixs]) * kinds + spans.kind[ixs] % kinds
        order = np.argsort(key, kind="stable")
        begins = np.flatnonzero(np.diff(key[order], prepend=-1))
        named = list(services)
        found: dict[Operation, IntArray] = {}
        for places in np.split(order, begins[1:]) if len(order) else []:
            ix = int(ixs[places[0]])
            of = (named[int(service[places[0]])], spans.name(ix), _KINDS[int(spans.kind[ix]) % kinds])
            found[of] = np.sort(places)
        return found

    def operations(self) -> list[Operation]:
        """Return all operations, that with most time first."""
        ixs, _ = self._members
        length = (self.spans.end - self.spans.start)[ixs]
        sums = {of: float(length[places].sum()) for of, places in self._of_operation.items()}
        return sorted(sums, key=lambda of: (-sums[of], of))

    def names(self) -> list[str]:
        """Return every name that can be asked for."""
        fixed = ["duration", "errors", "traces", "complete", "orphans", "spans"]
        return [*fixed, *dict.fromkeys(name for _, name, _ in self.operations())]

    def called(self, name: str) -> list[Operation]:
        """Return the operations that ``name`` means: a name of spans, one with its service before it, or with
        its kind behind it.
        """
        found = [of for of in self._of_operation if name == of[1]]
        if not found:
            found = [of for of in self._of_operation if name in (f"{of[0]} {of[1]}", title(of))]
        return found

    # --- Quantities -------------------------------------------------------------------------------------

    def duration(self, statistic: Statistic = MEDIAN) -> Quantity:
        """Return the length of a trace, in ns."""
        if reason := self._untold():
            return unknown(NS, reason)
        values = self.paths.total_ns[self._order].astype(np.float64)
        return Quantity(NS, Sample(values, np.arange(len(values)), len(values)), statistic)

    def operation(self, which: list[Operation], statistic: Statistic = MEDIAN) -> Quantity:
        """Return the length of a span of these operations, in ns."""
        if reason := self._untold():
            return unknown(NS, reason)
        if not which:
            return absent(NS, "there is no such span")
        places = np.concatenate([self._of_operation[of] for of in which])
        ixs, unit = self._members
        values = (self.spans.end - self.spans.start)[ixs[places]].astype(np.float64)
        kept, unit = np.unique(unit[places], return_inverse=True)
        return Quantity(NS, Sample(values, unit.reshape(-1), len(kept)), statistic)

    def path(self, which: list[Operation]) -> Quantity:
        """Return the share of these operations in the critical paths of all traces."""
        if reason := self._untold():
            return unknown(FRACTION, reason)
        if not which:
            return absent(FRACTION, "there is no such span")
        length, _, unit = self._sections
        return Quantity(FRACTION, Sample(self._in_sections(which), unit, len(self._order), length), MEAN)

    def own(self, which: list[Operation]) -> Quantity:
        """Return the time of these operations on the critical path of a trace, without that of what they
        waited for, in ns; of a trace without them 0.
        """
        if reason := self._untold():
            return unknown(NS, reason)
        if not which:
            return absent(NS, "there is no such span")
        unit, count = self._sections[2], len(self._order)
        values = np.bincount(unit, weights=self._in_sections(which), minlength=count).astype(np.float64)
        return Quantity(NS, Sample(values, np.arange(count), count), MEAN)

    def _in_sections(self, which: list[Operation]) -> FloatArray:
        """Return the length of each section that is of these operations; 0 of the others."""
        length, span_ix, _ = self._sections
        ixs, _ = self._members
        mine = np.isin(span_ix, np.concatenate([ixs[self._of_operation[of]] for of in which]))
        return np.where(mine, length, 0.0)

    @cached_property
    def _sections(self) -> tuple[FloatArray, IntArray, IntArray]:
        """Length, span and number of trace of all sections."""
        taken = self.paths.take(self._order)
        sections, trace = taken.sections, taken.trace
        ix = np.where(sections.span_ix >= 0, sections.span_ix, taken.roots[trace])
        return sections.duration.astype(np.float64), ix, trace

    def errors(self, which: list[Operation] | None = None) -> Quantity:
        """Return the part of the traces whose root has the status error; of these operations that of their
        spans.
        """
        if reason := self._untold():
            return unknown(FRACTION, reason)
        if which is None:
            unit = np.arange(len(self._order))
            failed = self.spans.status[self.paths.roots[self._order]] == STATUS_ERROR
        elif not which:
            return absent(FRACTION, "there is no such span")
        else:
            places = np.concatenate([self._of_operation[of] for of in which])
            ixs, of_unit = self._members
            failed = self.spans.status[ixs[places]] == STATUS_ERROR
            unit = np.unique(of_unit[places], return_inverse=True)[1].reshape(-1)
        units = int(unit.max(initial=-1)) + 1
        return Quantity(FRACTION, Sample(failed.astype(np.float64), unit, units), MEAN)

    def plain(self) -> Mapping[str, Quantity]:
        """Return what is counted, by its name."""
        complete = self.completeness
        incomplete = complete.verdict == "incomplete"
        return {
            "traces": Quantity(COUNT, value=len(self.paths)),
            "spans": Quantity(COUNT, value=complete.spans_received),
            "orphans": Quantity(COUNT, value=complete.orphans),
            "complete": Quantity(TRUTH, value=0.0)
            if incomplete
            else unknown(TRUTH, "spans of others do not tell how many there should be"),
        }

    def _untold(self) -> str | None:
        ledger = self.about.telemetry.ledger
        if ledger.capped or ledger.broken is not None:
            return "reading stopped, and what is missing may be of any trace"
        return None if len(self._order) else "parts of all traces are missing"


def title(of: Operation) -> str:
    """Return an operation in words, as in reports."""
    service, name, kind = of
    return f"{service} {name}".strip() + ("" if kind in _KINDS[:2] else f" ({kind})")
