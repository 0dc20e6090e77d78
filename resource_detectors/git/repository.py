# SPDX-License-Identifier: Apache-2.0
"""The repository that a folder lies in: its working tree, its own folder, what its configuration says."""

from __future__ import annotations

import os
import stat
from typing import Final, NamedTuple

from grademl_otel.resource_detectors import files
from grademl_otel.resource_detectors.git.settings import Section, parse

_DEEPEST: Final = 64
_MOST_SETTINGS: Final = 1 << 18
_GITDIR: Final = b"gitdir:"
_KNOWN_EXTENSIONS: Final = {
    "objectformat",
    "refstorage",
    "worktreeconfig",
    "partialclone",
    "preciousobjects",
    "noop",
}


class Repository(NamedTuple):
    """Where the parts of a repository are. Paths are absolute, and bytes, as the file system has them."""

    root: bytes
    """The working tree."""
    folder: bytes
    """What is of this working tree alone: HEAD and the index."""
    common: bytes
    """What all working trees share: objects, branches, the configuration."""
    settings: Section
    oid_bytes: int
    """Length of the name of an object: 20, or 32 with SHA-256."""
    readable: bool
    """False for one of a format that is not known here: nothing but its configuration is to be read."""


def find(start: str) -> Repository | None:
    """Return the repository that the folder ``start`` lies in, None where there is none to be trusted.

    As git does, the search goes up and stops where another file system begins. A repository is trusted that
    belongs to this user, to root or to the owner of ``start``; what somebody else has put further up is not
    looked at.
    """
    folder = os.fsencode(os.path.realpath(start))
    try:
        first = os.stat(folder)
    except (OSError, ValueError):
        return None
    trusted = {first.st_uid, 0}
    if hasattr(os, "geteuid"):
        trusted.add(os.geteuid())
    for _ in range(_DEEPEST):
        found = _at(folder, trusted)
        if found is not None:
            return found
        above = os.path.dirname(folder)
        try:
            if above == folder or os.stat(above).st_dev != first.st_dev:
                return None
        except OSError:
            return None
        folder = above
    return None


def of_submodule(root: bytes) -> Repository | None:
    """Return the repository whose working tree is ``root`` itself; None for one that is not checked out."""
    try:
        return _at(root, {os.stat(root).st_uid})
    except OSError:
        return None


def _at(root: bytes, trusted: set[int]) -> Repository | None:
    entry = os.path.join(root, b".git")
    try:
        status = os.lstat(entry)
        if stat.S_ISLNK(status.st_mode):
            status = os.stat(entry)
        if status.st_uid not in trusted:
            return None
        if stat.S_ISDIR(status.st_mode):
            folder = entry
        else:
            told = files.read(entry)
            if told is None or not told.startswith(_GITDIR):
                return None
            folder = os.path.normpath(os.path.join(root, told[len(_GITDIR) :].strip()))
            if os.stat(folder).st_uid not in trusted:
                return None
        common = folder
        told = files.read(os.path.join(folder, b"commondir"))
        if told is not None:
            common = os.path.normpath(os.path.join(folder, told.strip()))
        if not os.path.exists(os.path.join(folder, b"HEAD")) or not os.path.isdir(
            os.path.join(common, b"objects")
        ):
            return None
    except (OSError, ValueError):
        return None
    settings, known = _settings(folder, common)
    wide = settings.get("extensions.objectformat", "sha1") == "sha256"
    return Repository(root, folder, common, settings, 32 if wide else 20, known)


def _settings(folder: bytes, common: bytes) -> tuple[Section, bool]:
    """The repository's own configuration, and whether it is of a format that is known here."""
    content = files.read(os.path.join(common, b"config"), _MOST_SETTINGS)
    settings = parse(content or b"")
    if settings.get("extensions.worktreeconfig", "false") == "true":
        settings.update(parse(files.read(os.path.join(folder, b"config.worktree"), _MOST_SETTINGS) or b""))
    version = settings.get("core.repositoryformatversion", "0")
    extensions = {key.partition(".")[2] for key in settings if key.startswith("extensions.")}
    known = (
        version in ("0", "1")
        and extensions <= _KNOWN_EXTENSIONS
        and settings.get("extensions.objectformat", "sha1") in ("sha1", "sha256")
    )
    return settings, known
