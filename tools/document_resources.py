# SPDX-License-Identifier: Apache-2.0
"""Write what metrics of monitors mean into docs/resources.md, from analyzers/resource_model/naming.py.

python tools/document_resources.py
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from grademl_otel.analyzers.resource_model.naming import EXPORTERS, OTLP, Meaning
from grademl_otel.catalog import METRICS

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "resources.md"
BEGIN, END = "<!-- resources -->", "<!-- end of resources -->"
_HEAD: Final = (
    "| metric | unit | capacity | column of resource tables | metrics of OTLP | of exporters |\n"
    "|---|---|---|---|---|---|"
)


def page(text: str) -> str:
    """Return the page ``text`` with what stands between the marks made anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    types = dict.fromkeys((row.type, row.name) for row in (*OTLP, *EXPORTERS) if not row.capacity)
    order = {type_: place for place, type_ in enumerate(dict.fromkeys(type_ for type_, _ in types))}
    rows = "\n".join(_row(*key) for key in sorted(types, key=lambda key: order[key[0]]))
    return f"{before}{BEGIN}\n\n{_HEAD}\n{rows}\n\n{END}{after}"


def _row(type_: str, name: str) -> str:
    mine = [row for row in (*OTLP, *EXPORTERS) if (row.type, row.name) == (type_, name)]
    values = [row for row in mine if not row.capacity]
    column = f"{type_}.{name}"
    cells = (
        f"`{column}`",
        f"`{values[0].gives}`",
        _capacity(values, [row for row in mine if row.capacity]),
        f"`{column}`" if any(metric.column == column for metric in METRICS) else "",
        _told(row for row in values if row in OTLP),
        _told(row for row in values if row in EXPORTERS),
    )
    return f"| {' | '.join(cells)} |"


def _capacity(values: list[Meaning], capacities: list[Meaning]) -> str:
    fixed = [row.fixed for row in values if row.fixed is not None]
    if fixed:
        return f"{fixed[0]:g}"
    told = _told(row for row in capacities if not row.needs)
    parts = [f"`{row.metric}`" for row in capacities if row.needs]
    told = "<br>".join(filter(None, (told, " + ".join(parts))))
    counted = [f"number of `{row.counts}` of `{row.metric}`" for row in values if row.counts]
    return "<br>".join([told, *counted] if told else counted)


def _told(rows: Iterable[Meaning]) -> str:
    return "<br>".join(dict.fromkeys(_with_conditions(row) for row in rows))


def _with_conditions(row: Meaning) -> str:
    where = [
        "|".join(value for value in values if value) for key, values in row.where.items() if key != "hw.type"
    ]
    where += [f"not {', '.join(values)}" for values in row.unless.values()]
    sign = "less " if row.sign < 0 else ""
    return f"{sign}`{row.metric}`" + (f" ({'; '.join(where)})" if where else "")


def main() -> None:
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
