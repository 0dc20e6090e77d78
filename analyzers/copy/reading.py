# SPDX-License-Identifier: Apache-2.0
"""Spans files read back: columns at once, attributes and events when they are first asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.copy.layout import COLUMNS, KEY, NUMBERS, SHARED, About
from grademl_otel.analyzers.copy.records import SCHEMA
from grademl_otel.analyzers.copy.stream import rows_of
from grademl_otel.analyzers.errors import SourceError
from grademl_otel.analyzers.model.raw import Form, RawColumn
from grademl_otel.analyzers.sources.batch import CodedNames, LinkBatch, SpanBatch
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.formats.forms import form_named
from grademl_otel.analyzers.sources.formats.otlp_values import otlp_attributes, otlp_scope

_LATER: Final = ("attributes", "events")


def read_table(path: Path, builder: SpanBuilder, live: npt.NDArray[np.bool_] | None = None) -> None:
    """Add the spans of a file to ``builder``, those of readings that are ``live`` (None: of all).

    Raises SourceError for what is no such file, or of another version.
    """
    with _explained(path):
        place = _Place(path, _identity(path))
        with place.opened() as file:
            about = _about(path, file.schema_arrow)
            resources = [builder.resource(("copy", bytes(raw)), _resource) for raw in about.resources]
            scopes = [builder.scope(("copy", bytes(raw)), _scope) for raw in about.scopes]
            now = [name for name in COLUMNS.names if name not in _LATER]
            for group in range(file.num_row_groups):
                if builder.full:
                    return
                table = file.read_row_group(group, columns=now, use_threads=False)
                for batch in _batches(place, group, table, about, resources, scopes, live):
                    builder.add(batch)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, IndexError, ValueError, msgspec.MsgspecError) as error:
        reason = " ".join(str(error).split())[:160]
        raise SourceError(f"{path}: no spans file of a copy, or damaged: {reason}") from None


def _identity(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _about(path: Path, schema: Any) -> About:
    metadata = schema.metadata or {}
    if KEY not in metadata:
        raise SourceError(f"{path}: Parquet, but no spans file of `grademl pull`")
    about = msgspec.json.decode(metadata[KEY], type=About)
    if about.schema != SCHEMA:
        raise SourceError(
            f"{path}: of format {about.schema}; this grademl reads {SCHEMA}: pull anew, or upgrade"
        )
    if not schema.remove_metadata().equals(COLUMNS):
        raise SourceError(f"{path}: not the columns of a spans file")
    return about


def _resource(key: Any) -> dict[str, Any]:
    return otlp_attributes(key[1])


def _scope(key: Any) -> dict[str, Any]:
    return otlp_scope(key[1])


@dataclass(frozen=True)
class _Place:
    """A file, and that it is still the same one: a pull may replace it meanwhile."""

    path: Path
    identity: tuple[int, ...]

    @contextmanager
    def opened(self) -> Iterator[Any]:
        with self.path.open("rb") as source:
            status = os.fstat(source.fileno())
            if (status.st_ino, status.st_size, status.st_mtime_ns) != self.identity:
                raise SourceError(f"{self.path}: was replaced while it was read; try again")
            # Threads would take memory of their own each: twice the CPU time for a file of this size.
            with pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False) as file:
                yield file


def _batches(
    place: _Place,
    group: int,
    table: Any,
    about: About,
    resources: list[int],
    scopes: list[int],
    live: npt.NDArray[np.bool_] | None,
) -> Iterator[SpanBatch]:
    """Yield the spans of one row group; several batches where forms differ."""
    if not len(table):
        return
    columns = {name: _whole(table[name]) for name in table.column_names}
    _check(columns, about)
    form, reading = numbers_of(columns.pop("form")), numbers_of(columns.pop("reading"))
    bounds = [0, *(np.flatnonzero(np.diff(form)) + 1).tolist(), len(form)]
    for begin, end in pairwise(bounds):
        some = {name: array.slice(begin, end - begin) for name, array in columns.items()}
        own, other = about.forms[form[begin]]
        attributes = _StoredColumn(form_named(own), _Later(place, group, "attributes", begin, end))
        events: RawColumn | None = attributes if other == SHARED else None
        if other is not None and other != SHARED:
            events = _StoredColumn(form_named(other), _Later(place, group, "events", begin, end))
        batch = _batch(some, attributes, events, resources, scopes)
        if live is not None:
            mask = live[reading[begin:end]]
            if not mask.all():
                batch = rows_of(batch, np.flatnonzero(mask))
        yield batch


def _check(columns: dict[str, Any], about: About) -> None:
    """Raise ValueError for values that no copy has and that would be taken for others."""
    for name, array in columns.items():
        if array.null_count:
            raise ValueError(f"{name} with nulls")
    bounds = {
        "form": (0, len(about.forms)),
        "resource_ix": (0, len(about.resources)),
        "scope_ix": (-1, len(about.scopes)),
        "start": (0, 1 << 63),
        "end": (0, 1 << 63),
    }
    for name, (low, high) in bounds.items():
        values = numbers_of(columns[name])
        if values.min() < low or values.max() >= high:
            raise ValueError(f"{name} out of bounds")
    trace = numbers_of(columns["trace_hi"]) | numbers_of(columns["trace_lo"])
    if not (trace.all() and numbers_of(columns["span_id"]).all()):
        raise ValueError("spans without an id")


def _batch(
    columns: dict[str, Any],
    attributes: RawColumn,
    events: RawColumn | None,
    resources: list[int],
    scopes: list[int],
) -> SpanBatch:
    numbers: dict[str, Any] = {name: numbers_of(columns[name]) for name in NUMBERS}
    numbers["resource_ix"] = np.array(resources, np.int32)[numbers["resource_ix"]]
    numbers["scope_ix"] = np.array([*scopes, -1], np.int32)[numbers["scope_ix"]]  # the last is that of -1
    names = columns["name"]
    return SpanBatch(
        **numbers,
        names=CodedNames(numbers_of(names.indices), names.dictionary.to_pylist()),
        attributes=attributes,
        events=events,
        links=_link_batch(columns["links"]),
    )


def _whole(column: Any) -> Any:
    """Return a column as one array; joining what is one already would copy it."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def numbers_of(array: Any) -> npt.NDArray[Any]:
    """Return an array of numbers without nulls as it is in memory.

    So do its own methods, which first import pandas where that is installed.
    """
    kind = np.dtype(str(array.type))
    if not len(array):
        return np.zeros(0, kind)
    return np.frombuffer(array.buffers()[1], kind)[array.offset : array.offset + len(array)]


def _link_batch(lists: Any) -> LinkBatch | None:
    offsets = numbers_of(lists.offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        return None
    hi, lo, span_id, kind = lists.values.slice(first, last - first).flatten()
    return LinkBatch(
        span_ix=np.repeat(np.arange(len(lists)), np.diff(offsets)),
        trace_hi=numbers_of(hi),
        trace_lo=numbers_of(lo),
        span_id=numbers_of(span_id),
        kind=kind.to_pylist(),
    )


@dataclass(frozen=True)
class _Later:
    """Rows ``begin`` to ``end`` of a column of one row group, which are still on the disk."""

    place: _Place
    group: int
    name: str
    begin: int
    end: int

    def read(self) -> tuple[bytes | memoryview, IntArray]:
        """Return the bytes and where each row begins. Raises SourceError."""
        with _explained(self.place.path), self.place.opened() as file:
            table = file.read_row_group(self.group, columns=[self.name], use_threads=False)
        array = _whole(table[self.name])
        _, offsets, data = array.buffers()
        bounds = np.frombuffer(offsets, np.int64)[self.begin : self.end + 1]
        return b"" if data is None else memoryview(data), bounds


class _StoredColumn(RawColumn):
    """A column that is read when one of its rows is first asked for, and may raise SourceError then."""

    def __init__(self, form: Form, later: _Later) -> None:
        self.__dict__.update(form=form, later=later)

    def __len__(self) -> int:
        later: _Later = self.__dict__["later"]
        return later.end - later.begin

    @cached_property
    def _read(self) -> tuple[bytes | memoryview, IntArray]:
        later: _Later = self.__dict__["later"]
        return later.read()

    @property
    def data(self) -> bytes | memoryview:
        return self._read[0]

    @property
    def offsets(self) -> IntArray:
        return self._read[1]
