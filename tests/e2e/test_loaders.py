# SPDX-License-Identifier: Apache-2.0
"""Every shape of data loading: the same data and messages, and each batch's making in its worker's lane.

All shapes run in one program (`loader_zoo`), once plain and once recorded.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from grademl_otel import semconv
from tests.support import training
from tests.support.rawspans import RawSpan, read_lines

pytest.importorskip("torch")

ZOO = training.ROOT / "tests" / "support" / "loader_zoo.py"
NEEDED = {"stateful": "torchdata", "stateful_persistent": "torchdata", "stateful_inline": "torchdata",
          "accelerated": "accelerate"}  # fmt: skip


class Pass(NamedTuple):
    """What a pass over a loader is to look like."""

    rows: int
    workers: int = 2
    kind: str = semconv.EPOCH
    loaders: int = 1
    """Loaders that each give a batch to each row."""


PASSES = {
    "inline": [Pass(5, 0)],
    "fork": [Pass(5)],
    "spawn": [Pass(2, 1)],
    "forkserver": [Pass(2, 1)],
    "persistent": [Pass(3)] * 3,
    "iterable": [Pass(6)],
    "iterable_inline": [Pass(5, 0)],
    "iterable_persistent": [Pass(3)] * 2,
    "wrong_length": [Pass(6, 0)],
    "no_batching": [Pass(6)],
    "no_batching_inline": [Pass(6, 0)],
    "batch_sampler": [Pass(5)],
    "collate": [Pass(5)],
    "lambda": [Pass(5)],
    "unordered": [Pass(5)],
    "pinned": [Pass(5)],
    "timeout": [Pass(5)],
    "seeded": [Pass(5)],
    "threaded": [Pass(5)],
    "piped": [Pass(2)],
    "nested": [Pass(2)],
    "nested_inline": [Pass(2, 0)],
    "zip": [Pass(5, 0, loaders=2)],
    "side_by_side": [Pass(3), Pass(2, 0, semconv.EVALUATE)],
    "break": [Pass(3)],
    "raises": [Pass(1)],
    "killed": [Pass(1)],
    "exits": [Pass(1)],
    "pickled": [Pass(2, 0)] * 3,
    "stateful": [Pass(2), Pass(3)],
    "stateful_persistent": [Pass(2), Pass(3)],
    "stateful_inline": [Pass(2, 0), Pass(3, 0)],
    "accelerated": [Pass(5)] * 2,
}


@dataclass
class Zoo:
    shapes: list[str]
    plain: training.Finished
    traced: training.Finished
    folder: Path
    spans: list[RawSpan]

    def passes(self) -> dict[str, list[RawSpan]]:
        """The spans of the passes of each shape."""
        in_order = sorted(self.named(semconv.EPOCH, semconv.EVALUATE), key=lambda span: span.start)
        assert len(in_order) == sum(len(PASSES[shape]) for shape in self.shapes)
        return {shape: [in_order.pop(0) for _ in PASSES[shape]] for shape in self.shapes}

    def rows(self) -> dict[str, list[list[dict[str, int]]]]:
        """The rows of the step table that have an item, of each pass of each shape."""
        of_pass: dict[int, list[dict[str, int]]] = defaultdict(list)
        for window in self.named(semconv.WINDOW):
            columns = {
                key.removeprefix(semconv.TABLE_PREFIX): value.value
                for key, value in window.attributes.items()
                if key.startswith(semconv.TABLE_PREFIX) and value.type == "int[]"
            }
            length = max(map(len, columns.values()), default=0)
            for row in range(length):
                values = {key: column[row % len(column)] for key, column in columns.items()}
                of_pass[values["item.pass"]].append(values)
        of_pass.pop(-1, None)
        in_order = [of_pass[number] for number in sorted(of_pass)]
        return {shape: [in_order.pop(0) for _ in PASSES[shape]] for shape in self.shapes}

    def named(self, *names: str) -> list[RawSpan]:
        return [span for span in self.spans if span.name in names]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    folder = tmp_path_factory.mktemp("zoo")
    (folder / "rings").mkdir()
    shapes = [shape for shape in PASSES if shape not in NEEDED or find_spec(NEEDED[shape])]
    settings = {
        "GRADEML_EXPORTER": "file",
        "GRADEML_BUDGET": "100",  # every phase, whatever it costs: the steps are tiny
        "GRADEML_RING_DIR": str(folder / "rings"),
        "GRADEML_RELAY_LOG": str(folder / "relay.log"),
    }
    plain = training.train_untraced(ZOO, shapes, folder)
    traced = training.train(ZOO, shapes, folder, settings)
    (store,) = (folder / "runs").glob("*/traces.jsonl")  # workers have no run of their own
    return Zoo(shapes, plain, traced, folder, read_lines(store))


def _comparable(err: str) -> list[str]:
    return [
        re.sub(r"0x[0-9a-f]+", "ADDRESS", line)
        for line in err.splitlines()
        if not line.startswith("grademl: recording run")
    ]


def test_data_and_messages_are_the_same(zoo: Zoo) -> None:
    assert zoo.traced.code == zoo.plain.code == 0, zoo.plain.err[-4000:]
    assert zoo.traced.out.split() == zoo.plain.out.split()
    assert _comparable(zoo.traced.err) == _comparable(zoo.plain.err)
    assert zoo.traced.err.count("grademl: ") == 1
    assert "Length of IterableDataset" in zoo.traced.err  # warnings name the same lines


def test_workers_open_no_ring(zoo: Zoo) -> None:
    log = (zoo.folder / "relay.log").read_text()
    assert log.count(" attached to ") == 1
    assert log.count(" serving ") == 1


@pytest.mark.parametrize("shape", PASSES)
def test_steps_and_batches_of(shape: str, zoo: Zoo) -> None:
    if shape not in zoo.shapes:
        pytest.skip(f"{NEEDED[shape]} is not installed")
    for expected, span, rows in zip(PASSES[shape], zoo.passes()[shape], zoo.rows()[shape], strict=True):
        assert span.name == expected.kind
        steps = semconv.STEPS_TOTAL if expected.kind == semconv.EPOCH else semconv.EVAL_STEPS_TOTAL
        assert span[steps] == expected.rows
        assert span[semconv.LOADER_WORKERS] == expected.workers
        made_by = {row["item.worker"] for row in rows}
        used = min(expected.workers, expected.rows)
        assert made_by == ({-1} if not expected.workers else set(range(used)))
        for row in rows:
            for phase in (semconv.DATA_WAIT, semconv.DATA_FETCH, semconv.DATA_COLLATE):
                assert row[f"{phase}.count"] == expected.loaders, phase
        # Accelerate waits for the next batch in a step: the last one waits for none.
        ahead = 1 if shape == "accelerated" else 0
        assert [row["item.batch"] for row in rows] == list(range(ahead, expected.rows))


def test_each_wait_ends_with_the_making_of_its_batch(zoo: Zoo) -> None:
    fetches = {span[semconv.ITEM]: span for span in zoo.named(semconv.DATA_FETCH)}
    collates = {span[semconv.ITEM]: span for span in zoo.named(semconv.DATA_COLLATE)}
    waits = zoo.named(semconv.DATA_WAIT)
    lanes = set()
    for wait in waits:
        fetch, collate = fetches[wait[semconv.ITEM]], collates[wait[semconv.ITEM]]
        assert fetch.start <= fetch.end <= wait.end
        assert collate.end <= wait.end
        assert collate[semconv.LANE] == fetch[semconv.LANE]
        lanes.add(fetch[semconv.LANE])
        if fetch[semconv.LANE] == wait[semconv.LANE]:
            assert wait.start <= fetch.start
            assert (fetch.parent_id, collate.parent_id) == (wait.span_id, wait.span_id)
    assert {"main", "loader1-worker-0", "loader1-worker-1"} <= lanes
