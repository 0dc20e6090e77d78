# SPDX-License-Identifier: Apache-2.0
"""The values of a column as a table makes them, before they are Arrow: arrays, words by number, ids.

Tables are made without pyarrow, so that who only wants to know their columns does not load it; `arrow` turns
these into its arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import BoolArray, IntArray

Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Masked:
    """Numbers of which those that are ``absent`` are null."""

    numbers: Numbers
    absent: BoolArray


@dataclass(frozen=True)
class Coded:
    """Words by their numbers; null for a negative one."""

    codes: Numbers
    words: Sequence[str]


@dataclass(frozen=True)
class Hex:
    """Ids as text: 16 digits for each array of words of 64 bits; null where ``absent``."""

    words: tuple[npt.NDArray[np.uint64], ...]
    absent: BoolArray | None = None


@dataclass(frozen=True)
class Ready:
    """What is an array of Arrow already."""

    array: Any


Texts = Sequence[str | None]
Values = Numbers | Masked | Coded | Hex | Ready | Texts

Makers = Mapping[str, Callable[[], Values]]
"""Name of a column -> what makes its values; only those that are asked for are called."""


def known(numbers: Numbers) -> Masked:
    """Return ``numbers``, of which the negative ones stand for none."""
    return Masked(numbers, numbers < 0)


def numbers_or_null(numbers: Sequence[int | None]) -> Masked:
    absent = np.array([one is None for one in numbers], np.bool_)
    return Masked(np.array([one or 0 for one in numbers], np.int64), absent)


def possible_durations(start: IntArray, end: IntArray) -> Masked:
    """Return ``end - start`` in ns; null where the times are impossible."""
    return Masked(end - start, (end < start) | (end == 0))


def all_alike(count: int, value: str | None) -> Coded:
    """Return a column of one word, or of nulls."""
    return Coded(np.full(count, -1 if value is None else 0, np.int32), [] if value is None else [value])


def distinct(texts: Sequence[str | None]) -> tuple[IntArray, list[str]]:
    """Return (for each of ``texts`` its number, -1 for None; the distinct ones in order of appearance)."""
    numbers: dict[str, int] = {}
    codes = [-1 if text is None else numbers.setdefault(text, len(numbers)) for text in texts]
    return np.array(codes, np.int64), list(numbers)
