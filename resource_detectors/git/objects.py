# SPDX-License-Identifier: Apache-2.0
"""Commits and trees, from loose objects and packs.

Packs are read by `pread`, never mapped: a mapped file that somebody truncates would kill the training.
"""

from __future__ import annotations

import os
import zlib
from typing import Final

from grademl_otel.resource_detectors import files
from grademl_otel.resource_detectors.budget import Budget
from grademl_otel.resource_detectors.git.repository import Repository

_LARGEST: Final = 1 << 22
"""Bytes of a commit or tree, unpacked."""
_MOST_PACKS: Final = 64
_MOST_STORES: Final = 5
_DEEPEST_DELTA: Final = 60  # git makes chains of 50
_CHUNK: Final = 4096
_TYPES: Final = {1: b"commit", 2: b"tree", 3: b"blob", 4: b"tag"}
_OFS_DELTA: Final = 6
_REF_DELTA: Final = 7
_MAGIC: Final = b"\377tOc\0\0\0\2"


class Missing(Exception):
    """An object that is not here, or is not what it should be."""


class Objects:
    """The objects of one repository; open files are closed by `close`."""

    def __init__(self, repository: Repository, budget: Budget) -> None:
        self._oid_bytes = repository.oid_bytes
        self._budget = budget
        self._stores = _stores(os.path.join(repository.common, b"objects"))
        self._packs: list[_Pack] | None = None

    def close(self) -> None:
        for pack in self._packs or ():
            pack.close()
        self._packs = None

    def read(self, oid: bytes, kind: bytes) -> bytes:
        """Return the content of the object ``oid``, which is a ``kind``; raises `Missing`, `OverBudget`."""
        found, content = self._find(oid, _DEEPEST_DELTA)
        if found != kind:
            raise Missing
        return content

    def _find(self, oid: bytes, depth: int) -> tuple[bytes, bytes]:
        self._budget.check()
        name = oid.hex().encode()
        for store in self._stores:
            packed = files.read(os.path.join(store, name[:2], name[2:]), _LARGEST)
            if packed is not None:
                return _loose(packed)
        for pack in self._open_packs():
            offset = pack.offset(oid)
            if offset is not None:
                return self._at(pack, offset, depth)
        raise Missing

    def _at(self, pack: _Pack, offset: int, depth: int) -> tuple[bytes, bytes]:
        """The object at ``offset`` of ``pack``, its deltas applied."""
        if depth <= 0:
            raise Missing
        self._budget.check()
        kind, size, at = pack.header(offset)
        if size > _LARGEST:
            raise Missing
        if kind == _OFS_DELTA:
            distance, at = pack.distance(at)
            base = self._at(pack, offset - distance, depth - 1)
        elif kind == _REF_DELTA:
            oid = pack.bytes_at(at, self._oid_bytes)
            at += self._oid_bytes
            within = pack.offset(oid)
            base = self._find(oid, depth - 1) if within is None else self._at(pack, within, depth - 1)
        elif kind in _TYPES:
            return _TYPES[kind], pack.inflated(at, size, self._budget)
        else:
            raise Missing
        self._budget.check()
        return base[0], _patched(base[1], pack.inflated(at, size, self._budget))

    def _open_packs(self) -> list[_Pack]:
        if self._packs is None:
            self._packs = []
            for store in self._stores:
                folder = os.path.join(store, b"pack")
                for name in sorted(files.names(os.fsdecode(folder), 4 * _MOST_PACKS)):
                    if name.endswith(".idx") and len(self._packs) < _MOST_PACKS:
                        self._budget.check()
                        self._packs.append(_Pack(os.path.join(folder, os.fsencode(name)), self._oid_bytes))
        return self._packs


class _Pack:
    """A pack and its index of version 2; one that cannot be read holds nothing."""

    def __init__(self, index: bytes, oid_bytes: int) -> None:
        self._oid_bytes = oid_bytes
        self._path = index[: -len(b".idx")] + b".pack"
        self._data = -1
        self._index = -1
        self._fanout: list[int] = []
        try:
            self._index = os.open(index, files.FLAGS)
            head = os.pread(self._index, 8 + 1024, 0)
        except OSError:
            return
        if head[:8] == _MAGIC and len(head) == 8 + 1024:
            counts = [int.from_bytes(head[at : at + 4], "big") for at in range(8, 8 + 1024, 4)]
            if counts == sorted(counts):
                self._fanout = counts

    def close(self) -> None:
        for descriptor in (self._index, self._data):
            if descriptor >= 0:
                os.close(descriptor)
        self._index = self._data = -1
        self._fanout = []

    def offset(self, oid: bytes) -> int | None:
        """Where the object begins in the pack; None when it is not in it."""
        if not self._fanout:
            return None
        first = oid[0]
        low, high = self._fanout[first - 1] if first else 0, self._fanout[first]
        count = self._fanout[255]
        names = 8 + 1024
        width = self._oid_bytes
        while low < high:
            middle = (low + high) // 2
            found = self._index_at(names + middle * width, width)
            if found == oid:
                return self._offset_of(names + count * (width + 4), count, middle)
            if found < oid:
                low = middle + 1
            else:
                high = middle
        return None

    def _offset_of(self, table: int, count: int, number: int) -> int:
        offset = int.from_bytes(self._index_at(table + 4 * number, 4), "big")
        if offset & 1 << 31:  # of packs above 2 GiB
            place = table + 4 * count + 8 * (offset & (1 << 31) - 1)
            offset = int.from_bytes(self._index_at(place, 8), "big")
        return offset

    def _index_at(self, at: int, length: int) -> bytes:
        return _exactly(self._index, at, length)

    def bytes_at(self, at: int, length: int) -> bytes:
        return _exactly(self._opened(), at, length)

    def header(self, at: int) -> tuple[int, int, int]:
        """Kind of the object at ``at``, its size unpacked, and where its data begins."""
        data = self._some(at, 16)
        byte = data[0]
        kind, size, shift, used = byte >> 4 & 7, byte & 15, 4, 1
        while byte & 128:
            if used >= len(data):
                raise Missing
            byte = data[used]
            size |= (byte & 127) << shift
            shift += 7
            used += 1
        return kind, size, at + used

    def distance(self, at: int) -> tuple[int, int]:
        """How far before this object the base of its delta begins, and where its data begins."""
        data = self._some(at, 16)
        byte = data[0]
        value, used = byte & 127, 1
        while byte & 128:
            if used >= len(data):
                raise Missing
            byte = data[used]
            value = (value + 1 << 7) | byte & 127
            used += 1
        if value <= 0:
            raise Missing
        return value, at + used

    def inflated(self, at: int, size: int, budget: Budget) -> bytes:
        """``size`` bytes from the stream that begins at ``at``; raises `Missing`, `OverBudget`."""
        unpacker = zlib.decompressobj()
        parts: list[bytes] = []
        length = 0
        try:
            while length < size:
                budget.check()  # a stream may go on without a byte in it
                data = self._some(at, _CHUNK)
                at += len(data)
                part = unpacker.decompress(data, size - length + 1)
                if not part and unpacker.eof:
                    break
                parts.append(part)
                length += len(part)
                while unpacker.unconsumed_tail and length < size:
                    part = unpacker.decompress(unpacker.unconsumed_tail, size - length + 1)
                    parts.append(part)
                    length += len(part)
        except zlib.error as error:
            raise Missing from error
        if length != size:
            raise Missing
        return b"".join(parts)

    def _some(self, at: int, most: int) -> bytes:
        try:
            data = os.pread(self._opened(), most, at)
        except (OSError, OverflowError, ValueError) as error:
            raise Missing from error
        if not data:
            raise Missing
        return data

    def _opened(self) -> int:
        if self._data < 0:
            try:
                self._data = os.open(self._path, files.FLAGS)
            except OSError as error:
                raise Missing from error
        return self._data


def _stores(objects: bytes) -> list[bytes]:
    """The folder of objects, and those that it borrows from."""
    found = [objects]
    for store in found:
        told = files.read(os.path.join(store, b"info", b"alternates"))
        for line in (told or b"").splitlines():
            place = os.path.normpath(os.path.join(store, line))
            if (
                line
                and not line.startswith((b"#", b'"'))
                and place not in found
                and len(found) < _MOST_STORES
            ):
                found.append(place)
    return found


def _loose(packed: bytes) -> tuple[bytes, bytes]:
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(packed, _LARGEST + 64)
    except zlib.error as error:
        raise Missing from error
    head, zero, content = data.partition(b"\0")
    kind, _, size = head.partition(b" ")
    if not zero or not size.isdigit() or int(size[:12]) != len(content):
        raise Missing
    return kind, content


def _patched(base: bytes, delta: bytes) -> bytes:
    """``base`` with the copies and insertions of ``delta``."""
    try:
        size, at = _varint(delta, 0)
        if size != len(base):
            raise Missing
        size, at = _varint(delta, at)
        if size > _LARGEST:
            raise Missing
        parts: list[bytes] = []
        length = 0
        while at < len(delta):
            code = delta[at]
            at += 1
            if code & 128:
                place = count = 0
                for bit in range(4):
                    if code >> bit & 1:
                        place |= delta[at] << 8 * bit
                        at += 1
                for bit in range(3):
                    if code >> 4 + bit & 1:
                        count |= delta[at] << 8 * bit
                        at += 1
                part = base[place : place + (count or 0x10000)]
            elif code:
                part = delta[at : at + code]
                at += code
            else:
                raise Missing
            parts.append(part)
            length += len(part)
            if length > size:
                raise Missing
    except IndexError as error:
        raise Missing from error
    if length != size:
        raise Missing
    return b"".join(parts)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if not byte & 128:
            return value, at
        if shift > 63:
            raise Missing


def _exactly(descriptor: int, at: int, length: int) -> bytes:
    try:
        data = os.pread(descriptor, length, at)
    except (OSError, OverflowError, ValueError) as error:
        raise Missing from error
    if len(data) != length:
        raise Missing
    return data
