# SPDX-License-Identifier: Apache-2.0
"""The dashboards of collector-config/grafana, as the tests look at them."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "collector-config" / "grafana" / "dashboards"

_SELECTOR = re.compile(r"\b([a-zA-Z_:][a-zA-Z0-9_:]*)\{")
_LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")


@dataclass(frozen=True)
class Asked:
    """A query of a page, and where it is."""

    page: str
    where: str
    expr: str


def tool(name: str) -> ModuleType:
    """Return a module of tools/dashboards, imported as it is when the folder is run."""
    folder = str(ROOT / "tools" / "dashboards")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def module(path: Path) -> ModuleType:
    """Return a script as a module; dataclasses in it look for it among those that are imported."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, made)
    spec.loader.exec_module(made)
    return made


def load() -> dict[str, dict[str, Any]]:
    """Return the pages by the names of their files."""
    return {path.name: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))}


def asked(page: str, content: dict[str, Any]) -> Iterator[Asked]:
    """Every query of the panels of a page that is one in PromQL."""
    for panel in content["panels"]:
        for target in panel.get("targets", ()):
            if target["datasource"]["type"] == "prometheus":
                yield Asked(page, f"{panel['title']} {target['refId']}", target["expr"])


def variables(content: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Selector and label of each variable that is asked for, by name."""
    found = {}
    for variable in content["templating"]["list"]:
        if variable["type"] == "query":
            match = _LABEL_VALUES.fullmatch(variable["query"]["query"])
            assert match, variable["query"]
            found[variable["name"]] = (match[1], match[2])
    return found


def filled(expr: str, **chosen: str) -> str:
    """``expr`` as Grafana sends it: variables that are not ``chosen`` are at All."""
    expr = expr.replace("$__rate_interval", "5m").replace("$__range", "1h")
    return re.sub(r"\$(\w+)", lambda match: chosen.get(match[1], ".*"), expr)


def metrics_in(expr: str) -> set[str]:
    """Names of the series that a query selects; each of them is written with braces."""
    return set(_SELECTOR.findall(expr)) - {"by", "without"}
