# SPDX-License-Identifier: Apache-2.0
"""`grademl doctor` as text."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Final

from grademl_otel.analyzers.reporting import runs_screen
from grademl_otel.analyzers.reporting.canvas import Canvas
from grademl_otel.analyzers.reporting.doctor_document import (
    SERVERS,
    DoctorDocument,
    ServerClock,
    SourceLook,
    SpansLook,
)
from grademl_otel.analyzers.reporting.header import clock_in_words
from grademl_otel.analyzers.units import count, milliseconds

_INDENT: Final = 10
_RUNS: Final = 8
_MARK: Final = {"bad": "bold red", "no": "yellow", "in part": "yellow"}


def draw(canvas: Canvas, document: DoctorDocument) -> None:
    """Write the source, its runs, what was read and what is recorded of it, this machine, and problems."""
    if document.source is not None:
        _source(canvas, document.source)
    if document.services:
        _line(canvas, "services", ", ".join(document.services))
    if document.runs:
        shown = document.runs[:_RUNS]
        canvas.blank()
        canvas.tables([runs_screen.runs_table(shown)])
        if len(document.runs) > _RUNS:
            canvas.line(f"and {count(len(document.runs) - _RUNS, 'run')} more: grademl runs")
        canvas.blank()
    if document.spans is not None and document.spans.count:
        _spans(canvas, document.spans)
    _run(canvas, document)
    for note in document.notes:
        _line(canvas, "note", note)
    if document.here is not None:
        canvas.blank()
        canvas.line("recording here, with `opentelemetry-instrument python train.py`:")
        for check in document.here:
            canvas.line(
                f"{check.what}: {check.detail}",
                label=check.state,
                style=_MARK.get(check.state, ""),
                indent=_INDENT,
            )
            if check.how_to_fix:
                canvas.line(check.how_to_fix, indent=_INDENT + 2)
    for problem in document.problems:
        canvas.line(problem, label="PROBLEM", style="bold red", indent=_INDENT)
    if not document.problems and not document.empty:
        canvas.line("no problem was found")


def _source(canvas: Canvas, source: SourceLook) -> None:
    canvas.line(source.uri)
    _line(canvas, "is", source.kind + (f" {source.version}" if source.version else ""))
    if source.api:
        _line(canvas, "way in", source.api)
    for name, value in source.limits.items():
        text = f"{name}: {value}"
        _line(canvas, "limit" if source.kind in SERVERS else "", text)
    if source.clock is not None:
        _line(canvas, "clock", _clock(source.clock))


def _clock(clock: ServerClock) -> str:
    offset, error = milliseconds(abs(clock.offset_ns)), milliseconds(clock.error_ns)
    if abs(clock.offset_ns) <= clock.error_ns:
        return f"the server's agrees with this machine's, as far as can be seen (within {error})"
    side = "ahead of" if clock.offset_ns > 0 else "behind"
    return f"the server's is {offset} {side} this machine's, give or take {error}"


def _spans(canvas: Canvas, spans: SpansLook) -> None:
    when = ""
    if spans.first_unix_ns is not None and spans.last_unix_ns is not None:
        when = f", {_moment(spans.first_unix_ns)} to {_moment(spans.last_unix_ns)} UTC"
    _line(canvas, "spans", f"{spans.count:,} in {count(spans.traces, 'trace')} were read{when}")
    names = [f"{one.name} {one.count:,}" for one in spans.names]
    more = [f"{count(spans.more_names, 'name')} more"] if spans.more_names else []
    _line(canvas, "", " · ".join([*names, *more]))


def _run(canvas: Canvas, document: DoctorDocument) -> None:
    if document.verdict is not None:
        _line(canvas, "data", document.verdict)
    for reason in document.incomplete_because:
        canvas.line(f"- {reason}", indent=_INDENT)
    if document.run is None:
        return
    for one in document.run.clocks[1:]:
        _line(canvas, "clock", clock_in_words(one))
    canvas.blank()
    attempt = f", attempt {document.run.attempt}" if document.run.attempt else ""
    canvas.line(f"recorded of run {document.run.run[: runs_screen.SHORT_ID]}{attempt}:")
    for signal in document.run.recorded:
        text = f"{signal.what}: {signal.detail}"
        canvas.line(text, label=signal.state, style=_MARK.get(signal.state, ""), indent=_INDENT)
        if signal.how_to_get:
            canvas.line(signal.how_to_get, indent=_INDENT + 2)


def _moment(unix_ns: str) -> str:
    try:
        moment = datetime.fromtimestamp(int(unix_ns) // 1_000_000_000, tz=timezone.utc)
    except (ValueError, OverflowError, OSError):
        return unix_ns
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _line(canvas: Canvas, label: str, text: str) -> None:
    canvas.line(text, label=label, indent=_INDENT)
