# SPDX-License-Identifier: Apache-2.0
"""The 24 step shapes in this process: rows, passes and micro-batches as a person counts them."""

from __future__ import annotations

import pytest

from grademl_otel import marks, semconv
from tests.instrumentations.conftest import Recording

pytest.importorskip("torch")

from tests.support.step_shapes import SHAPES


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_counts(name: str, recording: Recording) -> None:
    script, expected = SHAPES[name]
    script()
    written = recording.finish()
    kinds = written.row_kinds()
    assert kinds[0] == expected.train
    assert kinds[semconv.FLAG_EVALUATE] == expected.evaluate
    assert kinds[semconv.FLAG_INCOMPLETE] == expected.incomplete
    assert len(written.passes()) == expected.passes
    assert {marks.unpack_row(row.y)[1] for row in written.rows} == {expected.micro}
    assert written.running == []
    assert written.totals[marks.ACC_STEPS] == expected.train
    assert written.totals[marks.ACC_LOST] == 0
