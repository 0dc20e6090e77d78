# SPDX-License-Identifier: Apache-2.0
"""Copies on disk that chance has changed: the bytes of their files, the values and types in their tables."""

from __future__ import annotations

import atexit
import io
import random
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from grademl_otel.analyzers.copy.pull import origin_of, pull
from grademl_otel.analyzers.model.columns import Telemetry
from grademl_otel.analyzers.sources import open_source
from grademl_otel.analyzers.sources.base import Selection

from ..support.every_format import otlp_protobuf
from ..support.mutations import of_bytes
from ..support.truth import SPANS
from .mutated_servers import Form

_NUMBERS: Final = (-1, 0, 1, 2, 5, 127, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
_TYPES: Final = (
    pa.string(),
    pa.binary(),
    pa.float64(),
    pa.int8(),
    pa.int64(),
    pa.uint64(),
    pa.list_(pa.int32()),
)


@lru_cache(maxsize=1)
def _folder() -> Path:
    """A copy of a few spans; what is read is a changed copy of it."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source = folder / "spans.pb"
    source.write_bytes(otlp_protobuf(SPANS[:4]))
    opened = open_source(str(source))
    pull(opened, folder / "copy", origin_of(str(source), opened.uri, Selection(), None))
    return folder


def _file() -> Path:
    (path,) = (_folder() / "copy").glob("*.parquet")
    return path


def _of_file(chance: random.Random) -> bytes:
    return of_bytes(_original(_file()))(chance)


def _of_manifest(chance: random.Random) -> bytes:
    return of_bytes(_original(_folder() / "copy" / "manifest.sqlite"))(chance)


@lru_cache(maxsize=4)
def _original(path: Path) -> bytes:
    return path.read_bytes()


def _of_table(chance: random.Random) -> bytes:
    """Drop, rename, retype, empty or overwrite columns; the file itself is in order."""
    table = pq.read_table(io.BytesIO(_original(_file())))
    for _ in range(chance.choice((1, 1, 2))):
        ix = chance.randrange(table.num_columns)
        name, column = table.column_names[ix], table.column(ix)
        match chance.randrange(5):
            case 0:
                table = table.remove_column(ix)
            case 1:
                table = table.rename_columns(
                    ["x" if at == ix else each for at, each in enumerate(table.column_names)]
                )
            case 2:
                table = table.set_column(ix, name, pa.nulls(table.num_rows, chance.choice(_TYPES)))
            case 3:
                table = table.set_column(ix, name, pa.nulls(table.num_rows, column.type))
            case _:
                table = table.set_column(ix, name, _overwritten(column, chance))
        if not table.num_columns:
            break
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def _overwritten(column: Any, chance: random.Random) -> Any:
    values = column.to_pylist()
    values[chance.randrange(len(values))] = chance.choice(_NUMBERS)
    try:
        return pa.array(values, column.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return pa.nulls(len(values), column.type)


def _read_file(data: bytes) -> Telemetry:
    path = _folder() / "changed.parquet"
    path.write_bytes(data)
    return open_source(str(path)).read(Selection())


def _read_folder(data: bytes) -> Telemetry:
    folder = _folder() / "changed"
    if not folder.is_dir():
        folder.mkdir()
        shutil.copy(_file(), folder)
    (folder / "manifest.sqlite").write_bytes(data)
    return open_source(str(folder)).read(Selection())


COPY: Final[tuple[Form, ...]] = (
    *((_of_file, _read_file),) * 2,
    (_of_table, _read_file),
    (_of_manifest, _read_folder),
)
