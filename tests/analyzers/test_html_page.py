# SPDX-License-Identifier: Apache-2.0
"""The page of a report: what it says and in which order, that nothing in it is taken for markup, its data."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grademl_otel import analyzers, semconv
from grademl_otel.analyzers import answers, secrecy
from grademl_otel.analyzers.answers import PAGE_SECTIONS, report_page
from grademl_otel.analyzers.cli.app import run
from grademl_otel.analyzers.errors import EXIT_INCOMPLETE, EXIT_OK, EXIT_SOURCE, EXIT_USAGE
from grademl_otel.analyzers.html import run_tables
from grademl_otel.analyzers.html.contents import parts
from grademl_otel.analyzers.html.embedding import (
    MOST,
    bounded,
    brief,
    document_json,
    plain_json,
    shortened,
)
from grademl_otel.analyzers.html.front import ENDED, front, moment, ranks_in_words
from grademl_otel.analyzers.html.parts import Charts
from grademl_otel.analyzers.html.provenance import command
from grademl_otel.analyzers.model.clocks import ClockRule
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.reporting.document import EndedInfo, MemoryInfo, ReportDocument, to_dict
from grademl_otel.analyzers.selection import StepRange
from grademl_otel.analyzers.subject import Subject, read_subject
from tests.support.html_page import Page, read_page
from tests.support.jaeger_cases import jaeger_document, many_traces
from tests.support.simulator.job import Job, Pauses, Slow
from tests.support.simulator.training import simulate as simulate_job
from tests.support.synthetic import MS, Training, simulate

PROFILE = Path(__file__).parents[1] / "data" / "profiles" / "gpu_rank_1.json"
SLOW_LOADER = Training(epochs=2, steps_per_epoch=40, workers=2, fetch_ns=39 * MS, checkpoint_ns=30 * MS)


def stored(folder: Path, training: Training) -> Path:
    simulate(training).write_store(folder)
    return folder


def four_ranks(folder: Path) -> Path:
    simulate_job(
        Job(
            ranks=4, epochs=1, steps=40, slow=(Slow("backward", 1.6, rank=2),), collections=Pauses(20, 8 * MS)
        )
    ).write_store(folder)
    return folder


def incomplete(folder: Path) -> Path:
    """Store a run of two ranks, one of which lacks a part of its table."""
    traces = simulate(Training(ranks=2, epochs=1, steps_per_epoch=40, rows_per_part=10)).write_store(folder)
    requests = [json.loads(line) for line in traces.read_bytes().splitlines()]
    scopes = [
        scope for request in requests for part in request["resourceSpans"] for scope in part["scopeSpans"]
    ]
    scope, span = [(scope, span) for scope in scopes for span in scope["spans"] if span["name"] == "window"][
        1
    ]
    scope["spans"].remove(span)
    traces.write_text("".join(json.dumps(request) + "\n" for request in requests))
    return folder


def one_trace(folder: Path) -> Path:
    folder.mkdir()
    path = folder / "trace.json"
    path.write_text(json.dumps(jaeger_document("A[0,1000) B<A[100,400) C<B[150,300) D<A[420,900)")))
    return path


def sixty_traces(folder: Path) -> Path:
    folder.mkdir()
    path = folder / "many.json"
    path.write_text(json.dumps(many_traces(["A[0,10) B<A[1,9)"] * 57 + ["A[0,100) B<A[2,98)"] * 3)))
    return path


SUBJECTS: dict[str, Callable[[Path], Path]] = {
    "slow loader": lambda folder: stored(folder, SLOW_LOADER),
    "four ranks": four_ranks,
    "killed": lambda folder: stored(folder, Training(ranks=2, epochs=3, steps_per_epoch=20, killed_at=50)),
    "raised": lambda folder: stored(folder, Training(epochs=1, steps_per_epoch=40, raises_at=30)),
    "no steps": lambda folder: stored(folder, Training(epochs=0)),
    "one step": lambda folder: stored(folder, Training(epochs=1, steps_per_epoch=1)),
    "incomplete": incomplete,
    "one trace": one_trace,
    "many traces": sixty_traces,
    "profile": lambda folder: PROFILE,
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Where each of `SUBJECTS` is stored."""
    folder = tmp_path_factory.mktemp("subjects")
    return {name: make(folder / name.replace(" ", "-")) for name, make in SUBJECTS.items()}


@pytest.fixture(scope="module")
def pages(sources: dict[str, Path]) -> dict[str, Page]:
    """The page of each of `SUBJECTS`, read."""
    return {name: page_of(source) for name, source in sources.items()}


def page_of(source: Path | str, **options: Any) -> Page:
    return read_page(report_page(Query.of(str(source), **options)).found.html)


def subject_and_report(source: Path) -> tuple[Subject, ReportDocument]:
    return read_subject(Query.of(str(source))), analyzers.report(str(source))


# --- What it says, and in which order ----------------------------------------------------------------------


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_page_is_well_formed_and_refers_to_nothing_else(name: str, pages: dict[str, Page]) -> None:
    assert pages[name].errors == []
    assert pages[name].source.startswith("<!doctype html>\n")


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_page_says_what_the_terminal_says(
    name: str, pages: dict[str, Page], sources: dict[str, Path]
) -> None:
    document, text = analyzers.report(str(sources[name])), pages[name].text
    said = [line for finding in document.findings for line in finding.fix]
    said += document.notes + [one.missing for one in document.abstained]
    said += document.verdict.lines if document.verdict is not None else []
    assert len(said) > 0
    for line in said:
        assert " ".join(line.split()).lower() in text.lower()


def test_where_it_ran_and_what(tmp_path: Path) -> None:
    traces = simulate(replace(SLOW_LOADER, epochs=1, ranks=2)).write_store(tmp_path / "runs")
    requests = [json.loads(line) for line in traces.read_bytes().splitlines()]
    told = {
        semconv.ACCELERATOR_COUNT: {"intValue": "8"},
        semconv.ACCELERATOR_MODEL: {"stringValue": "NVIDIA H100"},
        semconv.SOURCE_REVISION: {"stringValue": "0123456789abcdef" * 2},
        semconv.SOURCE_BRANCH: {"stringValue": "main"},
        semconv.SOURCE_DIRTY: {"boolValue": True},
    }
    for request in requests:
        for part in request["resourceSpans"]:
            part["resource"]["attributes"] += [{"key": key, "value": value} for key, value in told.items()]
    traces.write_text("".join(json.dumps(request) + "\n" for request in requests))
    page = page_of(tmp_path / "runs")
    assert "8 × NVIDIA H100" in page.text
    assert "commit 0123456789ab on main, with changes" in page.text


def test_verdict_and_gain_are_on_the_first_screen_in_this_order(pages: dict[str, Page]) -> None:
    in_order(
        pages["slow loader"].text,
        "train.py",
        "Data complete · 80 of 80 steps",
        "The trainer waits for data",
        "Gain at most",
        "of the step (",
        "DataLoader(num_workers=4)",
        "Where the time went",
        "Critical path",
        "Steps",
        "Findings",
        "Not judged",
        "The data, and where they come from",
    )


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("killed", "rank 0 killed · while in backward · last step"),
        ("raised", "by an exception (RuntimeError)"),
    ],
)
def test_how_it_ended_badly_goes_before_everything_else(
    name: str, first: str, pages: dict[str, Page]
) -> None:
    in_order(pages[name].text, "train.py", "It did not end in order", first, "Data complete", "Verdict")


def test_what_is_large_is_a_sentence(pages: dict[str, Page]) -> None:
    (lead,) = [one.text for one in pages["killed"].root.all("p") if "lead" in classes(one)]
    assert re.fullmatch(r"Backward takes \d+ % of each step\.", lead)


def test_clocks_that_were_shifted_are_told(tmp_path: Path) -> None:
    offsets = {host: host * 40 * MS for host in range(1, 12)}
    simulate_job(Job(ranks=12, epochs=1, steps=25, offsets=offsets)).write_store(tmp_path / "runs")
    page = page_of(tmp_path / "runs")
    assert page.errors == []
    assert page.text.count("Clock of node-") == 8
    assert "and 3 more clocks, see the table" in page.text
    assert [row["applied"] for row in page.cells("clocks")] == ["false"] + ["true"] * 11


def test_ranks_that_ended_badly_go_before_those_that_may_go_on(sources: dict[str, Path]) -> None:
    about, document = subject_and_report(sources["no steps"])
    silent = EndedInfo(
        rank=0, how="unknown", last_step=5, last_mark_ns=0, open_phase=None, open_since_ns=None, error=None
    )
    ranks = [
        *(replace(silent, rank=rank) for rank in range(ENDED + 1)),
        replace(silent, rank=9, how="killed"),
    ]
    found = front(about, replace(document, ended=ranks)).ended
    assert found[0].badly
    assert found[0].text.startswith("rank 9 killed")
    assert [one.text[:6] for one in found[1:4]] == ["rank 0", "rank 1", "rank 2"]


def test_a_run_that_ended_in_order_has_no_such_block(pages: dict[str, Page]) -> None:
    assert "did not end in order" not in pages["four ranks"].text


def test_incomplete_data_are_a_block_before_the_verdict(
    pages: dict[str, Page], sources: dict[str, Path]
) -> None:
    reasons = analyzers.report(str(sources["incomplete"])).incomplete_because
    assert len(reasons) > 3
    in_order(pages["incomplete"].text, "train.py", "The data are incomplete", *reasons, "No verdict: ")


def test_complete_data_are_one_line(pages: dict[str, Page]) -> None:
    data = [one for one in pages["slow loader"].root.all("section") if "data" in classes(one)]
    assert [len(one.all("p", "li")) for one in data] == [1]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no steps", "No training step was recorded, so there is no step to judge."),
        ("one step", "Too few steps to judge: 1 steady step, 20 are needed."),
    ],
)
def test_a_run_without_enough_steps_says_so_and_has_nothing_empty(
    name: str, said: str, pages: dict[str, Page]
) -> None:
    page = pages[name]
    in_order(page.text, "train.py", "Verdict", said, "Where the time went")
    assert "Gain" not in page.text.partition("Where the time went")[0]
    for table in page.root.all("tbody"):
        assert table.all("tr")
    for drawing in page.root.all("figure"):
        assert drawing.all("rect", "path", "circle", "polyline", "use")


def test_without_steps_there_is_nothing_about_steps(pages: dict[str, Page]) -> None:
    for name in ("part-steps", "steady-step", "part-ranks", "part-findings"):
        assert pages["no steps"].root.by_id(name) is None


def test_ranks_are_a_table_with_the_latest_first(pages: dict[str, Page]) -> None:
    rows = pages["four ranks"].cells("ranks")
    assert rows[0]["rank"] == "2"
    assert sorted(row["rank"] for row in rows) == ["0", "1", "2", "3"]
    late = [int(row["late_ns"]) for row in rows]
    assert late == sorted(late, reverse=True)
    assert pages["slow loader"].root.by_id("ranks") is None


def test_memory_of_one_device_is_on_the_page(sources: dict[str, Path]) -> None:
    _, document = subject_and_report(sources["slow loader"])
    assert document.run is not None
    used = MemoryInfo(rank=0, device=0, allocated=5, reserved=6, peak=7)
    document = replace(document, run=replace(document.run, memory=[used]), breakdown=document.breakdown[:1])
    shown = [table.id for part in parts(document, Charts()) for table in part.tables]
    assert "device-memory" in shown
    assert "threads-and-devices" not in shown


def test_traces_of_others_have_their_path_and_no_verdict(pages: dict[str, Page]) -> None:
    single, many = pages["one trace"], pages["many traces"]
    assert [row["key"] for row in single.cells("path-by-phase")] == ["D", "A", "B", "C"]
    assert [(row["service"], row["operation"]) for row in many.cells("population")] == [
        ("shop", "B"),
        ("shop", "A"),
    ]
    for page in (single, many):
        assert "Verdict" not in page.text
        assert "Data unverifiable" in page.text
        assert "Steps" not in [one.text for one in page.root.all("h2")]
        assert "these spans belong to no run recorded by grademl-otel" in page.text


def test_a_profile_tells_what_its_devices_did(pages: dict[str, Page]) -> None:
    (row,) = pages["profile"].cells("threads-and-devices")
    assert (row["rank"], row["lane"]) == ("1", "device 0")
    parts = ("compute_ns", "communication_ns", "overlap_ns", "memory_ns", "idle_ns")
    assert sum(int(row[part]) for part in parts) == int(row["wall_ns"])


# --- Its data ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_page_holds_the_document_as_json(
    name: str, pages: dict[str, Page], sources: dict[str, Path]
) -> None:
    document = analyzers.report(str(sources[name]), top=PAGE_SECTIONS)
    assert pages[name].data("report-data") == to_dict(document)


def test_of_a_long_path_the_longest_sections_are_there_and_the_others_counted(
    sources: dict[str, Path],
) -> None:
    source = sources["slow loader"]
    path = page_of(source).data("report-data")["path"]
    assert path["omitted"] == {"sections": 0, "ns": 0}
    part = read_page(report_page(Query.of(str(source)), top=10).found.html).data("report-data")["path"]
    longest = sorted((one["end_ns"] - one["start_ns"] for one in path["sections"]), reverse=True)
    assert sorted((one["end_ns"] - one["start_ns"] for one in part["sections"]), reverse=True) == longest[:10]
    assert part["omitted"] == {"sections": len(longest) - 10, "ns": sum(longest[10:])}


def test_tables_hold_exact_values_that_add_up(pages: dict[str, Page]) -> None:
    page = pages["slow loader"]
    document = page.data("report-data")
    wall = document["window"]["wall_ns"]
    assert sum(int(row["ns"]) for row in page.cells("where-the-time-went")) == wall
    assert sum(float(row["share"]) for row in page.cells("where-the-time-went")) == pytest.approx(1)
    rows = page.cells("path-by-phase")
    assert [(row["key"], int(row["path_ns"])) for row in rows] == [
        (entry["key"], entry["path_ns"]) for entry in document["summary"]
    ]
    assert sum(int(row["path_ns"]) for row in rows) == wall
    steps = page.cells("steady-step")
    assert [(row["phase"], int(row["p95_ns"])) for row in steps] == [
        (phase["phase"], phase["p95_ns"]) for phase in document["step"]["phases"]
    ]


def test_what_is_not_known_is_empty_in_what_is_saved(pages: dict[str, Page]) -> None:
    rows = pages["killed"].cells("data")
    known = {row["what"]: row["expected"] for row in rows}
    assert known["steps"] == "100" or int(known["steps"]) > 0
    assert known["roots"] == ""


def test_findings_have_their_evidence_with_its_limits(pages: dict[str, Page]) -> None:
    page = pages["slow loader"]
    (finding,) = page.data("report-data")["findings"]
    assert [row["id"] for row in page.cells("findings")] == [finding["id"]]
    shown = [
        (row["signal"], float(row["value"]), float(row["limit"]) if row["limit"] else None)
        for row in page.cells("evidence")
    ]
    assert shown == [(one["signal"], one["value"], one["limit"]) for one in finding["evidence"]]


def test_of_many_ranks_the_first_are_shown_and_all_are_data(
    sources: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tables, "RANKS", 2)
    page = page_of(sources["four ranks"])
    for table in ("ranks", "threads-and-devices", "how-it-ended"):
        assert len(page.cells(table)) == 2
    assert page.text.count("2 of 4 ranks; the data of the page has all.") == 2
    assert len(page.data("report-data")["ranks"]["ranks"]) == 4


def test_a_report_in_another_form_loads_no_templates(sources: dict[str, Path]) -> None:
    code = (
        "import sys; from grademl_otel.analyzers.cli.app import run; "
        f"run(['report', {str(sources['one trace'])!r}, '-o', {os.devnull!r}]); "
        "sys.exit('jinja2' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_the_same_input_gives_the_same_page(sources: dict[str, Path], pages: dict[str, Page]) -> None:
    """In another process, too, which orders sets otherwise."""
    source = sources["four ranks"]
    assert page_of(source).source == pages["four ranks"].source
    code = f"from grademl_otel import analyzers; print(analyzers.report({str(source)!r}).to_html(), end='')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        timeout=120,
    )
    assert done.stdout.decode() == pages["four ranks"].source


# --- Nothing runs that is not its own, nothing is asked for ------------------------------------------------


def test_the_policy_allows_the_style_and_the_script_of_the_page_only(pages: dict[str, Page]) -> None:
    page = pages["slow loader"]
    (policy,) = [
        meta.attributes["content"] for meta in page.root.all("meta")
        if meta.attributes.get("http-equiv") == "Content-Security-Policy"
    ]  # fmt: skip
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert set(rules) == {"default-src", "style-src", "script-src", "img-src", "base-uri", "form-action"}
    assert "unsafe" not in policy
    assert "http" not in policy
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        # As a browser hashes it: what stands between the tags.
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page.source, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert page.source.index("Content-Security-Policy") < page.source.index("<style>")


@pytest.mark.parametrize("name", SUBJECTS)
def test_no_address_stands_where_a_browser_would_ask_for_it(name: str, pages: dict[str, Page]) -> None:
    page = pages[name]
    assert "url(http" not in page.source
    assert "@import" not in page.source
    kinds = [one.attributes.get("type") for one in page.root.all("script")]
    assert kinds == ["application/json", "application/json", None]


HOSTILE = {
    "script": "</script><script>alert(1)</script>",
    "quotes": "\"'><img src=x onerror=alert(1)>",
    "end": "]]>--></title></style></svg></table><h1>hi</h1>",
    "template": "{{ 7 * 7 }}{% raw %}<%= 7 %>${7}",
    "entity": "&lt;b&gt; &amp; &#x3c; &copy",
    "controls": "a\x00b\x07c\x1b[31md\x7fe\x9bf",
    "bidi": "abc\u202egnp.\u2066x\u2069\u200f",
    "separators": "line\u2028para\u2029end\r\n<!-- <script>",
    "formula": "=HYPERLINK(1)",
    "long": "n" * 100_000,
    "scheme": "javascript:alert(1)",
}


def hostile_run(folder: Path, text: str) -> Path:
    """Store a run that names all ``text`` that a run can name: program, host, service, error, phases."""
    traces = simulate(
        replace(SLOW_LOADER, script=text, service=text, torch=text, device=text, epochs=1, raises_at=30)
    ).write_store(folder)
    requests = [json.loads(line) for line in traces.read_bytes().splitlines()]
    for holder in holders(requests):
        if holder["key"] in ("host.name", "exception.type", "error.type"):
            holder["value"] = {"stringValue": text}
    for request in requests:
        for part in request["resourceSpans"]:
            part["resource"]["attributes"] += [
                {"key": key, "value": {"stringValue": text}}
                for key in (semconv.SOURCE_REVISION, semconv.SOURCE_BRANCH, semconv.ACCELERATOR_MODEL)
            ] + [{"key": semconv.ACCELERATOR_COUNT, "value": {"intValue": "1"}}]
    for span in spans(requests):
        span["attributes"] += [
            {"key": "grademl.run.name", "value": {"stringValue": text}},
            {"key": text, "value": {"stringValue": text}},
        ]
        if span["name"] == "optimizer":  # a phase that the program named
            span["name"] = text
            span["attributes"].append({"key": "grademl.phase", "value": {"stringValue": text}})
    traces.write_text("".join(json.dumps(request) + "\n" for request in requests))
    return folder


def holders(value: Any) -> Iterator[dict[str, Any]]:
    """Every attribute of OTLP within ``value``."""
    if isinstance(value, list):
        for one in value:
            yield from holders(one)
    elif isinstance(value, dict):
        if set(value) == {"key", "value"}:
            yield value
        for one in value.values():
            yield from holders(one)


def spans(requests: list[Any]) -> Iterator[dict[str, Any]]:
    for request in requests:
        for part in request["resourceSpans"]:
            for scope in part["scopeSpans"]:
                yield from scope["spans"]


def hostile_traces(folder: Path, text: str, several: bool) -> Path:
    """Store traces of others of which every operation, service and tag is ``text``."""
    notation = "A[0,1000) B<A[100,400) C<B[150,300)"
    document = many_traces([notation] * (3 if several else 1))
    for trace in document["data"]:
        trace["processes"]["p1"]["serviceName"] = text
        trace["processes"]["p2"] = {"serviceName": text + "2", "tags": []}
        for number, span in enumerate(trace["spans"]):
            span["operationName"] = f"{text}{number}"
            span["processID"] = f"p{1 + number % 2}"
            span["tags"].append({"key": text, "type": "string", "value": text})
    folder.mkdir()
    path = folder / "hostile.json"
    path.write_text(json.dumps(document))
    return path


def shown_as(text: str) -> str:
    """Return what the page is to show of ``text``."""
    printed = "".join(character if character.isprintable() else "?" for character in text)
    return " ".join(shortened(printed).split())


@pytest.mark.parametrize("kind", HOSTILE)
def test_names_of_a_run_are_text_whatever_they_are(kind: str, tmp_path: Path) -> None:
    page = page_of(hostile_run(tmp_path / "run", HOSTILE[kind]))
    assert page.errors == []
    assert len(page.root.all("script")) == 3
    assert page.text.count(shown_as(HOSTILE[kind])) >= 3
    data = page.data("report-data")["run"]
    assert data["script"] == bounded(HOSTILE[kind]) if kind == "long" else HOSTILE[kind]
    assert len(page.source) < 1_000_000


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("kind", HOSTILE)
def test_names_of_traces_of_others_are_text_whatever_they_are(
    kind: str, several: bool, tmp_path: Path
) -> None:
    page = page_of(hostile_traces(tmp_path / "traces", HOSTILE[kind], several))
    assert page.errors == []
    assert len(page.root.all("script")) == 3
    table = page.cells("population" if several else "path-by-phase")
    assert len(table) == 3
    assert page.text.count(shown_as(HOSTILE[kind])[:80]) >= 3
    assert len(page.source) < 1_000_000


def test_a_long_name_is_shortened_on_the_page_and_more_of_it_is_a_tooltip() -> None:
    name = "a" * 300 + "<z>"
    escaped = shortened(name).replace("<", "&lt;").replace(">", "&gt;")
    assert brief(name) == f'<span title="{"a" * 300}&lt;z&gt;">{escaped}</span>'
    assert shortened(name).startswith("a" * 80)
    assert shortened(name).endswith("a<z>")
    assert brief("short & plain") == "short &amp; plain"
    assert len(bounded("a" * 5_000)) == MOST + 1


def test_what_is_no_character_is_neither_text_nor_data() -> None:
    """A half of a pair, which no file holds: readers refuse it, and what is made from it can be written."""
    assert brief("a \ud800 b") == "a ? b"
    assert plain_json({"a": "\ud800</script>"}) == r'{"a":"\ud800\u003c/script\u003e"}'


# --- The command -------------------------------------------------------------------------------------------


def test_the_command_writes_the_page_into_a_file(
    tmp_path: Path, sources: dict[str, Path], pages: dict[str, Page]
) -> None:
    target = tmp_path / "report.html"
    assert run(["report", str(sources["slow loader"]), "-f", "html", "-o", str(target)]) == EXIT_OK
    assert target.read_text() == pages["slow loader"].source


def test_incomplete_and_strict_writes_the_page_and_fails(
    tmp_path: Path, sources: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "report.html"
    arguments = ["report", str(sources["incomplete"]), "-f", "html", "-o", str(target), "--strict"]
    assert run(arguments) == EXIT_INCOMPLETE
    assert "The data are incomplete" in target.read_text()
    assert "incomplete" in capsys.readouterr().err


def test_a_source_that_broke_off_has_its_page_and_fails(
    tmp_path: Path, sources: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "broken_off", lambda telemetry: "the source broke off")
    target = tmp_path / "report.html"
    arguments = ["report", str(sources["one trace"]), "-f", "html", "-o", str(target)]
    assert run(arguments) == EXIT_SOURCE
    assert read_page(target.read_text()).errors == []


def test_a_terminal_gets_a_line_before_the_work_is_done(
    sources: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(["report", "nowhere-at-all", "-f", "html"]) == EXIT_USAGE
    assert capsys.readouterr().err == "grademl: a page is for a browser: give a file with -o\n"


def test_several_attempts_are_refused(sources: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["report", str(sources["slow loader"]), "-f", "html", "-o", "x.html", "--attempt", "all"]
    assert run(arguments) == EXIT_USAGE
    assert "--attempt all has no html form" in capsys.readouterr().err
    assert not Path("x.html").exists()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("slow loader", {}),
        ("four ranks", {"ranks": (0, 2), "steps": StepRange(10, 30)}),
        ("four ranks", {"steps": StepRange(last=20), "inferred": False, "clocks": ClockRule(shift=False)}),
        ("many traces", {"traces": ("2", "3"), "service": "shop"}),
        ("one trace", {"operation": "A", "start": 1_700_000_000_123_456_789}),
    ],
)
def test_the_command_in_the_page_makes_the_page_again(
    name: str, options: dict[str, Any], sources: dict[str, Path], tmp_path: Path
) -> None:
    page = page_of(sources[name], **options)
    line = page.root.all("pre")[0].text
    words = shlex.split(line)
    assert words[:2] == ["grademl", "report"]
    assert words[-4:] == ["-f", "html", "-o", "report.html"]
    again = tmp_path / "again.html"
    assert run([*words[1:-1], str(again)]) == EXIT_OK
    assert again.read_text() == page.source


@pytest.mark.parametrize(
    ("address", "options"),
    [
        ("http://jaeger:16686/trace/0af7?uiFind=x", "--trace af7"),
        ("http://jaeger/search?service=shop&operation=GET%20/a", "--service shop --operation 'GET /a'"),
        ("jaeger://jaeger", ""),
    ],
)
def test_what_a_pasted_address_asks_for_is_in_the_command(
    address: str, options: str, sources: dict[str, Path]
) -> None:
    document = analyzers.report(str(sources["one trace"]))
    found = command(Query.of(address), document, "report")
    assert found == f"grademl report {document.source.uri} {options}".rstrip()


def test_secrets_are_not_in_the_data_and_no_part_of_them_where_text_is_cut(
    sources: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, document = subject_and_report(sources["one trace"])
    monkeypatch.setattr(secrecy, "_kept", {"Zq7-token-value"})
    text = "x" * (MOST - 5) + "Zq7-token-value"
    assert "Zq7" not in bounded(text)
    document = replace(document, source=replace(document.source, uri="of Zq7-token-value"))
    assert '"uri":"of ***"' in document_json(document)


def test_a_command_has_no_secrets_in_it(sources: dict[str, Path]) -> None:
    query = Query.of(str(sources["one trace"]), headers={"Authorization": "Bearer top-secret-token"})
    found = report_page(query).found
    assert "top-secret" not in found.html
    assert "top-secret" not in command(query, found.document, "report")


# --- Looks -------------------------------------------------------------------------------------------------

_STYLE = (Path(analyzers.__file__).parent / "html" / "report.css").read_text()


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG of ``#rrggbb``."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Return the contrast of WCAG of two colours, 1 to 21."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1, 2], ids=["light", "dark by button", "dark by system"])
def test_text_can_be_read_on_what_it_stands_on(theme: int) -> None:
    blocks = re.findall(r":root[^{]*\{([^}]*--paper[^}]*)\}", _STYLE)
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", blocks[theme]))
    for text in ("ink", "quiet", "accent", "good", "warning", "critical"):
        for ground in ("paper", "raised"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for wash, text in (("warning-wash", "warning"), ("critical-wash", "critical")):
        for one in (text, "ink", "accent", "quiet"):
            assert contrast(colours[one], colours[wash]) >= 4.5, (one, wash)


def test_both_ways_to_be_dark_look_the_same() -> None:
    blocks = re.findall(r":root[^{]*\{([^}]*--paper[^}]*)\}", _STYLE)
    assert blocks[1].split() == blocks[2].split()


@pytest.mark.parametrize(
    ("ranks", "words"),
    [([], ""), ([3], "3"), ([0, 1, 2, 7], "0-2, 7"), ([5, 4], "4-5"), (list(range(0, 40, 2))[:13], None)],
)
def test_ranks_in_words(ranks: list[int], words: str | None) -> None:
    found = ranks_in_words(ranks)
    assert found == words if words is not None else found.endswith("22 and more, 13 ranks")


def test_a_moment_beyond_what_dates_can_tell() -> None:
    assert moment(1_796_113_322_763_869_123) == "2026-12-01 08:22:02 UTC"
    assert moment(2**62) == "2116-02-20 23:53:38 UTC"
    assert moment(10**24) == f"{10**24} ns since 1970"


def in_order(text: str, *parts: str) -> None:
    """Assert that ``parts`` stand in ``text`` one after the other."""
    at = 0
    for part in parts:
        found = text.find(part, at)
        assert found >= 0, f"{part!r} is not in {text[at : at + 400]!r}"
        at = found + len(part)


def classes(element: Any) -> list[str]:
    names: str = element.attributes.get("class", "")
    return names.split()
