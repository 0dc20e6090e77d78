# SPDX-License-Identifier: Apache-2.0
"""Columns out of values: the fast paths give what the rules say of each value by itself."""

from __future__ import annotations

import base64
import math
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.analyzers.sources.formats.decoding import Unreadable
from grademl_otel.analyzers.sources.formats.vectors import (
    NO_TIME,
    binary_ids,
    enums,
    flags,
    ids,
    microseconds,
    raw_column,
    settled,
    shared,
    times,
)
from tests.support.build import Given

MAX = 2**63 - 1
KINDS = {"INTERNAL": 1, "SERVER": 2}


def written(number: int, size: int, how: str) -> str | None:
    raw = number.to_bytes(size, "big")
    forms = {
        "hex": raw.hex(),
        "upper": raw.hex().upper(),
        "bare": f"{number:x}",
        "half": raw.hex()[size:] if number < 1 << 4 * size else raw.hex(),
        "base64": base64.b64encode(raw).decode(),
        "absent": raw.hex() if number else None,
    }
    return forms[how]


HOW = st.sampled_from(["hex", "upper", "bare", "half", "base64", "absent"])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**64 - 1) | st.integers(0, 2**32), HOW)))
def test_ids_of_spans_are_read_however_written(spans: list[tuple[int, str]]) -> None:
    found = ids([written(number, 8, how) for number, how in spans], 8, optional=True)
    assert found.tolist() == [number for number, _ in spans]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**128 - 1) | st.integers(0, 2**64), HOW)))
def test_ids_of_traces_are_read_however_written(traces: list[tuple[int, str]]) -> None:
    high, low = ids([written(number, 16, how) for number, how in traces], 16, optional=True)
    numbers = [hi << 64 | lo for hi, lo in zip(high.tolist(), low.tolist(), strict=True)]
    assert numbers == [number for number, _ in traces]


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 2**32)), st.booleans())
def test_ids_may_be_bytes(numbers: list[int], stripped: bool) -> None:
    raws = [number.to_bytes(8, "big").lstrip(b"\0" if stripped else b"") for number in numbers]
    assert binary_ids(raws, 8, optional=True).tolist() == numbers


@pytest.mark.parametrize(
    "text",
    ["00" * 9, "xy", "ab cd ef 01 23 45 6", " 00000000000001", "0x00000000000001", "1_000", "-1", "é" * 16,
     "１２３４５６７８９０１２３４５６", base64.b64encode(b"1234567").decode(), "AAAAAAAAAA!="],
)  # fmt: skip
def test_what_is_no_id_is_named(text: str) -> None:
    with pytest.raises(Unreadable, match="is no id of 8 bytes") as caught:
        ids(["0000000000000001", text], 8)
    assert repr(text[:40]) in str(caught.value)


def test_an_id_too_long_is_none() -> None:
    with pytest.raises(Unreadable, match="is no id of 16 bytes"):
        ids(["0" * 33], 16)
    with pytest.raises(Unreadable, match="is no id of 8 bytes"):
        binary_ids([b"123456789"], 8)


@pytest.mark.parametrize("absent", [None, "", "0", "0" * 16])
def test_a_span_needs_an_id(absent: str | None) -> None:
    with pytest.raises(Unreadable, match="a span without an id"):
        ids(["00000000000000aa", absent], 8)
    with pytest.raises(Unreadable, match="a span without an id"):
        ids(["aa", absent], 16)
    assert ids([absent], 8, optional=True).tolist() == [0]


def exact(value: Any, factor: int) -> int | None:
    """A value times ``factor`` with its fraction cut (factor 1) or rounded; None for what is no time."""
    if value is None or value == "":
        return 0
    try:
        number = Fraction(value)
    except (ValueError, OverflowError):
        return None
    number *= factor
    whole = math.trunc(number) if factor == 1 else round(number)
    return whole if number > -1 and 0 <= whole <= MAX else None


INTEGERS = st.integers(-10, MAX + 10) | st.integers(-10, 2000) | st.integers(10**18, 2 * 10**18)
WORDS = st.sampled_from(["", "x", "NaN", "Infinity", "-1", "1e3", "1.5", "9" * 5000, str(2**63)])
NUMBERS = st.one_of(INTEGERS, INTEGERS.map(str), WORDS, st.none(), st.floats())
COLUMNS = st.one_of(st.lists(NUMBERS), st.lists(INTEGERS), st.lists(INTEGERS.map(str)), st.lists(st.floats()))


@settings(deadline=None)
@given(COLUMNS)
def test_times_are_exact(values: list[Any]) -> None:
    assert times(values).tolist() == [NO_TIME if v is None else v for v in (exact(one, 1) for one in values)]


@settings(deadline=None)
@given(COLUMNS | st.lists(st.floats(0, 2**54)))
def test_microseconds_are_exact_to_a_nanosecond(values: list[Any]) -> None:
    for got, value in zip(microseconds(values).tolist(), values, strict=True):
        wanted = exact(value, 1000)
        if wanted is None:
            assert got == NO_TIME or (got == 0 and Fraction(value) > -1)
        else:
            assert abs(got - wanted) <= isinstance(value, float)


@settings(deadline=None)
@given(COLUMNS)
def test_a_value_means_the_same_whatever_stands_beside_it(values: list[Any]) -> None:
    for read in (times, microseconds):
        assert read(values).tolist() == [read([value]).tolist()[0] for value in values]


@pytest.mark.parametrize("text", ["1e999999999", "-1e999999999", "9" * 10**6, "1e99999999999999999999"])
def test_a_number_of_any_size_is_no_time_at_once(text: str) -> None:
    assert times([text]).tolist() == microseconds([text]).tolist() == [NO_TIME]
    assert enums([text], KINDS).tolist() == flags([text]).tolist() == [0]


def test_a_number_next_to_nothing_is_nothing() -> None:
    assert times(["1e-999999999"]).tolist() == microseconds(["1e-999999999"]).tolist() == [0]


def test_a_span_without_a_time_has_neither() -> None:
    start, end = settled(times([5, "x", 7, 0]), times([6, 6, -1, None]))
    assert (start.tolist(), end.tolist()) == ([5, 0, 0, 0], [6, 0, 0, 0])


def test_enums_are_numbers_digits_or_names() -> None:
    values = [
        1,
        "2",
        "SERVER",
        "SPAN_KIND_INTERNAL",
        "span_kind_server",
        "GUEST",
        "",
        None,
        2.0,
        -1,
        10**9,
        "x",
    ]
    assert enums(values, KINDS).tolist() == [1, 2, 2, 1, 2, 0, 0, 0, 2, 0, 0, 0]


def test_flags_have_32_bits() -> None:
    assert flags([None, 1, "257", 2**32 - 1, 2**32, -1, "x"]).tolist() == [0, 1, 257, 2**32 - 1, 0, 0, 0]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=9)))
def test_raw_bytes_of_each_span_are_its_own(raws: list[bytes]) -> None:
    column = raw_column(Given([]), raws)
    assert [column[ix] for ix in range(len(column))] == raws


def test_raw_bytes_may_be_those_of_a_decoder() -> None:
    raws = msgspec.json.decode(b'[[1], {"a": 2}, null]', type=list[msgspec.Raw])
    column = raw_column(Given([]), raws)
    assert [column[ix] for ix in range(3)] == [b"[1]", b'{"a": 2}', b"null"]


def test_equal_texts_are_held_once() -> None:
    known: dict[str, str] = {}
    texts = ["".join(("na", "me")) for _ in range(3)] + ["other"]
    held = shared(texts, known)
    assert held == texts
    assert {id(text) for text in held + shared(texts[1:], known)} == {id(text) for text in known}
