# SPDX-License-Identifier: Apache-2.0
"""The index: what of the working tree is tracked, and what was known of each file when git last looked."""

from __future__ import annotations

import os
import struct
from typing import Final, NamedTuple

from grademl_otel.resource_detectors import files
from grademl_otel.resource_detectors.budget import Budget

_LARGEST: Final = 1 << 24
_FIXED: Final = {20: struct.Struct(">10I20sH"), 32: struct.Struct(">10I32sH")}
"""ctime and mtime (s, ns), device, inode, mode, user, group, size; name of the blob, flags; by its length."""
_SECOND: Final = 1_000_000_000
_LONG_NAME: Final = 0xFFF
_OFTEN: Final = 512
"""Entries between two looks at the time."""
_EXTENDED: Final = 0x4000
_KEPT_OUT: Final = 0x4000  # in the extended flags: skip-worktree
_INTENDED: Final = 0x2000
_TRUSTED: Final = 0x8000  # assume-valid
_STAGE: Final = 0x3000  # of a conflict
_SPECIAL: Final = _EXTENDED | _TRUSTED | _STAGE
_SLASH: Final = 0x2F


class Unreadable(Exception):
    """There is no index, or none of a kind that is known here."""


class Entry(NamedTuple):
    """A tracked file."""

    path: bytes
    mode: int
    oid: bytes
    size: int
    """Of the file when git last looked, modulo 2**32; 0 also where git wants its content to be looked at."""
    mtime: int
    """Unix ns, as `ctime`."""
    ctime: int
    inode: int
    """Modulo 2**32."""
    trusted: bool
    """Git does not look at the file: `assume-unchanged`."""
    kept_out: bool
    """Git does not expect the file: `skip-worktree`."""


class Subtree:
    """What the index knows of the tree object of a folder."""

    __slots__ = ("below", "entries", "oid")

    def __init__(self, entries: int, oid: bytes, below: dict[bytes, Subtree]) -> None:
        self.entries = entries
        """Tracked files in and below it; negative where the object is not known."""
        self.oid = oid
        self.below = below


class Index:
    """All of an index that tells of changes."""

    __slots__ = ("entries", "pending", "tree", "written")

    def __init__(self, entries: list[Entry], pending: bool, tree: Subtree | None, written: int) -> None:
        self.entries = entries
        self.pending = pending
        """A conflict, or a file that is to be added: this index is no tree yet."""
        self.tree = tree
        self.written = written
        """When it was written, Unix ns, at a full second: a file changed since then may look as it did."""


def read(folder: bytes, oid_bytes: int, budget: Budget) -> Index:
    """Return the index in ``folder``; raises `Unreadable`, `OverBudget`."""
    path = os.path.join(folder, b"index")
    try:
        written = os.stat(path).st_mtime_ns // _SECOND * _SECOND  # first: it may be replaced meanwhile
        content = files.read(path, _LARGEST)
        if content is None:
            raise Unreadable
        return _parse(content, oid_bytes, written, budget)
    except (OSError, struct.error, IndexError, ValueError) as error:
        raise Unreadable from error


def count(folder: bytes) -> int:
    """Return how many entries the index in ``folder`` says that it has, 0 where there is none."""
    try:
        descriptor = os.open(os.path.join(folder, b"index"), files.FLAGS)
    except OSError:
        return 0
    try:
        head = os.read(descriptor, 12)
    except OSError:
        return 0
    finally:
        os.close(descriptor)
    return int.from_bytes(head[8:], "big") if len(head) == 12 and head[:4] == b"DIRC" else 0


def _parse(content: bytes, oid_bytes: int, written: int, budget: Budget) -> Index:
    if content[:4] != b"DIRC":
        raise Unreadable
    version, number = struct.unpack_from(">2I", content, 4)
    if version not in (2, 3, 4) or number * (42 + oid_bytes) > len(content):
        raise Unreadable
    entries: list[Entry] = []
    pending = False
    at = 12
    fixed = _FIXED[oid_bytes]
    path = b""
    end = len(content) - oid_bytes  # a checksum follows
    for index in range(number):
        if index % _OFTEN == 0:
            budget.check()
        start = at
        ctime_s, ctime_ns, mtime_s, mtime_ns, _, inode, mode, _, _, size, oid, flags = fixed.unpack_from(
            content, at
        )
        at += fixed.size
        more = 0
        if flags & _EXTENDED:
            more = content[at] << 8 | content[at + 1]
            at += 2
        name_length = flags & _LONG_NAME
        if version == 4:
            cut, at = _offset(content, at)
            stop = content.index(b"\0", at)
            if cut > len(path):
                raise Unreadable
            path = path[: len(path) - cut] + content[at:stop]
            at = stop + 1
        else:
            stop = at + name_length if name_length < _LONG_NAME else content.index(b"\0", at)
            path = content[at:stop]
            at = start + (stop - start + 8 & ~7)
        if at > end or not path or path[0] == _SLASH or (b".." in path and not _inside(path)):
            raise Unreadable
        trusted = kept_out = False
        if flags & _SPECIAL:
            pending = pending or bool(flags & _STAGE or more & _INTENDED)
            trusted, kept_out = bool(flags & _TRUSTED), bool(more & _KEPT_OUT)
        mtime, ctime = mtime_s * _SECOND + mtime_ns, ctime_s * _SECOND + ctime_ns
        entries.append(Entry(path, mode, oid, size, mtime, ctime, inode, trusted, kept_out))
    return Index(entries, pending, _extensions(content, at, end, oid_bytes), written)


def _inside(path: bytes) -> bool:
    """Whether ``path`` leads to no folder above: git puts no such path there."""
    return b".." not in path.split(b"/")


def _extensions(content: bytes, at: int, end: int, oid_bytes: int) -> Subtree | None:
    tree = None
    while at < end:
        name = content[at : at + 4]
        (size,) = struct.unpack_from(">I", content, at + 4)
        data = content[at + 8 : at + 8 + size]
        at += 8 + size
        if at > end or len(data) != size:
            raise Unreadable
        if name == b"TREE":
            _, tree, used = _subtree(data, 0, oid_bytes, 0)
            if used != size:
                raise Unreadable
        elif not name[:1].isupper():  # a split index, a sparse one: without knowing it nothing is to be read
            raise Unreadable
    return tree


def _subtree(data: bytes, at: int, oid_bytes: int, depth: int) -> tuple[bytes, Subtree, int]:
    stop = data.index(b"\0", at)
    name = data[at:stop]
    line = data.index(b"\n", stop)
    entries, children = map(int, data[stop + 1 : line].split(b" "))
    at = line + 1
    oid = b""
    if entries >= 0:
        oid = data[at : at + oid_bytes]
        at += oid_bytes
    if depth > 200 or children < 0 or len(oid) not in (0, oid_bytes):
        raise Unreadable
    below: dict[bytes, Subtree] = {}
    for _ in range(children):
        child, found, at = _subtree(data, at, oid_bytes, depth + 1)
        below[child] = found
    return name, Subtree(entries, oid, below), at


def _offset(content: bytes, at: int) -> tuple[int, int]:
    """The number that packs and indexes of version 4 write in groups of 7 bits."""
    byte = content[at]
    at += 1
    value = byte & 127
    while byte & 128:
        byte = content[at]
        at += 1
        value = (value + 1 << 7) | byte & 127
        if value > 1 << 32:
            raise Unreadable
    return value, at
