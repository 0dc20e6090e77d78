# SPDX-License-Identifier: Apache-2.0
"""Files of git's configuration, as far as the facts need them; included files are not followed."""

from __future__ import annotations

from typing import Final

Section = dict[str, str]
"""Values by ``section.key`` or ``section.subsection.key``; the last wins. Subsections keep their case."""

_MARKS: Final = frozenset('\\"#;')
_ESCAPES: Final = {"n": "\n", "t": "\t", "b": "\b", '"': '"', "\\": "\\"}


def parse(content: bytes) -> Section:
    """Return what ``content`` says; lines that make no sense are left out."""
    found: Section = {}
    section = ""
    for line in content.decode("utf-8", "replace").replace("\\\r\n", "").replace("\\\n", "").splitlines():
        line = line.strip()
        if line.startswith("["):
            section, line = _header(line)
        key, equals, value = line.partition("=")
        key = key.strip()
        if not equals:
            key = key.partition("#")[0].partition(";")[0].strip()
        if section and key[:1].isalpha() and key.replace("-", "").isalnum():
            found[f"{section}.{key.lower()}"] = _value(value) if equals else "true"
    return found


def _header(line: str) -> tuple[str, str]:
    """The section that ``line`` begins, empty where it makes no sense, and what follows on the line."""
    head, quote, rest = line[1:].partition('"')
    if not quote or "]" in head:
        head, bracket, rest = line[1:].partition("]")
        return (_name(head) if bracket else ""), rest.strip()
    plain, quote, end = rest.partition('"')
    if "\\" not in plain and end.startswith("]"):  # as git writes them
        name = _name(head)
        return (f"{name}.{plain}" if name else ""), end[1:].strip()
    subsection: list[str] = []
    escaped = False
    for at, c in enumerate(rest):
        if escaped or c not in '\\"':
            subsection.append(c)
            escaped = False
        elif c == "\\":
            escaped = True
        else:
            end = rest[at + 1 :].lstrip()
            name = _name(head)
            if not name or not end.startswith("]"):
                break
            return f"{name}.{''.join(subsection)}", end[1:].strip()
    return "", ""


def _name(text: str) -> str:
    name = text.strip().lower()
    return name if name.replace("-", "").replace(".", "").isalnum() else ""


def is_true(settings: Section, key: str, default: bool) -> bool:
    """Return a switch of the configuration."""
    value = settings.get(key)
    return default if value is None else value.lower() in ("true", "yes", "on", "1")


def _value(raw: str) -> str:
    """Without quotes, escapes and comments."""
    if _MARKS.isdisjoint(raw):
        return raw.strip()
    value: list[str] = []
    quoted = escaped = False
    for c in raw.strip():
        if escaped:
            value.append(_ESCAPES.get(c, c))
            escaped = False
        elif c == "\\":
            escaped = True
        elif c == '"':
            quoted = not quoted
        elif c in "#;" and not quoted:
            break
        else:
            value.append(c)
    return "".join(value).strip()
