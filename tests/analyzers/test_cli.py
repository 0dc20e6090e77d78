# SPDX-License-Identifier: Apache-2.0
"""The command line as users meet it: answers, options, exit codes, one line for each failure."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grademl_otel import analyzers
from grademl_otel.analyzers import answers, errors
from grademl_otel.analyzers.cli import missing_package
from grademl_otel.analyzers.cli.app import run
from grademl_otel.analyzers.cli.commands import grademl
from grademl_otel.analyzers.suggest import COMMANDS
from tests.support.jaeger_cases import CASES, ORIGIN_US, jaeger_document, many_traces
from tests.support.synthetic import MS, Simulated, Training, simulate

GRADEML = [str(Path(sys.executable).parent / "grademl")]


@pytest.fixture
def case_file(tmp_path: Path) -> Path:
    path = tmp_path / "case12.json"
    path.write_text(json.dumps(jaeger_document(CASES[12][0])))
    return path


@pytest.fixture(scope="module")
def slow() -> Simulated:
    """A run whose two workers make a batch every 20 ms, while a step needs one every 10 ms."""
    return simulate(Training(epochs=2, steps_per_epoch=30, workers=2, fetch_ns=39 * MS))


@pytest.fixture
def store(tmp_path: Path, slow: Simulated) -> Path:
    folder = tmp_path / "grademl-runs"
    slow.write_store(folder)
    return folder


def command(
    *arguments: str, cwd: Path | None = None, stdin: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `grademl` as a process of its own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GRADEML_") and k != "NO_COLOR"}
    done = subprocess.run(
        [*GRADEML, *arguments],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        env={**kept, **(env or {})},
        timeout=120,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def answer(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    """Run a command in this process and return its JSON."""
    assert run([str(argument) for argument in arguments]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def failure(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    """Run a command that fails; return its exit code and its line on stderr."""
    code = run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("grademl: ")
    return code, lines[0]


# --- Critical path of any service's trace ------------------------------------------------------------------


@pytest.mark.parametrize("number", CASES)
def test_every_agreed_case_as_a_jaeger_file(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notation, expected = CASES[number]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(jaeger_document(notation)))
    document = answer(capsys, "critical-path", path, "--json")
    start = int(document["window"]["origin_unix_ns"]) // 1000 - ORIGIN_US
    sections = document["path"]["sections"]
    found = " ".join(
        f"{s['phase']}{start + s['start_ns'] // 1000}-{start + s['end_ns'] // 1000}"
        for s in reversed(sections)
    )
    assert found == expected
    assert sum(s["end_ns"] - s["start_ns"] for s in sections) == document["path"]["total_ns"]
    assert document["path"]["total_ns"] == document["window"]["wall_ns"]
    assert document["path"]["omitted"] == {"sections": 0, "ns": 0}
    assert all(re.fullmatch("[0-9a-f]{32}", s["span"]["trace_id"]) for s in sections)
    assert document["source"]["run"] is None


def test_top_counts_what_it_leaves_out(case_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = answer(capsys, "path", case_file, "--json", "--top", "3")["path"]
    assert [s["phase"] for s in path["sections"]] == ["s2", "s1", "s5"]
    assert path["omitted"] == {"sections": 4, "ns": 100_000 - 25_000 - 10_000 - 30_000}


@pytest.fixture
def crowd(tmp_path: Path) -> Path:
    """57 traces of 10 us, 8 of them in B; three of 100 us, 96 of them in B."""
    path = tmp_path / "many.json"
    path.write_text(json.dumps(many_traces(["A[0,10) B<A[1,9)"] * 57 + ["A[0,100) B<A[2,98)"] * 3)))
    return path


def test_many_traces_are_a_population(crowd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, "critical-path", crowd, "--json")
    path = document["path"]
    assert "sections" not in path
    assert path["total_ns"] == document["window"]["wall_ns"] == (57 * 10 + 3 * 100) * 1000
    assert sum(entry["path_ns"] for entry in path["population"]) == path["total_ns"]
    in_b, in_a = path["population"]
    assert (in_b["service"], in_b["operation"], in_b["traces"]) == ("shop", "B", 60)
    assert in_b["path_ns"] == (57 * 8 + 3 * 96) * 1000
    assert (in_b["p50_ns"], in_b["p95_ns"], in_b["p99_ns"]) == (8_000, 8_000, 96_000)
    assert in_b["tail_minus_median_ns"] == 88_000
    assert (in_a["operation"], in_a["tail_minus_median_ns"]) == ("A", 2_000)
    assert document["source"]["traces"] == 60


def test_one_document_a_line_for_each_trace(crowd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["critical-path", str(crowd), "--per-trace"]) == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(documents) == 60
    assert sorted({document["path"]["total_ns"] for document in documents}) == [10_000, 100_000]
    assert all(document["source"]["traces"] == 1 for document in documents)


def test_a_trace_can_be_chosen(crowd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, "critical-path", crowd, "--json", "--trace", "3a")
    assert document["path"]["total_ns"] == 100_000
    assert {s["span"]["trace_id"] for s in document["path"]["sections"]} == {f"{0x3A:032x}"}


def test_traces_can_be_chosen_by_operation_and_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mixed.json"
    first = many_traces(["A[0,10) B<A[1,9)", "C[0,10)"])["data"]
    second = jaeger_document("B[0,7)", trace=99, service="store")["data"]
    path.write_text(json.dumps({"data": first + second}))
    assert answer(capsys, "critical-path", path, "--json", "--operation", "B")["source"]["traces"] == 2
    document = answer(capsys, "critical-path", path, "--json", "--operation", "B", "--service", "store")
    assert document["path"]["total_ns"] == 7_000
    code, _ = failure(capsys, "critical-path", path, "--operation", "Z")
    assert code == errors.EXIT_NOTHING_FOUND


def test_summary_by_each_key(case_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for by, keys, beside in (
        ("phase", {"s1", "s2", "s3", "s5"}, {"s4"}),
        ("operation", {"shop s1", "shop s2", "shop s3", "shop s5"}, {"shop s4"}),
        ("rank", {"no rank"}, set()),
        ("lane", {"no lane"}, set()),
        ("section", {"s1 work", "s2 work", "s3 work", "s5 work"}, set()),
    ):
        summary = answer(capsys, "critical-path", case_file, "--json", "--by", by)["summary"]
        assert {entry["key"] for entry in summary if entry["path_ns"]} == keys
        assert {entry["key"] for entry in summary if not entry["path_ns"]} == beside
        assert sum(entry["path_ns"] for entry in summary) == 100_000


def test_an_operation_of_a_run_is_one_key_with_detail_and_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some steps have spans, of the others only the table tells; both are the same service's."""
    simulate(Training(epochs=1, steps_per_epoch=60, detail_level=2)).write_store(tmp_path)
    document = answer(capsys, "critical-path", tmp_path, "--json", "--by", "operation")
    assert {s["span"] is None for s in document["path"]["sections"] if s["phase"] == "backward"} == {
        True,
        False,
    }
    assert [e["key"] for e in document["summary"] if "backward" in e["key"]] == ["trainer backward"]


def test_a_trace_of_a_run_is_not_called_foreign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sim = simulate(Training(epochs=1, steps_per_epoch=30))
    sim.write_store(tmp_path)
    run_trace = next(span["traceId"] for _, span in sim.spans if span["name"] == "run")
    document = answer(capsys, "critical-path", tmp_path, "--json", "--trace", run_trace)
    assert [one["missing"] for one in document["abstained"]] == [
        "a run is judged as a whole, not by single traces"
    ]


# --- Formats -----------------------------------------------------------------------------------------------


def test_csv_has_exact_numbers(case_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["critical-path", str(case_file), "-f", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["key"]: row["path_ns"] for row in rows} == {
        "s1": "25000", "s2": "25000", "s3": "20000", "s5": "30000", "s4": "0",
    }  # fmt: skip
    assert run(["critical-path", str(case_file), "-f", "csv", "--by", "section"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert (rows[0]["phase"], rows[0]["start_ns"], rows[0]["end_ns"], rows[0]["step"]) == (
        "s1",
        "0",
        "5000",
        "",
    )


def test_a_name_is_no_formula_and_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = jaeger_document("A[0,10)")
    document["data"][0]["spans"][0]["operationName"] = "=cmd|[red]\x1b[31m"
    path = tmp_path / "hostile.json"
    path.write_text(json.dumps(document))
    assert run(["critical-path", str(path), "-f", "csv"]) == 0
    assert "\n'=cmd|[red]" in capsys.readouterr().out
    assert run(["critical-path", str(path)]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "=cmd|[red]?[31m" in text
    assert run(["critical-path", str(path), "-f", "markdown"]) == 0
    assert "\\|\\[red\\]" in capsys.readouterr().out


def test_markdown_is_for_people(case_file: Path, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["critical-path", str(case_file), "-f", "markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| key | path | path share | blocked | total | self | slack | drag |"
    assert lines[2].startswith("| s5 | 30 us | 30 % | ")
    assert run(["report", str(store), "-f", "markdown"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# train.py\n")
    assert "**The trainer waits for data " in text
    assert re.search(r"^\| 0 \| data.wait \| \d\.\d s \| \d\d % \|$", text, re.MULTILINE)


def test_python_says_what_the_command_says(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = analyzers.report(store)
    assert run(["report", str(store)]) == 0
    assert capsys.readouterr().out == analyzers.render(document)
    plain = json.loads(json.dumps(analyzers.to_dict(document)))
    assert answer(capsys, "report", store, "--json") == plain
    assert set(analyzers.__all__) <= {name for name in dir(analyzers) if getattr(analyzers, name)}


def test_jsonl_is_one_line(case_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["critical-path", str(case_file), "-f", "jsonl"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["schema"] == "grademl.critical_path/1"


def test_standard_input_is_a_source(case_file: Path) -> None:
    done = command("critical-path", "-", "--json", stdin=case_file.read_bytes())
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["path"]["total_ns"] == 100_000


# --- Our runs ----------------------------------------------------------------------------------------------


def test_bare_command_reports_on_the_latest_local_run(store: Path) -> None:
    done = command(cwd=store.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("run train.py · 1 process · cpu · 2 epochs, 60 steps · ")
    assert "\nVERDICT  The trainer waits for data " in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stdout == command("report", "grademl-runs", cwd=store.parent).stdout
    assert done.stdout == command("grademl-runs", cwd=store.parent).stdout


def test_source_from_the_environment(store: Path) -> None:
    done = command("runs", "--json", env={"GRADEML_SOURCE": str(store)})
    (entry,) = json.loads(done.stdout)["runs"]
    assert (entry["run"], entry["script"], entry["steps"], entry["ended"]) == (
        Training.run_id, "train.py", 60, "exit",
    )  # fmt: skip


def test_runs_in_every_format(store: Path, slow: Simulated, capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("text", "json", "jsonl", "csv", "markdown"):
        assert run(["runs", str(store), "-f", form]) == 0
        text = capsys.readouterr().out
        assert (Training.run_id[:12] if form == "text" else Training.run_id) in text
        assert "train.py" in text
    assert run(["runs", str(store), "--service", "nobody"]) == errors.EXIT_NOTHING_FOUND


def test_services_of_other_traces_are_listed(crowd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, "runs", crowd, "--json")
    assert (document["runs"], document["services"]) == ([], ["shop"])
    assert run(["runs", str(crowd)]) == 0
    assert "other traces of: shop\n" in capsys.readouterr().out


def test_a_run_is_chosen_by_the_start_of_its_id(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = simulate(Training(run_id="f" * 32, start=Training.start + 10**12, epochs=1, steps_per_epoch=4))
    other.write_store(store)
    assert answer(capsys, "critical-path", store, "--json")["source"]["run"] == "f" * 32
    document = answer(capsys, "critical-path", store, "--json", "--run", Training.run_id[:6])
    assert document["source"]["run"] == Training.run_id
    code, _ = failure(capsys, "critical-path", store, "--run", "abc")
    assert code == errors.EXIT_NOTHING_FOUND
    code, _ = failure(capsys, "critical-path", store, "--attempt", "7")
    assert code == errors.EXIT_NOTHING_FOUND


def test_steps_cut_the_run_exactly(store: Path, slow: Simulated, capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, "critical-path", store, "--json", "--steps", "10:20")
    rows = [row for row in slow.rows if row.kind == "train" and 10 <= row.step < 20]
    assert document["window"]["steps"]["first"] == 10
    assert document["window"]["steps"]["last"] == 19
    wall = document["window"]["wall_ns"]
    assert abs(wall - (rows[-1].end - rows[0].start)) <= 2_000  # the table's microseconds
    assert document["path"]["total_ns"] == wall
    assert sum(s["end_ns"] - s["start_ns"] for s in document["path"]["sections"]) == wall
    assert sum(entry["ns"] for entry in document["lane_budget"]) == wall
    last = answer(capsys, "critical-path", store, "--json", "--steps", "last:10")
    assert (last["window"]["steps"]["first"], last["window"]["steps"]["last"]) == (50, 59)
    whole = answer(capsys, "critical-path", store, "--json", "--steps", "all")
    assert whole["window"] == answer(capsys, "critical-path", store, "--json")["window"]
    code, line = failure(capsys, "critical-path", store, "--steps", "100:200")
    assert (code, "it has 0 to 59" in line) == (errors.EXIT_NOTHING_FOUND, True)


def test_ranks_are_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(Training(ranks=3, epochs=1, steps_per_epoch=6)).write_store(tmp_path)
    document = answer(capsys, "critical-path", tmp_path, "--json", "--ranks", "0,2")
    assert {entry["rank"] for entry in document["lane_budget"]} == {0, 2}
    code, line = failure(capsys, "critical-path", tmp_path, "--ranks", "5-6")
    assert (code, "it has 0 to 2" in line) == (errors.EXIT_NOTHING_FOUND, True)


def test_strict_answers_and_then_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = simulate(Training(ranks=2, epochs=1, steps_per_epoch=6)).write_store(tmp_path)
    assert run(["report", str(path), "--strict"]) == 0
    capsys.readouterr()
    traces = next(Path(path).rglob("traces.jsonl")) if Path(path).is_dir() else Path(path)
    lines = traces.read_bytes().splitlines(keepends=True)
    kept = [
        line for line in lines if b'"grademl.rank","value":{"intValue":"1"}' not in line.replace(b" ", b"")
    ]
    assert len(kept) < len(lines)
    traces.write_bytes(b"".join(kept))
    assert run(["report", str(path)]) == 0
    assert "INCOMPLETE" in capsys.readouterr().out
    assert run(["report", str(path), "--strict"]) == errors.EXIT_INCOMPLETE
    captured = capsys.readouterr()
    assert captured.out.startswith("run train.py")
    assert captured.err.startswith("grademl: the data are incomplete")


# --- Failures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["rnus"], 2, "did you mean `grademl runs`?"),
        (["critical-pth"], 2, "did you mean `grademl critical-path`?"),
        (["--json", "runs"], 2, "the command comes first: grademl runs"),
        (["case21.json"], 3, "no such file or folder; did you mean case12.json?"),
        (["nowhere/at/all.json"], 3, "no such file or folder"),
        (["case12.json#3f2a"], 3, "no such file or folder; one run of it is written case12.json --run 3f2a"),
        (["localhost:16686"], 3, "a server is written jaeger://localhost:16686"),
        (["ftp://host"], 2, "unknown kind of SOURCE ftp://"),
        (["report", "--jsn"], 2, "--json"),
        (["report", "-f", "csv"], 2, "'csv' is not one of"),
        (["report", "case12.json", "--json", "-f", "markdown"], 2, "contradict"),
        (["critical-path", "case12.json", "--per-trace", "-f", "csv"], 2, "no csv form"),
        (["critical-path", "case12.json", "--by", "colour"], 2, "'phase', 'rank', 'lane'"),
        (["critical-path", "case12.json", "--top", "0"], 2, "--top"),
        (["report", "case12.json", "--steps", "9:3"], 2, "not a range of steps"),
        (["report", "case12.json", "--ranks", "a-b"], 2, "not a list of ranks"),
        (["report", "case12.json", "--since", "soon"], 2, "not a duration"),
        (["report", "case12.json", "--from", "noon"], 2, "not a time"),
        (["report", "case12.json", "--from", "2026-12-02", "--to", "2026-12-01"], 2, "before"),
        (["report", "case12.json", "--since", "1h", "--to", "2026-12-01"], 2, "contradict"),
        (["report", "case12.json", "--attempt", "first"], 2, "--attempt first"),
        (["report", "case12.json", "--trace", "xyz"], 2, "hexadecimal"),
        (["report", "case12.json", "--trace", "1", "--run", "2"], 2, "give one of them"),
        (["report", "case12.json", "--header", "secret"], 2, "NAME=VALUE"),
        (["report", "case12.json", "--overlap-tolerance", "much"], 2, "overlap tolerance"),
        (["report", "case12.json", "b.json", "c.json"], 2, "3 SOURCEs, case12.json the first"),
        (["push", "case12.json", "b.json", "--to", "http://h:4318"], 2, "a glob in quotes"),
        (["report", "case12.json", "--trace", "77"], 5, "no span"),
        (["report", "case12.json", "--steps", "1:2"], 5, "none in it"),
        (["report", "case12.json", "--run", "latest", "--attempt", "1"], 5, "attempt 1"),
        (["report", "garbage.json"], 3, "garbage.json"),
        (["report", "binary.bin"], 3, "binary.bin"),
        (["report", "empty.jsonl"], 5, "no spans in it"),
        (["report", "nothing"], 5, "neither a run nor a trace file"),
        (["report", "page.html"], 3, "an HTML page"),
    ],
)
def test_every_failure_is_one_line_and_a_code(
    arguments: list[str],
    code: int,
    says: str,
    case_file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = case_file.parent
    (folder / "garbage.json").write_text('{"data": [{"traceID": "1", "spans"')
    (folder / "binary.bin").write_bytes(bytes(range(256)) * 8)
    (folder / "empty.jsonl").write_bytes(b"")
    (folder / "page.html").write_text("<!DOCTYPE html><html><body>Sign in</body></html>")
    (folder / "nothing").mkdir()
    monkeypatch.chdir(folder)
    found, line = failure(capsys, *arguments)
    assert (found, says in line) == (code, True), line


def test_nothing_to_report_on(tmp_path: Path) -> None:
    done = command(cwd=tmp_path)
    assert (done.returncode, done.stdout) == (errors.EXIT_NOTHING_FOUND, "")
    assert "opentelemetry-instrument python train.py" in done.stderr
    assert done.stderr.count("\n") == 1


def test_unreachable_server_is_one_line(tmp_path: Path) -> None:
    done = command("report", "jaeger://127.0.0.1:1", "--timeout", "5")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (errors.EXIT_SOURCE, "", 1)
    assert "127.0.0.1:1" in done.stderr


def test_a_header_never_shows(case_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, line = failure(capsys, "report", case_file, "--header", "token s3cr3t")
    assert "s3cr3t" not in line


def test_a_bug_is_one_line_unless_debugging(
    case_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(answers, "report", broken)
    code, line = failure(capsys, "report", case_file)
    assert code == errors.EXIT_BUG
    assert "ZeroDivisionError: oops" in line
    assert "--debug" in line
    assert run(["report", str(case_file), "--debug"]) == errors.EXIT_BUG
    assert "Traceback" in capsys.readouterr().err


_STORES = [
    simulate(Training(epochs=1, steps_per_epoch=5)).otlp_lines(),
    simulate(Training(ranks=2, epochs=2, steps_per_epoch=3, workers=0, killed_at=4)).otlp_lines(),
    json.dumps(many_traces([notation for notation, _ in CASES.values()])).encode(),
]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_are_no_bugs(
    data: st.DataObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = bytearray(data.draw(st.sampled_from(_STORES)))
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[place] = data.draw(st.sampled_from(b'0123456789-"{}[],:\x00\xff'))
        else:
            del content[place : place + data.draw(st.integers(1, 300))]
    path = tmp_path / "damaged.jsonl"
    path.write_bytes(content)
    command_line = data.draw(st.sampled_from(["report --json", "critical-path --json", "report", "runs"]))
    code = run([*command_line.split(), str(path)])
    captured = capsys.readouterr()
    assert code in (errors.EXIT_OK, errors.EXIT_SOURCE, errors.EXIT_NOTHING_FOUND), captured.err
    assert captured.err.count("\n") == (code != 0)
    if code == 0 and command_line.endswith("json"):
        path_of = json.loads(captured.out)["path"]
        parts = path_of.get("sections")
        if parts is not None:
            assert sum(s["end_ns"] - s["start_ns"] for s in parts) == path_of["total_ns"]


def test_interrupted(
    case_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(answers, "report", interrupted)
    assert run(["report", str(case_file)]) == errors.EXIT_INTERRUPTED
    assert "Traceback" not in capsys.readouterr().err


def test_a_closed_pipe_is_no_error(case_file: Path) -> None:
    process = subprocess.Popen(
        [*GRADEML, "critical-path", str(case_file), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert (process.stderr.read(), process.wait(timeout=60)) == (b"", 0)
    process.stderr.close()


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="a system without a device that is always full")
@pytest.mark.parametrize("command", [["critical-path"], ["export", "--to", "perfetto"], ["--help"]])
def test_a_full_disk_below_standard_output_is_told(command: list[str], case_file: Path) -> None:
    source = [] if command == ["--help"] else [str(case_file)]
    with FULL.open("wb") as full:
        done = subprocess.run([*GRADEML, *command, *source], stdout=full, stderr=subprocess.PIPE, timeout=60)
    (line,) = done.stderr.decode().splitlines()
    assert done.returncode == errors.EXIT_USAGE
    assert line.startswith("grademl: cannot write to standard output: no space left on device")


def test_the_code_tells_when_nobody_reads_the_reason(tmp_path: Path) -> None:
    process = subprocess.Popen([*GRADEML, "report", str(tmp_path / "no")], stderr=subprocess.PIPE)
    assert process.stderr is not None
    process.stderr.close()
    assert process.wait(timeout=60) == errors.EXIT_SOURCE


# --- Output files ------------------------------------------------------------------------------------------


def test_output_file_replaces_the_old_one(case_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = case_file.parent / "answer.json"
    target.write_text("old")
    target.chmod(0o640)
    assert run(["critical-path", str(case_file), "--json", "-o", str(target)]) == 0
    assert capsys.readouterr().out == ""
    assert json.loads(target.read_text())["path"]["total_ns"] == 100_000
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(entry.name for entry in case_file.parent.iterdir()) == ["answer.json", "case12.json"]


def test_output_is_whole_or_not_there(
    case_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = case_file.parent / "answer.json"
    target.write_text("old")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("grademl_otel.analyzers.whole_files.os.replace", full)
    code, line = failure(capsys, "critical-path", case_file, "--json", "-o", target)
    assert (code, "no space left" in line) == (errors.EXIT_USAGE, True)
    assert target.read_text() == "old"
    assert sorted(entry.name for entry in case_file.parent.iterdir()) == ["answer.json", "case12.json"]


def test_no_file_when_there_is_no_answer(case_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = case_file.parent / "answer.json"
    failure(capsys, "critical-path", case_file, "--json", "-o", target, "--trace", "77")
    assert not target.exists()


@pytest.mark.parametrize("target", ["no/such/folder/answer.json", "."])
def test_output_that_cannot_be_written(
    target: str, case_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(case_file.parent)
    code, line = failure(capsys, "critical-path", case_file, "-o", target)
    assert (code, "choose another file with -o" in line) == (errors.EXIT_USAGE, True)


def test_output_to_a_device(case_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["critical-path", str(case_file), "-o", os.devnull]) == 0
    assert capsys.readouterr().out == ""


# --- Without the extra -------------------------------------------------------------------------------------

_BLOCKER = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
import grademl_otel
from grademl_otel.analyzers.cli import main
sys.argv = ["grademl", *{arguments!r}]
main()
"""


@pytest.mark.parametrize("package", ["click", "msgspec", "numpy", "rich"])
def test_a_missing_package_names_the_extra(package: str, case_file: Path) -> None:
    code = _BLOCKER.format(package=package, arguments=["critical-path", str(case_file)])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (errors.EXIT_USAGE, "")
    assert done.stderr == (
        f"grademl: the analyzer needs {package}; run: pip install 'grademl-otel[analyzer]'\n"
    )


def test_only_who_draws_a_graph_needs_networkx(case_file: Path) -> None:
    code = _BLOCKER.format(package="networkx", arguments=["critical-path", str(case_file)])
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0
    code = _BLOCKER.format(package="networkx", arguments=["export", str(case_file), "--to", "graphml"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (errors.EXIT_USAGE, "")
    assert done.stderr == "grademl: networkx is not installed; run: pip install 'grademl-otel[analyzer]'\n"


@pytest.mark.parametrize("package", ["msgspec", "numpy"])
def test_a_missing_package_names_the_extra_in_python_too(package: str) -> None:
    blocker, _, _ = _BLOCKER.format(package=package, arguments=[]).partition("from grademl_otel")
    code = f"{blocker}from grademl_otel import analyzers\nanalyzers.report\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: the analyzer needs {package}; run: pip install 'grademl-otel[analyzer]'"
    )


def test_a_missing_module_of_ours_is_a_bug() -> None:
    assert missing_package(ModuleNotFoundError("No module named 'x'", name="x")) is None
    assert missing_package(ModuleNotFoundError("No module named 'x'")) is None


def test_importing_the_analyzers_loads_nothing_heavy() -> None:
    code = (
        "import sys, grademl_otel.analyzers as a; print(sorted({'numpy','click','rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n"


# --- The set of commands -----------------------------------------------------------------------------------


def test_help_lists_what_exists_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(grademl, click.Group)
    assert sorted(COMMANDS) == grademl.names
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    assert set(grademl.commands) == set(
        re.findall(r"^  ([a-z-]+)  +\S", text.partition("Commands:")[2], re.M)
    )
    assert "what-if" not in text
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("grademl ")


@pytest.mark.parametrize(
    "command", [["doctor"], ["pull", "-o", "copy"], ["push", "--to", "http://localhost:4318"]]
)
def test_what_takes_one_attempt_refuses_all(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, line = failure(capsys, *command, "jaeger://localhost:9", "--attempt", "all")
    assert code == errors.EXIT_USAGE
    assert "one attempt at a time" in line


@pytest.mark.parametrize("name", ["what-if", "live"])
def test_commands_of_other_versions_do_not_exist(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = failure(capsys, name)
    assert code in (errors.EXIT_USAGE, errors.EXIT_SOURCE)
