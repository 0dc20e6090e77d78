# SPDX-License-Identifier: Apache-2.0
"""The path language: what a pattern selects, and what is said of one that is wrong or selects nothing."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.analyzers import errors
from grademl_otel.analyzers.execution import InvalidPattern, NoMatch, Pattern, Phases, Types

from .test_execution_tree import P, tree

PHASES, TYPES, _ = tree(
    P(-1, "run", 0, 100, type_tags=(("script", "a.py"),), of_instance=(("id", "7"),)),
    P(0, "epoch", 0, 50, step=0),
    P(0, "epoch", 50, 100, step=1),
    P(1, "data.wait", 0, 10),
    P(1, "data.transfer", 10, 50),
    P(2, "data.wait", 50, 60),
    P(2, "data.wait", 60, 100),
    P(3, "GET /cart", 0, 10),
)


def chosen(pattern: str, origin: int = 0) -> list[str]:
    return [PHASES.path(node) for node in Pattern(pattern).select(PHASES, origin)]


RUN = "/run[id=7, script=a.py]"


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("/", ["/"]),
        (".", ["/"]),
        ("/.", ["/"]),
        (RUN, [RUN]),
        (RUN[1:], [RUN]),
        ("/run*", [RUN]),
        ("/r*n*", [RUN]),
        ("/run[*]", [RUN]),
        ("/run[id=7*]", [RUN]),
        ("/run[*a.py]", [RUN]),
        ("run*/epoch[step=1]", [f"{RUN}/epoch[step=1]"]),
        ("run*/epoch*/data.transfer", [f"{RUN}/epoch[step=0]/data.transfer"]),
        ("run*/epoch*/data.w*", [
            f"{RUN}/epoch[step=0]/data.wait", f"{RUN}/epoch[step=1]/data.wait[n=0]",
            f"{RUN}/epoch[step=1]/data.wait[n=1]",
        ]),
        ("run*/*/*.wait[*]", [f"{RUN}/epoch[step=1]/data.wait[n={n}]" for n in (0, 1)]),
        ("run*/*/*.wait", [f"{RUN}/epoch[step=0]/data.wait"]),
        ("run*/*/*.wait[n=*]", [f"{RUN}/epoch[step=1]/data.wait[n={n}]" for n in (0, 1)]),
        ("**/data.transfer", [f"{RUN}/epoch[step=0]/data.transfer"]),
        ("/**/data.transfer", [f"{RUN}/epoch[step=0]/data.transfer"]),
        ("**/**/data.transfer", [f"{RUN}/epoch[step=0]/data.transfer"]),
        ("**/data.transfer/..", [f"{RUN}/epoch[step=0]"]),
        ("**/data.transfer/../data.wait/**", [f"{RUN}/epoch[step=0]/data.wait/GET \\/cart"]),
        ("**/GET \\/cart", [f"{RUN}/epoch[step=0]/data.wait/GET \\/cart"]),
        ("**/GET*", [f"{RUN}/epoch[step=0]/data.wait/GET \\/cart"]),
        ("**/./data\\.transfer", [f"{RUN}/epoch[step=0]/data.transfer"]),
    ],
)  # fmt: skip
def test_what_a_pattern_selects(pattern: str, paths: list[str]) -> None:
    assert chosen(pattern) == paths


def test_a_star_stays_within_its_level_and_its_part_of_an_identifier() -> None:
    assert chosen("*") == [RUN]
    for pattern in ("r*/data.wait", "run*a.py", "*/epoch[*]0"):
        with pytest.raises((NoMatch, InvalidPattern)):
            Pattern(pattern).select(PHASES)


def test_two_stars_at_the_end_are_all_that_lies_below() -> None:
    assert len(chosen("**")) == len(PHASES) - 1
    assert chosen("run*/epoch[step=1]/**") == [
        f"{RUN}/epoch[step=1]/data.wait[n=0]",
        f"{RUN}/epoch[step=1]/data.wait[n=1]",
    ]


def test_a_relative_pattern_begins_at_the_phase_that_is_given() -> None:
    (epoch,) = Pattern("**/epoch[step=1]").select(PHASES).tolist()
    assert chosen("data.wait*", epoch) == chosen("/run*/epoch[step=1]/data.wait*")
    assert chosen("../epoch[step=0]/data.wait", epoch) == [f"{RUN}/epoch[step=0]/data.wait"]
    assert chosen("../../.", epoch) == ["/"]
    assert chosen("/run*", epoch) == [RUN]


def test_types_are_selected_by_their_type_paths() -> None:
    assert [TYPES.path(node) for node in Pattern("**/data.wait").select(TYPES)] == [
        "/run[script=a.py]/epoch/data.wait"
    ]
    assert len(Pattern("/run[script=a.py]/epoch").select(TYPES)) == 1


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("", "empty path"),
        ("a//b", "level without a name"),
        ("a/", "level without a name"),
        ("//", "level without a name"),
        ("a[", "does not close"),
        ("a[]", "has no tags"),
        ("[a=1]", "has no name"),
        ("a]", "escape brackets"),
        ("a[b]c", "escape brackets"),
        ("a[b[c]]", "escape brackets"),
        ("\\a", "nothing to escape"),
        ("a\\", "escapes nothing"),
    ],
)
def test_an_invalid_pattern_says_what_is_wrong(pattern: str, says: str) -> None:
    with pytest.raises(InvalidPattern, match=says) as caught:
        Pattern(pattern)
    assert caught.value.exit_code == errors.EXIT_USAGE


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("run", "did you mean 'run*'"),
        ("run*/epoch", "did you mean 'epoch*'"),
        ("run*/epoch[step=7]", "no 'epoch[step=7]' there; did you mean 'epoch[step=0]'"),
        ("run*/epohc[step=1]", "did you mean 'epoch[step=1]'"),
        ("run*/epoch*/data.wiat", "did you mean 'data.wait'"),
        ("run*/epoch*/zzzzz", "no 'zzzzz' there"),
        ("..", "the root has no parent"),
        ("**/data.transfer/**", "nothing lies below"),
    ],
)
def test_a_pattern_that_selects_nothing_says_where_and_what_may_be_meant(pattern: str, says: str) -> None:
    with pytest.raises(NoMatch, match=re.escape(says)) as caught:
        Pattern(pattern).select(PHASES)
    assert caught.value.exit_code == errors.EXIT_NOTHING_FOUND
    assert Pattern(pattern).matches(PHASES).tolist() == []


# --- Against a matcher that goes path by path, character by character ---------------------------------------


def _like(pattern: str, text: str) -> bool:
    """Whether ``pattern`` with stars matches ``text``; both escaped."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(_like(pattern[1:], text[at:]) for at in range(len(text) + 1))
    size = 2 if pattern[0] == "\\" else 1
    return pattern[:size] == text[:size] and _like(pattern[size:], text[size:])


def _called(component: str, name: str, inside: str) -> bool:
    asked, bracket, tags = component.partition("[")
    if not _like(asked, name):
        return False
    if not bracket:
        return asked.endswith("*") or not inside
    return bool(inside) and _like(tags[:-1], inside)


def naive(components: list[str], tree_: Phases | Types, node: int) -> bool:
    """Whether a relative pattern without `..` selects ``node``, from the root."""
    line = [node, *tree_.ancestors(node)][-2::-1] if node else []
    names = [tree_.escaped_name(one) for one in line]
    inside = [tree_.identifier(one)[len(name) + 1 : -1] for one, name in zip(line, names, strict=True)]

    def leads(asked: int, at: int) -> bool:
        if asked == len(components):
            return at == len(line)
        if components[asked] == "**":
            least = 1 if asked == len(components) - 1 else 0
            return any(leads(asked + 1, to) for to in range(at + least, len(line) + 1))
        return (
            at < len(line) and _called(components[asked], names[at], inside[at]) and leads(asked + 1, at + 1)
        )

    return leads(0, 0)


COMPONENTS = ("a", "b", "a*", "*", "*b", "a[*]", "*[n=0]", "ab[step=*]", "**", "a[step=1]", "*[*=1]", "b*")


STEPS = tuple(one for one in COMPONENTS if one != "**")


@st.composite
def small_trees(draw: st.DrawFn) -> list[P]:
    return [
        P(
            draw(st.integers(-1, at - 1)),
            draw(st.sampled_from(("a", "b", "ab"))),
            draw(st.integers(0, 5)),
            9,
            step=draw(st.none() | st.integers(0, 1)),
        )
        for at in range(draw(st.integers(1, 10)))
    ]


@given(small_trees(), st.lists(st.sampled_from(COMPONENTS), min_size=1, max_size=4))
@settings(deadline=None, max_examples=80)
def test_patterns_select_what_a_naive_matcher_does(given_: list[P], components: list[str]) -> None:
    phases, types, _ = tree(*given_)
    pattern = Pattern("/".join(components))
    for some in (phases, types):
        expected = [node for node in range(len(some)) if naive(components, some, node)]
        assert pattern.matches(some).tolist() == expected


@given(small_trees(), st.lists(st.sampled_from(("..", ".", *STEPS)), min_size=1, max_size=4))
@settings(deadline=None, max_examples=40)
def test_selecting_is_going_step_by_step(given_: list[P], components: list[str]) -> None:
    """What a/b selects is what b selects from each phase that a does, whatever a and b are."""
    phases, _, _ = tree(*given_)
    nodes = {0}
    for one in components:
        nodes = {int(to) for node in nodes for to in Pattern(one).matches(phases, node)}
    assert set(Pattern("/".join(components)).matches(phases).tolist()) == nodes


def test_one_compiled_pattern_serves_many_trees() -> None:
    pattern = Pattern("**/data.wait*")
    for tree_, _ in product((PHASES, TYPES), range(2)):
        assert np.all(np.diff(pattern.select(tree_)) > 0)
