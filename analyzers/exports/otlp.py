# SPDX-License-Identifier: Apache-2.0
"""OTLP, from every source: JSON, a request a line, or protobuf; compressed where the file's name says so.

A file of protobuf is one ``TracesData``, which is the same as an export request: files put behind each other
are one again, and an OTLP/HTTP receiver takes it as a body. It holds spans alone, lines hold metrics, too.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Final

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.copy.otlp_requests import Packer, Request
from grademl_otel.analyzers.exports.forms import Counts
from grademl_otel.analyzers.exports.otlp_lines import Lines
from grademl_otel.analyzers.exports.otlp_spans import batches
from grademl_otel.analyzers.model.attempts import identity
from grademl_otel.analyzers.model.columns import SpanColumns
from grademl_otel.analyzers.sources.base import MetricSource
from grademl_otel.analyzers.sources.batch import SpanBatch
from grademl_otel.analyzers.sources.formats.metric_groups import MetricGroup
from grademl_otel.analyzers.sources.formats.otlp_beside import OTLP_JSON_SPAN
from grademl_otel.analyzers.sources.formats.otlp_messages import OTLP_PROTO
from grademl_otel.analyzers.sources.formats.otlp_values import OTLP_JSON
from grademl_otel.analyzers.subject import Subject, open_query, selection_of
from grademl_otel.analyzers.units import count

_OTLP: Final = (OTLP_PROTO, OTLP_JSON, OTLP_JSON_SPAN)
_PROTOBUF: Final = (".pb", ".binpb", ".proto")
_ZSTD_LEVEL: Final = 3
_NOT_KEPT: Final = "not in it: schema URLs"
_NOT_KEPT_OF_OTHERS: Final = (
    "; and of spans not read from OTLP: trace states, attributes of links beside their kind, counts"
    " of what an SDK dropped"
)


def write(about: Subject, file: IO[bytes], name: str | None = None, notes: list[str] | None = None) -> Counts:
    """Write the spans of the run, or else of all traces that were read, as they were recorded.

    ``name`` is that of the file: ``.pb``, ``.binpb`` or ``.proto`` is protobuf, anything else JSON lines;
    with ``.gz`` or ``.zst`` behind it, compressed. What is not in it goes to ``notes``.
    """
    told = [] if notes is None else notes
    plain, packed = _taken_apart(name or "")
    spans = about.telemetry.spans
    ixs = None if about.run is None else about.run.span_ixs
    told.append(f"{_NOT_KEPT}{_NOT_KEPT_OF_OTHERS}" if _others(spans, ixs) else _NOT_KEPT)
    some = _progress(about, batches(spans, ixs), len(spans) if ixs is None else len(ixs))
    with _compressed(file, packed) as out:
        if plain.endswith(_PROTOBUF):
            _write_messages(spans, some, out)
            points = 0
            if left_out := _count_metrics(about):
                told.append(
                    f"{count(left_out, 'metric point')} are not in it: name a file of lines, as .jsonl"
                )
        else:
            for line in Lines(spans.resources, spans.scopes).of(some):
                out.write(line)
            points = _write_metrics(about, out, told)
    written = {"spans": len(spans) if ixs is None else len(ixs)}
    return {**written, "metric points": points} if points else written


def _taken_apart(name: str) -> tuple[str, str]:
    """Return a name without the ending of its compression, and that."""
    for ending in (".gz", ".zst"):
        if name.lower().endswith(ending):
            return name.lower().removesuffix(ending), ending
    return name.lower(), ""


@contextmanager
def _compressed(file: IO[bytes], ending: str) -> Iterator[IO[bytes]]:
    if ending == ".gz":
        with gzip.GzipFile("", "wb", 6, file, mtime=0) as out:  # no time in it: equal spans are equal files
            yield out  # type: ignore[misc]
    elif ending == ".zst":
        import zstandard

        with zstandard.ZstdCompressor(_ZSTD_LEVEL).stream_writer(file, closefd=False) as stream:
            yield stream
    else:
        yield file


def _progress(about: Subject, some: Iterator[SpanBatch], total: int) -> Iterator[SpanBatch]:
    done = 0
    for batch in some:
        yield batch
        done += len(batch)
        about.query.progress("spans written", done, total)


def _others(spans: SpanColumns, ixs: IntArray | None) -> bool:
    """Whether some spans were read from anything but OTLP."""
    column = spans.raw_attributes.column if ixs is None else spans.raw_attributes.column[ixs]
    columns = spans.raw_attributes.columns
    return any(number < 0 or columns[number].form not in _OTLP for number in set(column.tolist()))


def _write_messages(spans: SpanColumns, some: Iterator[SpanBatch], out: IO[bytes]) -> None:
    def send(request: Request) -> None:
        out.write(request.body())

    packer = Packer(spans.resources, spans.scopes, send)
    for batch in some:
        packer.add(batch)
    packer.flush()


def _write_metrics(about: Subject, out: IO[bytes], told: list[str]) -> int:
    points = 0

    def write(group: MetricGroup) -> None:
        nonlocal points
        line, held = group.json(), group.points()
        points += held
        out.write(b'{"resourceMetrics":[%b]}\n' % line)

    _each_metric(about, told, write)
    return points


def _count_metrics(about: Subject) -> int:
    held: list[int] = []
    _each_metric(about, [], lambda group: held.append(group.points()))
    return sum(held)


def _each_metric(about: Subject, told: list[str], take: Callable[[MetricGroup], None]) -> None:
    """Give the metrics beside the spans to ``take``: of the run, or of all; none where traces were chosen."""
    query, run = about.query, about.run
    source = open_query(query)
    if not isinstance(source, MetricSource) or query.traces or query.operation or query.attributes:
        return

    def take_own(group: MetricGroup) -> None:
        whose = None if run is None else identity(group.resource())
        if run is None or (whose is not None and (whose.run_id, whose.attempt) == (run.run_id, run.attempt)):
            take(group)

    for part in source.metric_parts(selection_of(query)):
        told += part.read(take_own)
