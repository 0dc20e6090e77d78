# SPDX-License-Identifier: Apache-2.0
"""The screens, with exact numbers from simulated runs."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grademl_otel import analyzers
from grademl_otel.analyzers.reporting.jaeger_hint import to_jaeger
from grademl_otel.analyzers.reporting.text import render
from grademl_otel.analyzers.units import clock, count, duration, milliseconds, percent, seconds
from tests.support.jaeger_cases import jaeger_document, many_traces
from tests.support.synthetic import MS, S, Training, simulate

DATA = Path(__file__).parents[1] / "data"
GRADEML = str(Path(sys.executable).parent / "grademl")


def screen(
    folder: Path, training: Training, monkeypatch: pytest.MonkeyPatch, width: int | None = None
) -> str:
    """Return the report on ``training``, stored in ``runs`` below ``folder``."""
    monkeypatch.chdir(folder)
    simulate(training).write_store(Path("runs"))
    return render(analyzers.report("runs"), width=width)


def golden(name: str, text: str) -> None:
    """Compare with a file of the repository; ``GRADEML_WRITE_GOLDEN=1`` writes it, to be read first."""
    path = DATA / name
    if os.environ.get("GRADEML_WRITE_GOLDEN") == "1":
        path.write_text(text)
    assert text == path.read_text()


def test_a_loader_bound_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(epochs=3, steps_per_epoch=60, workers=2, fetch_ns=39 * MS, checkpoint_ns=30 * MS)
    golden("report_loader_bound.txt", screen(tmp_path, training, monkeypatch))


def test_a_loader_without_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(epochs=2, steps_per_epoch=60, workers=0, fetch_ns=39 * MS)
    golden("report_no_workers.txt", screen(tmp_path, training, monkeypatch))


def test_a_compute_bound_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(epochs=3, steps_per_epoch=60)
    golden("report_compute_bound.txt", screen(tmp_path, training, monkeypatch))


def test_a_killed_run_opens_with_how_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = screen(tmp_path, Training(epochs=3, steps_per_epoch=60, killed_at=100), monkeypatch).splitlines()
    assert lines[1].startswith(
        "ended  rank 0 killed · while in backward · last step 99 · last sign of life at "
    )
    assert lines[2].startswith("data  complete (100 of 100 steps")


def test_a_run_that_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = screen(tmp_path, Training(epochs=1, steps_per_epoch=60, raises_at=30), monkeypatch).splitlines()
    assert lines[1].startswith("ended  rank 0 by an exception (RuntimeError) · last step 29 · ")


@pytest.mark.parametrize(
    ("training", "verdict"),
    [
        (Training(epochs=1, steps_per_epoch=3), "Too few steps to judge: 2 steady steps, 20 are needed."),
        (Training(epochs=1, steps_per_epoch=1), "Too few steps to judge: 1 steady step, 20 are needed."),
        (Training(epochs=0), "No training step was recorded, so there is no step to judge."),
    ],
)
def test_tiny_runs(training: Training, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = screen(tmp_path, training, monkeypatch)
    assert f"VERDICT  {verdict}" in text
    assert "GAIN" not in text
    assert "Critical path  " in text
    assert "Not judged  input.loader (too few steps (" in text


def test_several_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = screen(tmp_path, Training(ranks=4, epochs=1, steps_per_epoch=40), monkeypatch)
    assert text.startswith("run train.py · 4 processes · cpu · 1 epoch, 40 steps · ")
    assert "; 4 of 4 ranks; " in text
    assert "(training threads, mean of 4 ranks)" in text
    assert "Not judged  ranks.straggler" in text


def test_incomplete_data_are_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    traces = simulate(Training(epochs=1, steps_per_epoch=60, rows_per_part=10)).write_store(Path("runs"))
    requests = [json.loads(line) for line in traces.read_bytes().splitlines()]
    scopes = [
        scope for request in requests for part in request["resourceSpans"] for scope in part["scopeSpans"]
    ]
    windows = [(scope, span) for scope in scopes for span in scope["spans"] if span["name"] == "window"]
    scope, span = windows[1]
    scope["spans"].remove(span)
    traces.write_text("".join(json.dumps(request) + "\n" for request in requests))
    for document in (analyzers.report("runs"), analyzers.critical_path("runs")):
        text = render(document)
        assert re.search(r"^data  INCOMPLETE \(\d+ of 60 steps", text, re.MULTILINE)
        assert re.search(r"^      - rank 0: \d+ of 60 training steps are missing$", text, re.MULTILINE)


def test_what_two_sources_tell_differently_is_on_every_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step span that lost a phase after it was sent: the table, which still has it, counts."""
    monkeypatch.chdir(tmp_path)
    traces = simulate(Training(epochs=1, steps_per_epoch=60)).write_store(Path("runs"))
    requests = [json.loads(line) for line in traces.read_bytes().splitlines()]
    scopes = [
        scope for request in requests for part in request["resourceSpans"] for scope in part["scopeSpans"]
    ]
    backward = next(span for scope in scopes for span in scope["spans"] if span["name"] == "backward")
    backward["endTimeUnixNano"] = str(int(backward["startTimeUnixNano"]) + MS)
    traces.write_text("".join(json.dumps(request) + "\n" for request in requests))
    conflict = "1 step whose detail and step table differ by over 1 %, the table counts: 0"
    for document in (analyzers.report("runs"), analyzers.critical_path("runs")):
        assert document.completeness.conflicts == [conflict]
        assert f"      - {conflict}\n" in render(document)


def test_foreign_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trace.json").write_text(json.dumps(jaeger_document("A[0,1000) B<A[100,400)")))
    expected = """\
traces of trace.json · 1 trace · 1.0 ms
data  unverifiable (2 spans)

Critical path by operation
operation  on path  share  in total    drag
A           700 us   70 %    1.0 ms  700 us  ########
B           300 us   30 %    300 us  300 us  ####
drag: how much earlier the whole would end if it took no time, and all else as long as it did; no forecast.

The longest of 3 sections
  from    took  operation  kind  where
  0 us  100 us  A          work
100 us  300 us  B          work
400 us  600 us  A          work
"""
    assert render(analyzers.critical_path("trace.json")) == expected
    assert render(analyzers.report("trace.json")) == expected


def test_sections_of_several_services_say_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trace = jaeger_document("A[0,1000) B<A[100,400)")
    trace["data"][0]["processes"]["db"] = {"serviceName": "store"}
    next(span for span in trace["data"][0]["spans"] if span["operationName"] == "B")["processID"] = "db"
    Path("trace.json").write_text(json.dumps(trace))
    text = render(analyzers.critical_path("trace.json"))
    assert (
        text.partition("sections\n")[2]
        == """\
  from    took  operation  kind  where
  0 us  100 us  A          work  shop
100 us  300 us  B          work  store
400 us  600 us  A          work  shop
"""
    )


def test_many_traces_by_a_key_of_one_say_how_to_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("many.json").write_text(json.dumps(many_traces(["A[0,10) B<A[1,9)"] * 3)))
    document = analyzers.critical_path("many.json", by="section")
    assert "--per-trace" in render(document, by="section")
    assert "--per-trace" not in render(document, by="operation")


def test_many_foreign_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notations = ["A[0,10) B<A[1,9)"] * 57 + ["A[0,100) B<A[2,98)"] * 3
    Path("many.json").write_text(json.dumps(many_traces(notations)))
    assert (
        render(analyzers.critical_path("many.json"))
        == """\
traces of many.json · 60 traces · 870 us together
data  unverifiable (120 spans)

Critical path of the traces by service and operation
service  operation  share   p50   p95    p99  tail - median
shop     B           86 %  8 us  8 us  96 us         +88 us  ###################
shop     A           14 %  2 us  2 us   4 us          +2 us  ###
"""
    )


def test_who_calls_and_who_is_called_are_told_apart_and_what_is_not_shown_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = " ".join(f"{chr(97 + at)}<R[{at},{at + 1})" for at in range(24))
    notations = [f"R[0,100)/producer {steps}", "R[0,50)/consumer"]
    Path("many.json").write_text(json.dumps(many_traces(notations)))
    text = render(analyzers.critical_path("many.json"))
    assert re.search(r"^shop     R \(producer\) +51 % ", text, re.MULTILINE)
    assert re.search(r"^shop     R \(consumer\) +33 % ", text, re.MULTILINE)
    assert text.endswith("and 6 more (--top, --json)\n")


def test_path_of_a_run_by_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    simulate(Training(epochs=1, steps_per_epoch=40, fetch_ns=39 * MS)).write_store(Path("runs"))
    text = render(analyzers.critical_path("runs", by="lane"), by="lane")
    assert "Critical path by lane\n" in text
    assert re.search(r"^rank 0 loader-worker-0 +[\d.]+ m?s +\d+ % ", text, re.MULTILINE)
    assert re.search(r"^ *[\d.]+ m?s +39 ms  data\.fetch  work  rank 0 · loader-worker-", text, re.MULTILINE)


@pytest.mark.parametrize("width", [40, 60, 80, 110, 200])
def test_no_line_is_wider_than_the_screen(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = screen(tmp_path, Training(epochs=2, steps_per_epoch=40, fetch_ns=39 * MS), monkeypatch, width)
    lines = [line for line in text.splitlines() if not line.startswith("This run in Jaeger: ")]
    assert max(map(len, lines)) <= width
    assert not any(line != line.rstrip() for line in lines)


# --- Colours -----------------------------------------------------------------------------------------------


def on_a_terminal(arguments: list[str], folder: Path, env: dict[str, str]) -> str:
    """Run `grademl` with a terminal as its standard output and return what it wrote there."""
    primary, secondary = pty.openpty()
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "TERM")}
    process = subprocess.Popen(
        [GRADEML, *arguments], cwd=folder, stdout=secondary, env={**kept, "TERM": "xterm", **env}
    )
    os.close(secondary)
    written = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not select.select([primary], [], [], 1)[0]:
            continue
        try:
            chunk = os.read(primary, 65536)
        except OSError:  # Linux says so when the other end is closed
            break
        if not chunk:
            break
        written += chunk
    os.close(primary)
    assert process.wait(timeout=60) == 0
    return written.decode()


def test_colours_only_on_a_terminal_that_likes_them(tmp_path: Path) -> None:
    simulate(Training(epochs=1, steps_per_epoch=40, fetch_ns=39 * MS)).write_store(tmp_path)
    assert "\x1b[" in on_a_terminal(["report", "."], tmp_path, {})
    assert "\x1b" not in on_a_terminal(["report", ".", "--no-color"], tmp_path, {})
    assert "\x1b" not in on_a_terminal(["report", "."], tmp_path, {"NO_COLOR": "1"})
    assert "\x1b" not in on_a_terminal(["report", "."], tmp_path, {"TERM": "dumb"})
    target = tmp_path / "report.txt"
    assert on_a_terminal(["report", ".", "-o", str(target)], tmp_path, {}) == ""
    assert "\x1b" not in target.read_text()


# --- The way into Jaeger -----------------------------------------------------------------------------------


def test_the_hint_names_the_file_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    traces = simulate(Training(epochs=1, steps_per_epoch=3)).write_store(Path("my runs"))
    simulate(Training(run_id="f" * 32, epochs=1, steps_per_epoch=3, start=1)).write_store(Path("my runs"))
    for source in ("my runs", str(traces.parent), str(traces)):
        hint = to_jaeger(analyzers.report(source, run=Training.run_id).source)
        assert hint is not None
        assert hint.startswith(f"grademl push {shlex.quote(str(traces))} --to ")
    Path("trace.json").write_text(json.dumps(jaeger_document("A[0,10)")))
    assert to_jaeger(analyzers.report("trace.json").source) is None


@pytest.mark.real
def test_the_hint_brings_the_run_into_jaeger(tmp_path: Path, jaeger: object) -> None:
    run_id = os.urandom(16).hex()
    start = time.time_ns() - 60 * S
    simulate(Training(run_id=run_id, start=start, epochs=1, steps_per_epoch=5)).write_store(tmp_path)
    local = analyzers.report(tmp_path)
    hint = to_jaeger(local.source)
    assert hint is not None
    address = str(getattr(jaeger, "otlp_http")).removeprefix("http://").rstrip("/")  # noqa: B009
    _, *arguments = shlex.split(hint.replace("localhost:4318", address))
    subprocess.run([GRADEML, *arguments], check=True, timeout=60)
    remote = analyzers.report(getattr(jaeger, "query_url"), run=run_id)  # noqa: B009
    assert remote.completeness.verdict == "complete"
    assert remote.path == local.path
    assert remote.lane_budget == local.lane_budget


# --- Numbers -----------------------------------------------------------------------------------------------


def test_units() -> None:
    assert [milliseconds(ns) for ns in (0, 999, 850e3, 4.19e6, 217e6, 999.6e6, 4.517e9, 12.4e9)] == [
        "0 us", "1 us", "850 us", "4.2 ms", "217 ms", "1.00 s", "4.52 s", "12.4 s",
    ]  # fmt: skip
    assert [seconds(ns) for ns in (40_000_000, 60_000_000, 260_400_000_000)] == ["40 ms", "0.1 s", "260.4 s"]
    assert [duration(ns * S) for ns in (9.2, 59.4, 60, 289, 3_599.6, 7_500)] == [
        "9.2 s", "59.4 s", "1 min 0 s", "4 min 49 s", "1 h 0 min", "2 h 5 min",
    ]  # fmt: skip
    assert [duration(ns) for ns in (120_000_000, 850_000_000)] == ["120 ms", "850 ms"]
    assert [clock(ns * S) for ns in (9.2, 289, 7_510)] == ["9.2 s", "4:49", "2:05:10"]
    assert [percent(share) for share in (0, 0.00001, 0.003, 0.0994, 0.0996, 0.54, 1)] == [
        "0 %", "<0.1 %", "0.3 %", "9.9 %", "10 %", "54 %", "100 %",
    ]  # fmt: skip
    assert [count(n, "step") for n in (0, 1, 1_200)] == ["0 steps", "1 step", "1,200 steps"]


def test_a_service_without_a_name_takes_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, service in enumerate(("unknown_service:python", "trainer")):
        training = Training(epochs=1, steps_per_epoch=3, service=service, run_id=f"{number:032x}")
        simulate(training).write_store(Path("runs"))
        if not number:
            assert "service" not in render(analyzers.runs("runs"), width=110)
    data, _, heading, *rows = render(analyzers.runs("runs"), width=110).splitlines()
    assert data == "data  complete (2 runs)"
    assert "service" in heading
    assert len(rows) == 2
    assert [("trainer" in row, "unknown" in row) for row in sorted(rows)] == [(False, False), (True, False)]


def test_the_usual_list_of_runs_fits_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    simulate(Training(epochs=1, steps_per_epoch=3, service="unknown_service")).write_store(Path("runs"))
    screens = [render(analyzers.runs("runs"), width=width) for width in (110, 80, 40)]
    wide, usual, narrow = (screen.splitlines() for screen in screens)
    assert usual == wide
    assert wide[2].split() == ["run", "script", "started", "(UTC)", "took", "steps", "ended"]
    assert narrow[2].split() == ["run", "script", "took", "ended"]
    assert narrow[3].split() == [*(wide[3].split()[at] for at in (0, 1)), *wide[3].split()[4:6], "exit"]
    assert narrow[4:] == ["(no room for: steps, started (UTC))"]
    simulate(Training(epochs=1, steps_per_epoch=3, run_id="f" * 32, ranks=2)).write_store(Path("runs"))
    assert "ranks" in render(analyzers.runs("runs"), width=80)
