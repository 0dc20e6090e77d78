# SPDX-License-Identifier: Apache-2.0
"""Attributes that hold tables are decoded without an object for each number: to the same as any others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grademl_otel.analyzers.sources.formats import otlp_integers, otlp_values
from grademl_otel.analyzers.sources.formats.decoding import objects_in
from grademl_otel.analyzers.sources.formats.otlp_values import LARGE, otlp_attributes, otlp_value

NUMBERS = st.one_of(
    st.integers().map(str),
    st.integers(),
    st.sampled_from(
        ["1,2", " 7", "007", "+5", "-0", "1.0", "1e3", "", "1_0", "x", "٣", "9" * 40, True, None, 1.5]
    ),
)
VALUES = st.one_of(
    st.lists(NUMBERS, max_size=6).map(
        lambda some: {"arrayValue": {"values": [{"intValue": one} for one in some]}}
    ),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1).map(str), max_size=6).map(
        lambda some: {"arrayValue": {"values": [{"intValue": one} for one in some]}}
    ),
    st.text(max_size=5).map(lambda text: {"stringValue": text}),
    st.sampled_from(
        [None, {}, [], {"boolValue": True}, {"arrayValue": {}}, {"arrayValue": {"values": [{}]}}]
    ),
)
PAIRS = st.one_of(
    st.fixed_dictionaries({"key": st.sampled_from("abc"), "value": VALUES}),
    st.fixed_dictionaries({"value": VALUES}),
    st.sampled_from([None, {}, 7, {"key": None}, {"key": "a"}, {"key": "a", "value": {}, "more": 1}]),
)


def plainly(raw: bytes) -> dict[str, Any]:
    """What small attributes are decoded to."""
    return {str(pair.get("key", "")): otlp_value(pair.get("value")) for pair in objects_in(raw) if pair}


@given(st.lists(PAIRS, max_size=5), st.booleans(), st.booleans())
def test_large_attributes_are_what_small_ones_are(pairs: list[Any], tight: bool, cut: bool) -> None:
    text = json.dumps(pairs, separators=(",", ":") if tight else None, ensure_ascii=False).encode()
    small = text[:-1] if cut else text
    large = small + b" " * LARGE
    assert otlp_attributes(small) == plainly(small)
    assert otlp_attributes(large) == plainly(large) == plainly(small)


@pytest.mark.parametrize(
    "value",
    [
        b'{"arrayValue":{"values":[{"intValue":"1"},{"intValue":"\\u0031"}]}}',
        b'{"arrayValue":{"values":[{"intValue":"1,2"},{"intValue":"3"}]}}',
        b'{"arrayValue":{"values":[{"intValue":"1"},{"intValue":"2","x":[{"intValue":"3"}]}}]}}',
        b'{"arrayValue":{"values":[{"intValue":"1"},{"intValue":"\xff"}]}}',
        b'{"stringValue":"\xff"}',
        b"[]",
        b"[7]",
        b'{"arrayValue":{"values":[{"intValue":"%b"}]}}' % (b"9" * 5000),
        b'{"arrayValue":{"values":[{"intValue":"1"}]},"stringValue":"a","y":[{"z":"1"}]}}',
    ],
)
def test_what_only_looks_like_integers_is_read_as_ever(value: bytes) -> None:
    raw = b'[{"key":"a","value":{"intValue":"7"}},{"key":"b","value":%b}]' % value
    assert otlp_attributes(raw + b" " * LARGE) == plainly(raw)


def test_a_table_is_read_without_an_object_for_each_number(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [(-1) ** one * one**4 for one in range(5_000)]
    value = {"arrayValue": {"values": [{"intValue": str(one)} for one in numbers]}}
    pairs = [{"key": "table", "value": value}, {"key": "name", "value": {"stringValue": "x"}}]
    raw = json.dumps(pairs, separators=(",", ":")).encode()
    assert otlp_integers.pairs_of(raw) == [("table", numbers, None), ("name", None, {"stringValue": "x"})]
    monkeypatch.setattr(otlp_values, "objects_in", None)
    assert otlp_attributes(raw) == {"table": numbers, "name": "x"}
