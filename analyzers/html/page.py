# SPDX-License-Identifier: Apache-2.0
"""The report as one file that needs nothing else: text, charts, tables and data, and no request to anywhere.

Every string is escaped by the template engine, and before that loses what is not printed; a policy in the
page allows the one style and the one script that are in it, by their hashes, and nothing else. The same input
gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

import jinja2
from markupsafe import Markup

from grademl_otel.analyzers.html.charts import draw
from grademl_otel.analyzers.printable import clean, clean_json
from grademl_otel.analyzers.reporting.document import ReportDocument, to_json
from grademl_otel.analyzers.secrecy import hidden
from grademl_otel.analyzers.subject import Subject
from grademl_otel.version import __version__

_STYLES: Final = ("report.css", "charts.css")
_SCRIPTS: Final = ("report.js",)
_HERE: Final = "grademl_otel.analyzers.html"


def page(about: Subject, document: ReportDocument) -> str:
    """Return the page that shows ``document``, which is the report on ``about``."""
    charts = draw(about, document)
    return _template().render(
        document=document,
        charts=charts,
        report_json=_json_in_html(to_json(document)),
        charts_json=_json_in_html(_plain_json(charts.data)),
        style=_joined(_STYLES),
        script=_joined(_SCRIPTS),
        policy=_policy(),
        version=__version__,
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(_HERE),
        autoescape=True,
        finalize=_printable,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")


def _printable(value: object) -> object:
    """Return what is put into the page without characters that are not printed, and without secrets."""
    return value if isinstance(value, Markup) else hidden(clean(str(value)))


def _plain_json(value: Mapping[str, Any]) -> str:
    return clean_json(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def _json_in_html(text: str) -> Markup:
    """Return JSON as the content of a script element, which nothing in it can end: the same values."""
    for special in "<>&":
        text = text.replace(special, f"\\u{ord(special):04x}")
    return Markup(text)


@cache
def _joined(names: tuple[str, ...]) -> Markup:
    files = resources.files(_HERE)
    return Markup("\n".join(files.joinpath(name).read_text("utf-8") for name in names))


@cache
def _policy() -> str:
    def hashed(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    return "; ".join(
        (
            "default-src 'none'",
            f"style-src {hashed(_joined(_STYLES))}",
            f"script-src {hashed(_joined(_SCRIPTS))}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
