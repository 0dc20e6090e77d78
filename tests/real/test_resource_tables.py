# SPDX-License-Identifier: Apache-2.0
"""Resource tables through a real Jaeger: exact, and read as one series."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from grademl_otel import semconv
from grademl_otel.analyzers.model.resource_tables import decode_resources, together
from tests.support import servers
from tests.support.deaths import Scene
from tests.support.hardware import tables
from tests.support.rawspans import RawSpan, read_jaeger
from tests.support.relays import until

SECONDS = 4


@pytest.mark.real
@pytest.mark.skipif(sys.platform != "linux", reason="hosts of other systems are not sampled")
def test_tables_arrive_as_they_were_written(jaeger: servers.Jaeger, tmp_path: Path) -> None:
    settings = {
        "GRADEML_EXPORTER": "file,otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": jaeger.otlp_http,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    scene = Scene(tmp_path, settings)
    program = scene.start("wait", 1)

    def told() -> int:
        column = tables(scene.spans()).get(("process", "rank 0", "memory"))
        return 0 if column is None else len(column.values)

    try:
        until(lambda: told() >= SECONDS)
        assert scene.stop(program)[0] == 0
        until(lambda: scene.says("finished "))
    finally:
        program.kill()
        scene.clear()

    stored = {span.span_id: span for span in scene.spans() if has_table(span)}
    traces = sorted({span.trace_id for span in stored.values()})
    arrived: dict[str, RawSpan] = {}

    def complete() -> bool:
        arrived.update({s.span_id: s for s in read_jaeger(jaeger.query_url, traces) if has_table(s)})
        return set(arrived) >= set(stored)

    servers.wait_until(complete, "arriving of all windows")
    for span_id, span in stored.items():
        assert arrived[span_id].attributes == span.attributes

    decoded = together(
        decode_resources({k: v.value for k, v in span.attributes.items()}, "here", span.start)
        for span in arrived.values()
    )
    expected = tables(stored.values())
    assert {(key.kind, key.device, key.column) for key in decoded} == set(expected)
    for key, samples in decoded.items():
        column = expected[key.kind, key.device, key.column]
        assert samples.values.tolist() == [column.values[at] for at in sorted(column.values)]
        assert [round(start / 1e6) for start in samples.start.tolist()] == sorted(column.values)


def has_table(span: RawSpan) -> bool:
    return semconv.RESOURCES_VERSION in span.attributes
