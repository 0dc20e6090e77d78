# SPDX-License-Identifier: Apache-2.0
"""Hosts as trees of files: what stands for /proc and /sys in tests, from one text file each.

``tests/data/hosts/<shape>.txt`` is written as ``tail -n +1`` prints several files: a line ``==> path <==``,
then the content up to the next such line, exactly. ``==> path -> target <==`` is a symbolic link,
``==> path/ <==`` an empty folder. What stands before the first one is a comment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from grademl_otel.sampling.roots import Roots
from grademl_otel.sampling.source import Reading

HOSTS: Final = Path(__file__).resolve().parents[1] / "data" / "hosts"
_HEADER: Final = re.compile(rb"^==> (.+?)(?: -> (.+?))? <==\n", re.MULTILINE)


@dataclass(frozen=True)
class HostTree:
    """A host's files below a folder, as they can be read, changed and taken away."""

    root: Path

    @property
    def roots(self) -> Roots:
        return Roots(self.root / "proc", self.root / "sys")

    def files(self) -> list[str]:
        """Return the paths of all regular files, sorted."""
        found = []
        for folder, _, names in os.walk(self.root):
            found += [os.path.relpath(os.path.join(folder, name), self.root) for name in names]
        return sorted(path for path in found if not (self.root / path).is_symlink())

    def read(self, path: str) -> str:
        return (self.root / path).read_text()

    def write(self, path: str, content: str | bytes) -> None:
        """Give a file this content in place, as the kernel does: who has it open reads that."""
        at = self.root / path
        at.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        descriptor = os.open(at, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def replace(self, path: str, old: str, new: str) -> None:
        """Change a part of a file, which has to be there exactly once."""
        content = self.read(path)
        assert content.count(old) == 1, f"{path}: {content.count(old)} times {old!r}"
        self.write(path, content.replace(old, new))

    def remove(self, path: str) -> None:
        """Take away a file or a link."""
        (self.root / path).unlink()

    def add(self, text: bytes) -> None:
        """Add what a text in the form of the module's docstring tells of."""
        headers = list(_HEADER.finditer(text))
        ends = [header.start() for header in headers[1:]] + [len(text)]
        for header, end in zip(headers, ends, strict=True):
            path, target = header[1].decode(), header[2]
            at = self.root / path
            assert self.root in Path(os.path.normpath(at)).parents, path
            at.parent.mkdir(parents=True, exist_ok=True)
            if target is not None:
                at.symlink_to(target.decode())
            elif path.endswith("/"):
                at.mkdir(exist_ok=True)
            else:
                at.write_bytes(text[header.end() : end])


def unpack(shape: str, to: Path) -> HostTree:
    """Write the host of this shape (a name in `HOSTS`) below a folder."""
    tree = HostTree(to)
    tree.add((HOSTS / f"{shape}.txt").read_bytes())
    return tree


def shapes() -> list[str]:
    """Return the names of all recorded hosts."""
    return sorted(path.stem for path in HOSTS.glob("*.txt"))


def told(readings: Iterable[Reading]) -> dict[str, int | float]:
    """Return readings by ``name{key=value,...}``, each of which is there once."""
    found: dict[str, int | float] = {}
    for series, value in readings:
        attributes = ",".join(f"{key}={each}" for key, each in sorted(series.attributes.items()))
        key = f"{series.metric.name}{{{attributes}}}" if attributes else series.metric.name
        assert key not in found, key
        found[key] = value
    return found


def columns(readings: Iterable[Reading]) -> dict[tuple[str, str], int | float]:
    """Return the readings that resource tables take, by column and device, each of which is there once."""
    found: dict[tuple[str, str], int | float] = {}
    for series, value in readings:
        if series.metric.column:
            key = series.metric.column, series.device
            assert key not in found, key
            found[key] = value
    return found
