# SPDX-License-Identifier: Apache-2.0
"""Reads ten thousand mutated inputs of each kind of source, in a process of its own.

    python -m tests.property.mutated WORKER OF [SOURCE]

takes each OF-th input, and prints a line of JSON a source: how often reading ended how, or the first input
for which it did something else than answer or say in one line why not.
"""

from __future__ import annotations

import faulthandler
import json
import random
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from grademl_otel import analyzers
from grademl_otel.analyzers.errors import GrademlError, NothingFound
from grademl_otel.analyzers.model.columns import Ledger, Telemetry
from grademl_otel.analyzers.sources import open_source
from grademl_otel.analyzers.sources.base import Selection, SourceOptions
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.files.containers import read_blocks
from grademl_otel.analyzers.sources.formats.decoding import gc_paused

from ..support import every_format as formats
from ..support.foreign_formats import jaeger_v1, kineto, zipkin
from ..support.mutations import Mutate, of_bytes, of_json, of_protobuf
from ..support.truth import SPANS, T0, WIDE, Happening, Link, Span
from .mutated_copy import COPY
from .mutated_servers import JAEGER, TEMPO, Form

MUTATIONS: Final = 10_000
SEED: Final = 20_261_201
ANALYZED: Final = 100
"""One of so many is also read from a file, analyzed and drawn."""
LARGEST: Final = 1 << 20
"""Bytes of a document."""
LONGEST_S: Final = 30
"""For one input: only what hangs takes that long."""
MEMORY: Final = 2 << 30
"""Bytes that reading may map beyond what the process has at its start."""

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


LINES: Final = formats.otlp_lines(SMALL) + formats.otlp_lines(SPANS[5:6])
MESSAGES: Final = (formats.otlp_protobuf(SMALL), formats.otlp_protobuf(SPANS[6:]))


def in_memory(data: bytes) -> Telemetry:
    """Read what a file of ``data`` holds, as if it were one."""
    builder, ledger = SpanBuilder(1_000), Ledger()
    with gc_paused():
        read_blocks([data], "input", builder, ledger, LARGEST)
        if not len(builder):
            raise NothingFound("input: no spans")
        return Telemetry("input", builder.finish(ledger), ledger)


def analyzed(path: Path) -> Telemetry:
    """Read a file, ask for all answers about it and draw them."""
    telemetry = open_source(str(path), SourceOptions(max_bytes=LARGEST)).read(Selection())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an answer that rests on part of the data
        for answer in (analyzers.critical_path, analyzers.runs):
            assert printable(analyzers.render(answer(str(path))).replace("\n", ""))
        model = analyzers.execution_model(str(path))
        assert len(model.select("**")) == len(model) - 1
    return telemetry


def _files(*mutates: Mutate) -> tuple[Form, ...]:
    return tuple((mutate, in_memory) for mutate in mutates)


def _text(data: bytes) -> tuple[Form, ...]:
    return _files(of_bytes(data), of_json(data))


SOURCES: Final[dict[str, tuple[Form, ...]]] = {
    "OTLP JSON": (*_text(LINES), *_files(of_bytes(formats.gz(LINES)), of_bytes(formats.zstd(LINES)))),
    "OTLP protobuf": _files(
        of_bytes(MESSAGES[0]),
        of_protobuf(MESSAGES[0]),
        of_frames(MESSAGES, compress=False),
        of_frames(MESSAGES, compress=True),
    ),
    "Jaeger": (*_text(jaeger_v1(SMALL)), *_text(formats.jaeger_v3(SMALL)), *JAEGER),
    "Tempo": (
        *_files(of_json(formats.tempo_v1_json(SMALL)), of_json(formats.tempo_v2_json(SMALL))),
        *_files(of_protobuf(formats.tempo_v2_protobuf(SMALL))),
        *TEMPO,
    ),
    "Zipkin": _text(zipkin(SMALL)),
    "profiles": _text(kineto(SPANS[2:4])),
    "copies": COPY,
}
"""Kind of source -> its forms, which take turns: each what makes inputs, and what reads one."""


# --- Going through them -----------------------------------------------------------------------------------


def through_all(name: str, worker: int, workers: int) -> dict[str, Any]:
    """Read the mutations of one source; return how they ended, or what the first fault was."""
    forms = SOURCES[name]
    ends: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input"
        for number in range(worker, MUTATIONS, workers):
            mutate, read = forms[number % len(forms)]
            data = mutate(random.Random(f"{SEED} {name} {number}"))
            signal.alarm(LONGEST_S)
            try:
                ends[outcome(read, data)] += 1
                if read is in_memory and number // workers % ANALYZED == 0:
                    path.write_bytes(data)
                    outcome(analyzed, path)
            except Exception as error:
                what = "".join(traceback.format_exception(error)[-3:])
                return {"source": name, "fault": f"seed {SEED}, number {number}: {what}for\n{data!r}"}
            finally:
                signal.alarm(0)
    return {"source": name, "ends": ends}


def outcome(read: Callable[[Any], Telemetry], source: Any) -> str:
    """Read a source; the name of how it ends."""
    try:
        check(read(source))
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


def main() -> None:
    faulthandler.enable()
    faulthandler.dump_traceback_later(20 * LONGEST_S, exit=True)  # a C function that hangs hears no alarm
    signal.signal(signal.SIGALRM, _late)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, resource.RLIM_INFINITY))
    for name in sys.argv[3:] or SOURCES:
        print(json.dumps(through_all(name, int(sys.argv[1]), int(sys.argv[2]))), flush=True)


def _late(*_: object) -> None:
    raise TimeoutError(f"not done after {LONGEST_S} s")


if __name__ == "__main__":
    main()
