# SPDX-License-Identifier: Apache-2.0
"""Spans into columns, from files of each format and from a server: CPU time, memory, growth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import telemetry
from benchmarks.interleaved import Spread
from benchmarks.plot import chart
from benchmarks.tables import Table, duration, ratio, size, today
from benchmarks.telemetry import SPANS_PER_TRACE, WRITERS
from tests.support import servers

PLOT: Final = Path(__file__).resolve().parents[1] / "docs" / "reading.svg"
COPY: Final = "copy (Parquet)"
_PARSERS: Final[dict[str, tuple[str, ...]]] = {
    "Jaeger JSON": ("json.loads", "msgspec"),
    "OTLP protobuf": ("protobuf",),
    "OTLP JSON lines": ("json.loads", "msgspec"),
    "PyTorch profiler": ("json.loads", "msgspec"),
    COPY: (),
}
"""What else goes through the same bytes, for each format."""
_GRADEML: Final = "import sys; from grademl_otel.analyzers.cli import main; sys.exit(main())"
_POINTS: Final = (10, 30, 100, 300, 1_000, 3_000)
"""Traces, for the plot."""


def read(folder: Path, traces: int, rounds: int, plot: Path | None = None) -> Iterator[Table]:
    """Yield the table of all formats; with ``plot``, also measure the growth and draw it there."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, parsers in _PARSERS.items():
        path = written(folder, name, traces)
        results = _in_turn(path, ("columns", *parsers), rounds)
        ours = [each["cpu_s"] for each in results["columns"]]
        spans = int(results["columns"][0]["number"])
        rows.append(
            [
                name,
                size(_bytes(path)),
                f"{spans:,}",
                duration(median(ours) * 1e9),
                duration(median(ours) * 1e9 / max(spans, 1)),
                *(_ratio(results, parser) for parser in ("json.loads", "msgspec", "protobuf")),
                size(max(each["peak"] for each in results["columns"])),
            ]
        )
        _forget(path)
    yield Table(
        "(i) Spans into columns",
        (
            *("", "bytes", "spans", "CPU time", "a span"),
            *(f"ratio to {parser}" for parser in ("json.loads", "msgspec", "protobuf")),
            "peak memory",
        ),
        rows,
        "Each in a process of its own, whose memory holds Python and the libraries, too. Ratios are of CPU "
        "times, to a mere parse of the same bytes, piece by piece, that keeps nothing.",
    )
    if plot is not None:
        yield _growth(folder, plot)


def pull(folder: Path, traces: int) -> Iterator[Table]:
    """Yield what pulling from a local Jaeger takes, beside a mere download of the same traces."""
    folder.mkdir(parents=True, exist_ok=True)
    jaeger = servers.start_jaeger(folder)
    with servers.stopping(jaeger):
        for message in telemetry.messages(traces):
            _post(f"{jaeger.otlp_http}/v1/traces", message)
        ids = [f"{trace:032x}" for trace, _, _ in telemetry.traces(traces)]
        spans = traces * SPANS_PER_TRACE
        ways: dict[str, Callable[[], tuple[float, float]]] = {
            "API v3, one trace after the other, thrown away": lambda: _download(jaeger, ids),
            "grademl pull jaeger://": lambda: _pull(jaeger.source, folder / "http", spans),
            "grademl pull jaeger+grpc://": lambda: _pull(
                f"jaeger+grpc://{jaeger.query_grpc}", folder / "grpc", spans
            ),
        }
        rows = []
        for name, way in ways.items():
            wall_s, cpu_s = way()
            each = duration(cpu_s * 1e9 / spans)
            rows.append([name, duration(wall_s * 1e9), f"{spans / wall_s:,.0f}", each])
    yield Table(
        f"(j) {spans:,} spans from a Jaeger on the same machine",
        ("", "takes", "spans a second", "CPU time of the client, a span"),
        rows,
        f"{traces:,} traces of {SPANS_PER_TRACE:,} spans in its memory; the start of the command is counted. "
        "The server works on the same cores.",
    )


def written(folder: Path, name: str, traces: int) -> Path:
    """Return the file, or the folder of the copy, with so many traces in the format ``name``."""
    if name != COPY:
        file, write = WRITERS[name]
        write(folder / file, traces)
        return folder / file
    source = written(folder, "OTLP protobuf", traces)
    _pull(str(source), folder / "copy", traces * SPANS_PER_TRACE)
    _forget(source)
    return folder / "copy"


def _pull(source: str, to: Path, spans: int) -> tuple[float, float]:
    """Copy with the command; return its seconds of wall and CPU time.

    Raises RuntimeError where spans are missing.
    """
    start, cpu = time.monotonic(), _children_s()
    command = [
        sys.executable,
        "-c",
        "from grademl_otel.analyzers.cli import main; main()",
        "pull",
        source,
        "-o",
        str(to),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment())
    taken = time.monotonic() - start, _children_s() - cpu
    found = int(_measured(to, "columns")["number"])
    if found != spans:
        raise RuntimeError(f"{found:,} of {spans:,} spans arrived in {to}")
    return taken


def _in_turn(path: Path, ways: tuple[str, ...], rounds: int) -> dict[str, list[Mapping[str, float]]]:
    """Measure each way once a round, in turning order."""
    results: dict[str, list[Mapping[str, float]]] = {way: [] for way in ways}
    for number in range(rounds):
        turn = number % len(ways)
        for way in ways[turn:] + ways[:turn]:
            results[way].append(_measured(path, way))
    return results


def _measured(path: Path, way: str) -> Mapping[str, float]:
    command = [sys.executable, "-m", "benchmarks.reading", way, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _ratio(results: Mapping[str, list[Mapping[str, float]]], parser: str) -> str:
    if parser not in results:
        return ""
    pairs = zip(results["columns"], results[parser], strict=True)
    return ratio(Spread.of([ours["cpu_s"] / theirs["cpu_s"] for ours, theirs in pairs]))


def _growth(folder: Path, plot: Path) -> Table:
    """Measure all formats from 10 thousand to 3 million spans and draw them."""
    lines: dict[str, list[tuple[float, float]]] = {}
    peaks: dict[str, list[float]] = {}
    for name in _PARSERS:
        for traces in _POINTS:
            path = written(folder, name, traces)
            rounds = 3 if traces <= 300 else 1
            each = [_measured(path, "columns") for _ in range(rounds)]
            cpu_s = min(one["cpu_s"] for one in each)
            lines.setdefault(name, []).append((traces * SPANS_PER_TRACE, cpu_s))
            peaks.setdefault(name, []).append(max(one["peak"] for one in each))
            _forget(path)
    plot.write_text(chart("Spans into columns", "spans", "CPU s", lines, today()), "utf-8")
    first, last = _POINTS[0] * SPANS_PER_TRACE, _POINTS[-1] * SPANS_PER_TRACE
    rows = []
    for name, line in lines.items():
        per_span = [cpu_s / spans * 1e9 for spans, cpu_s in line]
        rows.append([name, *(duration(each) for each in per_span), size(peaks[name][-1])])
    return Table(
        f"(i) The same from {first:,} to {last:,} spans",
        (
            "CPU time a span",
            *(f"{points * SPANS_PER_TRACE:,}" for points in _POINTS),
            f"peak memory, {last:,}",
        ),
        rows,
        f"What is done once counts much in the small ones. Drawn in [{plot.name}]({plot.name}).",
    )


def _post(url: str, body: bytes) -> None:
    request = urllib.request.Request(url, body, {"Content-Type": "application/x-protobuf"})
    with _direct().open(request, timeout=60) as answer:
        answer.read()


def _download(jaeger: servers.Jaeger, ids: list[str]) -> tuple[float, float]:
    start, cpu = time.monotonic(), time.process_time()
    for trace in ids:
        with _direct().open(f"{jaeger.query_url}/api/v3/traces/{trace}?rawTraces=true", timeout=60) as answer:
            answer.read()
    return time.monotonic() - start, time.process_time() - cpu


def _direct() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def environment() -> dict[str, str]:
    """Return the environment without settings of recording and reading."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "GRADEML_"))}


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _forget(path: Path) -> None:
    if path.is_dir():
        for file in sorted(path.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        path.rmdir()
    else:
        path.unlink()
