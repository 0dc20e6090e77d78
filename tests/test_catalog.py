# SPDX-License-Identifier: Apache-2.0
"""The catalog of metrics: consistent, of OpenTelemetry's names, and what the page says."""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from opentelemetry.semconv._incubating.metrics import hw_metrics, process_metrics, system_metrics

from grademl_otel import catalog
from grademl_otel.catalog.metric import COUNTER, GAUGE, HISTOGRAM, UPDOWN, Metric

TOOL = Path(__file__).resolve().parents[1] / "tools" / "document_metrics.py"
UNITS = {"1", "s", "By", "By/s", "Hz", "J", "W", "Cel"}  # and annotations such as {packet}
CONVENTIONS = ("hw.", "system.", "process.", "network.", "cpu.", "error.", "disk.", "k8s.", "container.")


class Convention:
    """A meter that writes down what a convention would make."""

    def __init__(self) -> None:
        self.made: dict[str, tuple[str, str]] = {}
        """Unit and kind by name."""

    def __getattr__(self, name: str) -> Any:
        kind = name.removeprefix("create_").removeprefix("observable_").replace("_", "")
        assert kind in {"counter", "updowncounter", "gauge", "histogram"}, name

        def create(name: str, unit: str = "", description: str = "", **_: Any) -> None:
            if not description.startswith("Deprecated"):
                self.made[name] = unit, kind

        return create


def conventions() -> dict[str, tuple[str, str]]:
    meter = Convention()
    for module in (hw_metrics, system_metrics, process_metrics):
        for name, create in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("create_"):
                create(meter, *([None] * (len(inspect.signature(create).parameters) - 1)))
    return meter.made


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("document_metrics", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_catalog_says(tool: ModuleType) -> None:
    there = tool.PAGE.read_text("utf-8")
    assert tool.page(there) == there, "run tools/document_metrics.py"
    for metric in catalog.ALL:
        assert f"| `{metric.name}` | `{metric.unit}` | {metric.kind} |" in there
        assert not metric.column or f"`{metric.column}`, " in there


def test_each_row_is_there_once() -> None:
    rows = [(metric.name, metric.attributes, metric.column, metric.description) for metric in catalog.ALL]
    assert len(rows) == len(set(rows))


def test_a_name_has_one_unit_and_one_kind() -> None:
    kinds = defaultdict(set)
    for metric in catalog.ALL:
        kinds[metric.name].add((metric.unit, metric.kind))
    assert {name: found for name, found in kinds.items() if len(found) > 1} == {}


def test_a_column_has_one_scale_and_one_kind() -> None:
    columns = defaultdict(set)
    for metric in catalog.METRICS:
        if metric.column:
            assert re.fullmatch(r"[a-z]+\.[a-z_]+", metric.column)
            columns[metric.column].add((metric.scale, metric.unit, metric.kind == COUNTER))
    assert {column: found for column, found in columns.items() if len(found) > 1} == {}
    assert columns.keys() >= {
        "gpu.utilization", "gpu.memory", "gpu.power", "gpu.sm_clock", "gpu.memory_clock", "gpu.pcie_rx",
        "gpu.pcie_tx", "gpu.nvlink_rx", "gpu.nvlink_tx", "gpu.throttled", "cpu.busy", "cpu.throttled",
        "memory.used", "disk.read", "disk.write", "disk.busy", "network.rx", "network.tx", "port.rx",
        "port.tx", "pressure.cpu", "pressure.memory", "pressure.io", "process.cpu", "process.memory",
    }  # fmt: skip


@pytest.mark.parametrize("metric", catalog.ALL, ids=lambda metric: f"{metric.name}-{metric.column}")
def test_rows_are_well_formed(metric: Metric) -> None:
    assert re.fullmatch(r"(hw|system|process|grademl)(\.[a-z0-9_]+)+", metric.name)
    assert metric.unit in UNITS or re.fullmatch(r"\{[a-z_]+\}", metric.unit)
    assert metric.kind in {GAUGE, UPDOWN, COUNTER, HISTOGRAM}
    assert metric.description.endswith(".")
    assert metric.needs
    assert not metric.needs.endswith(".")
    assert len(set(metric.attributes)) == len(metric.attributes)
    for key in metric.attributes:
        assert key.startswith(("grademl.", *CONVENTIONS)), key


def test_names_of_conventions_are_theirs() -> None:
    """With their units and kinds, as the installed package has them; ours are called grademl."""
    known = conventions()
    assert len(known) > 80
    wrong = {
        metric.name: (metric.unit, metric.kind, known.get(metric.name))
        for metric in catalog.ALL
        if not metric.name.startswith("grademl.") and known.get(metric.name) != (metric.unit, metric.kind)
    }
    assert wrong == {}
