# SPDX-License-Identifier: Apache-2.0
"""One way of going through a file of spans, in a process of its own: CPU time and peak memory.

    python -m benchmarks.reading WAY PATH

prints one line of JSON. The ways that make no columns parse the same bytes piece by piece, as whoever wants
bounded memory must.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

_EVENTS: Final = 1_000
"""Lines parsed at a time where a line is one event."""


Way = Callable[[str], int]
"""Goes through the file of this path; returns how many spans, documents or messages it met."""


def columns() -> Way:
    """Read it as `grademl` does."""
    from grademl_otel.analyzers.sources.base import Selection, SourceOptions
    from grademl_otel.analyzers.sources.registry import open_source

    options = SourceOptions(max_spans=100_000_000, max_bytes=1 << 40)
    return lambda path: len(open_source(path, options).read(Selection()).spans)


def with_json() -> Way:
    return lambda path: _pieces(path, json.loads)


def with_msgspec() -> Way:
    import msgspec

    return lambda path: _pieces(path, msgspec.json.decode)


def with_protobuf() -> Way:
    from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

    return lambda path: sum(
        bool(ResourceSpans.FromString(each)) for each in _messages(Path(path).read_bytes())
    )


def _pieces(path: str, parse: Callable[[bytes], object]) -> int:
    """Parse each line of a file in which each is a document, an element of one, or one of many events."""
    number = 0
    events: list[bytes] = []
    with open(path, "rb") as file:
        for line in file:
            line = line.rstrip(b",\n")
            if line.startswith(b'{"ph"'):
                events.append(line)
                if len(events) == _EVENTS:
                    parse(b"[" + b",".join(events) + b"]")
                    events.clear()
            elif line.startswith((b'{"traceID"', b'{"resourceSpans"')):
                parse(line)
            number += 1
    return number


def _messages(data: bytes) -> Iterator[bytes]:
    """Yield the messages of field 1 that ``data`` consists of."""
    at = 0
    while at < len(data):
        at, size, shift = at + 1, 0, 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        yield data[at : at + size]
        at += size


WAYS: Final[dict[str, Callable[[], Way]]] = {
    "columns": columns,
    "json.loads": with_json,
    "msgspec": with_msgspec,
    "protobuf": with_protobuf,
}


def main() -> None:
    way, path = WAYS[sys.argv[1]](), sys.argv[2]
    if sys.argv[1] != "columns":
        gc.disable()  # the columns' readers do so themselves
    start, wall = time.process_time(), time.monotonic()
    number = way(path)
    taken = {"cpu_s": time.process_time() - start, "wall_s": time.monotonic() - wall}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({**taken, "peak": peak, "number": number}))


if __name__ == "__main__":
    main()
