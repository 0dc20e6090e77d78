# SPDX-License-Identifier: Apache-2.0
"""What `python -m benchmarks --only attributing` measures; its times are no test's business."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import monitored, tabled
from benchmarks.attributing import TYPES, WAYS
from benchmarks.monitored import METRICS, SECOND, job
from grademl_otel.analyzers.attribution.attribute import Attributed
from grademl_otel.analyzers.attribution.builtin import BUILT_IN
from grademl_otel.analyzers.attribution.groupings import bottlenecks_of
from grademl_otel.analyzers.attribution.rules import RuleSet
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.resource_model.assemble import resources_of
from grademl_otel.analyzers.subject import read_subject


def test_a_job_is_seen_all_the_time_and_each_rank_uses_its_own_gpu() -> None:
    made = job(steps=10, seconds=300, ranks=2)
    assert made.points == 2 * METRICS * 300
    (root,) = np.flatnonzero(made.model.phases.parent < 0)
    assert made.model.phases.duration[root] == pytest.approx(300 * SECOND, rel=0.1)
    found = Attributed(made.model, made.resources, RuleSet(BUILT_IN), made.gpus)
    users = [
        {int(found.signatures.owner[one]) for one in np.flatnonzero(use.rule)}
        for use in found
        if made.resources.metrics[use.metric].type == "gpu.utilization"
    ]
    assert [len(each) for each in users] == [1, 1]
    assert users[0] != users[1]
    grouped = bottlenecks_of(found).by()
    full = {grouped.names[one] for one in grouped.rows.group[grouped.rows.full > 0].tolist()}
    assert full == {"gpu"}


def test_what_is_stopped_is_many_phases() -> None:
    told: dict[str, float] = {}
    assert WAYS["stopped"]("20,600", told)() > 5
    assert told["points"] == 8 * monitored.METRICS * 600
    assert told["stops"] > 100
    few: dict[str, float] = {}
    assert 0 < WAYS["attributed"]("20,600", few)() <= few["issues"] < told["issues"]
    assert few["stops"] == 0
    assert few["phases"] == told["phases"]


@pytest.mark.parametrize("way", [name for name in WAYS if name.startswith("fit")])
def test_all_types_are_fitted(way: str) -> None:
    told: dict[str, float] = {}
    assert WAYS[way]("4000", told)() == TYPES
    assert told["instances"] == 2000


def test_a_store_has_the_points_that_it_is_said_to_have(tmp_path: Path) -> None:
    store = tmp_path / "store"
    written = tabled.write(store, steps=3, ranks=2)
    resources = resources_of(read_subject(Query.of(str(store))))
    assert not [line for line in resources.problems if "cannot be read" in line or "does not know" in line]
    assert sum(len(one.observed) for one in resources.metrics) == written.points > 3 * 50 * 2 * 19
    assert all(np.isfinite(one.observed.capacity) for one in resources.metrics)
    assert WAYS["command"](str(store), {})() > 1_000
