# SPDX-License-Identifier: Apache-2.0
"""The source that runs: commit, branch, repository, and whether tracked files differ from the commit."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from grademl_otel import semconv
from grademl_otel.resource_detectors import files
from grademl_otel.resource_detectors.budget import Budget, OverBudget
from grademl_otel.resource_detectors.partial import Facts, collect

if TYPE_CHECKING:
    from grademl_otel.resource_detectors.git.repository import Repository

_INSTALLED: Final = ("site-packages", "dist-packages")
_NOT_A_FILE: Final = ("", "-", "-c", "-m")


def source_facts(seconds: float, program: str | None = None) -> Facts:
    """Return what the repository of ``program`` says, the program that runs when it is None.

    ``seconds`` is what looking for changes may cost; the rest is a few small files.

    Of a program that is installed, or has no file, the repository of the working folder is meant.
    """
    program = _program() if program is None else program
    own = bool(program) and not _installed(program)
    try:
        start = os.path.dirname(program) if own else os.getcwd()
    except OSError:  # the working folder is gone
        return {}
    if not _any(start):
        return {}
    from grademl_otel.resource_detectors.git import refs, repository  # only where there is one

    found = repository.find(start)
    if found is None:
        return {}
    at = refs.head(found)
    facts: Facts = {}
    if at.revision:
        facts[semconv.SOURCE_REVISION] = at.revision.decode()
    branch = os.fsdecode(at.branch)
    if branch:
        facts[semconv.SOURCE_BRANCH] = files.text(at.branch)
    guarded: tuple[Callable[[], Facts], ...] = (
        lambda: _url(found, branch),
        lambda: _dirty(found, seconds, os.fsencode(program) if own else None) if at.revision else {},
    )
    return facts | collect(guarded)


def _url(found: Repository, branch: str) -> Facts:
    if not any(key.startswith("remote.") for key in found.settings):
        return {}
    from grademl_otel.resource_detectors.git.urls import repository_url

    return {semconv.SOURCE_REPOSITORY: repository_url(found.settings, branch)}


def _dirty(found: Repository, seconds: float, program: bytes | None) -> Facts:
    from grademl_otel.resource_detectors.git.changes import dirty

    try:
        told = dirty(found, Budget(seconds), program)
    except OverBudget:
        return {}
    return {} if told is None else {semconv.SOURCE_DIRTY: told}


def _program() -> str:
    """The file that runs, links resolved; empty for a notebook, a prompt, `python -c`.

    When resource detectors run at the start of the interpreter only its arguments tell.
    """
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if not isinstance(file, str):
        file = sys.argv[0] if getattr(sys, "argv", None) else ""
        if file in _NOT_A_FILE or not os.path.isfile(file):
            return ""
    return os.path.realpath(file)


def _installed(program: str) -> bool:
    """Whether ``program`` is no source of the user's: of an installed package, or a command."""
    folders = program.split(os.sep)
    return (
        any(name in folders for name in _INSTALLED)
        or os.path.dirname(program)
        in (
            os.path.dirname(sys.executable),
            os.path.dirname(os.path.realpath(sys.executable)),
        )
        or program.startswith(os.path.dirname(os.__file__) + os.sep)
    )


def _any(start: str) -> bool:
    """Whether there is a `.git` in ``start`` or above it: cheap, because mostly there is none."""
    folder = os.path.realpath(start)
    for _ in range(64):
        if os.path.lexists(os.path.join(folder, ".git")):
            return True
        above = os.path.dirname(folder)
        if above == folder:
            return False
        folder = above
    return False
