# SPDX-License-Identifier: Apache-2.0
"""Write the tables' columns into docs/tables.md, from their one source: the schemas in analyzers/tables/.

python tools/document_tables.py
"""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

from grademl_otel.analyzers.tables import TABLES, TableSchema

PAGE = Path(__file__).resolve().parents[1] / "docs" / "tables.md"
BEGIN, END = "<!-- columns -->", "<!-- end of columns -->"


def page(text: str) -> str:
    """Return the page ``text`` with what stands between the marks made anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    tables = "\n".join(map(_table, TABLES.values()))
    return f"{before}{BEGIN}\n\n{tables}\n{END}{after}"


def _table(schema: TableSchema) -> str:
    lines = [f"## {schema.name}", "", fill(schema.about, 120), "", "| column | type | is |", "|---|---|---|"]
    for column in schema.columns:
        about = column.about
        if column.nullable and "null" not in about.lower():
            about = f"{about}; may be null" if about else "may be null"
        lines.append(f"| `{column.name}` | {column.type} | {about} |")
    return "\n".join([*lines, ""])


def main() -> None:
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
