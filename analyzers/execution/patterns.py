# SPDX-License-Identifier: Apache-2.0
r"""The path language: which phases, or types of phases, a pattern selects.

=================  =========================================================================================
``/``              between two levels; at the beginning: from the root, else from the phase that is given
``.``, ``..``      the same phase; its parent
``**``             any number of levels, none included; at the end all that lies below
``forward``        the phase with this identifier: its name, when it has no tags
``step[step=3]``   a name, and in brackets its tags, as they are written
``data.*``         ``*`` is any text within a name, or within brackets. At the end of a name that has no
                   brackets after it, also what is in these
``GET \/cart``     a backslash takes the next of ``\ / [ ] * , = .`` for what it is
=================  =========================================================================================

A pattern is compiled once; selecting costs a pass over the tree for each level that it names.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.errors import NothingFound, UsageError
from grademl_otel.analyzers.execution.identity import SPECIAL_IN_NAMES, SPECIAL_IN_TAGS
from grademl_otel.analyzers.execution.order import Indices

HERE: Final = "."
UP: Final = ".."
DEEP: Final = "**"
_ESCAPABLE: Final = SPECIAL_IN_TAGS | {"."}
_TOKEN: Final = re.compile(r"\\.|.", re.DOTALL)
_ANY: Final = r"(?:\\.|[^\\])*"
_ANY_IN_PATH: Final = r"(?:\\.|[^\\/\[\]])*"
_SOME_IN_PATH: Final = r"(?:\\.|[^\\/\[\]])+"
_LOOKED_AT: Final = 4096
"""So many identifiers are compared for a suggestion, at most."""


class InvalidPattern(UsageError):
    """A pattern is not one of the path language; the line says what is wrong with it."""


class NoMatch(NothingFound):
    """A pattern selects nothing; the line says how far it led, and what it may have meant."""


class Selectable(Protocol):
    """A tree whose nodes are called something; see `order.Tree`."""

    @property
    def parent(self) -> Indices: ...
    def __len__(self) -> int: ...
    def below(self, chosen: BoolArray) -> BoolArray:
        """Return the mask of what lies below the chosen."""

    def kinds(self) -> Indices:
        """Return a number for each node; nodes of one number have one name."""

    def escaped_name(self, node: int) -> str:
        """Return the identifier of ``node`` without its brackets."""

    def instance_texts(self, nodes: IntArray) -> tuple[list[str], IntArray]:
        """Return (texts, for each of ``nodes`` the index of that which its identifier has in brackets)."""

    def identifier(self, node: int) -> str: ...


@dataclass(frozen=True)
class Component:
    """A level of a pattern that names phases."""

    text: str
    name: re.Pattern[str]
    """Of the identifier before its brackets."""
    instance: re.Pattern[str] | None
    """Of what is in the brackets; None when anything, and no brackets, will do."""
    regex: str
    """Of the whole identifier, as a part of a path; in what Python and RE2 have in common."""


class Pattern:
    """A compiled pattern."""

    def __init__(self, text: str) -> None:
        """Raises InvalidPattern."""
        self.text = text
        parts = _split(text)
        self.absolute = parts[0] == ""
        if self.absolute:
            parts = parts[1:] if parts[1:] != [""] else []
        self.steps = [part if part in (HERE, UP, DEEP) else _component(part, text) for part in parts]

    def matches(self, tree: Selectable, origin: int = 0) -> IntArray:
        """Return the nodes that it selects, ascending; ``origin`` is where a relative one begins."""
        return np.flatnonzero(self._walk(tree, origin)[0])

    def select(self, tree: Selectable, origin: int = 0) -> IntArray:
        """Return the same; raises NoMatch when there is none."""
        chosen, step, before = self._walk(tree, origin)
        if not chosen.any():
            raise NoMatch(self._why(tree, step, before))
        return np.flatnonzero(chosen)

    def _walk(self, tree: Selectable, origin: int) -> tuple[BoolArray, int, BoolArray]:
        """Return (the mask of what is selected, the step that selected it or nothing, the mask before it)."""
        chosen = np.zeros(len(tree), np.bool_)
        chosen[0 if self.absolute else origin] = True
        before, number = chosen, 0
        for number, step in enumerate(self.steps):
            before = chosen
            if step == DEEP:
                last = number == len(self.steps) - 1
                chosen = tree.below(chosen) if last else chosen | tree.below(chosen)
            elif step == UP:
                above = tree.parent[chosen]
                chosen = np.zeros(len(tree), np.bool_)
                chosen[above[above >= 0]] = True
            elif isinstance(step, Component):
                chosen = _called(tree, _children(tree, chosen), step)
            if not chosen.any():
                break
        return chosen, number, before

    def _why(self, tree: Selectable, number: int, before: BoolArray) -> str:
        step = self.steps[number]
        if not isinstance(step, Component):
            nowhere = "the root has no parent" if step == UP else "nothing lies below"
            return f"{self.text!r} selects nothing: {nowhere}"
        candidates = np.flatnonzero(_children(tree, before))
        line = f"{self.text!r} selects nothing: no {step.text!r} there"
        near = _near(tree, candidates, step)
        return f"{line}; did you mean {near!r}?" if near else line


def _split(text: str) -> list[str]:
    """Return the components of a pattern; the first is empty for an absolute one."""
    if not text:
        raise InvalidPattern("an empty path selects nothing; '.' is the phase itself, '/' the root")
    parts = [""]
    for token in _TOKEN.findall(text):
        if token == "/":
            parts.append("")
            continue
        if token == "\\":
            raise InvalidPattern(f"{text!r}: a backslash at the end escapes nothing")
        if len(token) == 2 and token[1] not in _ESCAPABLE:
            raise InvalidPattern(f"{text!r}: nothing to escape in {token!r}")
        parts[-1] += token
    if "" in parts[1:] and parts != ["", ""]:
        raise InvalidPattern(f"{text!r}: a level without a name")
    return parts


def _component(part: str, text: str) -> Component:
    name: list[str] = []
    instance: list[str] = []
    bracket: int | None = None
    tokens = _TOKEN.findall(part)
    for at, token in enumerate(tokens):
        if token == "[" and bracket is None:
            bracket = at
        elif token == "]" and bracket is not None and at == len(tokens) - 1:
            break
        elif token in ("[", "]"):
            raise InvalidPattern(f"{text!r}: {part!r} is no name[tags]; escape brackets of a name: \\[")
        else:
            (name if bracket is None else instance).append(token)
    else:
        if bracket is not None:
            raise InvalidPattern(f"{text!r}: {part!r} has a bracket that does not close")
    if not name or (bracket is not None and not instance):
        raise InvalidPattern(f"{text!r}: {part!r} has no {'tags' if name else 'name'}")
    open_ended = bracket is None and name[-1] == "*"
    written = [_written(token, SPECIAL_IN_NAMES) for token in name]
    if "".join(written) in (HERE, UP):
        written = ["\\", *written]
    of_tags = [_written(token, SPECIAL_IN_TAGS) for token in instance]
    # Brackets that are asked for are there: even any text in them is some.
    within = _compiled(of_tags, least="" if bracket is None else "(?=.)")
    if bracket is None:
        in_brackets = rf"(?:\[{_ANY_IN_PATH}\])?" if open_ended else ""
    else:
        in_brackets = rf"\[{_regex(of_tags, _ANY_IN_PATH)}\]"
    # No name is empty, but that of the root, which is no level.
    of_name = _SOME_IN_PATH if set(written) == {"*"} else _regex(written, _ANY_IN_PATH)
    regex = of_name + in_brackets
    return Component(part, _compiled(written), None if open_ended else within, regex)


def _written(token: str, special: frozenset[str]) -> str:
    """Return ``token`` as identifiers write it, who escape only what they must."""
    return token if len(token) == 1 or token[1] in special else token[1]


def _compiled(tokens: list[str], least: str = "") -> re.Pattern[str]:
    return re.compile(least + _regex(tokens, _ANY), re.DOTALL)


def _regex(tokens: list[str], anything: str) -> str:
    return "".join(anything if token == "*" else re.escape(token) for token in tokens)


def _children(tree: Selectable, chosen: BoolArray) -> BoolArray:
    children: BoolArray = chosen[tree.parent]
    children[tree.parent < 0] = False
    return children


def _called(tree: Selectable, candidates: BoolArray, step: Component) -> BoolArray:
    """Return the mask of those of ``candidates`` that are called as ``step`` says."""
    kinds = tree.kinds()
    at = np.flatnonzero(candidates)
    distinct, first, of_kind = np.unique(kinds[at], return_index=True, return_inverse=True)
    named = [bool(step.name.fullmatch(tree.escaped_name(int(at[ix])))) for ix in first]
    at = at[np.array(named, np.bool_)[of_kind]] if len(distinct) else at
    if step.instance is not None:
        texts, which = tree.instance_texts(at)
        like = np.array([step.instance.fullmatch(text) is not None for text in texts], np.bool_)
        at = at[like[which]] if len(at) else at
    called = np.zeros(len(tree), np.bool_)
    called[at] = True
    return called


def _near(tree: Selectable, candidates: IntArray, step: Component) -> str | None:
    """Return what is there and may have been meant by ``step``."""
    _, first = np.unique(tree.kinds()[candidates], return_index=True)
    for node in candidates[first].tolist():
        if step.name.fullmatch(tree.escaped_name(node)):
            # The name is right: what is in the brackets is not.
            return f"{tree.escaped_name(node)}*" if "[" not in step.text else tree.identifier(node)
    some = [tree.identifier(node) for node in candidates[:_LOOKED_AT].tolist()]
    names = [tree.escaped_name(node) for node in candidates[first].tolist()]
    for asked, known in ((step.text, some), (step.text.partition("[")[0], names)):
        found: list[str] = difflib.get_close_matches(asked, list(dict.fromkeys(known)), n=1)
        if found:
            return found[0]
    return None
