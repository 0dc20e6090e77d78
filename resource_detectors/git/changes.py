# SPDX-License-Identifier: Apache-2.0
"""Whether the tracked files are those of the commit that is checked out.

As `git status --untracked-files=no` would say, without running anything: the index against the tree of the
commit, then each tracked file against what the index knows of it. A file whose times differ is read, as git
does; where git would convert it first (line ends, filters such as LFS), different bytes prove nothing.
"""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Any, Final

from grademl_otel.resource_detectors import files
from grademl_otel.resource_detectors.budget import Budget, OverBudget
from grademl_otel.resource_detectors.git import index as index_file
from grademl_otel.resource_detectors.git.index import Entry, Index, Subtree
from grademl_otel.resource_detectors.git.objects import Missing, Objects
from grademl_otel.resource_detectors.git.refs import any_replaced, head
from grademl_otel.resource_detectors.git.repository import Repository, of_submodule
from grademl_otel.resource_detectors.git.settings import is_true, parse

_SUBMODULE: Final = 0o160000
_SYMLINK: Final = 0o120000
_FOLDER: Final = 0o040000
_KIND: Final = 0o170000
_OFTEN: Final = 64
_PER_ENTRY_S: Final = 4e-6
"""What an entry takes: what has no chance is not begun, and all ranks decide alike."""
_LARGEST_FILE: Final = 1 << 26
_LARGEST_LIST: Final = 1 << 18
_DEEPEST: Final = 3
"""Submodules in submodules."""
_CONVERTING: Final = (
    b"filter",
    b"ident",
    b"working-tree-encoding",
    b"[attr]",
    b"lfs",
    b"crlf",
    b"text",
    b"eol",
)
_TOLD_GIT: Final = ("GIT_CONFIG", "GIT_ATTR")
"""Variables that put other settings in place of those in files, or beside them."""
_NO_SYSTEM: Final = ("GIT_CONFIG_NOSYSTEM", "GIT_ATTR_NOSYSTEM")
_LINE_ENDS: Final = (b"crlf", b"text", b"eol")


class _Doubt(Exception):
    """Files alone do not say whether something has changed."""


def dirty(repository: Repository, budget: Budget, program: bytes | None = None) -> bool | None:
    """Return whether a tracked file, or the index, differs from the commit; None where that cannot be told.

    ``program`` is the file that runs: when it is in the working tree and not tracked, the commit does not
    have it, and that is a difference, too. Raises `OverBudget`.
    """
    return _dirty(repository, budget, program, 0)


def _dirty(repository: Repository, budget: Budget, program: bytes | None, depth: int) -> bool | None:
    settings = repository.settings
    if not repository.readable or os.name != "posix" or not is_true(settings, "core.symlinks", True):
        return None
    if is_true(settings, "core.bare", False) or not _is_own_tree(repository):
        return None
    if index_file.count(repository.folder) * _PER_ENTRY_S > budget.left():
        raise OverBudget
    try:
        index = index_file.read(repository.folder, repository.oid_bytes, budget)
    except index_file.Unreadable:
        return None
    if index.pending:
        return True
    doubt = False
    try:
        if _staged(repository, index, budget):
            return True
    except _Doubt:
        doubt = True
    tree = _Files(repository, index, budget)
    if program is not None and tree.lacks(program):
        return True
    for number, entry in enumerate(index.entries):
        if number % _OFTEN == 0:
            budget.check()
        if entry.trusted or (entry.kept_out and not tree.is_there_again(entry)):
            continue
        try:
            if entry.mode == _SUBMODULE:
                if _submodule_differs(repository, entry, budget, depth):
                    return True
            elif tree.differs(entry):
                return True
        except _Doubt:
            doubt = True
    return None if doubt else False


def _is_own_tree(repository: Repository) -> bool:
    """The configuration may name another folder as the working tree."""
    told = repository.settings.get("core.worktree")
    if told is None:
        return True
    place = os.path.join(repository.folder, os.fsencode(told))
    return os.path.realpath(place) == os.path.realpath(repository.root)


def _submodule_differs(repository: Repository, entry: Entry, budget: Budget, depth: int) -> bool:
    place = os.path.join(repository.root, entry.path)
    try:
        if not stat.S_ISDIR(os.lstat(place).st_mode):
            return True
    except OSError:
        return True
    within = of_submodule(place)
    if within is None:
        return False  # not checked out
    if depth >= _DEEPEST:
        raise _Doubt
    revision = head(within).revision
    if not revision:
        raise _Doubt
    if bytes.fromhex(revision.decode()) != entry.oid:
        return True
    told = _dirty(within, budget, None, depth + 1)
    if told is None:
        raise _Doubt
    return told


# --- The index against the commit ---------------------------------------------------------------------------


def _staged(repository: Repository, index: Index, budget: Budget) -> bool:
    """Whether the index differs from the tree of the commit; raises `_Doubt`."""
    revision = head(repository).revision
    if not revision or any_replaced(repository):
        raise _Doubt
    objects = Objects(repository, budget)
    try:
        commit = objects.read(bytes.fromhex(revision.decode()), b"commit")
        first, _, _ = commit.partition(b"\n")
        if not first.startswith(b"tree "):
            raise _Doubt
        oid = bytes.fromhex(first[5:].decode())
        if index.tree is not None and index.tree.entries >= 0:
            return index.tree.oid != oid  # what an untouched index is known to be
        return _differs(_Nested(index), index.tree, oid, objects)
    except (Missing, ValueError) as error:
        raise _Doubt from error
    finally:
        objects.close()


class _Nested:
    """A folder of the index: its files, and the folders in it."""

    __slots__ = ("files", "folders")

    def __init__(self, index: Index | None = None) -> None:
        self.files: dict[bytes, tuple[int, bytes]] = {}
        self.folders: dict[bytes, _Nested] = {}
        for entry in () if index is None else index.entries:
            at = self
            *above, name = entry.path.split(b"/")
            for folder in above:
                nested = at.folders.get(folder)
                if nested is None:
                    nested = at.folders[folder] = _Nested()
                at = nested
            at.files[name] = (entry.mode, entry.oid)


def _differs(folder: _Nested, known: Subtree | None, oid: bytes, objects: Objects) -> bool:
    if known is not None and known.entries >= 0:
        return known.oid != oid
    tracked, folders = _parts(objects.read(oid, b"tree"), len(oid))
    if tracked != folder.files or folders.keys() != folder.folders.keys():
        return True
    return any(
        _differs(nested, None if known is None else known.below.get(name), folders[name], objects)
        for name, nested in folder.folders.items()
    )


def _parts(tree: bytes, oid_bytes: int) -> tuple[dict[bytes, tuple[int, bytes]], dict[bytes, bytes]]:
    """Files and folders of a tree object."""
    tracked: dict[bytes, tuple[int, bytes]] = {}
    folders: dict[bytes, bytes] = {}
    at = 0
    while at < len(tree):
        blank = tree.index(b" ", at)
        zero = tree.index(b"\0", blank)
        mode, name = int(tree[at:blank], 8), tree[blank + 1 : zero]
        at = zero + 1 + oid_bytes
        oid = tree[zero + 1 : at]
        if mode == _FOLDER:
            folders[name] = oid
        else:
            if stat.S_ISREG(mode):  # old commits have 100664
                mode = 0o100755 if mode & 0o100 else 0o100644
            tracked[name] = (mode, oid)
    return tracked, folders


# --- The working tree against the index ---------------------------------------------------------------------


class _Files:
    """The working tree of a repository beside its index."""

    def __init__(self, repository: Repository, index: Index, budget: Budget) -> None:
        self._root = repository.root
        self._prefix = os.path.join(repository.root, b"")
        self._index = index
        self._budget = budget
        self._executable = 0o100 if is_true(repository.settings, "core.filemode", True) else 0
        self._sparse = is_true(repository.settings, "core.sparsecheckout", False) and not is_true(
            repository.settings, "sparse.expectfilesoutsideofpatterns", False
        )
        self._folders: dict[bytes, bool] = {b"": True}
        self._conversion: _Conversion | None = None
        self._repository = repository
        self._sha: Any = hashlib.sha256 if repository.oid_bytes == 32 else hashlib.sha1

    def lacks(self, program: bytes) -> bool:
        """Whether ``program`` is in the working tree without being tracked."""
        if not program.startswith(self._prefix):
            return False
        path = program[len(self._prefix) :]
        return not any(entry.path == path for entry in self._index.entries)

    def is_there_again(self, entry: Entry) -> bool:
        """Whether the file is there though the tree is sparse: then git looks at it as at any other."""
        return self._sparse and os.path.lexists(self._prefix + entry.path)

    def differs(self, entry: Entry) -> bool:
        """Whether the file has changed; raises `_Doubt` where that cannot be told."""
        folder = entry.path.rpartition(b"/")[0]
        there = self._folders.get(folder)
        if not (self._is_folder(folder) if there is None else there):
            return True
        try:
            now = os.lstat(self._prefix + entry.path)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError as error:
            raise _Doubt from error
        mode = now.st_mode
        other = mode ^ entry.mode
        if other & _KIND or (other & self._executable and entry.mode != _SYMLINK):
            return True
        same_size = now.st_size & 0xFFFFFFFF == entry.size
        if not same_size and entry.size:
            return True
        if (
            same_size
            and now.st_mtime_ns == entry.mtime
            and now.st_ctime_ns == entry.ctime
            and now.st_ino & 0xFFFFFFFF == entry.inode
            and entry.mtime < self._index.written  # else it may have changed after git looked
        ):
            return False
        return self._content_differs(entry, now.st_size)

    def _is_folder(self, path: bytes) -> bool:
        """Whether ``path`` is a folder of the working tree itself: git follows no link to another."""
        above = path.rpartition(b"/")[0]
        known = self._folders.get(above)
        there = self._is_folder(above) if known is None else known
        if there:
            try:
                there = stat.S_ISDIR(os.lstat(self._prefix + path).st_mode)
            except OSError:
                there = False
        self._folders[path] = there
        return there

    def _content_differs(self, entry: Entry, size: int) -> bool:
        self._budget.check()
        path = self._prefix + entry.path
        if size > _LARGEST_FILE:
            raise _Doubt
        digest = self._sha(b"blob %d\0" % size, usedforsecurity=False)
        line_ends = False
        try:
            if entry.mode == _SYMLINK:
                digest.update(os.readlink(path))
                return bool(digest.digest() != entry.oid)
            for piece in files.pieces(path, size, follow=False):
                digest.update(piece)
                line_ends = line_ends or b"\r" in piece
                self._budget.check()
        except (OSError, ValueError) as error:
            raise _Doubt from error
        same = digest.digest() == entry.oid
        # Line ends as they are in the commit are a difference where git is to write others.
        if not same or line_ends:
            if self._conversion is None:
                self._conversion = _Conversion(self._repository)
            if self._conversion.possible(entry.path, line_ends):
                raise _Doubt
        return not same


class _Conversion:
    """Whether git may convert a file before it compares it: then other bytes may be the same content."""

    def __init__(self, repository: Repository) -> None:
        self._root = repository.root
        home = os.environ.get("HOME", "")
        settings = os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
        places = [
            "/etc/gitconfig",
            os.path.join(settings, "git", "config"),
            os.path.join(home, ".gitconfig"),
        ]
        self._line_ends = False
        self._anything = any(name.startswith(_TOLD_GIT) and name not in _NO_SYSTEM for name in os.environ)
        for said in (
            *(parse(files.read(place, _LARGEST_LIST) or b"") for place in places),
            repository.settings,
        ):
            if (
                any(key.startswith(("include.", "includeif.")) for key in said)
                or "core.attributesfile" in said
            ):
                self._anything = True
            if said.get("core.autocrlf", "false").lower() not in ("false", "no", "off", "0", ""):
                self._line_ends = True
        self._shared = [
            os.fsencode("/etc/gitattributes"),
            os.fsencode(os.path.join(settings, "git", "attributes")),
            os.path.join(repository.common, b"info", b"attributes"),
        ]
        self._lists: dict[bytes, list[tuple[bytes, bytes]] | None] = {}

    def possible(self, path: bytes, line_ends: bool) -> bool:
        """Whether it may be so of the file ``path``; ``line_ends``: it has carriage returns."""
        if self._anything:
            return True
        if self._line_ends and line_ends:
            return True
        folder, _, name = path.rpartition(b"/")
        lists = [*self._shared, os.path.join(self._root, b".gitattributes")]
        parts = folder.split(b"/") if folder else []
        lists += [
            os.path.join(self._root, *parts[: depth + 1], b".gitattributes") for depth in range(len(parts))
        ]
        for place in lists:
            rules = self._rules(place)
            if rules is None:
                return True
            for pattern, said in rules:
                if not _applies(pattern, name):
                    continue
                if line_ends or not _only_line_ends(said):
                    return True
        return False

    def _rules(self, place: bytes) -> list[tuple[bytes, bytes]] | None:
        """Pattern and attributes of the lines that convert; None for a list that cannot be read."""
        if place not in self._lists:
            content: bytes | None = b""
            if os.path.lexists(place):
                content = files.read(place, _LARGEST_LIST)
            self._lists[place] = None if content is None else list(_converting(content))
        return self._lists[place]


def _converting(content: bytes) -> list[tuple[bytes, bytes]]:
    rules = []
    for line in content.splitlines():
        line = line.strip()
        if line and not line.startswith(b"#") and any(word in line for word in _CONVERTING):
            pattern, _, said = line.partition(b" ") if b"\t" not in line else line.partition(b"\t")
            rules.append((pattern, said))
    return rules


def _applies(pattern: bytes, name: bytes) -> bool:
    """Whether a line may be about a file called ``name``; it is where the pattern is more than an ending."""
    if pattern.startswith(b"*.") and not set(pattern[2:]) & set(b'*?[]/\\"'):
        return name.lower().endswith(pattern[1:].lower())
    return True


def _only_line_ends(said: bytes) -> bool:
    """Whether attributes convert line ends and nothing else."""
    words = [word.lstrip(b"-!").partition(b"=")[0] for word in said.split()]
    plain = (b"diff", b"merge", b"whitespace", b"export-ignore", b"export-subst", b"delta", b"encoding")
    return all(word in _LINE_ENDS or word in plain or word.startswith(b"linguist-") for word in words)
