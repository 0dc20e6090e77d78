# SPDX-License-Identifier: Apache-2.0
"""From readings with a meaning to series: readings of one resource meet, parts of a sum are added up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from grademl_otel.analyzers.resource_model.merging import merged
from grademl_otel.analyzers.resource_model.naming import TAGS, Meaning
from grademl_otel.analyzers.resource_model.series import NOTHING, Averages, Place, Series
from grademl_otel.analyzers.resource_model.sums import difference, summed


@dataclass
class Told:
    """What a source told, or several."""

    series: list[Series] = field(default_factory=list)
    capacities: dict[tuple[Place, str, bool], float] = field(default_factory=dict)
    """(resource, metric, whether it stands in) -> the most that the metric can be."""
    problems: list[str] = field(default_factory=list)

    def capacity(self, place: Place, name: str, stands_in: bool, most: float) -> None:
        key = (place, name, stands_in)
        if most > 0:
            self.capacities[key] = max(most, self.capacities.get(key, 0.0))

    def add(self, other: Told) -> None:
        self.series += other.series
        self.problems += other.problems
        for (place, name, stands_in), most in other.capacities.items():
            self.capacity(place, name, stands_in, most)


@dataclass
class _Sum:
    """The summands of one metric of one resource, each of which several monitors may tell."""

    meaning: Meaning
    parts: dict[tuple[str, ...], list[Averages]] = field(default_factory=dict)
    signs: dict[tuple[str, ...], int] = field(default_factory=dict)
    counted: set[str] = field(default_factory=set)

    def result(self) -> Averages:
        if self.meaning.needs - {part[0] for part in self.parts}:
            return NOTHING
        sampled = not self.meaning.counter
        whole = {part: merged(some, [sampled] * len(some)) for part, some in self.parts.items()}
        plus = summed([one for part, one in whole.items() if self.signs[part] > 0])
        minus = [one for part, one in whole.items() if self.signs[part] < 0]
        return difference(plus, summed(minus)) if minus else plus


class Gathering:
    """Takes what one source tells."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._sums: dict[tuple[Place, str, bool, bool, frozenset[str]], _Sum] = {}

    def add(self, place: Place, meaning: Meaning, attributes: Mapping[str, str], seen: Averages) -> None:
        """Take readings of ``meaning`` with these attributes; of a capacity the most that it was."""
        if not len(seen):
            return
        key = (place, meaning.name, meaning.capacity, meaning.stands_in, meaning.needs)
        found = self._sums.get(key)
        if found is None:
            found = self._sums[key] = _Sum(meaning)
        part = meaning.part_of(attributes)
        found.parts.setdefault(part, []).append(seen)
        found.signs[part] = meaning.sign
        if meaning.counts and attributes.get(meaning.counts):
            found.counted.add(attributes[meaning.counts])

    def finish(self) -> Told:
        """Return all of it."""
        told = Told()
        for (place, name, is_capacity, stands_in, _), one in self._sums.items():
            seen = one.result()
            if is_capacity:
                told.capacity(place, name, stands_in, float(seen.value.max(initial=0.0)))
                continue
            if not len(seen):
                continue
            meaning = one.meaning
            capacity = float(len(one.counted)) if one.counted else meaning.fixed or math.inf
            told.series.append(
                Series(
                    place,
                    name,
                    meaning.gives,
                    seen,
                    self._source,
                    capacity,
                    not meaning.counter,
                    meaning.stands_in,
                )
            )
        return told


def tags_of(attributes: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return what else attributes tell of a resource."""
    return tuple(sorted((name, attributes[key]) for key, name in TAGS.items() if attributes.get(key)))
