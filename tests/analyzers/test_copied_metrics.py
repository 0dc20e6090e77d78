# SPDX-License-Identifier: Apache-2.0
"""Metrics in copies, and on their way to a collector: the same points as those of their source."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from grademl_otel.analyzers import errors
from grademl_otel.analyzers.cli.app import run as cli
from grademl_otel.analyzers.copy import delivery, otlp_requests
from grademl_otel.analyzers.errors import NothingFound
from grademl_otel.analyzers.model.metrics import MetricPoints
from grademl_otel.analyzers.sources import open_source
from grademl_otel.analyzers.sources.base import MetricPart
from grademl_otel.analyzers.sources.files.metrics import read_metrics
from tests.support.metric_points import POINTS, as_line, request, told
from tests.support.otlp_server import Answer, Receiver, grpc_receiver, http_receiver
from tests.support.synthetic import Training, simulate

RUN = Training().run_id
OTHER = "cd" * 16


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A folder of runs with one run, which has metrics."""
    simulate(Training()).write_store(tmp_path / "runs")
    folder = next((tmp_path / "runs").iterdir())
    write(folder, 0, 1, 2)
    return folder


def write(folder: Path, *ats: int, name: str = "metrics.jsonl", run: str = RUN) -> None:
    (folder / name).write_bytes(b"".join(as_line(request(run, at)) for at in ats))


def read(source: Path) -> MetricPoints:
    return read_metrics(open_source(str(source)))


def pull(source: Path, copy: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    capsys.readouterr()
    assert cli(["pull", str(source), "-o", str(copy), "--json", *more]) == 0
    done: dict[str, Any] = json.loads(capsys.readouterr().out)
    return done


def files(copy: Path) -> list[str]:
    return sorted(entry.name for entry in copy.iterdir() if "metrics" in entry.name)


# --- Copies -----------------------------------------------------------------------------------------------


def test_a_copy_has_the_points_of_its_source(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = pull(store.parent, tmp_path / "copy", capsys)
    assert done["metrics"] == 3 * POINTS
    assert done["files"] == 2
    assert told(read(tmp_path / "copy")) == told(read(store.parent))
    assert len(read(store)) == 3 * POINTS
    assert cli(["pull", str(store), "-o", str(tmp_path / "other")]) == 0
    assert f"and {3 * POINTS} metric points in" in capsys.readouterr().out
    assert f"{3 * POINTS} metric points" in open_source(str(tmp_path / "copy")).probe().notes


def test_a_copy_of_a_copy_has_them_too(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pull(store, tmp_path / "one", capsys)
    assert pull(tmp_path / "one", tmp_path / "two", capsys)["metrics"] == 3 * POINTS
    assert told(read(tmp_path / "two")) == told(read(store))


@pytest.mark.parametrize("how", ["frames", "message"])
def test_metrics_of_protobuf_among_spans_are_copied_as_they_are(
    how: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.support.every_format import otlp_protobuf
    from tests.support.truth import SPANS

    parts = [otlp_protobuf(SPANS), request(RUN).SerializeToString(), request(RUN, 1).SerializeToString()]
    if how == "frames":
        parts = [len(part).to_bytes(4, "big") + part for part in parts]
    path = tmp_path / "all.pb"
    path.write_bytes(b"".join(parts))
    assert len(read(path)) == 2 * POINTS
    pull(path, tmp_path / "copy", capsys)
    assert told(read(tmp_path / "copy")) == told(read(path))


def test_what_grows_is_topped_up_and_what_is_done_stays(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    pull(store, copy, capsys)
    before = files(copy)
    pull(store, copy, capsys)
    assert files(copy) == before == ["metrics-0001.parquet"]
    with (store / "metrics.jsonl").open("ab") as file:
        file.write(as_line(request(RUN, 3)))
    assert pull(store, copy, capsys)["metrics"] == 4 * POINTS
    assert files(copy) == ["metrics-0002.parquet"]
    assert told(read(copy)) == told(read(store))


def test_a_file_that_holds_fewer_now_stays_as_it_was_copied(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, metrics = tmp_path / "copy", store / "metrics.jsonl"
    pull(store, copy, capsys)
    os.truncate(metrics, metrics.read_bytes().index(b"\n") + 1)
    assert len(read(store)) < 3 * POINTS
    assert pull(store, copy, capsys)["metrics"] == 3 * POINTS
    assert files(copy) == ["metrics-0001.parquet"]


def test_what_is_rotated_is_not_copied_twice(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    pull(store, copy, capsys)
    (store / "metrics.jsonl").rename(store / "metrics-2026-01-01T00-00-00.000.jsonl")
    write(store, 3, 4)
    assert pull(store, copy, capsys)["metrics"] == 5 * POINTS
    assert told(read(copy)) == told(read(store))


def test_a_pull_that_was_killed_goes_on(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    rename = Path.rename

    def dies(path: Path, target: Path) -> Path:
        if "metrics" in target.name:
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", dies)
    assert cli(["pull", str(store), "-o", str(copy)]) == errors.EXIT_INTERRUPTED
    monkeypatch.undo()
    assert files(copy) == []
    with pytest.raises(NothingFound, match="no metrics"):
        read(copy)
    assert pull(store, copy, capsys)["metrics"] == 3 * POINTS
    assert told(read(copy)) == told(read(store))


def test_spans_are_on_the_disk_before_metrics_are_copied(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    seen: list[str] = []

    def dies(part: MetricPart, folder: Path, number: int) -> None:
        seen.extend(entry.name for entry in folder.glob("spans-*"))
        raise KeyboardInterrupt

    monkeypatch.setattr("grademl_otel.analyzers.copy.pull.copy_metrics", dies)
    assert cli(["pull", str(store), "-o", str(copy)]) == errors.EXIT_INTERRUPTED
    assert seen == ["spans-0001.parquet"]


def test_a_file_that_is_gone_or_cut_is_read_again(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    pull(store, copy, capsys)
    os.truncate(copy / "metrics-0001.parquet", 100)
    (copy / "metrics-0009.parquet").write_bytes(b"nobody's")
    with pytest.raises(NothingFound, match="damaged"):
        read(copy)
    pull(store, copy, capsys)
    assert len(files(copy)) == 1
    assert told(read(copy)) == told(read(store))


def test_what_was_left_out_is_told_by_the_copy_too(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (store / "metrics.jsonl").open("ab") as file:
        file.write(b'{"resourceMetrics":[5]}\n')
    done = pull(store, tmp_path / "copy", capsys)
    assert read(tmp_path / "copy").warnings == read(store).warnings
    assert any("metrics left out" in warning for warning in done["warnings"])


def test_a_copy_from_before_there_were_metrics_gets_them(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import sqlite3

    copy = tmp_path / "copy"
    (store / "metrics.jsonl").rename(tmp_path / "aside")
    pull(store, copy, capsys)
    database = sqlite3.connect(copy / "manifest.sqlite")
    database.execute("DROP TABLE metrics")
    database.commit()
    database.close()
    with pytest.raises(NothingFound, match="no metrics"):
        read(copy)
    (tmp_path / "aside").rename(store / "metrics.jsonl")
    assert pull(store, copy, capsys)["metrics"] == 3 * POINTS
    assert told(read(copy)) == told(read(store))


def test_refreshing_leaves_nothing_of_before(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    pull(store, copy, capsys)
    (store / "metrics.jsonl").unlink()
    assert pull(store, copy, capsys, "--refresh")["metrics"] == 0
    assert files(copy) == []


def test_a_metrics_file_alone_is_no_source_of_spans(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pull(store, tmp_path / "copy", capsys)
    assert cli(["report", str(tmp_path / "copy" / "metrics-0001.parquet")]) == errors.EXIT_SOURCE
    assert "no spans file" in capsys.readouterr().err


# --- To a collector ---------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_FIRST_PAUSE_S", 0.001)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with http_receiver() as receiver:
        yield receiver


def push(
    capsys: pytest.CaptureFixture[str], source: Path, to: str, *more: str
) -> tuple[int, dict[str, Any], str]:
    capsys.readouterr()
    code = cli(["push", str(source), "--to", to, "--json", "--no-verify", *more])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else {}, err


def at(receiver: Receiver) -> str:
    return f"http://127.0.0.1:{receiver.port}"


def arrived(receiver: Receiver, folder: Path) -> list[tuple[Any, ...]]:
    path = folder / "arrived.pb"
    path.write_bytes(b"".join(request.SerializeToString() for request in receiver.metrics))
    return told(read(path))


@pytest.mark.parametrize("copied", [False, True])
def test_metrics_arrive_as_they_were(
    copied: bool, store: Path, tmp_path: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    source = store
    if copied:
        source = tmp_path / "copy"
        pull(store, source, capsys)
    code, done, err = push(capsys, source, at(receiver))
    assert (code, err) == (0, "")
    assert (done["metrics_sent"], done["metrics_rejected"]) == (3 * POINTS, 0)
    assert arrived(receiver, tmp_path) == told(read(store))
    (group, *_) = [group for one in receiver.metrics for group in one.resource_metrics]
    # Descriptions, schemas and exemplars, which no column holds, too.
    assert group == request(RUN).resource_metrics[0]


def test_over_grpc(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with grpc_receiver() as receiver:
        code, done, err = push(capsys, store, f"grpc://127.0.0.1:{receiver.port}")
        assert (code, err, done["metrics_sent"]) == (0, "", 3 * POINTS)
    assert arrived(receiver, tmp_path) == told(read(store))


def test_only_those_of_the_run_are_sent(
    store: Path, tmp_path: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    with (store / "metrics.jsonl").open("ab") as file:
        file.write(as_line(request(OTHER)))
    assert push(capsys, store, at(receiver), "--run", RUN[:8])[1]["metrics_sent"] == 3 * POINTS
    assert (
        push(capsys, store, at(receiver), "--run", RUN[:8], "--attempt", "7")[1].get("metrics_sent") is None
    )
    assert push(capsys, store, at(receiver))[1]["metrics_sent"] == 4 * POINTS


@pytest.mark.parametrize("where", ["http", "grpc"])
def test_who_takes_no_metrics_is_no_failure(
    where: str, store: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    if where == "http":
        receiver.answer = lambda signal: Answer(http=404 if signal == "metrics" else 200)
        code, done, _ = push(capsys, store, at(receiver))
    else:
        with grpc_receiver(with_metrics=False) as other:
            code, done, _ = push(capsys, store, f"grpc://127.0.0.1:{other.port}")
    assert (code, done["metrics_sent"], done["error"]) == (0, 0, None)
    assert any("metrics were not sent" in note for note in done["notes"])


@pytest.mark.parametrize(
    ("status", "words"), [(400, "18 of 18 metric points were refused"), (503, "HTTP 503")]
)
def test_metrics_that_are_not_taken_are_told(
    status: int, words: str, store: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    receiver.answer = lambda signal: Answer(http=status if signal == "metrics" else 200)
    code, done, err = push(capsys, store, at(receiver))
    assert code == errors.EXIT_SOURCE
    assert words in err
    assert done["rejected"] == 0


def test_requests_of_metrics_are_bounded(
    store: Path,
    tmp_path: Path,
    receiver: Receiver,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(otlp_requests, "MAX_BYTES", 20_000)
    (store / "metrics.jsonl").write_bytes(as_line(request(RUN, points=3_000)) + as_line(request(RUN, 1)))
    receiver.max_bytes = 12_000  # refuses what is larger: that is halved once more
    code, done, err = push(capsys, store, at(receiver))
    assert (code, err) == (0, "")
    assert done["metrics_sent"] == 3_000 + 2 * POINTS - 1
    assert len(receiver.metrics) > 5
    assert sorted(arrived(receiver, tmp_path)) == sorted(told(read(store)))


def test_what_is_no_metric_is_left_out_and_told(
    store: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = {
        "resource": {"attributes": 3},
        "scopeMetrics": [{"metrics": [{"name": "x", "sum": {"dataPoints": 5}}]}],
    }
    with (store / "metrics.jsonl").open("ab") as file:
        file.write(json.dumps({"resourceMetrics": [odd]}).encode() + b"\n")
    code, done, _ = push(capsys, store, at(receiver))
    assert (code, done["metrics_sent"]) == (0, 3 * POINTS)
    assert any("1 document of metrics left out" in note for note in done["notes"])


def test_a_document_over_many_lines_goes_the_same_ways(
    store: Path, tmp_path: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = Training().attempt
    document = json.loads(as_line(request(RUN, attempt=attempt)))
    document["resourceMetrics"] += json.loads(as_line(request(RUN, 1, attempt=attempt)))["resourceMetrics"]
    (store / "metrics.jsonl").write_text(json.dumps(document, indent=2))
    expected = told(read(store))
    assert len(expected) == 2 * POINTS
    pull(store, tmp_path / "copy", capsys)
    assert told(read(tmp_path / "copy")) == expected
    assert push(capsys, tmp_path / "copy", at(receiver))[0] == 0
    assert arrived(receiver, tmp_path) == expected
    out = tmp_path / "out.jsonl"
    assert cli(["export", str(tmp_path / "copy"), "--to", "otlp", "-o", str(out)]) == 0
    assert told(read(out)) == expected


def test_a_group_is_halved_down_to_one_point() -> None:
    from grademl_otel.analyzers.copy.metric_requests import MetricRequest

    whole = request(RUN, points=3).resource_metrics[0].SerializeToString()
    pending, single = [MetricRequest([(whole, POINTS + 2)])], 0
    while pending:
        one = pending.pop()
        halves = one.halves()
        if halves:
            assert sum(half.count for half in halves) == one.count
            pending += halves
        else:
            single += one.count
            assert one.count <= 1
            assert ResourceMetrics.FromString(one.groups[0][0]).resource.attributes[0].key == "service.name"
    assert single == POINTS + 2
