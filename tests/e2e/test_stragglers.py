# SPDX-License-Identifier: Apache-2.0
"""A rank that keeps 1 or 3 others waiting: the report on what was recorded names it and its phase."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import training

torch = pytest.importorskip("torch")
if not torch.distributed.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)
if not hasattr(torch.distributed.ProcessGroup, "register_post_hook"):
    pytest.skip("process groups of this torch have no hooks", allow_module_level=True)

from grademl_otel import analyzers  # noqa: E402
from grademl_otel.analyzers.graph.main_lane import OTHER  # noqa: E402
from tests.support.straggler_program import LATE, STEPS, WARM_UP, who  # noqa: E402

PROGRAM = training.ROOT / "tests" / "support" / "straggler_program.py"


@pytest.fixture(scope="module", params=[2, 4], ids="{} ranks".format)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """(Ranks, store) of one training with a part for each place in which a rank may be late."""
    folder = tmp_path_factory.mktemp(f"late{request.param}")
    torchrun = [str(training.BIN / "torchrun"), "--standalone", "--nproc-per-node", str(request.param)]
    settings = {"GRADEML_EXPORTER": "file", "GRADEML_RING_DIR": str(folder / "rings")}
    command = [str(training.BIN / "opentelemetry-instrument"), *torchrun, str(PROGRAM)]
    training.run(command, folder, training.clean_environ(folder, settings)).ok()
    return request.param, folder / "runs"


def steps_of(part: int) -> tuple[int, int]:
    """The steps of a part; of the first one only the second half is, where the rank is late between steps."""
    first = WARM_UP + part * STEPS
    return first + 1, first + STEPS


@pytest.mark.parametrize("late", LATE)
def test_the_late_rank_is_named_with_its_phase(job: tuple[int, Path], late: str) -> None:
    world, store = job
    part = LATE.index(late)
    document: dict[str, Any] = analyzers.to_dict(
        analyzers.report(store, steps=analyzers.StepRange(*steps_of(part)))
    )
    assert document["completeness"]["verdict"] == "complete"
    found = {finding["id"]: finding for finding in document["findings"]}
    assert "ranks.straggler" in found, document["abstained"]
    finding = found["ranks.straggler"]
    assert finding["where"]["ranks"] == [who(part, world)]
    longer = [one["signal"] for one in finding["evidence"] if one["signal"].endswith(".more")]
    assert longer[0] == f"{OTHER if late == 'blocking' else late}.more"
    assert document["verdict"]["id"] in ("ranks.straggler", "input.loader")
    # What the others did was waiting: none of them is called slow.
    assert document["ranks"]["source"] == "collectives"
    waits = {entry["rank"]: entry["wait_ns"] for entry in document["ranks"]["ranks"]}
    assert min(waits, key=lambda rank: waits[rank]) == who(part, world)
    per_rank = {entry["rank"]: 0 for entry in document["ranks"]["ranks"]}
    for entry in document["lane_budget"]:
        per_rank[entry["rank"]] += entry["ns"]
    assert set(per_rank.values()) == {document["window"]["wall_ns"]}


def test_the_command_says_it(job: tuple[int, Path]) -> None:
    world, store = job
    steps = ":".join(map(str, steps_of(LATE.index("backward"))))
    text = training.grademl(["report", str(store), "--steps", steps], store.parent).ok().out
    assert f"VERDICT  Rank {who(2, world)} (of {world}) " in text
    assert "after the others" in text
    assert "its backward" in text
    document = json.loads(
        training.grademl(["critical-path", str(store), "--steps", steps, "--json"], store.parent).ok().out
    )
    assert "ranks.straggler" in [finding["id"] for finding in document["findings"]]
