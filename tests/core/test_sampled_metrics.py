# SPDX-License-Identifier: Apache-2.0
"""From samples to metrics."""

from __future__ import annotations

from grademl_otel.catalog.metric import COUNTER, GAUGE, UPDOWN, Metric
from grademl_otel.convert.spans import Gauge, Point, Sum, UpDown
from grademl_otel.sampling.export import metrics_of_samples
from grademl_otel.sampling.sampler import Sample
from grademl_otel.sampling.source import Series

OFFSET = 1_764_570_000_000_000_000
BUSY = Metric("hw.gpu.utilization", "1", GAUGE, "Busy.", "NVML")
USED = Metric("hw.gpu.memory.usage", "By", UPDOWN, "In use.", "NVML")
ENERGY = Metric("hw.energy", "J", COUNTER, "Used.", "NVML")
OTHER_ENERGY = Metric("hw.energy", "J", COUNTER, "Used.", "another source", ("hw.type",))


def sample(metric: Metric, device: str, value: int | float, time: int, start: int = 100) -> Sample:
    return Sample(Series(metric, {"hw.id": device}, device), value, time, start)


def test_those_of_one_name_go_together_with_their_own_times() -> None:
    samples = [
        sample(BUSY, "a", 0.5, 1000),
        sample(ENERGY, "a", 7, 1000, 200),
        sample(USED, "a", 1 << 33, 1000),
        sample(OTHER_ENERGY, "b", 2.5, 1100, 150),
        sample(BUSY, "b", 0.25, 1100),
    ]
    assert metrics_of_samples(samples, OFFSET) == [
        Gauge("hw.gpu.utilization", "1", "Busy.", OFFSET + 1100, [
            Point(0.5, {"hw.id": "a"}, OFFSET + 100, OFFSET + 1000),
            Point(0.25, {"hw.id": "b"}, OFFSET + 100, OFFSET + 1100),
        ]),
        Sum("hw.energy", "J", "Used.", OFFSET + 150, OFFSET + 1100, [
            Point(7, {"hw.id": "a"}, OFFSET + 200, OFFSET + 1000),
            Point(2.5, {"hw.id": "b"}, OFFSET + 150, OFFSET + 1100),
        ]),
        UpDown("hw.gpu.memory.usage", "By", "In use.", OFFSET + 100, OFFSET + 1000, [
            Point(1 << 33, {"hw.id": "a"}, OFFSET + 100, OFFSET + 1000),
        ]),
    ]  # fmt: skip


def test_no_samples_are_no_metrics() -> None:
    assert metrics_of_samples([], OFFSET) == []
