# SPDX-License-Identifier: Apache-2.0
"""The phases of a step, in this process: how many of each, and the row that each belongs to."""

from __future__ import annotations

from collections import Counter

import pytest

from grademl_otel import marks, semconv
from grademl_otel.steps import SKIPPED
from tests.instrumentations.conftest import Recording
from tests.support.listwriter import ListWriter

pytest.importorskip("torch")

from tests.support.phase_shapes import SHAPES

_INSIDE_A_WAIT = {semconv.DATA_FETCH, semconv.DATA_COLLATE, semconv.GC}


def counted(written: ListWriter) -> dict[str, int]:
    """How many marks of each phase there are."""
    kinds = Counter(mark.kind for mark in written.marks if mark.kind - marks.PHASE_BASE < len(semconv.PHASES))
    found = {semconv.PHASES[kind - marks.PHASE_BASE]: number for kind, number in kinds.items()}
    return {name: number for name, number in found.items() if name not in _INSIDE_A_WAIT}


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_rows_and_phases(name: str, recording: Recording) -> None:
    script, expected = SHAPES[name]
    script()
    written = recording.finish()
    kinds = written.row_kinds()
    assert kinds[0] == expected.train
    assert kinds[semconv.FLAG_EVALUATE] == expected.evaluate
    assert kinds[semconv.FLAG_INCOMPLETE] == expected.incomplete
    assert counted(written) == expected.phases
    assert sum(mark.y == SKIPPED for mark in written.phases(semconv.OPTIMIZER)) == expected.skipped
    assert written.running == []
    assert written.totals[marks.ACC_LOST] == 0
    rows = {row.row: row for row in written.rows}
    for mark in written.marks:
        if mark.row in rows and mark.kind < marks.ROW and mark.kind != marks.phase_kind(semconv.GC):
            row = rows[mark.row]
            assert row.t0 <= mark.t0 <= mark.t1 <= row.t1, semconv.PHASES[mark.kind - marks.PHASE_BASE]
