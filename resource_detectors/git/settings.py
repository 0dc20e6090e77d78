# SPDX-License-Identifier: Apache-2.0
"""Files of git's configuration, as far as the facts need them; included files are not followed."""

from __future__ import annotations

import re
from typing import Final

Section = dict[str, str]
"""Values by ``section.key`` or ``section.subsection.key``; the last wins. Subsections keep their case."""

_SECTION: Final = re.compile(r'\[\s*([A-Za-z0-9.-]+)(?:\s+"((?:[^"\\]|\\.)*)")?\s*\](.*)')
_VALUE: Final = re.compile(r"([A-Za-z][A-Za-z0-9-]*)\s*(?:=(.*))?$")
_ESCAPES: Final = {"n": "\n", "t": "\t", "b": "\b", '"': '"', "\\": "\\"}


def parse(content: bytes) -> Section:
    """Return what ``content`` says; lines that make no sense are left out."""
    found: Section = {}
    section = ""
    for line in content.decode("utf-8", "replace").replace("\\\r\n", "").replace("\\\n", "").splitlines():
        line = line.strip()
        if line.startswith("["):
            match = _SECTION.match(line)
            if match is None:
                section = ""
                continue
            section = match[1].lower()
            if match[2] is not None:
                section += "." + re.sub(r"\\(.)", r"\1", match[2])
            line = match[3].strip()
        match = _VALUE.match(line)
        if match is not None and section:
            found[f"{section}.{match[1].lower()}"] = "true" if match[2] is None else _value(match[2])
    return found


def is_true(settings: Section, key: str, default: bool) -> bool:
    """Return a switch of the configuration."""
    value = settings.get(key)
    return default if value is None else value.lower() in ("true", "yes", "on", "1")


def _value(raw: str) -> str:
    """Without quotes, escapes and comments."""
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
