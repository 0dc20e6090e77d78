# SPDX-License-Identifier: Apache-2.0
"""Nothing imports what is above it (docs/architecture.md), wherever in a module the import stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("grademl_otel", "instrumentations", "resource_detectors", "analyzers")
IMPORT = re.compile(
    r"^\s*(?:from grademl_otel(?:\.([\w.]+))? import ([\w, ]*)|import grademl_otel\.([\w.]+))", re.MULTILINE
)
RULES = {
    # Patterns of paths, and of what these modules do not import.
    "grademl_otel/": "analyzers",
    "grademl_otel/(?!__init__|relay/hardware)": "instrumentations",
    "grademl_otel/(?!runinfo)": "resource_detectors",
    "grademl_otel/(catalog|sampling|ring|convert|export)/": "relay|lifecycle|recorder|steps|transport",
    "grademl_otel/catalog/": "(?!catalog|semconv)",
    "grademl_otel/ring/": "convert|export|sampling",
    "instrumentations/": "analyzers|relay|resource_detectors",
    "resource_detectors/": r"analyzers|relay|instrumentations|(ring|convert|export|sampling)\b",
    # But for what doctor looks at here, and what push sends with.
    "analyzers/(?!examination/here|copy/|copying)": "(?!analyzers|semconv|version|catalog)",
}


@pytest.fixture(scope="module")
def imports() -> list[tuple[str, str]]:
    """Path of a module, and what it imports of ours, without `grademl_otel.`."""
    found = []
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for package, names, module in IMPORT.findall(path.read_text(encoding="utf-8")):
                for name in [package or module] if package or module else re.findall(r"(?:^|, )(\w+)", names):
                    found.append((str(path.relative_to(ROOT)), name))
    assert len(found) > 2000
    return found


@pytest.mark.parametrize("modules", RULES)
def test_what_is_above_is_not_imported(modules: str, imports: list[tuple[str, str]]) -> None:
    of_these = [(path, name) for path, name in imports if re.match(modules, path)]
    assert of_these
    assert [each for each in of_these if re.match(RULES[modules], each[1])] == []
