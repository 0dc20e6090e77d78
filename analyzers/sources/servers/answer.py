# SPDX-License-Identifier: Apache-2.0
"""What a server sent: kept whole before it is read, in memory while it is small, else in a nameless file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import Final, TypeVar

from grademl_otel.analyzers.errors import SourceError

_IN_MEMORY: Final = 8 << 20
_CHUNK: Final = 1 << 18

Own = TypeVar("Own", bound="Answer")


class Answer:
    """The bytes of an answer. Reading begins when all have arrived, so that a failure can be tried again."""

    def __init__(
        self, headers: Mapping[str, str] | None = None, sent_ns: int = 0, received_ns: int = 0
    ) -> None:
        self.headers = headers or {}
        """Names in any case."""
        self.sent_ns = sent_ns
        self.received_ns = received_ns
        """Unix ns here when it was asked for, and when it began to come."""
        self.size = 0
        self.broken: str | None = None
        """One line: why this is only the beginning of the answer."""
        # Closed by close(), which every user calls: it outlives the block that fills it.
        self._file = SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115

    @property
    def content_type(self) -> str:
        """As "application/json", without parameters, in lower case."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    @property
    def body(self) -> bytes:
        """All bytes in memory."""
        self._file.seek(0)
        return self._file.read()

    def write(self, chunk: bytes) -> None:
        """Append what has arrived; raises SourceError where there is no room for it."""
        try:
            self._file.write(chunk)
        except OSError as error:
            why = (error.strerror or "cannot be written to").lower()
            raise SourceError(
                f"an answer of more than {self.size:,} bytes waits in the temporary folder: {why};"
                " name another in $TMPDIR"
            ) from None
        self.size += len(chunk)

    def chunks(self) -> Iterator[bytes]:
        """Yield all bytes, from the first on, some at a time."""
        self._file.seek(0)
        while chunk := self._file.read(_CHUNK):
            yield chunk

    def head(self, size: int = 64) -> bytes:
        """Return the first bytes."""
        self._file.seek(0)
        return self._file.read(size)

    def close(self) -> None:
        """Let go of the memory or the file."""
        self._file.close()

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
