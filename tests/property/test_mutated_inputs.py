# SPDX-License-Identifier: Apache-2.0
"""Ten thousand mutated inputs for each kind of source: columns that hold together, or one line; nothing else.

What was found this way stays as a test of its own, where the reader's tests are.
"""

from __future__ import annotations

import random
import resource
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from grademl_otel import analyzers
from grademl_otel.analyzers.errors import GrademlError, NothingFound
from grademl_otel.analyzers.model.columns import Ledger, Telemetry
from grademl_otel.analyzers.sources import open_source
from grademl_otel.analyzers.sources.base import Selection, SourceOptions
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.containers import read_blocks
from grademl_otel.analyzers.sources.formats.decoding import gc_paused

from ..support import every_format as formats
from ..support.foreign_formats import jaeger_v1, kineto, zipkin
from ..support.mutations import Mutate, of_bytes, of_json, of_protobuf
from ..support.truth import SPANS, T0, WIDE, Happening, Link, Span

MUTATIONS: Final = 10_000
SEED: Final = 20_261_201
ANALYZED: Final = 100
"""One of so many that are read is analyzed and drawn, too."""
LARGEST: Final = 1 << 20
"""Bytes of a document."""
LONGEST_S: Final = 20.0
"""For one input: only what hangs takes that long."""
MEMORY: Final = 2 << 30
"""Bytes that reading may map beyond what the process has."""

_ROOT: Final = Span(WIDE, 1, 0, "train.step", T0, T0 + 9_000, SPANS[0].resource, SPANS[2].scope)
SMALL: Final = (
    _ROOT,
    Span(
        WIDE,
        2,
        1,
        "forward",
        T0 + 1_000,
        T0 + 3_000,
        _ROOT.resource,
        _ROOT.scope,
        kind=3,
        status=2,
        attributes={"n": 7, "x": 0.5, "b": b"\x01", "l": ["a", 1]},
        events=(Happening(T0 + 2_000, "e", {"k": True}),),
        links=(Link(WIDE, 1), Link(5, 6, {"grademl.link.kind": "blocking"})),
    ),
)


def of_frames(messages: Sequence[bytes], compress: bool) -> Mutate:
    """Change what is in the frames, which fit it, or the frames themselves."""
    inner = [of_protobuf(message) for message in messages]
    outer = of_bytes(formats.framed(messages, compress))

    def mutate(chance: random.Random) -> bytes:
        if chance.random() < 0.5:
            return outer(chance)
        changed = [
            mutate(chance) if chance.random() < 0.5 else m for mutate, m in zip(inner, messages, strict=True)
        ]
        return formats.framed(changed, compress)

    return mutate


_LINES: Final = formats.otlp_lines(SMALL) + formats.otlp_lines(SPANS[5:6])
_MESSAGES: Final = (formats.otlp_protobuf(SMALL), formats.otlp_protobuf(SPANS[6:]))
FILES: Final[dict[str, tuple[Mutate, ...]]] = {
    "OTLP JSON lines": (of_bytes(_LINES), of_json(_LINES)),
    "OTLP protobuf": (of_bytes(_MESSAGES[0]), of_protobuf(_MESSAGES[0])),
    "Collector protobuf": (of_frames(_MESSAGES, compress=False),),
    "Collector protobuf zstd": (of_frames(_MESSAGES, compress=True),),
    "compressed": (of_bytes(formats.gz(_LINES)), of_bytes(formats.zstd(_LINES))),
    "Jaeger JSON": (of_bytes(jaeger_v1(SMALL)), of_json(jaeger_v1(SMALL))),
    "Jaeger v3": (of_bytes(formats.jaeger_v3(SMALL)), of_json(formats.jaeger_v3(SMALL))),
    "Tempo JSON": (of_json(formats.tempo_v1_json(SMALL)), of_json(formats.tempo_v2_json(SMALL))),
    "Zipkin": (of_bytes(zipkin(SMALL)), of_json(zipkin(SMALL))),
    "profiles": (of_bytes(kineto(SPANS[2:4])), of_json(kineto(SPANS[2:4]))),
}


@pytest.mark.parametrize("name", FILES)
def test_mutated_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / "input"

    def read(data: bytes, analyzed: bool) -> str:
        if not analyzed:
            return outcome(lambda: in_memory(data))
        path.write_bytes(data)
        return outcome(lambda: analyzed_too(path))

    through_all(name, FILES[name], read)


def in_memory(data: bytes) -> Telemetry:
    """Read what a file of ``data`` holds, as if it were one."""
    builder, ledger = SpanBuilder(1_000), Ledger()
    with gc_paused():
        read_blocks([data], "input", builder, ledger, LARGEST)
        if not len(builder):
            raise NothingFound("input: no spans")
        return Telemetry("input", builder.finish(ledger), ledger)


def analyzed_too(path: Path) -> Telemetry:
    """Read a file, ask for all answers about it and draw them."""
    telemetry = open_source(str(path), SourceOptions(max_bytes=LARGEST)).read(Selection())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an answer that rests on part of the data
        for answer in (analyzers.critical_path, analyzers.runs):
            assert printable(analyzers.render(answer(str(path))).replace("\n", ""))
    return telemetry


def through_all(name: str, mutates: Sequence[Mutate], read: Callable[[bytes, bool], str]) -> None:
    """Read all mutations; whatever else than an answer or an expected error comes up fails with the input."""
    chance = random.Random(f"{SEED} {name}")
    ends: Counter[str] = Counter()
    with bounded_memory():
        for number in range(MUTATIONS):
            data = mutates[number % len(mutates)](chance)
            start = time.monotonic()
            try:
                ends[read(data, number % ANALYZED == 0)] += 1
            except BaseException as error:
                pytest.fail(f"{name}, seed {SEED}, number {number}: {error!r} for\n{data!r}")
            taken = time.monotonic() - start
            assert taken < LONGEST_S, f"{name}, seed {SEED}, number {number}: {taken:.0f} s for\n{data!r}"
    # Mutations that are all refused, or all harmless, would test little.
    assert ends["columns"] > MUTATIONS // 50, ends
    assert ends.total() - ends["columns"] > MUTATIONS // 50, ends


def outcome(read: Callable[[], Telemetry]) -> str:
    """Read a source; the name of how it ends."""
    try:
        check(read())
    except GrademlError as error:
        one_line(str(error))
        return type(error).__name__
    return "columns"


def check(telemetry: Telemetry) -> None:
    """Assert that the columns fit each other and that everything lazy can be had."""
    spans, ledger = telemetry.spans, telemetry.ledger
    count = len(spans)
    for column in (
        *(spans.trace_hi, spans.trace_lo, spans.span_id, spans.parent_id, spans.parent_ix, spans.end),
        *(spans.name_ix, spans.kind, spans.status, spans.flags, spans.resource_ix, spans.scope_ix),
    ):
        assert len(column) == count
    assert np.all((spans.trace_hi != 0) | (spans.trace_lo != 0))
    assert np.all(spans.span_id != 0)
    assert np.all((spans.parent_ix >= -2) & (spans.parent_ix < count))
    assert np.all((spans.kind >= 0) & (spans.kind <= 5) & (spans.status >= 0) & (spans.status <= 2))
    assert np.all((spans.start >= 0) & (spans.end >= 0))
    assert ledger.impossible_times >= int(np.count_nonzero(~spans.possible))
    for ix in range(count):
        up, steps = ix, 0
        while (up := int(spans.parent_ix[up])) >= 0:
            steps += 1
            assert steps <= count, "an ancestor of itself"
        assert isinstance(spans.name(ix), str)
        assert all(isinstance(key, str) for key in (*spans.attributes(ix), *spans.resource(ix)))
        assert all(isinstance(event.name, str) and isinstance(event.time, int) for event in spans.events(ix))
        scope = spans.scope(ix)
        assert scope is None or isinstance(scope["name"], str)
        assert isinstance(spans.service(ix), str)
    assert np.all((spans.links.span_ix >= 0) & (spans.links.span_ix < count))
    for line in ledger.warnings:
        one_line(line)


def one_line(text: str) -> None:
    assert text
    assert printable(text), text
    assert len(text) < 1_000, text


def printable(text: str) -> bool:
    return all(character.isprintable() for character in text)


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Let the process map no more than `MEMORY` on top of what it has: what wants more gets a MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


# --- Cuts -------------------------------------------------------------------------------------------------

CUT: Final[dict[str, bytes]] = {
    "OTLP JSON lines": _LINES,
    "OTLP protobuf": _MESSAGES[0],
    "Collector protobuf": formats.framed(_MESSAGES),
    "Collector protobuf zstd": formats.framed(_MESSAGES, compress=True),
    "gzip": formats.gz(_LINES),
    "zstd": formats.zstd(_LINES),
    "Jaeger JSON": jaeger_v1(SMALL),
    "Jaeger v3": formats.jaeger_v3(SMALL),
    "Zipkin": zipkin(SMALL),
}


@pytest.mark.parametrize("name", CUT)
def test_what_a_cut_took_is_told(name: str, tmp_path: Path) -> None:
    """Cut at each byte: fewer spans than there were are never taken for all, but between two documents."""
    path, data = tmp_path / "input", CUT[name]
    path.write_bytes(data)
    whole = len(open_source(str(path)).read(Selection()).spans)
    silent = []
    for end in range(len(data)):
        path.write_bytes(data[:end])
        try:
            telemetry = open_source(str(path)).read(Selection())
        except GrademlError as error:
            one_line(str(error))
            continue
        ledger = telemetry.ledger
        if len(telemetry.spans) < whole and not (ledger.unreadable_lines or ledger.broken or ledger.warnings):
            silent.append(end)
    # The first document ends there: what follows could not be missed.
    boundaries = {
        "OTLP JSON lines": [_LINES.index(b"\n"), _LINES.index(b"\n") + 1],
        "Collector protobuf": [len(formats.framed(_MESSAGES[:1]))],
        "Collector protobuf zstd": [len(formats.framed(_MESSAGES[:1], compress=True))],
    }
    assert silent == boundaries.get(name, [])
