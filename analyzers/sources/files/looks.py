# SPDX-License-Identifier: Apache-2.0
"""What files look like from outside: formats, compressions, sizes, last lines; for `grademl doctor`."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Final

from grademl_otel.analyzers.errors import GrademlError
from grademl_otel.analyzers.sources.base import Probe
from grademl_otel.analyzers.sources.files import paths
from grademl_otel.analyzers.sources.files.blocks import blocks_of, opened
from grademl_otel.analyzers.sources.files.compression import compression, peeked
from grademl_otel.analyzers.sources.files.containers import unbroken
from grademl_otel.analyzers.sources.formats import kinds, sniff

_SHOWN: Final = 20
_TAIL: Final = 4096
_HEAD: Final = 4096


def probe_files(where: str) -> Probe:
    """Return what `Source.probe` returns for the files that ``where`` stands for."""
    if where == paths.STDIN:
        return Probe("files", notes=("standard input, which can be read once only",))
    try:
        files = list(chain.from_iterable(chain.from_iterable(paths.groups(where, None))))
    except GrademlError as error:
        return Probe("files", problems=(str(error),))
    notes: list[str] = []
    problems: list[str] = []
    formats: dict[str, int] = {}
    total = 0
    for path in files:
        try:
            looks, notable = _look(path)
            total += path.stat().st_size
        except GrademlError as error:
            problems.append(str(error))
            continue
        except OSError as error:
            problems.append(str(paths.unreadable(str(path), error)))
            continue
        formats[looks] = formats.get(looks, 0) + 1
        notes += [f"{path}: {note}" for note in notable]
    notes = [
        *(f"{count:,} {'file' if count == 1 else 'files'} of {looks}" for looks, count in formats.items()),
        *notes,
    ]
    if len(notes) > _SHOWN:
        notes = [*notes[:_SHOWN], f"and {len(notes) - _SHOWN} more"]
    limits = {"files": f"{len(files):,}", "size": f"{total:,} bytes"}
    return Probe("files", limits=limits, notes=tuple(notes), problems=tuple(problems))


def _look(path: Path) -> tuple[str, list[str]]:
    """Return what a file holds, in words, and what is notable of it."""
    if not path.is_file():
        return "what is no regular file", []
    with opened(path) as stream:
        packed = compression(stream.read(4))
        size = stream.seek(0, 2)
        stream.seek(max(0, size - _TAIL))
        tail = stream.read(_TAIL)
    if not size:
        return "nothing", ["empty so far"]
    faults: list[str] = []
    head, _ = peeked(unbroken(blocks_of(path), faults), _HEAD)
    kind = sniff.holds(head[: sniff.HEAD])
    what = kinds.called(head) if kind is sniff.Holds.TEXT else kind.value
    if not head:
        what = "nothing that can be read"
    looks = f"{what}, {packed}" if packed else what
    notable = list(faults)
    if (
        kind is sniff.Holds.TEXT
        and not packed
        and not tail.endswith(b"\n")
        and tail.rstrip()[-1:] not in b"]}"
    ):
        notable.append("the last line is cut; it is being written, or its writer was ended")
    return looks, notable
