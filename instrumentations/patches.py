# SPDX-License-Identifier: Apache-2.0
"""Replacing attributes of other people's objects, and giving back the identical ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from grademl_otel.messages import warn

_ABSENT: Final = object()
F = TypeVar("F", bound=Callable[..., Any])


class UnexpectedShape(Exception):
    """What is to be hooked looks different from what is known here."""


def that_takes(function: F, *names: str) -> F:
    """Return ``function``, whose wrapper takes these parameters and no others; raises where it does not."""
    found = tuple(inspect.signature(function).parameters)
    if found != names:
        name = getattr(function, "__qualname__", "a function")
        raise UnexpectedShape(f"{name} takes ({', '.join(found)}), not ({', '.join(names)})")
    return function


class Patches:
    """The replacements that are in force; `restore` undoes them in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._in_force: list[_Replacement] = []
        self._dear: list[tuple[int, _Replacement]] = []
        """Replacements that cost something at each step, and the recording level up to which they stay."""

    def replace(self, owner: Any, name: str, value: Any, until: int | None = None) -> None:
        """Set ``owner.name`` to ``value``; above the recording level ``until`` it is put back for a while."""
        replacement = _Replacement(owner, name, value)
        replacement.make()
        self._undo.append(replacement.undo)
        self._in_force.append(replacement)
        if until is not None:
            self._dear.append((until, replacement))

    def work_at(self, level: int) -> None:
        """Put back what is too dear at the recording level ``level``, and make again what is not."""
        for until, replacement in self._dear:
            if level > until:
                replacement.undo()
            else:
                replacement.make()

    @property
    def undisturbed(self) -> bool:
        """Whether nobody has patched over a replacement that is in force."""
        return all(replacement.undisturbed for replacement in self._in_force)

    def on_restore(self, undo: Callable[[], Any]) -> None:
        """Have ``undo`` called by `restore`, as for a registered callback."""
        self._undo.append(undo)

    @contextmanager
    def together(self, name: str) -> Iterator[None]:
        """What the block sets stands or falls together.

        When it raises, because what is to be hooked is missing or looks different, all of it is undone, one
        line says that ``name`` is not recorded, and the caller goes on.
        """
        undo, in_force, dear = len(self._undo), len(self._in_force), len(self._dear)
        try:
            yield
        except Exception as error:
            del self._in_force[in_force:], self._dear[dear:]
            self._undo_down_to(undo)
            warn(f"{name} is not recorded: {type(error).__name__}: {error}")

    def restore(self) -> None:
        """Undo all replacements; one that cannot be undone costs a line, the others are."""
        self._dear.clear()
        self._in_force.clear()
        self._undo_down_to(0)

    def _undo_down_to(self, left: int) -> None:
        while len(self._undo) > left:
            undo = self._undo.pop()
            try:
                undo()
            except Exception as error:
                warn(f"a hook stays where it is: {type(error).__name__}: {error}")


class _Replacement:
    """An attribute that is another value while it is made.

    The former value is taken from the owner's own dictionary: an inherited attribute is not turned into one
    of its own, and a descriptor comes back as the descriptor that it was.
    """

    def __init__(self, owner: Any, name: str, value: Any) -> None:
        self._owner = owner
        self._name = name
        self._value = value
        self._former: Any = _ABSENT
        self._made = False
        self._put_back = False

    def make(self) -> None:
        """Set the attribute, unless it is set, or somebody else has set it since it was put back."""
        present = vars(self._owner).get(self._name, _ABSENT)
        if self._made or (self._put_back and present is not self._former):
            return
        self._former = present
        setattr(self._owner, self._name, self._value)
        self._made = True

    @property
    def undisturbed(self) -> bool:
        """Whether the attribute is as it was left."""
        present = vars(self._owner).get(self._name, _ABSENT)
        return present is (self._value if self._made else self._former)

    def undo(self) -> None:
        """Put the former value back, unless somebody else has patched over ours: that is not ours to undo."""
        if not self._made or vars(self._owner).get(self._name, _ABSENT) is not self._value:
            return
        self._made, self._put_back = False, True
        if self._former is _ABSENT:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._former)
