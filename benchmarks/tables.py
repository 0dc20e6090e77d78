# SPDX-License-Identifier: Apache-2.0
"""Results as Markdown, and their place in docs/costs.md or another page."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from time import gmtime, strftime

from benchmarks.interleaved import Compared, Spread

PAGE = Path(__file__).resolve().parents[1] / "docs" / "costs.md"
BEGIN, END = "<!-- results -->", "<!-- end of results -->"
READING = ("<!-- reading -->", "<!-- end of reading -->")
"""Lines between which results of reading stand: what measures the one leaves the other as it is."""
GRAPH = ("<!-- graph -->", "<!-- end of graph -->")
"""The same of critical paths."""
QUERY = ("<!-- query -->", "<!-- end of query -->")
"""The same of queries."""
SAMPLING = ("<!-- sampling -->", "<!-- end of sampling -->")
"""The same of sampling a host, and of finding out what it is."""
ATTRIBUTING = ("<!-- attributing -->", "<!-- end of attributing -->")
"""The same of who used what."""
TRUTH = ("<!-- truth -->", "<!-- end of truth -->")
"""The same of how near the truth attribution is, on its own page."""
INJECTED = ("<!-- injected -->", "<!-- end of injected -->")
"""The same of how often an injected bottleneck is named."""
_PAGES = dict.fromkeys((TRUTH, INJECTED), PAGE.with_name("attribution.md"))


@dataclass(frozen=True)
class Table:
    """One table: ``title`` says what was measured, ``note`` what must be known to read it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def to_markdown(self) -> str:
        """Return it with its title; raises ValueError where a row is not as wide as the head."""
        lines = [_line(self.columns), _line(["---"] * len(self.columns))]
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: {len(row)} cells in a table of {len(self.columns)} columns")
            lines.append(_line(row))
        return "\n".join([f"### {self.title}", "", *([self.note, ""] if self.note else []), *lines, ""])


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def ratio(spread: Spread) -> str:
    """Return a ratio with its quartiles."""
    return f"{spread.middle:.3f} [{spread.low:.3f}, {spread.high:.3f}]"


def duration(ns: float | None) -> str:
    """Return a time in the unit that fits it."""
    if ns is None:
        return "-"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.3g} ns"


def spread_duration(spread: Spread) -> str:
    """Return a time with its quartiles."""
    return f"{duration(spread.middle)} [{duration(spread.low)}, {duration(spread.high)}]"


def size(number: float) -> str:
    """Return bytes as MB."""
    return f"{number / 1e6:.1f} MB"


def of_steps(title: str, results: Mapping[str, Compared], baseline: str, note: str = "") -> Table:
    """Return ways side by side: ratio, added time and the tail of the single steps."""
    plain = results[baseline]
    rows = [
        [
            name,
            duration(way.typical_ns),
            ratio(way.ratio_to(plain)),
            "" if way is plain else spread_duration(way.added_to(plain)),
            *(duration(way.quantile(share)) for share in (0.5, 0.99, 0.999)),
        ]
        for name, way in results.items()
    ]
    return Table(title, ("", "step", f"ratio to {baseline}", "added", "p50", "p99", "p99.9"), rows, note)


def heading(command: str) -> str:
    """Return one paragraph: what was measured where, when, how."""
    packages = ("torch", "opentelemetry-sdk", "grademl-otel")
    versions = ", ".join(f"{name} {_version(name)}" for name in packages)
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores ({_processor()})"
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg()) if hasattr(os, "getloadavg") else "unknown"
    return (
        f"Measured {today()} by `{command}`: {system}, {platform.python_implementation()} "
        f"{platform.python_version()}, {versions}. Load average at the start: {load}.\n"
    )


def today() -> str:
    return strftime("%Y-%m-%d", gmtime())


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.processor() or "processor unknown"


def page_of(marks: tuple[str, str]) -> Path:
    """Return the page that has these ``marks``."""
    return _PAGES.get(marks, PAGE)


def write(results: str, page: Path = PAGE, marks: tuple[str, str] = (BEGIN, END)) -> None:
    """Put ``results`` between the ``marks`` of ``page``; raises ValueError where it has not one of each."""
    begin, end = marks
    text = page.read_text("utf-8")
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"{page} needs one line {begin} and after it one line {end}")
    before, after = text[: text.index(begin)], text[text.index(end) :]
    page.write_text(f"{before}{begin}\n\n{results.strip()}\n\n{after}", "utf-8")
