# SPDX-License-Identifier: Apache-2.0
"""The scanner of JSON text: in C and with numpy it finds the same, on text of any kind."""

from __future__ import annotations

import json
import os
import random
import shutil
import sysconfig
from typing import Any

import numpy as np
import pytest

from grademl_otel.analyzers.sources.formats import jsonscan
from grademl_otel.analyzers.sources.formats.jsonscan import MAX_DEPTH, TOO_DEEP, plain_gather, plain_scan

SCANS = [jsonscan.scan, plain_scan]
GATHERS = [jsonscan.gather, plain_gather]
TEXTS = ["a", "b,c", 'q"x', "\\", "\\\\", '\\"', "[{", "]}", "word", "é", "", "\n"]


def test_it_was_compiled_where_that_was_possible() -> None:
    if not os.environ.get("CI"):
        pytest.skip("an installation for development may be older than the sources: only CI promises it")
    compiler = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])
    assert bool(compiler and not sysconfig.get_config_var("Py_GIL_DISABLED")) == jsonscan.COMPILED


def value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.random()
    if depth > 3 or kind < 0.4:
        return chance.choice([1, -2.5e3, None, True, *TEXTS])
    if kind < 0.7:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {
        chance.choice(["k", "word", '"', "\\"]): value(chance, depth + 1) for _ in range(chance.randrange(4))
    }


@pytest.mark.parametrize("damage", [0, 1, 4])
def test_both_find_the_same_ends(damage: int) -> None:
    chance = random.Random(damage)
    for _ in range(1000):
        text = bytearray(json.dumps([value(chance) for _ in range(chance.randrange(20))]).encode()[1:])
        for _ in range(damage if text else 0):
            text[chance.randrange(len(text))] = chance.choice(b'"\\[]{},x')
        start = chance.randrange(len(text) + 1)
        stop = chance.randrange(start, len(text) + 1)
        for first in (False, True):
            expected = plain_scan(text, start, stop, first)
            assert jsonscan.scan(text, start, stop, first) == expected, (bytes(text), start, stop, first)


def test_both_find_the_same_ends_far_away() -> None:
    """With strings that begin and end anywhere in the words that C looks at."""
    chance = random.Random(5)
    for size in range(40):
        inner = "x" * size + chance.choice(TEXTS) + "y" * chance.randrange(20)
        text = bytearray(json.dumps([inner, {inner: inner}, inner]).encode()[1:] + b", 1]")
        end = len(json.dumps([inner, {inner: inner}, inner])) - 2
        for scan in SCANS:
            assert scan(text, 0, len(text), False)[0] == end
            assert scan(text, 0, len(text), True)[1] == len(json.dumps(inner))
            assert scan(text, 0, end, False)[0] == -1


@pytest.mark.parametrize("scan", SCANS)
def test_depth_is_bounded(scan: Any) -> None:
    assert scan(b"[" * 1_000_000, 0, 1_000_000, False)[0] == TOO_DEEP
    assert scan(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"]", 0, 2 * MAX_DEPTH + 1, False)[0] == 2 * MAX_DEPTH


@pytest.mark.parametrize("bounds", [(-1, 3), (0, 4), (3, 2)])
def test_c_looks_at_nothing_outside(bounds: tuple[int, int]) -> None:
    if not jsonscan.COMPILED:
        pytest.skip("no compiler was there")
    with pytest.raises(ValueError, match="not within"):
        jsonscan.scan(b"abc", *bounds, False)
    with pytest.raises(ValueError, match="offsets"):
        jsonscan.gather(b"abc", np.array([0, *bounds], np.int64), (b"a",))


def test_both_gather_the_same_objects() -> None:
    chance = random.Random(7)
    for _ in range(1000):
        rows = [json.dumps([value(chance, 1) for _ in range(chance.randrange(5))]).encode() for _ in range(4)]
        data, offsets = b"".join(rows), np.cumsum([0, *map(len, rows)])
        expected = plain_gather(data, offsets, (b"word", b"k"))
        assert jsonscan.gather(data, offsets, (b"word", b"k")) == expected, rows
        assert jsonscan.gather(data, offsets[1:3], (b"word",)) == plain_gather(data, offsets[1:3], (b"word",))


@pytest.mark.parametrize("gather", GATHERS)
def test_an_object_is_gathered_if_one_of_the_words_is_a_string_of_it(gather: Any) -> None:
    rows = [
        b'[{"key": "a", "value": "]"}, {"key":"kind","value":1},{"value": {"x": ["kind"]}}]',
        b'["kind", ["kind"], {"key": "kin"}, {"key": "\\"kind\\""}, {}]',
        b"[]",
        b"null",
    ]
    offsets = np.cumsum([0, *map(len, rows)])
    assert gather(b"".join(rows), offsets, (b"kind", b"other")) == [
        b'{"key":"kind","value":1},{"value": {"x": ["kind"]}},',
        b"",
        b"",
        b"",
    ]


@pytest.mark.skipif(not jsonscan.COMPILED, reason="no compiler was there")
def test_c_survives_anything() -> None:
    """Nothing is said of what it finds in text that no decoder has seen; it must only stay within."""
    chance = random.Random(11)
    for _ in range(1000):
        size = chance.randrange(60)
        text = bytes(chance.choice(b'"\\[]{},:ak') for _ in range(size))
        cuts = sorted(chance.randrange(size + 1) for _ in range(chance.randrange(6)))
        found = jsonscan.gather(text, np.array([0, *cuts, size], np.int64), (b"a", b"", b"k"))
        assert all(len(one) <= 2 * size for one in found)
