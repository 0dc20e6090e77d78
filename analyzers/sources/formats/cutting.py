# SPDX-License-Identifier: Apache-2.0
"""Cuts a document that is too big to hold into small ones of the same kind, at its arrays of spans.

What belongs to the spans and comes after them (a resource, Jaeger's processes) is waited for: until then they
are held as columns, not as text.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np

from grademl_otel.analyzers.model.columns import Ledger
from grademl_otel.analyzers.sources.batch import SpanBatch, SpanTarget
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.formats import kinds, vectors
from grademl_otel.analyzers.sources.formats.decoding import NotJson, Unreadable
from grademl_otel.analyzers.sources.formats.jaeger_json import TraceReader
from grademl_otel.analyzers.sources.formats.kineto import ProfileReader
from grademl_otel.analyzers.sources.formats.otlp_values import NO_SCOPE, otlp_attributes, otlp_scope
from grademl_otel.analyzers.sources.formats.window import END, CutShort, Window

_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_ARRAY, _CLOSE_ARRAY, _COMMA = b"{}[],"
_SPANS: Final = "spans"
_SMALL: Final = 1 << 16  # bytes of members that no reader is known to want, and how many of them are kept


_SCOPE: Final = ("scope", "instrumentationLibrary", "instrumentation_library")
"""Keys of an instrumentation scope; the others are of before 2022."""


class _Resource(msgspec.Struct, gc=False):
    attributes: msgspec.Raw = msgspec.Raw(b"[]")


_resource = msgspec.json.Decoder(_Resource | None)


class _Held:
    """Takes spans for ``target`` whose resource, or whose scope, is not known yet."""

    def __init__(self, target: SpanTarget, column: str) -> None:
        self._target = target
        self._column = column
        self._batches: list[SpanBatch] = []
        self._count = 0
        self._names: dict[str, str] = {}

    @property
    def room(self) -> int:
        return max(0, self._target.room - self._count)

    @property
    def full(self) -> bool:
        return self.room == 0

    def resource(self, key: Hashable, decode: Callable[[Any], dict[str, Any]]) -> int:
        return 0 if self._column == "resource_ix" else self._target.resource(key, decode)

    def scope(self, key: Hashable, decode: Callable[[Any], dict[str, Any]]) -> int:
        return 0 if self._column == "scope_ix" else self._target.scope(key, decode)

    def add(self, batch: SpanBatch) -> int:
        self._batches.append(replace(batch, names=vectors.shared(batch.names, self._names)))
        self._count += len(batch)
        return len(batch)

    def release(self, index: int) -> None:
        """Hand on the spans, all of one resource or scope."""
        for batch in self._batches:
            column = {self._column: np.full(len(batch), index, np.int32)}
            self._target.add(replace(batch, **column))  # type: ignore[arg-type]
        self._batches.clear()


class Cutter:
    """Reads the documents of a window that do not fit into a piece."""

    def __init__(self, window: Window, builder: SpanBuilder, ledger: Ledger) -> None:
        self._window = window
        self._builder = builder
        self._ledger = ledger

    def document(self, depth: int = 0) -> None:
        """Take the array or object that comes next, and add its spans until the builder is full.

        Raises Unreadable when it is of no known kind, NotJson when it is broken, CutShort when the text ends
        within it; spans before that have been added.
        """
        if depth > kinds.MAX_ENVELOPES:
            raise Unreadable("too many envelopes in each other")
        if self._window.peek() == _OPEN_OBJECT:
            self._object(depth)
        else:
            self._list(depth)

    def _list(self, depth: int) -> None:
        """Take an array: of documents, of Zipkin's spans, of a profiler's events."""
        profile: ProfileReader | None = None

        def read(raw: bytes) -> None:
            nonlocal profile
            if profile is None and kinds.is_events(raw):
                profile = ProfileReader(self._builder, self._ledger)
            if profile is not None:
                profile.add(raw)
            else:
                kinds.read(raw, self._builder, self._ledger, depth)

        try:
            self._array(read, partial(self.document, depth + 1))
        except CutShort:
            if profile is None:  # Chrome's own format: its end may be missing
                raise
        finally:
            if profile is not None:
                profile.finish({})

    def _object(self, depth: int) -> None:
        """Take a document, or an envelope of one."""
        kept: dict[str, bytes] = {}
        spans: TraceReader | None = None
        profile: ProfileReader | None = None
        opened = False
        try:
            for key in self._members():
                if key == kinds.EVENTS and self._window.peek() == _OPEN_ARRAY:
                    profile = ProfileReader(self._builder, self._ledger)
                    self._array(profile.add)
                    continue
                value = self._window.value(self._window.piece if key in kinds.BIG else None)
                if value is not None:
                    if key in kinds.KNOWN or (len(value) <= _SMALL and len(kept) < _SMALL):
                        kept[key] = value
                    continue
                opened = True
                if key in kinds.ENVELOPES:
                    self.document(depth + 1)
                elif key in kinds.GROUPS:
                    self._array(self._read_groups, self._group)
                else:
                    spans = spans or TraceReader(self._builder, self._ledger)
                    self._array(partial(self._read_spans, spans, kept))
        finally:
            if spans is not None:
                spans.finish(kept.get("processes"))
            if profile is not None:
                profile.finish(kept)
        if not opened and profile is None:
            kinds.read(_joined(kept), self._builder, self._ledger, depth)

    def _read_spans(self, spans: TraceReader, kept: Mapping[str, bytes], raw: bytes) -> None:
        spans.add(raw, kept.get("traceID"))

    def _read_groups(self, raw: bytes) -> None:
        kinds.read_groups(raw, self._builder, self._ledger)

    def _group(self) -> None:
        """Take one element of ``resourceSpans``."""
        kept: dict[str, bytes] = {}
        held = _Held(self._builder, "resource_ix")
        small: dict[str, bytes] = {}
        for key in self._members():
            value = self._window.value(self._window.piece if key in kinds.SCOPES else None)
            if value is not None:
                (small if key in kinds.SCOPES else kept)[key] = value
                continue
            target = self._builder if "resource" in kept else held
            self._array(
                partial(self._read_scopes, target, kept, key), partial(self._scope, target, kept, key)
            )
        held.release(self._builder.resource(_attributes(kept.get("resource")), otlp_attributes))
        if small:
            kinds.read_groups(b"[" + _joined({**kept, **small}) + b"]", self._builder, self._ledger)

    def _read_scopes(self, target: SpanTarget, kept: Mapping[str, bytes], key: str, raw: bytes) -> None:
        kinds.read_groups(b"[" + _joined({**kept, key: raw}) + b"]", target, self._ledger)

    def _scope(self, target: SpanTarget, group: Mapping[str, bytes], key: str) -> None:
        """Take one element of ``scopeSpans``."""
        kept: dict[str, bytes] = {}
        held = _Held(target, "scope_ix")
        small: bytes | None = None
        for member in self._members():
            value = self._window.value(self._window.piece if member == _SPANS else None)
            if value is None:
                into = held if kept.keys().isdisjoint(_SCOPE) else target
                self._array(partial(self._read_of_scope, into, group, key, kept))
            elif member == _SPANS:
                small = value
            else:
                kept[member] = value
        own = next((kept[name] for name in _SCOPE if name in kept), b"")
        held.release(-1 if own in NO_SCOPE else self._builder.scope(own, otlp_scope))
        if small is not None:
            self._read_of_scope(target, group, key, kept, small)

    def _read_of_scope(
        self, target: SpanTarget, group: Mapping[str, bytes], key: str, scope: Mapping[str, bytes], raw: bytes
    ) -> None:
        self._read_scopes(target, group, key, b"[" + _joined({**scope, _SPANS: raw}) + b"]")

    def _members(self) -> Iterator[str]:
        """Take an object; what is done with a key takes its value."""
        self._window.skip()
        while not self._builder.full:
            byte = self._window.peek()
            if byte == END:
                raise CutShort("it ends within a document")
            if byte == _COMMA:
                self._window.skip()
            elif byte == _CLOSE_OBJECT:
                self._window.skip()
                return
            else:
                yield self._window.key()

    def _array(self, read: Callable[[bytes], None], open_one: Callable[[], None] | None = None) -> None:
        """Take an array: ``read`` gets arrays of some of its elements, ``open_one`` takes a big one."""
        if self._window.peek() != _OPEN_ARRAY:
            raise Unreadable("not trace data: an array is expected")
        self._window.skip()
        while not self._builder.full:
            byte = self._window.peek()
            if byte == END:
                raise CutShort("it ends within a document")
            if byte == _COMMA:
                self._window.skip()
                continue
            if byte == _CLOSE_ARRAY:
                self._window.skip()
                return
            try:
                some, closed_by = self._window.elements()
            except CutShort:
                self._read_last(read)
                raise
            if some:
                read(some)
            elif closed_by == 0 and open_one is not None and byte == _OPEN_OBJECT:
                open_one()
            elif closed_by == 0:
                read(b"[" + self._window.element() + b"]")
            if closed_by == _CLOSE_ARRAY:
                return
            if closed_by:
                raise NotJson("not JSON: an array is closed by another bracket")

    def _read_last(self, read: Callable[[bytes], None]) -> None:
        """Take what is left of a text that ends within an array; read it if it happens to be whole."""
        rest = self._window.head(self._window.piece)
        self._window.skip(len(rest))
        try:
            read(b"[" + rest + b"]")
        except Unreadable:
            pass


def _joined(members: Mapping[str, bytes]) -> bytes:
    return b"{" + b",".join(b"%b:%b" % (msgspec.json.encode(key), raw) for key, raw in members.items()) + b"}"


def _attributes(resource: bytes | None) -> bytes:
    """Return the raw attributes of a raw resource; raise Unreadable when it is none."""
    if resource is None:
        return b"[]"
    try:
        found = _resource.decode(resource)
        return b"[]" if found is None else bytes(found.attributes)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Unreadable(f"not OTLP trace data: {error}") from None
