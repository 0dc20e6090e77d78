# SPDX-License-Identifier: Apache-2.0
"""What reaches a terminal is text."""

from __future__ import annotations

import json
import sys

import pytest

from grademl_otel.analyzers.printable import clean, clean_json, clean_lines

PLAIN = "süß 🚆 日本 ~"


@pytest.mark.parametrize(
    "odd", ["\x1b", "\x07", "\x7f", "\x9b", "\u202e", "\u2028", "\xa0", "\ud800", "\U000e0001"]
)
def test_what_is_not_printed_is_replaced(odd: str) -> None:
    assert clean(f"{PLAIN}{odd}[2J") == f"{PLAIN}?[2J"
    assert clean_lines(f"a\n{odd}\n") == "a\n?\n"
    text = json.dumps({"k": f"{PLAIN}{odd}"}, ensure_ascii=False, indent=2)
    assert clean_lines(clean_json(text)) == clean_json(text)
    assert json.loads(clean_json(text)) == json.loads(text)
    assert PLAIN in clean_json(text)


def test_lines_end_only_where_they_may() -> None:
    assert clean("a\nb\r\n") == "a?b??"
    assert clean_lines("a\nb\r\n") == "a\nb?\n"


def test_all_characters() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert clean(every).isprintable()
    assert len(clean(every)) == len(every)
