# SPDX-License-Identifier: Apache-2.0
"""Patching gives back what was there, and leaves alone what others have put there since."""

from __future__ import annotations

from typing import Any

import pytest

from grademl_otel.instrumentations.patches import Patches


class Base:
    def inherited(self) -> str:
        return "base"


class Owner(Base):
    @staticmethod
    def static() -> str:
        return "static"


def _ours(*_: Any) -> str:
    return "ours"


def test_descriptors_and_inherited_attributes_come_back_as_they_were() -> None:
    before = dict(vars(Owner))
    patches = Patches()
    patches.replace(Owner, "static", _ours)
    patches.replace(Owner, "inherited", _ours)
    assert Owner().inherited() == "ours"
    patches.restore()
    assert dict(vars(Owner)) == before
    assert Owner().inherited() == "base"
    assert Owner.static() == "static"


def test_a_later_patch_of_somebody_else_stays() -> None:
    patches = Patches()
    patches.replace(Owner, "static", _ours)
    theirs = staticmethod(lambda: "theirs")
    former = vars(Owner)["static"]
    Owner.static = theirs  # type: ignore[method-assign, assignment]
    patches.restore()
    assert vars(Owner)["static"] is theirs
    assert former is _ours


def test_one_that_cannot_be_undone_does_not_keep_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise RuntimeError("no such handle")

    before = dict(vars(Owner))
    patches = Patches()
    patches.replace(Owner, "static", _ours)
    patches.on_restore(fail)
    patches.restore()
    assert dict(vars(Owner)) == before
    assert capsys.readouterr().err == "grademl: a hook stays where it is: RuntimeError: no such handle\n"


def test_callbacks_run_in_reverse_order_and_once() -> None:
    order: list[int] = []
    patches = Patches()
    patches.on_restore(lambda: order.append(1))
    patches.on_restore(lambda: order.append(2))
    patches.restore()
    patches.restore()
    assert order == [2, 1]


def test_what_stands_or_falls_together(capsys: pytest.CaptureFixture[str]) -> None:
    before, undone = dict(vars(Owner)), []
    patches = Patches()
    patches.on_restore(lambda: undone.append("kept"))
    with patches.together("steps"):
        patches.replace(Owner, "static", _ours, until=1)
        patches.on_restore(lambda: undone.append("in the block"))
        raise AttributeError("no such method")
    assert dict(vars(Owner)) == before
    assert undone == ["in the block"]
    assert capsys.readouterr().err == "grademl: steps is not recorded: AttributeError: no such method\n"
    patches.work_at(1)
    patches.work_at(0)
    assert dict(vars(Owner)) == before
    with patches.together("steps"):
        patches.replace(Owner, "static", _ours)
    assert vars(Owner)["static"] is _ours
    patches.restore()
    assert dict(vars(Owner)) == before
    assert undone == ["in the block", "kept"]
