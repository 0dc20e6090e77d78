# SPDX-License-Identifier: Apache-2.0
"""Phases that only attributes of serving engines tell of: their unit, their tiling, what is not used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.analyzers.graph import trace_paths
from grademl_otel.analyzers.graph.trees.virtual_phases import Told, with_virtual_phases

from ..support.build import S, columns

MS = 1_000_000
E2E = "gen_ai.latency.e2e"
QUEUE = "gen_ai.latency.time_in_queue"
FIRST = "gen_ai.latency.time_to_first_token"
PREFILL = "gen_ai.latency.time_in_model_prefill"
DECODE = "gen_ai.latency.time_in_model_decode"
INFERENCE = "gen_ai.latency.time_in_model_inference"

VLLM = {E2E: 0.1, QUEUE: 0.03, FIRST: 0.05, PREFILL: 0.02, DECODE: 0.04, INFERENCE: 0.06}
"""A request of 100 ms as vLLM tells of it, in seconds."""


def told(attributes: Mapping[str, Any], length: int = 100 * MS, start: int = 10**18) -> Told:
    spans = columns([S("llm_request", start, start + length, attributes=attributes)])
    return with_virtual_phases(spans, trace_paths(spans).sections)


def phases(found: Told) -> list[tuple[str, str, int, str]]:
    return [(s.phase, s.kind, s.duration, s.entered_by.evidence) for s in found.sections]


WHOLE = [("llm_request", "work", 100 * MS, "observed")]


def test_what_vllm_tells_tiles_the_request() -> None:
    found = told(VLLM)
    assert phases(found) == [
        ("queue", "wait", 30 * MS, "attribute"),
        ("prefill", "work", 20 * MS, "attribute"),
        ("decode", "work", 40 * MS, "attribute"),
        ("llm_request", "work", 10 * MS, "attribute"),
    ]
    assert found.origin.tolist() == [0, 0, 0, 0]
    assert found.notes == []


@pytest.mark.parametrize("unit", [1, 1e3, 1e6, 1e9])
@pytest.mark.parametrize("form", [float, str, lambda value: round(value, 3)])
def test_the_unit_is_that_in_which_the_request_is_as_long_as_its_span(unit: float, form: Any) -> None:
    found = told({key: form(value * unit) for key, value in VLLM.items()})
    assert [ns for *_, ns, _ in phases(found)] == [30 * MS, 20 * MS, 40 * MS, 10 * MS]


@pytest.mark.parametrize(
    ("length", "used"), [(95_238, False), (95_239, True), (105_263, True), (105_264, False)]
)
def test_the_request_may_differ_from_its_span_by_5_percent(length: int, used: bool) -> None:
    found = told({E2E: 0.1, QUEUE: 0.03}, length * 1000)
    assert (len(found.sections) > 1) == used
    assert bool(found.notes) != used


def test_what_has_no_unit_is_not_used_and_said() -> None:
    assert phases(told({QUEUE: 0.03})) == WHOLE
    assert told({QUEUE: 0.03}).notes == [
        "phases that attributes of 1 span tell of are not used: "
        "nothing beside them tells their unit (gen_ai.latency.e2e)"
    ]
    found = told({E2E: 7.0, QUEUE: 0.03})
    assert phases(found) == WHOLE
    assert "as long as the span in no unit" in found.notes[0]


def test_parts_that_are_longer_than_the_whole_are_not_used() -> None:
    found = told({E2E: 0.1, QUEUE: 0.08, PREFILL: 0.02, DECODE: 0.01})
    assert phases(found) == WHOLE
    assert "longer than their span" in found.notes[0]


def test_parts_that_are_a_little_longer_end_with_the_span() -> None:
    found = told({E2E: 0.102, QUEUE: 0.04, PREFILL: 0.02, DECODE: 0.042})
    assert [ns for *_, ns, _ in phases(found)] == [40 * MS, 20 * MS, 40 * MS]


def test_the_first_token_parts_what_is_not_told_otherwise() -> None:
    found = told({E2E: 0.1, QUEUE: 0.03, FIRST: 0.05})
    assert [(name, ns) for name, _, ns, _ in phases(found)] == [
        ("queue", 30 * MS), ("prefill", 20 * MS), ("decode", 50 * MS),
    ]  # fmt: skip


def test_inference_stays_whole_where_its_parts_are_not_told() -> None:
    found = told({E2E: 0.1, QUEUE: 0.03, INFERENCE: 0.06})
    assert [(name, ns) for name, _, ns, _ in phases(found)] == [
        ("queue", 30 * MS), ("inference", 60 * MS), ("llm_request", 10 * MS),
    ]  # fmt: skip


def test_what_text_generation_inference_tells() -> None:
    rust = {
        "total_time": "100.5ms", "validation_time": "1.5ms", "queue_time": "28.5ms", "inference_time": "70ms",
        "time_per_token": "900.5µs", "seed": "None",
    }  # fmt: skip
    assert [(name, ns) for name, _, ns, _ in phases(told(rust))] == [
        ("validation", 1_500_000), ("queue", 28_500_000), ("inference", 70 * MS),
    ]  # fmt: skip
    assert phases(told({**rust, "total_time": "2.01s"})) == WHOLE
    assert phases(told({"queue_time": "3ms", "inference_time": 7})) == WHOLE  # of anybody else


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -0.03, True, "soon", "", None, [0.03], 10**400, "1e999", b"3"]
)
def test_values_that_are_no_lengths_count_as_absent(value: Any) -> None:
    found = told({E2E: 0.1, QUEUE: value, PREFILL: 0.02})
    assert [(name, ns) for name, _, ns, _ in phases(found)] == [
        ("prefill", 20 * MS), ("llm_request", 80 * MS),
    ]  # fmt: skip


def test_a_span_of_no_length_has_no_phases() -> None:
    spans = columns([S("r", 5, 5, attributes={E2E: 0.0, QUEUE: 0.0})])
    assert len(with_virtual_phases(spans, trace_paths(spans).sections).sections) == 0


def test_children_on_the_path_stay_and_the_rest_is_cut() -> None:
    spans = columns(
        [
            S("root", 0, 200 * MS),
            S("llm_request", 50 * MS, 150 * MS, "root", attributes=VLLM),
            S("fetch", 90 * MS, 110 * MS, "llm_request"),
        ]
    )
    found = with_virtual_phases(spans, trace_paths(spans).sections)
    assert [(s.phase, s.start // MS, s.end // MS) for s in found.sections] == [
        ("root", 0, 50), ("queue", 50, 80), ("prefill", 80, 90), ("fetch", 90, 110), ("decode", 110, 140),
        ("llm_request", 140, 150), ("root", 150, 200),
    ]  # fmt: skip
    assert found.origin.tolist() == [0, 1, 1, 2, 3, 3, 4]


@given(
    st.integers(0, 10**12),
    st.integers(1, 10**13),
    st.lists(st.floats(0, 1.2), min_size=3, max_size=3),
    st.floats(0.94, 1.06),
)
@settings(max_examples=100, deadline=None)
def test_the_tiling_is_exact_whatever_is_told(
    start: int, length: int, parts: list[float], whole: float
) -> None:
    attributes = dict(zip((QUEUE, PREFILL, DECODE), (part * length / 1e9 for part in parts), strict=True))
    found = told({**attributes, E2E: whole * length / 1e9}, length, start)
    sections = found.sections
    assert int(sections.start[0]) == start
    assert int(sections.end[-1]) == start + length
    assert np.array_equal(sections.start[1:], sections.end[:-1])
    assert (sections.duration > 0).all()


def test_spans_without_such_attributes_cost_nothing() -> None:
    spans = columns([S("a", 0, 10, attributes={"gen_ai.request.id": "x"})])
    sections = trace_paths(spans).sections
    assert with_virtual_phases(spans, sections).sections is sections
