# SPDX-License-Identifier: Apache-2.0
"""Small simulated trainings of every kind, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from grademl_otel import semconv as sc

from ..support.simulator import Job, Pauses, Slow
from ..support.telemetry import MS, US

PHASES = (sc.DATA_FETCH, sc.FORWARD, sc.BACKWARD, sc.OPTIMIZER)


@st.composite
def jobs(draw: st.DrawFn, detail: tuple[int, ...] = (0, 0, 64)) -> Job:
    """Small trainings of every kind of which all that matters is recorded."""
    ranks = draw(st.sampled_from((1, 1, 2, 3)))
    pauses = st.builds(
        Pauses, st.integers(1, 4), st.integers(1, 40 * MS), st.sampled_from((None, (0,))), st.booleans()
    )
    slow = st.builds(
        Slow,
        st.sampled_from(PHASES),
        st.sampled_from((0.1, 0.5, 3.0, 8.0)),
        st.sampled_from((None, *range(ranks))),
    )
    device = ranks == 1 and draw(st.booleans())
    if device:  # one that is done before its host has given it the next cannot be told from one that is busy
        slow = slow.filter(lambda one: one.factor > 1)
    return Job(
        seed=draw(st.integers(0, 10**6)),
        ranks=ranks,
        epochs=draw(st.integers(1, 2)),
        steps=draw(st.integers(1, 6)),
        micro=draw(st.sampled_from((1, 1, 2))) if ranks == 1 else 1,
        eval_batches=draw(st.integers(0, 3)),
        workers=draw(st.integers(0, 3)),
        prefetch=draw(st.integers(1, 3)),
        fetch=draw(st.integers(50 * US, 30 * MS)),
        collate=draw(st.integers(1, 3 * MS)),
        jitter=draw(st.sampled_from((0.02, 0.1) if device else (0.02, 0.1, 0.6))),  # nothing ties
        buckets=draw(st.integers(1, 5)),
        transfer=draw(st.integers(100 * US, 20 * MS)),
        blocking=draw(st.booleans()),
        device=device,
        sync_every=draw(st.integers(1, 3)),
        slow=tuple(draw(st.lists(slow, max_size=2))),
        collections=draw(st.none() | pauses),
        saves=draw(st.none() | pauses),
        compile=draw(st.sampled_from((0, 50 * MS))),
        detail_level=draw(st.sampled_from(detail)) if ranks == 1 else 0,
    )
