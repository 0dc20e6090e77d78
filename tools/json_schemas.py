# SPDX-License-Identifier: Apache-2.0
"""Write docs/schemas/: a JSON Schema of each document that a command prints with `--json`.

    python tools/json_schemas.py

They are made from the dataclasses that the documents are, and from what is said of each field there. A test
fails when they are not current.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from grademl_otel.analyzers.reporting.document import CompletenessInfo, SourceInfo

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "schemas"
DOCUMENTS: Final = {
    "report": "reporting.document:ReportDocument",
    "critical_path": "reporting.document:CriticalPathDocument",
    "ranks": "reporting.document:RanksDocument",
    "resources": "reporting.resources_document:ResourcesDocument",
    "runs": "reporting.document:RunsDocument",
    "doctor": "reporting.doctor_document:DoctorDocument",
    "diff": "comparison.document:DiffDocument",
    "check": "comparison.document:CheckDocument",
    "query": ":Query",
    "pull": "copy.pull:Pulled",
    "push": "copy.push:Pushed",
    "export": "exports.export:Exported",
    "execution_model": "reporting.model_document:ModelDocument",
}
"""Name in the schema's name -> the dataclass; of `execution_model` there is no command, only Python."""

_PLAIN: Final[Mapping[Any, dict[str, Any]]] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    object: {},
    Any: {},
}


@dataclass(frozen=True)
class QueryColumn:
    name: str
    type: str
    """As DuckDB calls it."""


@dataclass(frozen=True)
class Query:
    """Schema `grademl.query/1`: the rows of the last statement, which are written as they come."""

    schema: str
    source: SourceInfo
    completeness: CompletenessInfo
    incomplete_because: list[str]
    warnings: list[str]
    columns: list[QueryColumn]
    rows: list[list[object]]
    """A value a column: text, a number, a boolean or null; lists and structs as such."""
    notes: list[str]
    """Why tables that were asked are empty."""


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON Schema of the document ``grademl.<name>/1``."""
    module, _, cls = DOCUMENTS[name].partition(":")
    home = import_module(f"grademl_otel.analyzers.{module}") if module else sys.modules[__name__]
    document = getattr(home, cls)
    made = _Schemas()
    whole = made.object(document)
    named = next(field.default for field in fields(document) if field.name == "schema")
    title = f"grademl.{name}/1" if named is MISSING else named
    whole["properties"]["schema"] = {"const": title}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **whole,
        "$defs": dict(sorted(made.defs.items())),
    }


class _Schemas:
    """Collects the schemas of the records within a document."""

    def __init__(self) -> None:
        self.defs: dict[str, dict[str, Any]] = {}

    def object(self, of: type) -> dict[str, Any]:
        hints = get_type_hints(of, localns=_unseen())
        names = [one.name for one in (fields(of) if is_dataclass(of) else msgspec.structs.fields(of))]
        said = _said(of)
        properties = {name: self.value(hints[name]) for name in names}
        for name, found in properties.items():
            if name in said:
                found["description"] = said[name]
        whole = {"type": "object", "required": names, "properties": properties}
        text = _first(inspect.getdoc(of) or "")
        return {"description": text, **whole} if text and not text.startswith(f"{of.__name__}(") else whole

    def value(self, hint: Any) -> dict[str, Any]:
        if hint in _PLAIN:
            return dict(_PLAIN[hint])
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Union, types.UnionType):
            return _either([self.value(one) for one in arguments])
        if origin in (list, Sequence):
            return {"type": "array", "items": self.value(arguments[0])}
        if origin is tuple:
            items = [self.value(one) for one in arguments if one is not ...]
            if ... in arguments:
                return {"type": "array", "items": items[0]}
            return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.value(arguments[1])}
        if isinstance(hint, type) and issubclass(hint, Sequence):  # entries that are made one by one
            return {"type": "array", "items": self.value(get_args(hint.__orig_bases__[0])[0])}  # type: ignore[attr-defined]
        if isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, msgspec.Struct)):
            if hint.__name__ not in self.defs:
                self.defs[hint.__name__] = {}
                self.defs[hint.__name__] = self.object(hint)
            return {"$ref": f"#/$defs/{hint.__name__}"}
        if isinstance(hint, type) and issubclass(hint, Exception):
            return {"type": "string"}  # its line
        raise TypeError(f"no JSON Schema for {hint!r}")


def _either(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the schema of what is one of ``choices``."""
    if all(list(choice) == ["type"] and isinstance(choice["type"], str) for choice in choices):
        return {"type": [choice["type"] for choice in choices]}
    return {"anyOf": choices}


def _said(of: type) -> dict[str, str]:
    """Return what is written below each field of ``of`` and of what it is made of."""
    found: dict[str, str] = {}
    for cls in reversed(of.__mro__):
        if cls.__module__.partition(".")[0] not in ("grademl_otel", __name__):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                assert isinstance(field.target, ast.Name)
                assert isinstance(text.value, ast.Constant)
                found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def _first(text: str) -> str:
    """Return the first paragraph in one line."""
    return " ".join(text.partition("\n\n")[0].split())


def _unseen() -> dict[str, Any]:
    """Return the types that documents name for checkers only."""
    return {
        "SectionEntries": import_module("grademl_otel.analyzers.reporting.section_entries").SectionEntries
    }


def written(name: str) -> str:
    """Return the text of the file of ``name``."""
    return json.dumps(schema_of(name), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in FOLDER.glob("*.json"):
        if path.stem not in DOCUMENTS:
            path.unlink()
    for name in DOCUMENTS:
        (FOLDER / f"{name}.json").write_text(written(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
