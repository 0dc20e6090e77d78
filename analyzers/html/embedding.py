# SPDX-License-Identifier: Apache-2.0
"""How strings that nobody vouches for get into a page: as text that is printed and not too long, and as data.

The template engine escapes what it is given for HTML. What is here is left to do before that: characters
that are not printed or that turn the order of writing, names of any length, and JSON within a page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from markupsafe import Markup

from grademl_otel.analyzers.printable import clean, clean_json
from grademl_otel.analyzers.reporting.document import to_dict
from grademl_otel.analyzers.secrecy import hidden
from grademl_otel.analyzers.shown import Shown

HEAD: Final = 90
TAIL: Final = 28
"""Characters of a longer name that are shown, of its beginning and of its end."""
MOST: Final = 1_000
"""Characters of a name that the page holds at all."""
ELLIPSIS: Final = "\N{HORIZONTAL ELLIPSIS}"


def printable(value: object) -> object:
    """Return what is put into the page as text without characters that are not printed, and without secrets.

    What is markup already stays as it is.
    """
    return value if isinstance(value, Markup) else hidden(clean(str(value)))


def bounded(text: str) -> str:
    """Return ``text`` without secrets, cut after `MOST` characters: what is cut first holds half a secret."""
    text = hidden(text)
    return text if len(text) <= MOST else text[:MOST] + ELLIPSIS


def shortened(text: str) -> str:
    """Return ``text`` with what is in the middle of a long one left out."""
    return text if len(text) <= HEAD + TAIL + 3 else f"{text[:HEAD]} {ELLIPSIS} {text[-TAIL:]}"


def brief(text: str) -> Markup:
    """Return ``text`` as markup that shows a long one shortened, and more of it in a tooltip."""
    text = str(printable(text))
    short = shortened(text)
    if short == text:
        return Markup.escape(text)
    return Markup('<span title="{}">{}</span>').format(bounded(text), short)


def document_json(document: Shown) -> Markup:
    """Return ``document`` as JSON in a page, without secrets, of a long name the first `MOST` characters."""
    return plain_json(_cut(to_dict(document)))


def plain_json(value: Mapping[str, Any]) -> Markup:
    """Return ``value`` as JSON within a page."""
    text = clean_json(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    # Nothing may end the script element that it is in, nor begin a comment. The values are the same.
    for special in "<>&":
        text = text.replace(special, f"\\u{ord(special):04x}")
    return Markup(text)


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return bounded(value)
    if isinstance(value, list):
        return [_cut(one) for one in value]
    if isinstance(value, dict):
        return {bounded(name): _cut(one) for name, one in value.items()}
    return value
