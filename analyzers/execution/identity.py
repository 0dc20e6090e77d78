# SPDX-License-Identifier: Apache-2.0
r"""What phases are called: names, tags, and identifiers that a path pattern can hold.

An instance is `name[key=value, ...]` with all its tags, sorted by key; its type has the type tags only. In an
identifier a backslash stands before each character that the path language would take for its own, so that
every identifier, put into a path, is the pattern of itself and of nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from grademl_otel.analyzers.model.side_tables import as_json

Tags = tuple[tuple[str, str], ...]
"""(key, value), sorted by key; no key twice."""

UNNAMED: Final = "(unnamed)"
NTH: Final = "n"
"""Tag by which siblings that would be called the same are told apart, from 0; no phase has it otherwise."""

SPECIAL_IN_NAMES: Final = frozenset("\\/[]*")
SPECIAL_IN_TAGS: Final = SPECIAL_IN_NAMES | frozenset(",=")
_OF_NAMES: Final = re.compile(r"[\\/\[\]*]")
_OF_TAGS: Final = re.compile(r"[\\/\[\]*,=]")


@dataclass(frozen=True)
class Kind:
    """What phases that are called alike share."""

    name: str
    tags: Tags = ()
    """The type tags."""
    counted: str | None = None
    """Key of the tag that is a number of its own for each instance, as `step`; None without one."""

    @property
    def identifier(self) -> str:
        """Of its type."""
        return identifier(self.name, self.tags)


def tags(values: Mapping[str, Any]) -> Tags:
    """Return ``values`` as tags; None means absent. ValueError for the key that tells siblings apart."""
    if NTH in values:
        raise ValueError(f"tag {NTH!r} numbers siblings that are called the same; choose another key")
    return tuple(sorted((key, text_of(value)) for key, value in values.items() if value is not None))


def text_of(value: Any) -> str:
    """Return the value of an attribute as the text of a tag."""
    return value if isinstance(value, str) else as_json(value)


def identifier(name: str, of_tags: Tags = ()) -> str:
    """Return how a phase of this ``name`` with these tags is called."""
    known = _escaped(_OF_NAMES, name)
    if known in (".", ".."):
        known = "\\" + known  # they are steps of a path
    return f"{known}[{tag_text(of_tags)}]" if of_tags else known


def tag_text(of_tags: Tags) -> str:
    """Return what stands in the brackets."""
    return ", ".join(f"{_escaped(_OF_TAGS, key)}={_escaped(_OF_TAGS, value)}" for key, value in of_tags)


def _escaped(special: re.Pattern[str], text: str) -> str:
    return special.sub(lambda found: "\\" + found[0], text)
