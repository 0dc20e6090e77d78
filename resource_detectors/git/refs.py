# SPDX-License-Identifier: Apache-2.0
"""What HEAD points at: a branch, a commit."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from grademl_otel.resource_detectors import files
from grademl_otel.resource_detectors.git.repository import Repository

_LINKS: Final = 5
_MOST_PACKED: Final = 1 << 23
_MOST_SEARCHED: Final = 1 << 20
_BRANCHES: Final = b"refs/heads/"
_OF_ONE_TREE: Final = (b"refs/bisect/", b"refs/worktree/", b"refs/rewritten/")
_REPLACED: Final = b"refs/replace/"
_NOT_IN_REFS: Final = frozenset(b"~^:?*[\\\177") | frozenset(range(33))
_HEX: Final = frozenset(b"0123456789abcdef")


class Head(NamedTuple):
    """What is checked out."""

    revision: bytes = b""
    """Name of the commit, in hex; empty before the first one, and where it is not known."""
    branch: bytes = b""
    """Name of the branch; empty where a commit is checked out by itself."""


def head(repository: Repository) -> Head:
    """Return what HEAD says. Branches kept as `reftable` are not read: nothing is known of those."""
    if not repository.readable or repository.settings.get("extensions.refstorage", "files") != "files":
        return Head()
    value = _read(repository.folder, b"HEAD")
    branch = b""
    for step in range(_LINKS):
        name = _target(value)
        if name is None:
            return Head(_hex(value, repository.oid_bytes), branch)
        if step == 0 and name.startswith(_BRANCHES):
            branch = name[len(_BRANCHES) :]
        folder = repository.folder if name.startswith(_OF_ONE_TREE) else repository.common
        value = _read(folder, name) or _packed(repository.common, name)
    return Head(b"", branch)


def any_replaced(repository: Repository) -> bool:
    """Whether git takes other objects in place of some (`git replace`); no where there are very many refs."""
    folder = os.fsdecode(os.path.join(repository.common, _REPLACED))
    packed = files.read(os.path.join(repository.common, b"packed-refs"), _MOST_SEARCHED) or b""
    return next(files.names(folder, 1), None) is not None or b" " + _REPLACED in packed


def _read(folder: bytes, name: bytes) -> bytes:
    return (files.read(os.path.join(folder, name)) or b"").strip()


def _target(value: bytes) -> bytes | None:
    """The ref that a symbolic one points at; None for any other value."""
    if not value.startswith(b"ref:"):
        return None
    name = value[4:].strip()
    usual = name.startswith(b"refs/") and b".." not in name and _NOT_IN_REFS.isdisjoint(name)
    return name if usual else b"refs/none"


def _packed(common: bytes, name: bytes) -> bytes:
    content = files.read(os.path.join(common, b"packed-refs"), _MOST_PACKED) or b""
    end = content.find(b" " + name + b"\n")
    return content[content.rfind(b"\n", 0, end) + 1 : end] if end >= 0 else b""


def _hex(value: bytes, oid_bytes: int) -> bytes:
    return value if len(value) == 2 * oid_bytes and _HEX.issuperset(value) else b""
