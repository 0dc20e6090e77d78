# SPDX-License-Identifier: Apache-2.0
"""The documents say what the code does, as far as a program can tell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from grademl_otel.analyzers.graph import EDGE_KINDS
from grademl_otel.analyzers.graph.path import EVIDENCE, KINDS
from grademl_otel.config import VARIABLES, Variable

from .analyzers.test_tree_path import CASES

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = ("grademl_otel", "instrumentations", "resource_detectors", "analyzers", "tools", "collector-config")


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda variable: variable.name)
def test_each_variable_is_in_the_table_as_the_code_has_it(variable: Variable) -> None:
    table = (ROOT / "docs/configuration.md").read_text()
    assert f"| `{variable.name}` | recording | {variable.default} | {variable.meaning} |" in table


def test_no_variable_is_undocumented() -> None:
    documented = set(re.findall(r"GRADEML_[A-Z_]+", (ROOT / "docs/configuration.md").read_text()))
    used: set[str] = set()
    for folder in CODE:
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in {".py", ".yaml"}:
                used |= set(re.findall(r"\bGRADEML_[A-Z_]+[A-Z]\b", path.read_text()))
    assert used - documented == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_paths_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name}: {target}"
    for path in re.findall(
        r"`((?:grademl_otel|instrumentations|analyzers|tools|examples|tests)/[\w/.-]+)`", text
    ):
        assert (ROOT / path).exists(), f"{document.name}: {path}"


def test_the_page_on_the_critical_path_has_all_kinds_and_edges_in_their_order() -> None:
    text = (ROOT / "docs/critical-path.md").read_text()
    tables = re.findall(r"\| kind \|.*\n\|[-|]+\n((?:\|.*\n)+)", text)
    edges, kinds = (tuple(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) for table in tables)
    assert edges == EDGE_KINDS  # the order in which ties of events are broken
    assert kinds == KINDS
    assert set(re.findall(r"\w+", text)) >= set(EVIDENCE)


def test_its_cases_are_those_of_the_tests() -> None:
    text = (ROOT / "docs/critical-path.md").read_text()
    told = dict(re.findall(r"^\| (\d+) \| .* \| (.*) \|$", text, re.MULTILINE))
    squeezed = {case: path.replace(" ", "") for case, path in told.items()}
    assert squeezed == {case: path.replace(" ", "") for case, (_, path) in CASES.items()}


def test_its_tests_exist() -> None:
    text = (ROOT / "docs/critical-path.md").read_text()
    named = set(re.findall(r"test_\w+\.py", text))
    there = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert named
    assert named <= there
