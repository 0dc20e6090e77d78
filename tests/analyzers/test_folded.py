# SPDX-License-Identifier: Apache-2.0
"""`grademl export --to folded`: stacks whose numbers add up to the time that there was, for flame graphs."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grademl_otel import semconv as sc
from grademl_otel.analyzers.cli.app import run as cli
from grademl_otel.analyzers.errors import NothingFound
from grademl_otel.analyzers.exports import folded
from grademl_otel.analyzers.graph import run_path
from grademl_otel.analyzers.modelled import model_of
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.selection import StepRange
from grademl_otel.analyzers.subject import Subject, read_subject

from ..support.synthetic import MS, US, Training, simulate
from ..support.telemetry import EPOCH_UNIX_NS, attributes

TRAINING = Training(ranks=2, epochs=2, steps_per_epoch=8, buckets=2, checkpoint_ns=5 * MS, micro=2)
SAMPLED = replace(TRAINING, buckets=0, explicit=True, detail_level=3)
LINE = re.compile(r"^(.*)\s+?(\d+(?:\.\d*)?)$")
"""As flamegraph.pl takes a line apart."""


def stacks(about: Subject, of: str = "time") -> dict[tuple[str, ...], int]:
    """Return what is written, read as flamegraph.pl does."""
    file = io.BytesIO()
    counts = folded.write(about, file, of)
    found: dict[tuple[str, ...], int] = {}
    for line in file.getvalue().decode().splitlines():
        match = LINE.match(line)
        assert match is not None
        frames = tuple(match[1].replace("\u00a0", " ").split(";"))
        assert frames not in found
        found[frames] = int(match[2])
    assert counts == {"stacks": len(found), "nanoseconds": sum(found.values())}
    return found


def subject_of(training: Training, folder: Path, **options: Any) -> Subject:
    return read_subject(Query.of(str(simulate(training).write_store(folder)), **options))


def traces(folder: Path, spans: Sequence[tuple[int, int, str, int, int]]) -> Subject:
    """Spans of others: (id, parent, name, start, end), times in us."""
    written = [
        {
            "traceId": f"{1:032x}",
            "spanId": f"{number:016x}",
            **({"parentSpanId": f"{parent:016x}"} if parent else {}),
            "name": name,
            "startTimeUnixNano": str(EPOCH_UNIX_NS + start * US),
            "endTimeUnixNano": str(EPOCH_UNIX_NS + end * US),
        }
        for number, parent, name, start, end in spans
    ]
    resource = {"attributes": attributes({"service.name": "shop"})}
    path = folder / "spans.jsonl"
    path.write_text(
        json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": written}]}]}) + "\n"
    )
    return read_subject(Query.of(str(path)))


@pytest.mark.parametrize("training", [TRAINING, SAMPLED, replace(SAMPLED, workers=0)])
def test_the_main_lane_of_each_rank_adds_up_to_its_wall_time(training: Training, tmp_path: Path) -> None:
    about = subject_of(training, tmp_path)
    assert about.run is not None
    by_lane: Counter[tuple[str, ...]] = Counter()
    for frames, ns in stacks(about).items():
        by_lane[frames[:2]] += ns
    for rank, (start, end) in about.run.rank_bounds.items():
        assert by_lane[f"rank {rank}", "main"] == end - start


def test_time_is_that_of_the_phases(tmp_path: Path) -> None:
    simulated = simulate(TRAINING)
    about = read_subject(Query.of(str(simulated.write_store(tmp_path))))
    found = stacks(about)
    inside: Counter[str] = Counter()
    for frames, ns in found.items():
        for name in {frame for frame in frames[2:] if frames[0] == "rank 1" and frames[1] == "main"}:
            inside[name] += ns
    assert inside[sc.FORWARD] == simulated.total(sc.FORWARD, rank=1)
    assert inside[sc.DATA_WAIT] == simulated.total(sc.DATA_WAIT, rank=1)
    assert inside[sc.OPTIMIZER] == simulated.total(sc.OPTIMIZER, rank=1)
    assert ("rank 0", "main", "epoch", "step", "backward") in found
    fetched = sum(
        ns for frames, ns in found.items() if frames[2:] == (sc.DATA_FETCH,) and frames[0] == "rank 1"
    )
    assert fetched == simulated.total(sc.DATA_FETCH, rank=1)
    lanes = {frames[1] for frames in found}
    assert {"main", "comm", "loader-worker-0", "loader-worker-1", "loader1-worker-0"} <= lanes


def test_nothing_of_what_ran_is_lost(tmp_path: Path) -> None:
    about = subject_of(TRAINING, tmp_path)
    phases = model_of(about).phases
    assert sum(stacks(about).values()) == int(phases.busy[phases.leaves].sum())


def test_the_path_adds_up_to_its_length(tmp_path: Path) -> None:
    about = subject_of(TRAINING, tmp_path)
    assert about.run is not None
    found, path = stacks(about, "path"), run_path(about.run)
    assert sum(found.values()) == path.total_ns == about.run.end - about.run.start
    expected: Counter[tuple[str, ...]] = Counter()
    for one in path.sections:
        expected[f"rank {one.rank}", one.lane, one.phase, one.kind] += one.duration
    assert found == dict(expected)


def test_a_part_of_a_run(tmp_path: Path) -> None:
    about = subject_of(TRAINING, tmp_path, ranks=(1,), steps=StepRange(2, 4))
    assert about.run is not None
    assert sum(stacks(about, "path").values()) == about.run.end - about.run.start
    found = stacks(about)
    assert {frames[0] for frames in found} == {"rank 1"}
    main = sum(ns for frames, ns in found.items() if frames[1] == "main")
    start, end = about.run.rank_bounds[1]
    assert main == end - start


def test_spans_of_others_have_their_self_time(tmp_path: Path) -> None:
    about = traces(tmp_path, [(1, 0, "get", 0, 100), (2, 1, "read", 10, 40), (3, 1, "read", 50, 60)])
    assert stacks(about) == {
        ("get[service=shop]",): 60 * US,
        ("get[service=shop]", "read[service=shop]"): 40 * US,
    }
    assert sum(stacks(about, "path").values()) == 100 * US


def test_side_by_side_adds_up(tmp_path: Path) -> None:
    about = traces(tmp_path, [(1, 0, "get", 0, 100), (2, 1, "a", 0, 100), (3, 1, "b", 0, 100)])
    assert sum(stacks(about).values()) == 200 * US


def test_frames_are_text_of_one_line(tmp_path: Path) -> None:
    name = "GET /a;b 12\n\x1b[31m\u2028 7"
    about = traces(tmp_path, [(1, 0, name, 0, 3)])
    file = io.BytesIO()
    folded.write(about, file)
    (line,) = file.getvalue().decode().splitlines()
    assert line == "GET\u00a0/a\uff1bb\u00a012??[31m?\u00a07[service=shop] 3000"
    assert folded.frame("a b;c") != folded.frame("a_b,c")


def test_names_that_differ_stay_apart(tmp_path: Path) -> None:
    about = traces(tmp_path, [(1, 0, "a;b", 0, 3), (2, 1, "a", 0, 1), (3, 2, "b", 0, 1)])
    assert len(stacks(about)) == 2


def test_the_depth_of_stacks_is_bounded_and_nothing_lost(tmp_path: Path) -> None:
    count = 2_000
    chain = [(one, one - 1, "call", one, 2 * count - one) for one in range(1, count)]
    found = stacks(traces(tmp_path, chain))
    assert sum(found.values()) == (2 * count - 2) * US
    deepest = max(found, key=len)
    assert len(deepest) == 501
    assert deepest[-1] == "..."
    assert found[deepest] == (2 * (count - 500) - 2) * US


def test_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NothingFound, match="took any time"):
        stacks(traces(tmp_path, [(1, 0, "moment", 5, 5)]))


def test_equal_subjects_give_equal_bytes(tmp_path: Path) -> None:
    files = [io.BytesIO(), io.BytesIO()]
    for number, file in enumerate(files):
        folded.write(subject_of(TRAINING, tmp_path / str(number)), file)
    assert files[0].getvalue() == files[1].getvalue()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = simulate(TRAINING).write_store(tmp_path)
    assert cli(["export", str(store), "--to", "folded", "--of", "path", "--ranks", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == sorted(lines)
    assert all(line.startswith("rank\u00a00;") and LINE.match(line) for line in lines)
