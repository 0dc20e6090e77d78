# SPDX-License-Identifier: Apache-2.0
"""Write the metrics into docs/metrics.md, from their one source: the tables in grademl_otel/catalog/.

python tools/document_metrics.py
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from grademl_otel.catalog import gpu, host, interconnect, sampler, training
from grademl_otel.catalog.metric import COUNTER, Metric

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
BEGIN, END = "<!-- metrics -->", "<!-- end of metrics -->"

SECTIONS: Final[tuple[tuple[str, str, tuple[Metric, ...]], ...]] = (
    ("GPUs", "See [gpu.md](gpu.md).", gpu.METRICS),
    ("Ports and network interfaces", "See [interconnect.md](interconnect.md).", interconnect.METRICS),
    ("The host and the job's processes", "See [host.md](host.md).", host.METRICS),
    ("The sampler", "What reading all this costs, and what went wrong.", sampler.METRICS),
    ("The training", "Of each process of a run; see [telemetry.md](telemetry.md).", training.METRICS),
)
_SCALED: Final = {
    ("s", 1000): "ms",
    ("J", 1000): "mJ",
    ("W", 1000): "mW",
    ("Hz", 1e-6): "MHz",
    ("1", 1000): "thousandths",
}
"""Units of columns that are not those of their metric."""


def page(text: str) -> str:
    """Return the page ``text`` with what stands between the marks made anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    sections = "\n".join(_section(*section) for section in SECTIONS)
    return f"{before}{BEGIN}\n\n{sections}\n{END}{after}"


def _section(title: str, about: str, metrics: Sequence[Metric]) -> str:
    lines = [f"## {title}", "", about, ""]
    lines += ["| metric | unit | kind | attributes | is | where | column |", "|---|---|---|---|---|---|---|"]
    for _, alike in groupby(metrics, _but_for_column):
        rows = list(alike)
        metric = rows[0]
        cells = (
            f"`{metric.name}`",
            f"`{metric.unit}`",
            metric.kind,
            ", ".join(f"`{key}`" for key in metric.attributes),
            metric.description,
            metric.needs,
            "<br>".join(_column(each) for each in rows if each.column),
        )
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join([*lines, ""])


def _but_for_column(metric: Metric) -> tuple[object, ...]:
    return metric.name, metric.unit, metric.kind, metric.description, metric.needs, metric.attributes


def _column(metric: Metric) -> str:
    """Return the name of the column with what its numbers are."""
    unit = metric.unit if metric.scale == 1 else _SCALED[metric.unit, metric.scale]
    return f"`{metric.column}`, {unit}{', added' if metric.kind == COUNTER else ''}"


def main() -> None:
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
