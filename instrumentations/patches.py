# SPDX-License-Identifier: Apache-2.0
"""Replacing attributes of other people's objects, and giving back the identical ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_ABSENT: Final = object()


class Patches:
    """The replacements that are in force; `restore` undoes them in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name`` to ``value``.

        The former value is taken from the owner's own dictionary: an inherited attribute is not turned into
        one of its own, and a descriptor comes back as the descriptor that it was.
        """
        former = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)

        def undo() -> None:
            if vars(owner).get(name, _ABSENT) is not value:
                return  # somebody else has patched over ours; taking theirs away is not ours to do
            if former is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, former)

        self._undo.append(undo)

    def on_restore(self, undo: Callable[[], Any]) -> None:
        """Have ``undo`` called by `restore`, as for a registered callback."""
        self._undo.append(undo)

    def restore(self) -> None:
        """Undo all replacements."""
        while self._undo:
            self._undo.pop()()
