# SPDX-License-Identifier: Apache-2.0
"""`grademl pull` and `grademl push` as text: what was done, and what was not."""

from __future__ import annotations

from grademl_otel.analyzers.copy.pull import Pulled
from grademl_otel.analyzers.copy.push import Pushed
from grademl_otel.analyzers.reporting.canvas import Canvas
from grademl_otel.analyzers.units import count, size


def draw(canvas: Canvas, done: Pulled | Pushed) -> None:
    """Write how much was copied or sent, then notes."""
    lines = _pulled(done) if isinstance(done, Pulled) else _pushed(done)
    for line in lines:
        canvas.verbatim(line)


def _pushed(done: Pushed) -> list[str]:
    lines = [
        f"sent {count(done.sent, 'span')} of {count(done.traces, 'trace')} to {done.endpoint} in"
        f" {count(done.requests, 'request')}: {done.accepted:,} taken, {done.rejected:,} refused"
    ]
    if done.metrics_sent:
        lines.append(
            f"sent {count(done.metrics_sent, 'metric point')}:"
            f" {done.metrics_sent - done.metrics_rejected:,} taken, {done.metrics_rejected:,} refused"
        )
    if done.verified is not None:
        lines.append(f"found at {done.verified_at}: {count(done.verified, 'span')}, {done.missing:,} missing")
    elif done.error is None:
        lines.append("not looked for: name the place to look with --verify SOURCE")
    return [*lines, *(f"note: {note}" for note in done.notes)]


def _pulled(done: Pulled) -> list[str]:
    new = "" if done.copied == done.pieces else f" ({done.copied:,} read now)"
    metrics = f" and {count(done.metrics, 'metric point')}" if done.metrics else ""
    lines = [
        f"{count(done.spans, 'span')}{metrics} in {done.folder}: {count(done.pieces, 'piece')}{new},"
        f" {count(done.files, 'file')}, {size(done.bytes)}"
    ]
    lines += [f"note: {warning}" for warning in done.warnings]
    if done.error is None:
        lines.append(f"read it with: grademl {done.folder}")
    return lines
