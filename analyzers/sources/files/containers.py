# SPDX-License-Identifier: Apache-2.0
"""From a stream of bytes to spans, whatever it holds: compression, messages with their lengths, formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from grademl_otel.analyzers.errors import SourceError
from grademl_otel.analyzers.model.columns import Ledger
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.files.compression import Broken, compression, expanded, peeked
from grademl_otel.analyzers.sources.files.paths import reason
from grademl_otel.analyzers.sources.formats import documents, sniff, wire
from grademl_otel.analyzers.sources.formats.decoding import Unreadable
from grademl_otel.analyzers.sources.formats.sniff import Holds

if TYPE_CHECKING:
    from grademl_otel.analyzers.sources.formats.otlp_proto import TracesReader

_LENGTH: Final = 4


class NotTelemetry(SourceError):
    """A file can be read, and nothing in it is telemetry."""


class Cut(Exception):
    """A stream ends within a message, as a file does that is being written."""


def read_blocks(
    blocks: Iterable[bytes], where: str, builder: SpanBuilder, ledger: Ledger, max_bytes: int
) -> None:
    """Add the spans in ``blocks``, which are those of one file, to ``builder`` until it is full.

    What breaks off in the middle leaves what came before it, and says so in ``ledger``. Raises SourceError
    when nothing could be read: NotTelemetry where the reason is what it holds.
    """
    before = len(builder)
    faults: list[str] = []
    head, stream = peeked(unbroken(blocks, faults), sniff.HEAD)
    try:
        READERS[sniff.holds(head)](stream, where, builder, ledger, max_bytes)
    except Unreadable as fault:
        if len(builder) > before:
            faults.append(str(fault))
        elif not faults:
            raise NotTelemetry(f"{where}: {fault}") from None
    except Cut as fault:
        ledger.unreadable_lines += 1
        ledger.warnings.append(f"{where}: {fault}; it was left out")
    if faults:
        if len(builder) == before:
            raise SourceError(f"{where}: cannot be read: {faults[0]}")
        ledger.broken = ledger.broken or f"{where}: {faults[0]}; what came before it was read"


def unbroken(blocks: Iterable[bytes], faults: list[str]) -> Iterator[bytes]:
    """Yield ``blocks`` without their compression, up to where they break off; ``faults`` then says why."""
    try:
        yield from expanded(blocks)
    except Broken as fault:
        faults.append(str(fault))
    except OSError as error:
        faults.append(reason(error))


class ByteStream:
    """Blocks of bytes, taken in the sizes that a format asks for."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = iter(blocks)
        self._block = b""
        self._at = 0

    def read(self, count: int) -> bytes:
        """Return the next ``count`` bytes; fewer only at the end."""
        end = self._at + count
        if end <= len(self._block):
            some = self._block[self._at : end]
            self._at = end
            return some
        parts = [self._block[self._at :]]
        missing = count - len(parts[0])
        self._block, self._at = b"", 0
        while missing:
            block = next(self._blocks, None)
            if block is None:
                break
            parts.append(block[:missing])
            self._block, self._at = block, len(parts[-1])
            missing -= len(parts[-1])
        return b"".join(parts)

    def whole(self, count: int, what: str) -> bytes:
        """Return the next ``count`` bytes. Raises Cut, naming ``what`` they are, where some are missing."""
        some = self.read(count)
        if len(some) < count:
            raise Cut(f"{what} is cut")
        return some


def frames(stream: ByteStream, max_bytes: int) -> Iterator[bytes]:
    """Yield the messages of the Collector's file exporter: length (4 bytes, the highest first), then these.

    Each may be compressed by itself (`unpacked`). Raises Cut at one that is not whole, Unreadable at one that
    is too large.
    """
    while header := stream.read(_LENGTH):
        if len(header) < _LENGTH:
            raise Cut("the last message is cut")
        yield stream.whole(_checked(int.from_bytes(header, "big"), max_bytes), "the last message")


def delimited(stream: ByteStream, max_bytes: int) -> Iterator[bytes]:
    """Yield messages that have their length before them as protobuf writes it; raises as `frames` does."""
    while first := stream.read(1):
        yield stream.whole(_checked(_varint(stream, first), max_bytes), "the last message")


def messages_of_field_1(stream: ByteStream, max_bytes: int) -> Iterator[bytes]:
    """Yield the messages that are field 1 of one that has no end; raises as `frames` does."""
    while first := stream.read(1):
        tag = _varint(stream, first)
        number, kind = tag >> 3, tag & 7
        if kind == wire.LENGTH:
            size = _checked(_varint(stream, stream.read(1)), max_bytes)
            message = stream.whole(size, "the last group of spans")
            if number == 1:
                yield message
        elif kind == wire.VARINT:
            _varint(stream, stream.read(1))
        elif kind in (wire.FIXED64, wire.FIXED32):
            stream.whole(8 if kind == wire.FIXED64 else 4, "the last field")
        else:
            raise Unreadable("not protobuf, or a damaged message")


def _varint(stream: ByteStream, first: bytes) -> int:
    raw = first
    while raw and raw[-1] & 0x80 and len(raw) < 10:
        byte = stream.read(1)
        if not byte:
            break
        raw += byte
    if not raw or raw[-1] & 0x80:
        raise Cut("the last message is cut")
    return wire.varint(raw, 0, len(raw))[0]


def _checked(size: int, max_bytes: int) -> int:
    if size > max_bytes:
        raise Unreadable(f"a message of {size:,} bytes; more than {max_bytes:,} are not read")
    return size


def unpacked(message: bytes, max_bytes: int) -> bytes:
    """Return ``message`` without its compression. Raises Unreadable where it is damaged or a bomb."""
    if compression(message[:4]) is None:
        return message
    parts, size = [], 0
    try:
        for part in expanded([message]):
            size = _checked(size + len(part), max_bytes)
            parts.append(part)
    except Broken as fault:
        raise Unreadable(f"a message of which {fault}") from None
    return b"".join(parts)


# --- Readers of what streams hold -------------------------------------------------------------------------


def _text(stream: Iterator[bytes], where: str, builder: SpanBuilder, ledger: Ledger, max_bytes: int) -> None:
    documents.read_json(stream, builder, ledger, where, max_bytes)


def _framed(
    stream: Iterator[bytes], where: str, builder: SpanBuilder, ledger: Ledger, max_bytes: int
) -> None:
    _read_messages(frames(ByteStream(stream), max_bytes), where, builder, ledger, max_bytes)


def _delimited(
    stream: Iterator[bytes], where: str, builder: SpanBuilder, ledger: Ledger, max_bytes: int
) -> None:
    _read_messages(delimited(ByteStream(stream), max_bytes), where, builder, ledger, max_bytes)


def _protobuf(
    stream: Iterator[bytes], where: str, builder: SpanBuilder, ledger: Ledger, max_bytes: int
) -> None:
    with _traces_reader(builder, ledger) as reader:
        for group in messages_of_field_1(ByteStream(stream), max_bytes):
            reader.read_resource(group)
            if reader.full:
                break


def _tempo(stream: Iterator[bytes], where: str, builder: SpanBuilder, ledger: Ledger, max_bytes: int) -> None:
    with _traces_reader(builder, ledger) as reader:
        for trace in messages_of_field_1(ByteStream(stream), max_bytes):
            reader.read(trace)


def _parquet(
    stream: Iterator[bytes], where: str, builder: SpanBuilder, ledger: Ledger, max_bytes: int
) -> None:
    raise Unreadable("Parquet in a stream or compressed once more; give the file's own name")


Reader = Callable[[Iterator[bytes], str, SpanBuilder, Ledger, int], None]
READERS: Final[dict[Holds, Reader]] = {
    Holds.TEXT: _text,
    Holds.FRAMES: _framed,
    Holds.DELIMITED: _delimited,
    Holds.PROTOBUF: _protobuf,
    Holds.TEMPO: _tempo,
    Holds.PARQUET: _parquet,
}


def _read_messages(
    messages: Iterator[bytes], where: str, builder: SpanBuilder, ledger: Ledger, max_bytes: int
) -> None:
    """Read messages of JSON or protobuf; one that cannot be read is counted, and the next one is tried."""
    opened = _Opened(messages, max_bytes)
    first = next(opened, b"")
    whole = chain([first] if first else [], opened)
    if sniff.holds(first[: sniff.HEAD]) is Holds.TEXT:
        documents.read_json((message + b"\n" for message in whole), builder, ledger, where, max_bytes)
    else:
        with _traces_reader(builder, ledger) as reader:
            for message in whole:
                try:
                    reader.read(message)
                except Unreadable as fault:
                    opened.left_out(fault)
                if reader.full:
                    break
    if opened.bad and not opened.good:
        raise Unreadable(opened.fault)
    ledger.unreadable_lines += opened.bad
    if opened.bad:
        ledger.warnings.append(f"{where}: {opened.bad} unreadable messages left out; {opened.fault}")
    if opened.ended is not None:
        raise opened.ended


class _Opened(Iterator[bytes]):
    """Messages without their compression, up to where they break off; what is damaged is left out."""

    def __init__(self, messages: Iterator[bytes], max_bytes: int) -> None:
        self._messages = messages
        self._max_bytes = max_bytes
        self.good = 0
        self.bad = 0
        self.fault = ""
        """What was wrong with the first of those that were left out."""
        self.ended: Cut | Unreadable | None = None
        """Why there are no more, where that is not the end of the file."""

    def __next__(self) -> bytes:
        while True:
            try:
                message = next(self._messages)
            except (Cut, Unreadable) as fault:
                self.ended = fault
                raise StopIteration from None
            self.good += 1
            try:
                return unpacked(message, self._max_bytes)
            except Unreadable as fault:
                self.left_out(fault)

    def left_out(self, fault: Unreadable) -> None:
        """Count the message that was looked at last as unreadable."""
        self.fault = self.fault or f"message {self.good + self.bad}: {fault}"
        self.good -= 1
        self.bad += 1


def _traces_reader(builder: SpanBuilder, ledger: Ledger) -> TracesReader:
    # Imported when it is met: files of JSON need no protobuf.
    from grademl_otel.analyzers.sources.formats import otlp_proto

    return otlp_proto.TracesReader(builder, ledger)
