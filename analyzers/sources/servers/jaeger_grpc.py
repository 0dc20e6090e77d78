# SPDX-License-Identifier: Apache-2.0
"""Jaeger's api_v3 over gRPC: the same traces as over HTTP, in protobuf, several times as fast.

Requests and answers are raw bytes, so that no generated stubs are needed. gRPC itself obeys the proxies of
the environment.
"""

from __future__ import annotations

import logging
import random
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Final, TypeVar

import grpc

from grademl_otel.analyzers.errors import SourceError, UsageError
from grademl_otel.analyzers.model.columns import Ledger
from grademl_otel.analyzers.sources.base import SourceOptions
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.formats.decoding import Unreadable
from grademl_otel.analyzers.sources.formats.otlp_proto import read_traces
from grademl_otel.analyzers.sources.servers import jaeger_wire as wire
from grademl_otel.analyzers.sources.servers.answer import Answer
from grademl_otel.analyzers.sources.servers.http_client import Clock
from grademl_otel.analyzers.sources.servers.jaeger_api import Search, Summary
from grademl_otel.analyzers.sources.servers.refusals import (
    NotFound,
    TooLarge,
    Unreachable,
    beyond,
    login_hint,
)
from grademl_otel.analyzers.sources.servers.silence import Watch
from grademl_otel.analyzers.sources.servers.transport import trusting
from grademl_otel.version import __version__

_SERVICE: Final = "/jaeger.api_v3.QueryService/"
_ADVICE: Final = "is Jaeger running there? (its gRPC query port is 16685, 4317 takes spans)"
_CONNECT_S: Final = 5.0
_WHOLE: Final = 20
"""How many times the longest silence an answer may take altogether."""
_TRIES: Final = 4
_FIRST_PAUSE_S: Final = 0.5
_LARGEST_MESSAGE: Final = 2**31 - 1
_READ_AT_ONCE: Final = 4 << 20
"""Bytes: a trace is often a message of a few hundred."""

log = logging.getLogger(__name__)
Got = TypeVar("Got")


class _Messages(Answer):
    """A stream of messages, each to be read by itself."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: list[int] = []

    def write(self, chunk: bytes) -> None:
        super().write(chunk)
        self._sizes.append(len(chunk))

    def messages(self, at_least: int = 1) -> Iterator[bytes]:
        """Yield the messages, as many in one as have ``at_least`` bytes: protobuf joins what follows."""
        self._file.seek(0)
        joined = 0
        for size in self._sizes:
            joined += size
            if joined >= at_least:
                yield self._file.read(joined)
                joined = 0
        if joined:
            yield self._file.read(joined)


class JaegerGrpc:
    """The query service at ``address`` (host:port); ``name`` begins each error line."""

    api = "api_v3 over gRPC"
    finest_ns = 1
    clock: Clock | None = None
    """Its answers bear no date."""

    def __init__(self, name: str, address: str, secure: bool, options: SourceOptions) -> None:
        self._name = name
        self._options = options
        self._metadata = _metadata(options.headers)
        self.has_summaries: bool | None = None
        self._over = Event()
        self._watch = Watch(options.timeout_s)
        settings = (
            ("grpc.max_receive_message_length", min(options.max_bytes, _LARGEST_MESSAGE)),
            ("grpc.primary_user_agent", f"grademl/{__version__}"),
        )
        if secure:
            self._channel = grpc.secure_channel(address, _credentials(options), settings)
        else:
            self._channel = grpc.insecure_channel(address, settings)

    def services(self) -> list[str]:
        """Connect, and return the names of all services, sorted."""
        patience = min(_CONNECT_S, self._options.timeout_s)
        try:
            grpc.channel_ready_future(self._channel).result(timeout=patience)
        except grpc.FutureTimeoutError:
            raise SourceError(
                f"{self._name}: no gRPC connection within {patience:g} s; {_ADVICE}"
                " (TLS is jaeger+grpcs://, its CA --ca)"
            ) from None
        response = self._tried(self._whole, "GetServices", b"")
        try:
            return wire.service_names(response)
        except Unreadable:
            raise SourceError(f"{self._name}: services that are not Jaeger's; {_ADVICE}") from None

    def trace(self, trace_id: int) -> Answer | None:
        return self._traces("GetTrace", wire.get_trace(trace_id))

    def search(self, wanted: Search, start: int, end: int, limit: int) -> Answer | None:
        return self._traces("FindTraces", wire.find_traces(wanted, start, end, limit))

    def summaries(self, wanted: Search, start: int, end: int, limit: int) -> list[Summary] | None:
        if self.has_summaries is False:
            return None
        request = wire.find_traces(wanted, start, end, limit)
        try:
            with self._tried(self._stream, "FindTraceSummaries", request) as answer:
                if answer.broken is not None:
                    raise TooLarge(answer.broken)
                found = wire.summaries(answer.messages())
                self.has_summaries = True
                return found
        except _Unknown:
            pass  # before v2.19
        except (Unreadable, ValueError):
            pass  # a summary that cannot be understood is none
        except NotFound:
            return []
        self.has_summaries = False
        return None

    def read(self, answer: Answer, builder: SpanBuilder, ledger: Ledger) -> None:
        assert isinstance(answer, _Messages)
        for message in answer.messages(_READ_AT_ONCE):
            read_traces(message, builder, ledger)

    def abort(self) -> None:
        self._over.set()
        self._channel.close()

    # --- Calls --------------------------------------------------------------------------------------------

    def _traces(self, method: str, request: bytes) -> Answer | None:
        try:
            answer = self._tried(self._stream, method, request)
        except NotFound:
            return None
        if not answer.size and answer.broken is None:
            answer.close()
            return None
        return answer

    def _tried(self, call: Callable[[str, bytes], Got], method: str, request: bytes) -> Got:
        """Make a call, again if the server was not there for a moment; raises SourceError."""
        for tried in range(1, _TRIES + 1):
            try:
                return call(method, request)
            except grpc.RpcError as error:
                log.debug("%s: %s -> %s", self._name, method, error.code().name)
                if error.code() is not grpc.StatusCode.UNAVAILABLE or tried == _TRIES or self._over.is_set():
                    raise self._failure(error) from None
            self._over.wait(random.uniform(0, _FIRST_PAUSE_S * 2**tried))
        raise AssertionError("unreachable")

    def _whole(self, method: str, request: bytes) -> bytes:
        call = self._channel.unary_unary(_SERVICE + method)
        response: bytes = call(request, metadata=self._metadata, timeout=self._options.timeout_s)
        return response

    def _stream(self, method: str, request: bytes) -> _Messages:
        """Return all messages of a stream; of one that broke off, those before."""
        call = self._channel.unary_stream(_SERVICE + method)(
            request, metadata=self._metadata, timeout=_WHOLE * self._options.timeout_s
        )
        answer = _Messages()
        try:
            with self._watch.over(call) as heard:
                for message in call:
                    heard()
                    answer.write(message)
                    if answer.size > self._options.max_bytes:
                        raise beyond(self._name, self._options.max_bytes)
        except SourceError:
            call.cancel()
            answer.close()
            raise
        except grpc.RpcError as error:
            if not answer.size or error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                answer.close()
                raise
            answer.broken = f"{self._failure(error)} (after {answer.size:,} bytes)"
        return answer

    def _failure(self, error: grpc.RpcError) -> SourceError:
        code, name = error.code(), self._name
        said = " ".join("".join(c if c.isprintable() else " " for c in error.details() or "").split())[:200]
        Code = grpc.StatusCode
        if code is Code.NOT_FOUND or (code is Code.UNKNOWN and "not found" in said.lower()):
            return NotFound(f"{name}: {said or 'not found'}")
        if code in (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED):
            return SourceError(f"{name}: {said or code.name}; {login_hint('x-tenant')}")
        if code is Code.UNIMPLEMENTED:
            return _Unknown(f"{name}: it has no jaeger.api_v3.QueryService; {_ADVICE}")
        if code is Code.RESOURCE_EXHAUSTED:
            if "received message" in said.lower():
                return beyond(name, self._options.max_bytes)
            return TooLarge(f"{name}: {said}; ask for less time (--since, --from, --to)")
        if code in (Code.DEADLINE_EXCEEDED, Code.CANCELLED):
            waited = f"no answer within {self._options.timeout_s:g} s"
            return SourceError(f"{name}: {waited}; {_ADVICE}; or allow more with --timeout")
        if code is Code.UNAVAILABLE:
            return Unreachable(f"{name}: unavailable ({_without_addresses(said)}); {_ADVICE}")
        return SourceError(f"{name}: {code.name}: {said}")


def _metadata(headers: Mapping[str, str]) -> tuple[tuple[str, str | bytes], ...]:
    """Return headers as gRPC takes them; raises UsageError for a name that only HTTP knows."""
    pairs: list[tuple[str, str | bytes]] = []
    for name, value in headers.items():
        key = name.lower()
        if not re.fullmatch(r"[0-9a-z_.-]+", key):
            raise UsageError(f"--header: {name} is no name that gRPC sends; use letters, digits, - _ .")
        pairs.append((key, value.encode() if key.endswith("-bin") else value))
    return tuple(pairs)


class _Unknown(SourceError):
    """The server has no such method."""


def _credentials(options: SourceOptions) -> grpc.ChannelCredentials:
    trusting(options)  # tells what is wrong with the files, where gRPC only fails to connect
    root: bytes | None = None
    if options.ca is not None:
        root = Path(options.ca).read_bytes()
    else:
        # gRPC brings a list of its own; the system's may hold a company's CA too.
        with suppress(OSError):
            root = _system_certificates()
    key = chain = None
    if options.client_cert is not None:
        chain = Path(options.client_cert).read_bytes()
        key = chain if options.client_key is None else Path(options.client_key).read_bytes()
    return grpc.ssl_channel_credentials(root, key, chain)


def _system_certificates() -> bytes:
    with open(ssl.get_default_verify_paths().cafile or "", "rb") as file:
        return file.read()


def _without_addresses(said: str) -> str:
    """Shorten gRPC's account of every address that it tried to the last reason."""
    return said.rpartition("; last error: ")[2] or said
