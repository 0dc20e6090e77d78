# SPDX-License-Identifier: Apache-2.0
"""A spans file: its columns, one row a span, and how it is written; docs/copies.md tells of them.

Resources, scopes and forms are in the file's metadata, so that a file can be read without its manifest.
Attributes and events are the bytes that the source gave.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from grademl_otel.analyzers.copy.records import SCHEMA
from grademl_otel.analyzers.copy.values import encode_attributes, encode_scope
from grademl_otel.analyzers.model.raw import RawColumn, joined
from grademl_otel.analyzers.sources.batch import SpanBatch

KEY: Final = b"grademl.copy"
NUMBERS: Final = {
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


COLUMNS: Final = pa.schema(
    [
        *((name, pa.from_numpy_dtype(kind)) for name, kind in NUMBERS.items()),
        ("name", pa.dictionary(pa.int32(), pa.string())),
        ("attributes", pa.large_binary()),
        ("events", pa.large_binary()),
        ("links", pa.list_(_LINK)),
        ("form", pa.int8()),
        ("reading", pa.int32()),
    ]
)


SHARED: Final = "="
"""The form of events that are in the bytes of the attributes."""
Forms = tuple[str, str | None]
"""Form of attributes, and of events; None for none."""


class About(msgspec.Struct):
    """The metadata of a file."""

    schema: int
    resources: list[msgspec.Raw]
    scopes: list[msgspec.Raw]
    forms: list[Forms]


def write_table(
    path: Path,
    batches: Sequence[tuple[int, SpanBatch]],
    resources: Sequence[dict[str, Any]],
    scopes: Sequence[dict[str, Any]],
) -> None:
    """Write ``batches``, each with the number of its reading, to ``path`` and to the disk. Raises OSError."""
    parts = [batch for _, batch in batches]
    numbers = {name: np.concatenate([getattr(b, name) for b in parts]) for name in NUMBERS}
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
    about = About(
        SCHEMA,
        [msgspec.Raw(encode_attributes(resources[ix])) for ix in used],
        [msgspec.Raw(encode_scope(scopes[ix])) for ix in used_scopes],
        list(forms),
    )
    table = pa.table(columns, COLUMNS.with_metadata({KEY: msgspec.json.encode(about)}))
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


def _forms(batch: SpanBatch) -> Forms:
    form = batch.attributes.form.name
    if batch.events is None:
        return form, None
    return form, SHARED if batch.events is batch.attributes else batch.events.form.name


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


def _events(forms: Forms, batches: Sequence[SpanBatch]) -> Any:
    if forms[1] in (None, SHARED):
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
