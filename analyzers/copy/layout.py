# SPDX-License-Identifier: Apache-2.0
"""A spans file: batches as one Arrow table, and back. One row a span; docs/copies.md has the columns.

Resources, scopes and forms are in the file's metadata, so that a file can be read without its manifest.
Attributes and events are the bytes that the source gave.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
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
from grademl_otel.analyzers.model.raw import RawColumn, joined
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


_SCHEMA: Final = pa.schema(
    [
        *((name, pa.from_numpy_dtype(kind)) for name, kind in _NUMBERS.items()),
        ("name", pa.dictionary(pa.int32(), pa.string())),
        ("attributes", pa.large_binary()),
        ("events", pa.large_binary()),
        ("links", pa.list_(_LINK)),
        ("form", pa.int8()),
        ("reading", pa.int32()),
    ]
)


_SHARED: Final = "="
"""The form of events that are in the bytes of the attributes."""
_Forms = tuple[str, str | None]
"""Form of attributes, and of events; None for none."""


class _About(msgspec.Struct):
    """The metadata of a file."""

    schema: int
    resources: list[msgspec.Raw]
    scopes: list[msgspec.Raw]
    forms: list[_Forms]


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
    alike = [(forms, list(group)) for forms, group in groupby(parts, _forms)]
    forms = {each: ix for ix, each in enumerate(dict.fromkeys(forms for forms, _ in alike))}
    columns: dict[str, Any] = dict(numbers)
    columns["name"] = pa.array([name for batch in parts for name in batch.names], pa.string())
    columns["name"] = columns["name"].dictionary_encode()
    columns["attributes"] = pa.chunked_array([_binary([b.attributes for b in some]) for _, some in alike])
    columns["events"] = pa.chunked_array([_events(*each) for each in alike], pa.large_binary())
    columns["links"] = _links(parts)
    columns["form"] = np.repeat(
        np.array([forms[each] for each, _ in alike], np.int8), [sum(map(len, some)) for _, some in alike]
    )
    columns["reading"] = np.repeat(
        np.array([reading for reading, _ in batches], np.int32), [len(batch) for batch in parts]
    )
    about = _About(
        SCHEMA,
        [msgspec.Raw(encode_attributes(resources[ix])) for ix in used],
        [msgspec.Raw(encode_scope(scopes[ix])) for ix in used_scopes],
        list(forms),
    )
    table = pa.table(columns, _SCHEMA.with_metadata({_KEY: msgspec.json.encode(about)}))
    with path.open("xb") as file:
        pq.write_table(
            table,
            file,
            compression="zstd",
            compression_level=1,
            use_dictionary=_REPEATING,
            write_page_checksum=True,
        )
        file.flush()
        os.fsync(file.fileno())


def _forms(batch: SpanBatch) -> _Forms:
    form = batch.attributes.form.name
    if batch.events is None:
        return form, None
    return form, _SHARED if batch.events is batch.attributes else batch.events.form.name


def _renumbered(ix: npt.NDArray[np.int32]) -> tuple[list[int], npt.NDArray[np.int32]]:
    """Return the distinct numbers in ``ix`` that are none of -1, and for each element its place in them."""
    used, place = np.unique(ix, return_inverse=True)
    absent = int(len(used) > 0 and used[0] < 0)
    return used[absent:].tolist(), (place.reshape(-1) - absent).astype(np.int32)


def _binary(columns: Sequence[RawColumn]) -> Any:
    """Return columns of one form as one array over their bytes."""
    whole = joined(columns)
    offsets = np.ascontiguousarray(whole.offsets, np.int64)
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(whole), [None, pa.py_buffer(offsets), pa.py_buffer(whole.data)]
    )


def _events(forms: _Forms, batches: Sequence[SpanBatch]) -> Any:
    if forms[1] in (None, _SHARED):
        return pa.nulls(sum(map(len, batches)), pa.large_binary())
    return _binary([batch.events for batch in batches if batch.events is not None])


def _links(batches: Sequence[SpanBatch]) -> Any:
    """Return the links of each span, in the order given."""
    bases = np.cumsum([0, *map(len, batches)])
    found = [(base, b.links) for base, b in zip(bases.tolist(), batches, strict=False) if b.links is not None]
    none = np.zeros(0, np.uint64)
    span_ix = np.concatenate([none.astype(np.int64), *(links.span_ix + base for base, links in found)])
    order = np.argsort(span_ix, kind="stable")
    ids = [
        pa.array(np.concatenate([none, *(getattr(links, name) for _, links in found)])[order])
        for name in ("trace_hi", "trace_lo", "span_id")
    ]
    kinds = pa.array([kind for _, links in found for kind in links.kind], pa.string()).take(pa.array(order))
    structs = pa.StructArray.from_arrays([*ids, kinds], fields=list(_LINK))
    offsets = np.searchsorted(span_ix[order], np.arange(bases[-1] + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), structs)


def read_table(path: Path, builder: SpanBuilder, live: npt.NDArray[np.bool_] | None = None) -> None:
    """Add the spans of a file to ``builder``, those of readings that are ``live`` (None: of all).

    Raises SourceError for what is no such file, or of another version.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            about = _about(path, file.schema_arrow)
            resources = [builder.resource(("copy", bytes(raw)), _resource) for raw in about.resources]
            scopes = [builder.scope(("copy", bytes(raw)), _scope) for raw in about.scopes]
            for group in range(file.num_row_groups):
                if builder.full:
                    return
                # Threads would take memory of their own each: twice the CPU time for a file of this size.
                table = file.read_row_group(group, use_threads=False)
                for batch in _batches(table, about, resources, scopes, live):
                    builder.add(batch)
    except (pa.ArrowException, OSError, IndexError, msgspec.MsgspecError) as error:
        reason = " ".join(str(error).split())[:160]
        raise SourceError(f"{path}: no spans file of a copy, or damaged: {reason}") from None


def _about(path: Path, schema: Any) -> _About:
    metadata = schema.metadata or {}
    if _KEY not in metadata:
        raise SourceError(f"{path}: Parquet, but no spans file of `grademl pull`")
    about = msgspec.json.decode(metadata[_KEY], type=_About)
    if about.schema != SCHEMA:
        raise SourceError(
            f"{path}: of format {about.schema}; this grademl reads {SCHEMA}: pull anew, or upgrade"
        )
    if not schema.remove_metadata().equals(_SCHEMA):
        raise SourceError(f"{path}: not the columns of a spans file")
    return about


def _resource(key: Any) -> dict[str, Any]:
    return otlp_attributes(key[1])


def _scope(key: Any) -> dict[str, Any]:
    return otlp_scope(key[1])


def _batches(
    table: Any, about: _About, resources: list[int], scopes: list[int], live: npt.NDArray[np.bool_] | None
) -> Iterator[SpanBatch]:
    """Yield the spans of one row group; several batches where forms differ."""
    if not len(table):
        return
    columns = {name: _whole(table[name]) for name in table.column_names}
    form, reading = columns.pop("form").to_numpy(), columns.pop("reading").to_numpy()
    bounds = [0, *(np.flatnonzero(np.diff(form)) + 1).tolist(), len(form)]
    for begin, end in pairwise(bounds):
        some = {name: array.slice(begin, end - begin) for name, array in columns.items()}
        batch = _batch(some, about.forms[form[begin]], resources, scopes)
        if live is not None:
            mask = live[reading[begin:end]]
            if not mask.all():
                batch = rows_of(batch, np.flatnonzero(mask))
        yield batch


def _batch(columns: dict[str, Any], forms: _Forms, resources: list[int], scopes: list[int]) -> SpanBatch:
    numbers: dict[str, Any] = {name: columns[name].to_numpy() for name in _NUMBERS}
    numbers["resource_ix"] = np.array(resources, np.int32)[numbers["resource_ix"]]
    numbers["scope_ix"] = np.array([*scopes, -1], np.int32)[numbers["scope_ix"]]  # the last is that of -1
    names = columns["name"]
    words = np.array(names.dictionary.to_pylist(), object)
    attributes = _raw(columns["attributes"], forms[0])
    events = attributes if forms[1] == _SHARED else forms[1] and _raw(columns["events"], forms[1])
    return SpanBatch(
        **numbers,
        names=words[names.indices.to_numpy()].tolist(),
        attributes=attributes,
        events=events or None,
        links=_link_batch(columns["links"]),
    )


def _whole(column: Any) -> Any:
    """Return a column as one array; joining what is one already would copy it."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _raw(array: Any, form: str) -> RawColumn:
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return RawColumn(form_named(form), memoryview(data) if data is not None else b"", bounds)


def _link_batch(lists: Any) -> LinkBatch | None:
    offsets = lists.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        return None
    hi, lo, span_id, kind = lists.values.slice(first, last - first).flatten()
    return LinkBatch(
        span_ix=np.repeat(np.arange(len(lists)), np.diff(offsets)),
        trace_hi=hi.to_numpy(),
        trace_lo=lo.to_numpy(),
        span_id=span_id.to_numpy(),
        kind=kind.to_pylist(),
    )
