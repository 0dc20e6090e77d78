# SPDX-License-Identifier: Apache-2.0
"""A spans file: batches as one Arrow table, and back. One row a span; docs/copies.md has the columns.

Resources, scopes and forms are in the file's metadata, so that a file can be read without its manifest.
Attributes and events are the bytes that the source gave.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from grademl_otel.analyzers.copy.manifest import SCHEMA
from grademl_otel.analyzers.copy.stream import rows_of
from grademl_otel.analyzers.copy.values import encode_attributes, encode_scope
from grademl_otel.analyzers.errors import SourceError
from grademl_otel.analyzers.model.raw import RawColumn
from grademl_otel.analyzers.sources.batch import LinkBatch, SpanBatch
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.formats.forms import form_named
from grademl_otel.analyzers.sources.formats.otlp_values import otlp_attributes, otlp_scope

_KEY: Final = b"grademl.copy"
_NUMBERS: Final = {
    "trace_hi": np.uint64,
    "trace_lo": np.uint64,
    "span_id": np.uint64,
    "parent_id": np.uint64,
    "start": np.int64,
    "end": np.int64,
    "kind": np.int8,
    "status": np.int8,
    "flags": np.uint32,
    "resource_ix": np.int32,
    "scope_ix": np.int32,
}
_REPEATING: Final = ["name", "kind", "status", "flags", "resource_ix", "scope_ix", "form", "reading"]
"""Columns with few distinct values, which a dictionary makes small."""
_LINK: Final = pa.struct(
    [("trace_hi", pa.uint64()), ("trace_lo", pa.uint64()), ("span_id", pa.uint64()), ("kind", pa.string())]
)


class _About(msgspec.Struct):
    """The metadata of a file."""

    schema: int
    resources: list[msgspec.Raw]
    scopes: list[msgspec.Raw]
    forms: list[tuple[str, str | None]]
    """Form of attributes, and of events: None for none, `_SHARED` where attributes hold them."""


_SHARED: Final = "="


def write_table(
    path: Path,
    batches: Sequence[tuple[int, SpanBatch]],
    resources: Sequence[dict[str, Any]],
    scopes: Sequence[dict[str, Any]],
) -> None:
    """Write ``batches``, each with the number of its reading, to ``path`` and to the disk. Raises OSError."""
    parts = [batch for _, batch in batches]
    numbers = {name: np.concatenate([getattr(b, name) for b in parts]) for name in _NUMBERS}
    used, numbers["resource_ix"] = _renumbered(numbers["resource_ix"])
    used_scopes, numbers["scope_ix"] = _renumbered(numbers["scope_ix"])
    forms: dict[tuple[str, str | None], int] = {}
    form = [forms.setdefault(_forms(batch), len(forms)) for batch in parts]
    counts = [len(batch) for batch in parts]
    columns: dict[str, Any] = {
        name: pa.array(values, pa.from_numpy_dtype(_NUMBERS[name])) for name, values in numbers.items()
    }
    columns["name"] = pa.array(
        [name for batch in parts for name in batch.names], pa.string()
    ).dictionary_encode()
    columns["attributes"] = pa.chunked_array([_binary(batch.attributes) for batch in parts])
    columns["events"] = pa.chunked_array([_events(batch) for batch in parts], pa.large_binary())
    columns["links"] = pa.chunked_array([_links(batch) for batch in parts], pa.list_(_LINK))
    columns["form"] = pa.array(np.repeat(np.array(form, np.int8), counts))
    columns["reading"] = pa.array(np.repeat(np.array([reading for reading, _ in batches], np.int32), counts))
    about = _About(
        SCHEMA,
        [msgspec.Raw(encode_attributes(resources[ix])) for ix in used],
        [msgspec.Raw(encode_scope(scopes[ix])) for ix in used_scopes],
        list(forms),
    )
    table = pa.table(columns).replace_schema_metadata({_KEY: msgspec.json.encode(about)})
    with path.open("xb") as file:
        pq.write_table(table, file, compression="zstd", compression_level=1, use_dictionary=_REPEATING)
        file.flush()
        os.fsync(file.fileno())


def _forms(batch: SpanBatch) -> tuple[str, str | None]:
    if batch.events is None:
        return batch.attributes.form.name, None
    return batch.attributes.form.name, _SHARED if batch.events is batch.attributes else batch.events.form.name


def _renumbered(ix: npt.NDArray[np.int32]) -> tuple[list[int], npt.NDArray[np.int32]]:
    """Return the distinct numbers in ``ix`` that are none of -1, and for each element its place in them."""
    used, place = np.unique(ix, return_inverse=True)
    absent = int(len(used) > 0 and used[0] < 0)
    return used[absent:].tolist(), (place.reshape(-1) - absent).astype(np.int32)


def _binary(column: RawColumn) -> Any:
    offsets = np.ascontiguousarray(column.offsets, np.int64)
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(column), [None, pa.py_buffer(offsets), pa.py_buffer(column.data)]
    )


def _events(batch: SpanBatch) -> Any:
    if batch.events is None or batch.events is batch.attributes:
        return pa.nulls(len(batch), pa.large_binary())
    return _binary(batch.events)


def _links(batch: SpanBatch) -> Any:
    count, links = len(batch), batch.links
    if links is None or not len(links.span_ix):
        return pa.ListArray.from_arrays(np.zeros(count + 1, np.int32), pa.array([], _LINK))
    order = np.argsort(links.span_ix, kind="stable")
    ids = (links.trace_hi[order], links.trace_lo[order], links.span_id[order])
    kinds = [links.kind[ix] for ix in order.tolist()]
    structs = pa.StructArray.from_arrays(
        [*(pa.array(values, pa.uint64()) for values in ids), pa.array(kinds, pa.string())], fields=list(_LINK)
    )
    offsets = np.searchsorted(links.span_ix[order], np.arange(count + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, structs)


def read_table(path: Path, builder: SpanBuilder, live: npt.NDArray[np.bool_] | None = None) -> None:
    """Add the spans of a file to ``builder``, those of readings that are ``live`` (None: of all).

    Raises SourceError for what is no such file, or of another version.
    """
    try:
        with pq.ParquetFile(path, pre_buffer=True) as file:
            about = _about(path, file.schema_arrow.metadata or {})
            resources = [builder.resource(("copy", bytes(raw)), _resource) for raw in about.resources]
            scopes = [builder.scope(("copy", bytes(raw)), _scope) for raw in about.scopes]
            for group in range(file.num_row_groups):
                if builder.full:
                    return
                for batch in _batches(file.read_row_group(group), about, resources, scopes, live):
                    builder.add(batch)
    except (pa.ArrowException, OSError, KeyError, msgspec.MsgspecError) as error:
        reason = " ".join(str(error).split())[:160]
        raise SourceError(f"{path}: no spans file of a copy, or damaged: {reason}") from None


def _about(path: Path, metadata: dict[bytes, bytes]) -> _About:
    if _KEY not in metadata:
        raise SourceError(f"{path}: Parquet, but no spans file of `grademl pull`")
    about = msgspec.json.decode(metadata[_KEY], type=_About)
    if about.schema != SCHEMA:
        raise SourceError(
            f"{path}: of format {about.schema}; this grademl reads {SCHEMA}: pull anew, or upgrade"
        )
    return about


def _resource(key: Any) -> dict[str, Any]:
    return otlp_attributes(key[1])


def _scope(key: Any) -> dict[str, Any]:
    return otlp_scope(key[1])


def _batches(
    table: Any, about: _About, resources: list[int], scopes: list[int], live: npt.NDArray[np.bool_] | None
) -> Iterator[SpanBatch]:
    """Yield the spans of one row group; several batches where forms differ."""
    table = table.combine_chunks()
    if not len(table):
        return
    form = _numpy(table, "form")
    bounds = [0, *(np.flatnonzero(np.diff(form)) + 1).tolist(), len(form)]
    for begin, end in pairwise(bounds):
        batch = _batch(table.slice(begin, end - begin), about.forms[int(form[begin])], resources, scopes)
        if live is not None:
            mask = live[_numpy(table, "reading")[begin:end]]
            if not mask.all():
                batch = rows_of(batch, np.flatnonzero(mask))
        yield batch


def _batch(table: Any, forms: tuple[str, str | None], resources: list[int], scopes: list[int]) -> SpanBatch:
    numbers: dict[str, Any] = {name: _numpy(table, name) for name in _NUMBERS}
    numbers["resource_ix"] = np.array(resources or [0], np.int32)[numbers["resource_ix"]]
    numbers["scope_ix"] = np.array([*scopes, -1], np.int32)[numbers["scope_ix"]]  # the last is that of -1
    names = table["name"].combine_chunks()
    words = np.array(names.dictionary.to_pylist(), object)
    attributes = _raw(table, "attributes", forms[0])
    events = (
        None if forms[1] is None else attributes if forms[1] == _SHARED else _raw(table, "events", forms[1])
    )
    return SpanBatch(
        **numbers,
        names=words[names.indices.to_numpy()].tolist(),
        attributes=attributes,
        events=events,
        links=_link_batch(table["links"].combine_chunks()),
    )


def _numpy(table: Any, name: str) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = table[name].combine_chunks().to_numpy()
    return values


def _raw(table: Any, name: str, form: str) -> RawColumn:
    array = table[name].combine_chunks()
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return RawColumn(form_named(form), memoryview(data) if data is not None else b"", bounds)


def _link_batch(lists: Any) -> LinkBatch | None:
    links = lists.flatten()
    if not len(links):
        return None
    hi, lo, span_id, kind = links.flatten()
    return LinkBatch(
        span_ix=np.repeat(np.arange(len(lists)), lists.value_lengths().to_numpy()),
        trace_hi=hi.to_numpy(),
        trace_lo=lo.to_numpy(),
        span_id=span_id.to_numpy(),
        kind=kind.to_pylist(),
    )
