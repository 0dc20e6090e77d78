# SPDX-License-Identifier: Apache-2.0
"""Any number of spans in files of each format, written fast."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

NAMES: Final = ("allreduce", "forward", "backward", "data.wait")
SPANS_PER_TRACE: Final = 1_000
_SPAN_NS: Final = 900_000
_APART_NS: Final = 1_000_000

_OTLP_SPAN: Final = (
    '{"traceId":"%s","spanId":"%016x","parentSpanId":"%s","flags":256,"name":"%s","kind":1,'
    '"startTimeUnixNano":"%d","endTimeUnixNano":"%d","attributes":['
    '{"key":"ml.step","value":{"intValue":"%d"}},{"key":"ml.rank","value":{"intValue":"%d"}},'
    '{"key":"ml.item","value":{"stringValue":"%d:%d"}},{"key":"loss","value":{"doubleValue":%r}},'
    '{"key":"flag","value":{"boolValue":true}}],"status":{}}'
)
_JAEGER_SPAN: Final = (
    '{"traceID":"%s","spanID":"%016x","operationName":"%s","references":[%s],"startTime":%d,"duration":%d,"tags":['
    '{"key":"ml.step","type":"int64","value":%d},{"key":"ml.rank","type":"int64","value":%d},'
    '{"key":"ml.item","type":"string","value":"%d:%d"},{"key":"loss","type":"float64","value":%r},'
    '{"key":"flag","type":"bool","value":true},{"key":"span.kind","type":"string","value":"internal"},'
    '{"key":"otel.scope.name","type":"string","value":"x"}],"logs":[],"processID":"p1","warnings":null}'
)
_EVENT: Final = (
    '{"ph":"X","cat":"cpu_op","name":"aten::%s","pid":77,"tid":%d,"ts":%d.%03d,"dur":%d.%03d,"args":'
    '{"External id":%d,"Record function id":0,"Ev Idx":%d,"Input Dims":[[64,3,224,224],[]]}}'
)


def traces(number: int, start: int | None = None) -> Iterator[tuple[int, int, list[int]]]:
    """Yield (trace id, start in Unix ns, ids of its spans) of ``number`` traces; the last ends now."""
    chance = random.Random(1)
    first = start if start is not None else time.time_ns() - number * SPANS_PER_TRACE * _APART_NS
    for t in range(number):
        ids = [chance.getrandbits(64) | 1 for _ in range(SPANS_PER_TRACE)]
        yield chance.getrandbits(128) | 1, first + t * SPANS_PER_TRACE * _APART_NS, ids


def otlp_lines(path: Path, number: int) -> None:
    """One request a line, each one trace."""
    with path.open("w", encoding="ascii") as out:
        for t, (trace, start, ids) in enumerate(traces(number)):
            trace_id, root = f"{trace:032x}", f"{ids[0]:016x}"
            spans = [
                _OTLP_SPAN
                % (
                    trace_id,
                    own,
                    root if s else "",
                    NAMES[s & 3],
                    start + s * _APART_NS,
                    start + s * _APART_NS + _SPAN_NS,
                    t,
                    s & 7,
                    t,
                    s,
                    s / 3,
                )
                for s, own in enumerate(ids)
            ]
            out.write(
                '{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":'
                f'"trainer"}}}},{{"key":"host.name","value":{{"stringValue":"h{t & 7}"}}}}]}},"scopeSpans":'
                f'[{{"scope":{{"name":"x"}},"spans":[{",".join(spans)}]}}]}}]}}\n'
            )


def jaeger_json(path: Path, number: int) -> None:
    """One answer of the v1 API; each trace on a line of its own."""
    with path.open("w", encoding="ascii") as out:
        out.write('{"data":[\n')
        for t, (trace, start, ids) in enumerate(traces(number)):
            trace_id = f"{trace:032x}"
            parent = f'{{"refType":"CHILD_OF","traceID":"{trace_id}","spanID":"{ids[0]:016x}"}}'
            spans = [
                _JAEGER_SPAN
                % (
                    trace_id,
                    own,
                    NAMES[s & 3],
                    parent if s else "",
                    (start + s * _APART_NS) // 1000,
                    _SPAN_NS // 1000,
                    t,
                    s & 7,
                    t,
                    s,
                    s / 3,
                )
                for s, own in enumerate(ids)
            ]
            out.write(
                f'{{"traceID":"{trace_id}","spans":[{",".join(spans)}],"processes":{{"p1":{{"serviceName":'
                f'"trainer","tags":[{{"key":"host.name","type":"string","value":"h{t & 7}"}}]}}}},'
                f'"warnings":null}}{"," if t + 1 < number else ""}\n'
            )
        out.write('],"total":0,"limit":0,"offset":0,"errors":null}\n')


def otlp_protobuf(path: Path, number: int) -> None:
    """One ``TracesData``: such messages one after the other are one."""
    with path.open("wb") as out:
        for message in messages(number):
            out.write(message)


def messages(number: int) -> Iterator[bytes]:
    """Yield a ``TracesData`` a trace."""
    for t, (trace, start, ids) in enumerate(traces(number)):
        envelope = TracesData()
        group = envelope.resource_spans.add()
        group.resource.attributes.extend([_text("service.name", "trainer"), _text("host.name", f"h{t & 7}")])
        scope = group.scope_spans.add()
        scope.scope.name = "x"
        for s, own in enumerate(ids):
            span = scope.spans.add(
                trace_id=trace.to_bytes(16, "big"),
                span_id=own.to_bytes(8, "big"),
                parent_span_id=ids[0].to_bytes(8, "big") if s else b"",
                flags=256,
                name=NAMES[s & 3],
                kind=1,
                start_time_unix_nano=start + s * _APART_NS,
                end_time_unix_nano=start + s * _APART_NS + _SPAN_NS,
            )
            for key, value in (("ml.step", t), ("ml.rank", s & 7)):
                span.attributes.add(key=key).value.int_value = value
            span.attributes.add(key="ml.item").value.string_value = f"{t}:{s}"
            span.attributes.add(key="loss").value.double_value = s / 3
            span.attributes.add(key="flag").value.bool_value = True
        yield bytes(envelope.SerializeToString())


def _text(key: str, value: str) -> KeyValue:
    pair = KeyValue(key=key)
    pair.value.string_value = value
    return pair


def kineto(path: Path, number: int) -> None:
    """What PyTorch's profiler writes: operators four deep on eight threads, an event a line."""
    with path.open("w", encoding="ascii") as out:
        out.write('{"schemaVersion":1,"baseTimeNanoseconds":1796113322000000000,"traceEvents":[\n')
        for t in range(number):
            events = []
            for s in range(SPANS_PER_TRACE):
                depth = s & 3
                start = ((t * SPANS_PER_TRACE + s) // 8) * 4_000_000 + depth * 1_000
                length = 3_000_000 - 2 * depth * 1_000 if depth < 3 else 1_001
                at, lasts = divmod(start, 1000), divmod(length, 1000)
                number_of = t * SPANS_PER_TRACE + s
                events.append(_EVENT % (NAMES[depth], 100 + (s >> 2 & 7), *at, *lasts, number_of, number_of))
            out.write(",\n".join(events) + (",\n" if t + 1 < number else "\n"))
        out.write("]}\n")


WRITERS: Final[dict[str, tuple[str, Callable[[Path, int], None]]]] = {
    "Jaeger JSON": ("jaeger.json", jaeger_json),
    "OTLP protobuf": ("otlp.pb", otlp_protobuf),
    "OTLP JSON lines": ("otlp.jsonl", otlp_lines),
    "PyTorch profiler": ("kineto.json", kineto),
}
"""Format -> the name of its file, and what writes it for a number of traces of a thousand spans each."""
