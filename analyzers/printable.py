# SPDX-License-Identifier: Apache-2.0
"""Text from telemetry, files and servers, such that no terminal takes it for a command.

Names and messages may hold sequences that move the cursor, change colours or the order of writing.
"""

from __future__ import annotations

import codecs
import re
from typing import Final

_PLAIN: Final = {"·": "-", "…": "...", "×": "x", "±": "+-", "µ": "u", "→": "->", "–": "-", "—": "-"}
"""What we write, for terminals that know ASCII alone."""
_UNUSUAL: Final = re.compile(r"[^\x20-\x7e\n]")


def clean(text: str) -> str:
    """Return ``text`` with every character that is not printed, ends of lines too, shown as ``?``."""
    return clean_lines(text).replace("\n", "?")


def clean_lines(text: str) -> str:
    """The same, but lines stay lines."""
    return _UNUSUAL.sub(lambda found: found[0] if found[0].isprintable() else "?", text)


def clean_json(text: str) -> str:
    """Return JSON with such characters written as escapes: the same values, whoever decodes them."""
    return _UNUSUAL.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def encodable(text: str, encoding: str) -> str:
    """Return ``text`` with what ``encoding`` has no character for in ASCII where we know how, else ``?``."""
    return text.encode(encoding, _HANDLER).decode(encoding)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end]
    return "".join(_PLAIN.get(character, "?") for character in found), error.end


_HANDLER: Final = "grademl.plain"
codecs.register_error(_HANDLER, _replaced)
