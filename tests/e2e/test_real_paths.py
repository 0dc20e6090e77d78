# SPDX-License-Identifier: Apache-2.0
"""A rank that keeps 1 or 3 others waiting: verdict, budget and path name it, from files and from a Jaeger."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support import servers, training

torch = pytest.importorskip("torch")
if not torch.distributed.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)
if not hasattr(torch.distributed.ProcessGroup, "register_post_hook"):
    pytest.skip("process groups of this torch have no hooks", allow_module_level=True)

from grademl_otel import analyzers  # noqa: E402
from grademl_otel.analyzers.graph.runs.main_lane import OTHER  # noqa: E402
from tests.support.straggler_program import LATE, LATE_S, STEPS, WARM_UP, who  # noqa: E402

PROGRAM = training.ROOT / "tests" / "support" / "straggler_program.py"
ON_PATH = {"data.wait": "data.fetch", "blocking": OTHER}
"""What the path spends the time in of a rank that is late there; in the others it is the phase itself."""

Document = dict[str, Any]


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


def report(source: Path | str, part: int, **selected: Any) -> Document:
    """The report on one part, with all sections of its path."""
    steps = analyzers.StepRange(*steps_of(part))
    found: Document = analyzers.to_dict(analyzers.report(source, steps=steps, top=10**6, **selected))
    return found


def on_path(document: Document) -> Counter[tuple[int, str, str]]:
    """The time of each (rank, lane, phase) on the path, ns."""
    spent: Counter[tuple[int, str, str]] = Counter()
    for section in document["path"]["sections"]:
        spent[section["rank"], section["lane"], section["phase"]] += section["end_ns"] - section["start_ns"]
    return spent


def causes(document: Document) -> list[tuple[str, str, list[int], list[str]]]:
    """The findings: what is named, how grave, of whom, and what takes longer there."""
    return [
        (
            finding["id"],
            finding["severity"],
            finding["where"]["ranks"],
            [one["signal"] for one in finding["evidence"] if one["signal"].endswith(".more")],
        )
        for finding in document["findings"]
    ]


@pytest.mark.parametrize("late", LATE)
def test_the_late_rank_is_named_with_its_phase(job: tuple[int, Path], late: str) -> None:
    world, store = job
    part = LATE.index(late)
    document = report(store, part)
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


@pytest.mark.parametrize("late", LATE)
def test_the_path_goes_through_the_late_rank(job: tuple[int, Path], late: str) -> None:
    """It was late by so much in each step, and all others waited: so much of the path is its."""
    world, store = job
    part = LATE.index(late)
    document = report(store, part)
    first, end = steps_of(part)
    lost = round((end - first) * LATE_S * 1e9)
    place = (who(part, world), "main", ON_PATH.get(late, late))
    assert on_path(document).most_common(1)[0][0] == place
    assert on_path(document)[place] >= lost
    # None of the sleeping is counted twice, and nobody's waiting for it is on the path.
    assert on_path(document)[place] <= document["window"]["wall_ns"]
    waits = sum(
        section["end_ns"] - section["start_ns"]
        for section in document["path"]["sections"]
        if section["kind"] in ("wait", "unexplained")
    )
    assert waits < lost / 10
    # The budget of the rank tells the same; those of the others that they stood still.
    budget = {
        (entry["rank"], entry["phase"]): entry["ns"]
        for entry in document["lane_budget"]
        if entry.get("within") is None
    }
    assert budget[who(part, world), OTHER if late == "blocking" else late] >= lost

    sections = document["path"]["sections"]
    assert sections[0]["start_ns"] == 0
    assert all(before["end_ns"] == after["start_ns"] for before, after in pairwise(sections))
    assert sections[-1]["end_ns"] == document["window"]["wall_ns"] == document["path"]["total_ns"]


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


@pytest.mark.real
def test_a_jaeger_tells_the_same(job: tuple[int, Path], jaeger: servers.Jaeger) -> None:
    """The recorded files, pushed to a real Jaeger and read back from there."""
    _, store = job
    push = ["push", str(store), "--to", jaeger.otlp_http, "--verify", jaeger.source, "--json"]
    sent = json.loads(training.grademl(push, store.parent).ok().out)
    assert sent["missing"] == 0
    for part in range(len(LATE)):
        here = report(store, part)
        there = report(jaeger.source, part, run=here["source"]["run"])
        assert there["completeness"]["verdict"] == "complete"
        assert there["verdict"]["id"] == here["verdict"]["id"]
        assert causes(there) == causes(here)
        assert on_path(there) == on_path(here)
        assert there["lane_budget"] == here["lane_budget"]
