# SPDX-License-Identifier: Apache-2.0
"""`grademl resources` in every form: what it says, that it adds up, how it ends; parts of other answers."""

from __future__ import annotations

import csv
import io
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from grademl_otel import analyzers
from grademl_otel.analyzers.cli.app import run
from grademl_otel.analyzers.errors import (
    EXIT_INCOMPLETE,
    EXIT_NOTHING_FOUND,
    EXIT_OK,
    EXIT_SOURCE,
    EXIT_USAGE,
    NothingFound,
    UsageError,
)
from grademl_otel.analyzers.exports import perfetto
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.reporting.resources_document import ResourcesDocument, UseEntry
from grademl_otel.analyzers.selection import StepRange
from grademl_otel.analyzers.subject import read_subject
from tests.support.html_page import read_page
from tests.support.monitored import BEGIN, SLOW, S, export, series, simulate, with_table
from tests.support.synthetic import MS, Simulated

SCHEMA: Final = Path(__file__).parents[2] / "docs" / "schemas" / "resources.json"
TRAINING: Final = replace(
    SLOW, fetch_ns=400 * MS, collate_ns=0, forward_ns=200 * MS, backward_ns=300 * MS, optimizer_ns=100 * MS
)
"""Ten steps of about a second: 0.4 s of fetching, 0.6 s of work on the GPU."""
TWO: Final = replace(TRAINING, ranks=2, allreduce_ns=0)
N: Final = 10
GPU: Final = "/host[name=node-0]/gpu[id=GPU-a]"


def monitored(training: Any = TRAINING, gpu: int = 1000, gpu_id: str = "GPU-a") -> Simulated:
    """Return a run whose GPU is at ``gpu`` per mille all the time; CPU, disk and network are not full."""
    sim = simulate(training)
    with_table(
        sim,
        [
            ("gpu", "utilization", gpu_id, [gpu] * N, 1000),
            ("cpu", "busy", "", [2000] * N, 8000),
            ("disk", "read", "nvme0", [400_000_000] * N, None),
            ("network", "rx", "eth0", [10_000_000] * N, 1_000_000_000),
        ],
    )
    return sim


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    monitored().write_store(folder)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    monitored(TWO).write_store(folder)
    return folder


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing monitored."""
    folder = tmp_path_factory.mktemp("bare")
    simulate(TRAINING).write_store(folder)
    return folder


def use_of(document: ResourcesDocument, metric: str, name: str) -> UseEntry:
    (found,) = (one for one in document.use if one.metric == metric and one.key.endswith(name))
    return found


def ended(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Return (exit code, what was printed, the line on standard error)."""
    code = run(["resources", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


# --- What it says ---------------------------------------------------------------------------------------


def test_what_phases_used_is_what_was_observed_while_they_ran(store: Path) -> None:
    document = analyzers.resources(store)
    forward = use_of(document, "gpu.utilization", "/step/forward")
    assert forward.used == pytest.approx(2.0)
    assert forward.available == pytest.approx(2.0)
    assert (forward.mean, forward.utilization) == (pytest.approx(1.0), pytest.approx(1.0))
    assert forward.share == pytest.approx(0.2)
    assert forward.observed_ns == 2 * S
    fetch = use_of(document, "disk.read", "data.fetch")
    # All of the second's 400 MB are read while something reads.
    assert fetch.used == pytest.approx(4e9, rel=0.01)
    assert (fetch.available, fetch.utilization) == (None, None)
    assert not [one for one in document.use if one.metric == "gpu.utilization" and "data" in one.key]


def test_bottlenecks_are_what_was_full_while_a_phase_ran(store: Path) -> None:
    document = analyzers.resources(store)
    of = {(one.key.rpartition("/")[2], one.resource): one for one in document.bottlenecks}
    gpu = of["backward", "gpu"]
    assert (gpu.known_ns, gpu.full_ns, gpu.globally_ns, gpu.uniquely_ns) == (3 * S, 3 * S, 3 * S, 3 * S)
    assert gpu.share == 1.0
    assert of["backward", "cpu"].full_ns == 0
    assert ("backward", "disk") not in of  # it does not use it; and of what does the capacity is not known
    phases = {one.key.rpartition("/")[2]: one for one in document.phases}
    assert (phases["backward"].phases, phases["backward"].busy_ns, phases["backward"].free_ns) == (
        N,
        3 * S,
        0,
    )
    assert phases["data.fetch"].free_ns == phases["data.fetch"].known_ns == 4 * S
    lines = " ".join(document.verdict)
    assert lines.startswith("gpu was full in 100 % of rank/epoch/step/backward (3.0 s of 3.0 s), 100 % of")
    assert "Nothing that was observed was full in rank/epoch/step/data.wait/data.fetch (4.0 s)" in lines


def test_what_would_help_is_simulated(store: Path) -> None:
    document = analyzers.resources(store)
    first = document.issues[0]
    assert (first.kind, first.cause, first.of.rpartition("/")[2]) == ("bottleneck", "gpu", "backward")
    assert first.gain_ns == pytest.approx(3 * S, rel=0.01)
    assert first.relative == pytest.approx(0.3, abs=0.01)
    assert {one.type.rpartition("/")[2] for one in first.affected} >= {"step", "epoch", "rank"}
    assert [one.gain_ns for one in document.issues] == sorted(
        (one.gain_ns for one in document.issues), reverse=True
    )


@pytest.mark.parametrize("by", ["type", "phase", "rank"])
@pytest.mark.parametrize("options", [{}, {"steps": StepRange(2, 5)}, {"ranks": [1]}], ids=str)
def test_use_by_any_key_and_what_is_no_phases_add_up(two: Path, by: str, options: dict[str, Any]) -> None:
    document = analyzers.resources(two, by=by, **options)
    every = analyzers.resources(two, by=by, **{name: of for name, of in options.items() if name != "ranks"})
    for metric in document.metrics:
        used = sum(one.used for one in document.use if one.metric == metric.metric)
        assert metric.unattributed is not None
        if "ranks" not in options:
            assert used + metric.unattributed == pytest.approx(metric.used, rel=1e-9)
            assert sum(one.share or 0 for one in document.use if one.metric == metric.metric) <= 1 + 1e-9
        else:  # Both ranks do the same: what one of them used is not what there was.
            both = sum(one.used for one in every.use if one.metric == metric.metric)
            assert used == pytest.approx(both / 2, rel=1e-6)


def test_a_part_of_a_run_is_about_its_time(store: Path) -> None:
    document = analyzers.resources(store, steps=StepRange(2, 4))
    assert document.window.wall_ns == pytest.approx(2 * S, abs=S // 100)
    (gpu,) = (one for one in document.metrics if one.metric == "gpu.utilization")
    assert gpu.used == pytest.approx(document.window.wall_ns / S)
    assert gpu.coverage == pytest.approx(1.0)
    assert use_of(document, "gpu.utilization", "/backward").used == pytest.approx(0.6)
    whole = analyzers.resources(store)
    assert use_of(whole, "gpu.utilization", "/backward").used == pytest.approx(3.0)


def test_patterns_and_depths_select_and_add_up(store: Path) -> None:
    steps = analyzers.resources(store, phase="**/step")
    (step,) = steps.phases
    assert step.key.endswith("/epoch/step")
    assert step.phases == N
    assert use_of(steps, "gpu.utilization", "/step").used == pytest.approx(6.0, rel=1e-3)
    within = analyzers.resources(store, phase="**/step", depth=1)
    assert {one.key.rpartition("/")[2] for one in within.phases} == {
        "data.wait", "forward", "backward", "optimizer", "self",
    }  # fmt: skip
    level = analyzers.resources(store, depth=3)
    assert [one.key for one in level.phases] == ["/run[script=train.py]/attempt/rank"]
    one = analyzers.resources(store, by="phase", phase="**/step[step=3]/forward")
    assert [phase.phases for phase in one.phases] == [1]
    assert use_of(one, "gpu.utilization", "forward").used == pytest.approx(0.2)
    only = analyzers.resources(store, metric="gpu.*")
    assert (
        {entry.metric for entry in only.use}
        == {entry.metric for entry in only.metrics}
        == {"gpu.utilization"}
    )
    assert only.bottlenecks == analyzers.resources(store).bottlenecks


def test_what_is_not_known_is_said_and_is_not_zero(tmp_path: Path) -> None:
    sim = simulate(TRAINING)
    with_table(sim, [("disk", "read", "nvme0", [400_000_000] * 4, None)])
    sim.write_store(tmp_path)
    document = analyzers.resources(tmp_path)
    (disk,) = document.metrics
    assert (disk.capacity, disk.utilization, disk.full_ns) == (None, None, None)
    assert disk.coverage == pytest.approx(0.4, abs=0.01)
    assert document.verdict == [
        "What was full is not known: nobody told the capacity of anything that was observed."
    ]
    assert all((one.known_ns, one.free_ns) == (0, 0) for one in document.phases)
    assert {one.rule for one in document.abstained} == {"cpu", "gpu", "network"}
    assert any("capacity of disk.read" in line for line in document.problems)
    assert "GRADEML_GPU_INTERVAL" in str(document)


def test_rules_capacities_and_csv_files_of_the_user(store: Path, tmp_path: Path) -> None:
    rules, samples = tmp_path / "rules.toml", tmp_path / "samples.csv"
    rules.write_text(
        '[[capacity]]\nmetric = "disk.read"\nvalue = 1e9\nunit = "By/s"\n'
        '[[rule]]\nphase = "**/optimizer"\nmetric = "gpu.utilization"\nnone = true\n'
    )
    rows = [f"{BEGIN + at * S},node-0,port,mlx5_0/1,rx,{5e9},12.5e9,By/s" for at in range(1, N + 1)]
    samples.write_text("time,host,resource,id,metric,value,capacity,unit\n" + "\n".join(rows) + "\n")
    document = analyzers.resources(store, rules=rules, csv=[samples])
    assert use_of(document, "disk.read", "data.fetch").utilization == pytest.approx(1.0, rel=1e-3)
    assert not [
        one for one in document.use if one.key.endswith("optimizer") and one.metric == "gpu.utilization"
    ]
    (port,) = (one for one in document.metrics if one.metric == "port.rx")
    assert (port.mean, port.capacity) == (pytest.approx(5e9), 12.5e9)
    # The question before it, with other additions, had other answers.
    assert use_of(analyzers.resources(store), "disk.read", "data.fetch").utilization is None


# --- Forms ----------------------------------------------------------------------------------------------


def test_text_says_what_matters_first(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, error = ended(capsys, store)
    assert (code, error) == (EXIT_OK, "")
    lines = text.splitlines()
    assert lines[0].endswith("4 metrics of 4 resources")
    assert lines[1].startswith("data  complete (10 of 10 steps")
    assert lines[3].startswith("VERDICT  gpu was full in 100 % of")
    assert any(line.split()[:5] == ["rank/epoch/step/backward", "10", "3.0", "s", "100"] for line in lines)
    assert max(map(len, lines)) <= 110
    _, narrow, _ = ended(capsys, store, "--top", "1")
    assert "and 6 more (--top, --json)" in narrow


def test_json_keeps_its_schema_and_csv_its_numbers(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = ended(capsys, store, "--json")
    found = json.loads(text)
    assert code == EXIT_OK
    jsonschema.validate(found, json.loads(SCHEMA.read_text()))
    assert found["schema"] == "grademl.resources/1"
    assert list(found) == json.loads(SCHEMA.read_text())["required"]
    _, text, _ = ended(capsys, store, "-f", "csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [float(row["used"]) for row in rows] == [one["used"] for one in found["use"]]
    assert {row["utilization"] for row in rows if row["metric"] == "disk.read"} == {""}
    _, text, _ = ended(capsys, store, "-f", "markdown")
    assert "| rank/epoch/step/backward | 10 | 3.0 s | 100 % |" in text
    assert "never to be added up" in text


def test_as_frames_and_in_a_notebook(store: Path) -> None:
    document = analyzers.resources(store, by="rank")
    frame = document.to_pandas()
    assert frame.loc[frame.metric == "gpu.utilization", "used"].tolist() == pytest.approx([6.0], rel=1e-3)
    assert set(document.tables) == {"use", "phases", "bottlenecks", "metrics", "issues", "abstained"}
    assert str(document.to_pandas("metrics")["full_ns"].dtype) == "Int64"
    assert "gpu was full in" in document._repr_html_()
    with pytest.raises(UsageError, match="source"):
        replace(document).to_html()


def test_the_page_shows_use_under_the_capacity_and_strips(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "resources.html"
    code, _, error = ended(capsys, store, "-f", "html", "-o", page, "--by", "rank")
    assert (code, error) == (EXIT_OK, "")
    text = page.read_text("utf-8")
    found = read_page(text)
    for name in ("chart-bottlenecks", "chart-use-gpu-utilization", "chart-use-cpu-busy", "metrics", "use"):
        assert found.root.by_id(name) is not None, name
    chart = found.root.by_id("chart-use-gpu-utilization")
    assert chart is not None
    assert "all there is: 100 %" in chart.text
    assert "rank 0" in chart.text
    assert text == analyzers.resources(store, by="rank").to_html()
    command = next(one.text for one in found.root.all("code") if one.text.startswith("grademl resources"))
    assert shlex.split(command)[-6:] == ["--by", "rank", "-f", "html", "-o", "resources.html"]


def test_the_page_of_a_report_has_a_section_on_resources(store: Path, bare: Path) -> None:
    report = read_page(analyzers.report(store).to_html())
    assert report.root.by_id("chart-use-disk-read") is not None
    section = report.root.by_id("part-bottlenecks")
    assert section is not None
    assert "gpu was full in 100 %" in section.text
    without = read_page(analyzers.report(bare).to_html())
    assert without.root.by_id("part-bottlenecks") is None
    assert without.root.by_id("part-use") is None


def test_names_of_resources_are_text_wherever_they_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = "<script>alert(1)</script>\x1b[2J\n=1+1"
    monitored(gpu_id=bad).write_store(tmp_path)
    document = analyzers.resources(tmp_path)
    assert any("<script>alert(1)" in one.resource for one in document.metrics)
    page = document.to_html()
    assert "<script>alert" not in page
    assert "\x1b" not in page
    read_page(page)
    for form in ("text", "csv", "markdown", "json"):
        _, text, _ = ended(capsys, tmp_path, "-f", form)
        assert "\x1b" not in text, form


def test_a_host_whose_name_has_a_line_break_is_one_line(
    bare: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "metrics.jsonl"
    power = series("hw.power", "W", "gauge", {1: 1, 2: 1}, hw__id="a\nb", hw__type="gpu")
    file.write_bytes(export(power, host="node\n7"))
    code, text, _ = ended(capsys, bare, "--metrics", file)
    assert code == EXIT_OK
    assert "/host[name=node?7]/gpu[id=a?b]" in text
    assert "no phase ran on node?7" in " ".join(text.split())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", ["json", "text", "html", "csv"])
def test_values_that_no_float_can_add_up_are_left_out_and_it_is_said(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    file = tmp_path / "large.csv"
    rows = (
        f"{BEGIN // S + at},tape,{name},{value},{kind}\n"
        for name, value, kind in (
            ("a", "1.7e308", "gauge"),
            ("b", "1e30", "gauge"),
            ("c", "1e308", "counter"),
        )
        for at in range(N)
    )
    file.write_text("time,resource,metric,value,kind\n" + "".join(rows))
    code, text, error = ended(capsys, store, "--csv", file, "-f", form)
    assert (code, error) == (EXIT_OK, "")
    assert "tape.b" in text or form == "csv"
    assert "tape.a" not in text or "above 1e+30" in text
    if form == "json":
        assert [one["peak"] for one in json.loads(text)["metrics"] if one["metric"] == "tape.b"] == [1e30]


# --- How it ends ----------------------------------------------------------------------------------------


def test_without_a_signal_it_says_how_to_get_it(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, error = ended(capsys, bare)
    assert (code, text) == (EXIT_NOTHING_FOUND, "")
    assert error.count("\n") == 1
    for way in ("GRADEML_HOST_INTERVAL", "GRADEML_GPU_INTERVAL", "--prometheus URL", "--csv FILE"):
        assert way in error
    with pytest.raises(NothingFound, match="no resource was observed"):
        analyzers.resources(bare)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--metric", "gpu.utilisation"], EXIT_NOTHING_FOUND, "did you mean gpu.utilization?"),
        (["--phase", "**/forwards"], EXIT_NOTHING_FOUND, "did you mean 'forward'?"),
        (["--phase", "a//b"], EXIT_USAGE, "a level without a name"),
        (["--by", "types"], EXIT_USAGE, "did you mean type?"),
        (["--depth", "-1"], EXIT_USAGE, "-1"),
        (["--rules", "no-such.toml"], EXIT_SOURCE, "no-such.toml"),
        (["--rules", "no\nsuch.toml"], EXIT_SOURCE, "no such.toml: no such file"),
        (["--csv", "no-such.csv"], EXIT_SOURCE, "no-such.csv: no such file"),
        (["--csv", "no\nsuch.csv"], EXIT_SOURCE, "no such.csv: no such file"),
        (["--metrics", "no-such.jsonl"], EXIT_SOURCE, "no-such.jsonl: no such file"),
        (["--prometheus", "http://127.0.0.1:9"], EXIT_SOURCE, "127.0.0.1:9"),
        (["--prometheus-header", "oops"], EXIT_USAGE, "--prometheus-header: expected NAME=VALUE"),
        (["--attempt", "all"], EXIT_USAGE, "one attempt at a time"),
        (["-f", "jsonl"], EXIT_USAGE, "jsonl"),
        (["--ranks", "7"], EXIT_NOTHING_FOUND, "no such ranks"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(
    store: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    found, text, error = ended(capsys, store, *arguments)
    assert (found, text) == (code, "")
    assert said in error
    assert error.count("\n") == 1


def test_a_misspelt_key_of_rules_is_told_with_its_line(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nphase = "**/forward"\nmetrik = "gpu.*"\nexact = 1\n')
    code, _, error = ended(capsys, store, "--rules", rules)
    assert code == EXIT_USAGE
    assert "rules.toml:3" in error
    assert "metric" in error


def test_strict_and_incomplete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sim = monitored(replace(TWO, killed_at=7))
    sim.write_store(tmp_path)
    code, text, _ = ended(capsys, tmp_path, "--strict")
    incomplete = analyzers.resources(tmp_path).completeness.verdict == "incomplete"
    assert code == (EXIT_INCOMPLETE if incomplete else EXIT_OK)
    assert "VERDICT" in text


def test_python_has_it_under_the_name_of_the_command(store: Path) -> None:
    analyzers.resources(store)
    # By now a package of that name is loaded, too.
    assert analyzers.resources(store, metric="cpu.*").metrics[0].metric == "cpu.busy"
    with pytest.raises(UsageError, match="by 'step'"):
        analyzers.resources(store, by="step")
    with pytest.raises(UsageError, match="depth -2"):
        analyzers.resources(store, depth=-2)


# --- Other answers --------------------------------------------------------------------------------------


def test_the_table_attributed_adds_up_to_what_was_observed(two: Path) -> None:
    with analyzers.database(two) as session:
        sums = dict(session.query("SELECT metric, sum(used) FROM attributed GROUP BY ALL").rows)
        assert sums == {
            "gpu.utilization": pytest.approx(N),
            "cpu.busy": pytest.approx(2 * N),
            "disk.read": pytest.approx(4e9),
            "network.rx": pytest.approx(1e8),
        }
        told = session.query(
            "SELECT a.type, a.rank, sum(a.used), sum(a.available), sum(a.observed_ns), sum(a.full_ns),"
            " sum(a.uniquely_full_ns), any_value(a.rule), any_value(a.host), bool_and(a.type = p.type)"
            " FROM attributed a JOIN phases p USING (phase_ix)"
            " WHERE a.metric = 'gpu.utilization' AND p.name = 'backward' GROUP BY ALL ORDER BY rank"
        ).rows
        assert [row[1] for row in told] == [0, 1]
        for row in told:
            assert row[2:4] == (pytest.approx(1.5), pytest.approx(1.5))
            assert row[4:7] == (3 * S, 3 * S, 3 * S)
            assert row[7:] == ("variable", "node-0", True)
        rest = session.query(
            "SELECT used, type, rank, rule, available FROM attributed"
            " WHERE phase_ix IS NULL AND metric = 'gpu.utilization'"
        ).rows
        assert [tuple(row) for row in rest] == [(pytest.approx(4.0, rel=0.01), None, None, None, None)]


def test_the_table_of_a_part_has_the_phases_of_that_part(two: Path) -> None:
    with analyzers.database(two, steps=StepRange(2, 4), ranks=[1]) as session:
        rows = session.query(
            "SELECT p.step, p.name, a.rank, a.used, a.type = p.type FROM attributed a JOIN phases p"
            " USING (phase_ix) WHERE metric = 'gpu.utilization' AND p.name = 'backward' ORDER BY ALL"
        ).rows
        # The other rank uses the GPU as well, though it is not asked for.
        assert [tuple(row) for row in rows] == [
            (step, "backward", 1, pytest.approx(0.15), True) for step in (2, 3)
        ]


def test_without_resources_the_table_is_empty_and_says_why(bare: Path) -> None:
    with analyzers.database(bare) as session:
        found = session.query("SELECT * FROM attributed")
        assert found.rows == []
        (why,) = session.why_empty()
        assert "no resource was observed" in why


def test_counters_in_a_perfetto_trace(store: Path) -> None:
    file = io.BytesIO()
    counts = perfetto.write(read_subject(Query.of(str(store))), file)
    assert counts["samples"] == 4 * N
    trace = Trace()
    trace.ParseFromString(file.getvalue())
    tracks = {
        one.track_descriptor.uuid: one.track_descriptor
        for one in trace.packet
        if one.HasField("track_descriptor") and one.track_descriptor.HasField("counter")
    }
    told: dict[str, list[tuple[int, float]]] = {}
    for packet in trace.packet:
        event = packet.track_event
        if event.track_uuid in tracks:
            value = (
                event.double_counter_value if event.HasField("double_counter_value") else event.counter_value
            )
            told.setdefault(tracks[event.track_uuid].name, []).append((packet.timestamp, value))
    assert told["gpu[id=GPU-a] utilization"] == [(BEGIN + at * S, 1.0) for at in range(N)]
    assert told["cpu busy"] == [(BEGIN + at * S, 2.0) for at in range(N)]
    units = {track.name: track.counter.unit_name for track in tracks.values()}
    assert units["disk[id=nvme0] read"] == "By/s"
