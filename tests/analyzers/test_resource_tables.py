# SPDX-License-Identifier: Apache-2.0
"""Resource tables as the analyzer reads them: what the recording half writes, and what it never would."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grademl_otel.analyzers.model.resource_tables import Key, decode_resources, together
from grademl_otel.analyzers.model.tables import MalformedTable
from grademl_otel.sampling.bins import Row
from grademl_otel.sampling.resource_table import fitting

S = 1_000_000_000
START = 1_700_000_000 * S
GPU = Key("node", "gpu", "GPU-a", "utilization")
RX = Key("node", "network", "eth0", "rx")


def written(rows: list[Row], first: int, room: int = 100_000, spans: int = 1) -> dict[str, Any]:
    """The attributes of a span that starts half a second after second ``first``."""
    bins = len(rows[0].values)
    table = fitting(rows, first, first + bins, room, spans, False)
    assert table is not None
    return dict(table.attributes(-500_000))


def decoded(rows: list[Row], first: int, **options: int) -> dict[Key, Any]:
    return decode_resources(written(rows, first, **options), "node", START + first * S + S // 2)


def row(*values: int, column: str = "utilization", device: str = "GPU-a", capacity: int = 1000) -> Row:
    return Row("gpu", column, device, False, capacity, list(values))


def test_what_was_written_is_read() -> None:
    rows = [row(1, -1, 3), row(-1, -1, 7, device="GPU-b"), Row("network", "rx", "eth0", True, -1, [5, 5, 5])]
    found = decoded(rows, 10)
    assert list(found) == [GPU, Key("node", "gpu", "GPU-b", "utilization"), RX]
    assert found[GPU].start.tolist() == [START + 10 * S, START + 12 * S]
    assert found[GPU].length.tolist() == [S, S]
    assert found[GPU].values.tolist() == [1, 3]
    assert (found[GPU].capacity, found[RX].capacity) == (1000, None)
    assert found[RX].values.tolist() == [5, 5, 5]
    assert (GPU.added, RX.added) == (False, True)


def test_arrays_of_jaegers_first_api_are_texts() -> None:
    attributes = {
        key: json.dumps(value) if isinstance(value, list) else value
        for key, value in written([row(1, 2)], 10).items()
    }
    assert decode_resources(attributes, "node", START + 21 * S // 2)[GPU].values.tolist() == [1, 2]


def test_a_span_without_a_table_has_none() -> None:
    assert decode_resources({"grademl.window": 1}, "node", START) == {}


@given(
    st.lists(st.integers(-1, 1 << 50), min_size=1, max_size=60),
    st.lists(st.integers(1, 10), min_size=1, max_size=60),
    st.randoms(use_true_random=False),
)
def test_tables_in_any_order_and_twice_are_one_series(
    values: list[int], cuts: list[int], chance: Any
) -> None:
    tables, first = [], 0
    for length in cuts * 60:
        piece = values[first : first + length]
        if any(value != -1 for value in piece):
            rows = [Row("network", "rx", "eth0", True, 7, piece)]
            # Another rank ties the same second to a time that is some microseconds off.
            start = START + first * S + S // 2 + chance.randint(-50_000, 50_000)
            tables.append(decode_resources(written(rows, first), "node", start))
        first += length
        if first >= len(values):
            break
    chance.shuffle(tables)
    tables += tables[: chance.randint(0, len(tables))]
    joined = together(tables)
    known = [value for value in values if value != -1]
    assert [samples.values.tolist() for samples in joined.values()] == ([known] if known else [])
    for samples in joined.values():
        seconds = [round((start - START) / S) for start in samples.start.tolist()]
        assert seconds == [index for index, value in enumerate(values) if value != -1]


def test_where_two_tell_of_one_time_the_finer_one_stays() -> None:
    fine = decoded([row(1, 2, 3)], 10)
    coarse = decode_resources(
        {**written([row(9, 9, 9)], 9), "grademl.resources.bin_ms": 2000}, "node", START + 9 * S + S // 2
    )  # 9 to 11, 11 to 13, 13 to 15
    samples = together([coarse, fine])[GPU]
    assert [(start - START) // S for start in samples.start.tolist()] == [10, 11, 12, 13]
    assert samples.length.tolist() == [S, S, S, 2 * S]
    assert samples.values.tolist() == [1, 2, 3, 9]


@pytest.mark.parametrize(
    "change",
    [
        {"grademl.resources.version": 2},
        {"grademl.resources.version": "1"},
        {"grademl.resources.bins": 0},
        {"grademl.resources.bins": 3},
        {"grademl.resources.bins": 1 << 40},
        {"grademl.resources.bins": True},
        {"grademl.resources.bin_ms": 0},
        {"grademl.resources.bin_ms": -1000},
        {"grademl.resources.start_us": 1 << 60},
        {"grademl.resources.start_us": None},
        {"grademl.resources.gpu.id": []},
        {"grademl.resources.gpu.id": ["GPU-a", "GPU-a"]},
        {"grademl.resources.gpu.id": [1, 2]},
        {"grademl.resources.gpu.id": ["a", "b", "c"]},
        {"grademl.resources.gpu.utilization": [1, 2, 3, 4, 5]},
        {"grademl.resources.gpu.utilization": ["x"]},
        {"grademl.resources.gpu.utilization": [-2]},
        {"grademl.resources.gpu.utilization": [1 << 63]},
        {"grademl.resources.gpu.utilization": "[1,"},
        {"grademl.resources.gpu.utilization": {"a": 1}},
        {"grademl.resources.gpu.utilization": "[" * 100_000},
        {"grademl.resources.gpu.utilization.capacity": [1, 2, 3]},
        {"grademl.resources.gpu.utilization.capacity": [1.5, None]},
    ],
)
def test_a_table_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    attributes = written([row(1, 2), row(3, 4, device="GPU-b")], 10)
    assert decode_resources(attributes, "node", START)
    with pytest.raises(MalformedTable):
        decode_resources({**attributes, **change}, "node", START)


@given(
    st.dictionaries(
        st.sampled_from(
            ["version", "bins", "bin_ms", "start_us", "gpu.id", "gpu.power", "gpu", ".", "a.b.c"]
        ),
        st.one_of(
            st.integers(),
            st.sampled_from(["", "x", "[1]", '["a"]', "1"]),
            st.lists(st.integers(), max_size=4),
            st.none(),
        ),
    )
)
def test_nonsense_is_refused_or_read_and_nothing_else(odd: dict[str, Any]) -> None:
    attributes = {
        **written([row(1, 2)], 10),
        **{f"grademl.resources.{key}": each for key, each in odd.items()},
    }
    try:
        decode_resources(attributes, "node", START)
    except MalformedTable:
        pass
