# SPDX-License-Identifier: Apache-2.0
"""A ring without a name: memory that nobody can truncate, and the pointer by which a relay finds it.

A mapped file that somebody truncates kills the process that maps it, at the next mark. So on Linux the ring
is a memory file whose size is sealed. It has no name; relays come to it through the owner's descriptor:
``STEM.memfd`` in their folder is a symbolic link whose text is "pid descriptor device inode". A link, because
it is made whole at once and takes no page, so that a full ``/dev/shm`` still has room for it; it is read, and
never followed.

Nothing is trusted that a pointer says: what lies behind it must be sealed memory of this user with the inode
that is named.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

_SEALS: Final = 0x0002 | 0x0004
"""F_SEAL_SHRINK, F_SEAL_GROW"""
_SEAL_SEAL: Final = 0x0001
_ADD_SEALS: Final = getattr(fcntl, "F_ADD_SEALS", 1033)
_GET_SEALS: Final = getattr(fcntl, "F_GET_SEALS", 1034)
_NOEXEC: Final = 0x0008
"""MFD_NOEXEC_SEAL; since Linux 6.3, where some systems demand it."""


class Pointer(NamedTuple):
    """Which descriptor of which process is a ring."""

    pid: int
    """As ``/proc`` names it, which need not be what the process calls itself."""
    descriptor: int
    device: int
    inode: int

    @classmethod
    def to(cls, descriptor: int) -> Pointer:
        """Return the pointer to ``descriptor`` of this process; raises OSError where /proc is not ours."""
        status = os.fstat(descriptor)
        pointer = cls(int(os.readlink("/proc/self")), descriptor, status.st_dev, status.st_ino)
        if not pointer.valid():
            raise FileNotFoundError(errno.ENOENT, "/proc does not show this process")
        return pointer

    @classmethod
    def read(cls, path: Path) -> Pointer:
        """Return what the link at ``path`` says; raises OSError when that is no pointer of ours."""
        if path.lstat().st_uid != os.getuid():
            raise PermissionError(errno.EPERM, "not of this user", str(path))
        try:
            pid, descriptor, device, inode = map(int, os.readlink(path).split())
        except ValueError:
            raise OSError(errno.EINVAL, "no pointer to a ring", str(path)) from None
        if pid <= 0 or descriptor < 0:
            raise OSError(errno.EINVAL, "no pointer to a ring", str(path))
        return cls(pid, descriptor, device, inode)

    def write(self, path: Path) -> None:
        """Make the link at ``path``; raises FileExistsError when anything is there."""
        os.symlink(" ".join(map(str, self)), path)

    @property
    def way(self) -> str:
        """The path by which another process of this user opens the ring."""
        return f"/proc/{self.pid}/fd/{self.descriptor}"

    def valid(self) -> bool:
        """Return True while that descriptor is that file; False once its process is gone."""
        try:
            return self.matches(os.stat(self.way))
        except OSError:
            return False

    def matches(self, status: os.stat_result) -> bool:
        """Return True when ``status`` is that of the file pointed to, as far as that can be seen."""
        return (
            stat.S_ISREG(status.st_mode)
            and status.st_uid == os.getuid()
            and (status.st_dev, status.st_ino) == (self.device, self.inode)
        )


def create_sealed(size: int) -> int:
    """Return a descriptor of ``size`` bytes of memory, all allocated, whose size nobody can change any more.

    Raises OSError where the system does not offer it.
    """
    if not hasattr(os, "memfd_create"):
        raise OSError(errno.ENOSYS, "no sealed memory on this system")
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        descriptor = os.memfd_create("grademl-ring", flags | _NOEXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        descriptor = os.memfd_create("grademl-ring", flags)
    try:
        os.posix_fallocate(descriptor, 0, size)
        fcntl.fcntl(descriptor, _ADD_SEALS, _SEALS | _SEAL_SEAL)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_sealed(pointer: Pointer, inherited: Iterable[int] = ()) -> int:
    """Return a descriptor of the ring that ``pointer`` names.

    ``inherited`` may hold one that the owner gave to this process, which outlives the owner. Raises
    FileNotFoundError when the ring is gone with its process, PermissionError when there is something else.
    """
    given = next((each for each in inherited if pointer.matches(os.fstat(each))), None)
    if given is not None:
        descriptor = os.dup(given)
    else:
        # Looked at before it is opened: opening a terminal or a device may have effects.
        if not pointer.matches(os.stat(pointer.way)):
            raise PermissionError(errno.EPERM, "points to something else", pointer.way)
        descriptor = os.open(pointer.way, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not pointer.matches(os.fstat(descriptor)) or _seals(descriptor) & _SEALS != _SEALS:
            raise PermissionError(errno.EPERM, "points to no sealed memory of this user", pointer.way)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _seals(descriptor: int) -> int:
    try:
        return fcntl.fcntl(descriptor, _GET_SEALS)
    except OSError:  # an ordinary file
        return 0
