# SPDX-License-Identifier: Apache-2.0
"""Read back what was sampled: tables of spans by second, metrics by resource."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grademl_otel import semconv

from .rawspans import RawSpan
from .relays import plain

ABSENT = semconv.RESOURCES_ABSENT
PREFIX = semconv.RESOURCES_PREFIX


@dataclass
class Column:
    """One column of one device; fails where two spans tell the same time."""

    values: dict[int, int] = field(default_factory=dict)
    """By the start of the bin, in Unix ms."""
    capacities: set[int] = field(default_factory=set)

    @property
    def total(self) -> int:
        return sum(self.values.values())


def tables(spans: Iterable[RawSpan]) -> dict[tuple[str, str, str], Column]:
    """Return what the spans say, by kind, device and column; what is not known is left out."""
    found: dict[tuple[str, str, str], Column] = {}
    for span in spans:
        keys = [key.removeprefix(PREFIX) for key in span.attributes if key.startswith(PREFIX)]
        if not keys:
            continue
        assert span.name in (semconv.WINDOW, semconv.RUN)
        assert span[semconv.RESOURCES_VERSION] == 1
        bins, length, start = (
            span[semconv.RESOURCES_BINS], span[semconv.RESOURCES_BIN], span[semconv.RESOURCES_START]
        )  # fmt: skip
        begin = round((span.start + start * 1000) / 1e6)
        for kind in {key.partition(".")[0] for key in keys if key.endswith(".id")}:
            devices = span[f"{PREFIX}{kind}.id"]
            assert len(set(devices)) == len(devices) > 0
            for key in keys:
                if not key.startswith(f"{kind}.") or key.endswith((".id", ".capacity")):
                    continue
                values = span[PREFIX + key]
                values = values * (bins * len(devices)) if len(values) == 1 else values
                assert len(values) == bins * len(devices)
                most = span.attributes.get(f"{PREFIX}{key}.capacity")
                for index, device in enumerate(devices):
                    column = found.setdefault((kind, device, key.partition(".")[2]), Column())
                    if most is not None:
                        column.capacities.add(most.value[index if len(most.value) > 1 else 0])
                    for place, value in enumerate(values[index * bins : (index + 1) * bins]):
                        if value == ABSENT:
                            continue
                        assert value >= 0
                        assert not any(begin + place * length + skew in column.values for skew in (-1, 0, 1))
                        column.values[begin + place * length] = value
    return {key: column for key, column in found.items() if column.values}


@dataclass(frozen=True)
class Point:
    """One point of one metric."""

    metric: str
    attributes: dict[str, Any]
    value: float
    start_ns: int
    time_ns: int


def exports(path: Path) -> Iterator[tuple[dict[str, Any], list[Point]]]:
    """Yield the resource and the points of each export in a file of metrics; histograms are left out."""
    for line in path.read_bytes().split(b"\n")[:-1]:
        for group in json.loads(line)["resourceMetrics"]:
            resource = {each["key"]: plain(each["value"]) for each in group["resource"]["attributes"]}
            points = []
            for metric in group["scopeMetrics"][0]["metrics"]:
                data = metric.get("sum") or metric.get("gauge") or {}
                for point in data.get("dataPoints", ()):
                    attributes = {each["key"]: plain(each["value"]) for each in point.get("attributes", ())}
                    value = float(point.get("asInt", point.get("asDouble", 0)))
                    start = int(point.get("startTimeUnixNano", 0))
                    points.append(Point(metric["name"], attributes, value, start, int(point["timeUnixNano"])))
            yield resource, points
