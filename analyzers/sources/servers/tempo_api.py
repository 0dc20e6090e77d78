# SPDX-License-Identifier: Apache-2.0
"""Tempo's HTTP API: searches, traces by id, what it knows of itself.

Protobuf is asked for, and JSON is read as well: protobuf has a third of its size, and Tempo writes it four
times as fast. API v2 of traces is asked first: it gives a part of a trace that is too large, v1 refuses it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import msgspec

from grademl_otel.analyzers.errors import SourceError
from grademl_otel.analyzers.sources.formats.decoding import Unreadable
from grademl_otel.analyzers.sources.servers.http_client import PROTOBUF, Clock, HttpClient
from grademl_otel.analyzers.sources.servers.refusals import NotFound, TooLarge
from grademl_otel.analyzers.sources.servers.tempo_query import NEWEST, Wanted
from grademl_otel.analyzers.sources.servers.tempo_search import RangeTooLong
from grademl_otel.analyzers.sources.servers.tempo_wire import (
    Envelope,
    Page,
    open_envelope,
    read_page,
)

ADVICE: Final = "is Tempo running there? (its HTTP port is 3200, 4317/4318 take spans)"
_ANY: Final = "*/*"
TENANT_HEADER: Final = "X-Scope-OrgID"
_LONGEST_S: Final = 168 * 3600
_LARGEST: Final = 262_144
_SHORTEST_S: Final = 60
_LESSONS: Final = 8
"""A server changes its mind this often at most about what a search may be."""
_RANGE: Final = re.compile(r"exceeds (?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_LIMIT: Final = re.compile(r"exceeds max limit (\d+)")
_NO_SUCH_PATH: Final = "page not found"
_OUT_OF_TIME: Final = "deadline exceeded"
_DISCARDED: Final = re.compile(
    rb'^tempo_discarded_spans_total\{[^}\n]*reason="([^"\n]*)"[^}\n]*\}'
    rb" ([0-9]+(?:\.[0-9]+)?(?:e\+[0-9]{2})?)$",
    re.M,
)

Found = TypeVar("Found")


class TempoApi:
    """One Tempo, and what was learnt of its limits so far."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self.longest_s = _LONGEST_S
        self._lessons = 0
        self.largest = _LARGEST
        self.newest_first = True
        self.traces_api = 2
        """Version of the API that traces are taken from."""
        self.protobuf: bool | None = None
        """Whether answers come in protobuf; None before the first."""

    @property
    def clock(self) -> Clock | None:
        """The server's clock against ours, as far as an answer has told."""
        return self._client.clock

    @property
    def name(self) -> str:
        """As it begins an error line."""
        return self._client.name

    def abort(self) -> None:
        """Break off what is going on in other threads, which then raise; for Ctrl-C."""
        self._client.abort()

    # --- What it is ---

    def greet(self) -> None:
        """Raise SourceError when no Tempo is there."""
        try:
            said = self._ask("/api/echo", accept=_ANY)[0].strip() == b"echo"
        except NotFound:
            said = self.version() is not None
        if not said:
            raise SourceError(f"{self.name}: does not answer as a Tempo does; {ADVICE}")

    def version(self) -> str | None:
        """Return the server's version; None where it does not tell."""
        try:
            return _version(self._ask("/api/status/buildinfo", accept=_ANY)[0])
        except SourceError:
            return None

    def discarded(self) -> dict[str, int] | None:
        """Return reason -> spans that it refused since it started; None where its metrics cannot be read."""
        try:
            body, _ = self._ask("/metrics", accept=_ANY)
        except SourceError:
            return None
        if b"tempo_" not in body:
            return None
        counts: dict[str, int] = {}
        for reason, count in _DISCARDED.findall(body):
            name = reason.decode("utf-8", "replace")
            counts[name] = counts.get(name, 0) + int(float(count))
        return counts

    def services(self, start: int, end: int) -> list[str]:
        """Return the names of the services that sent spans between two Unix seconds, sorted."""
        try:
            return self._tag_values("/api/v2/search/tag/resource.service.name/values", start, end)
        except NotFound:  # before 2.0
            return self._tag_values("/api/search/tag/service.name/values", start, end)

    def _tag_values(self, path: str, start: int, end: int) -> list[str]:
        try:
            body = self._client.get_json(path, {"start": str(start), "end": str(end)})
        except SourceError as error:
            if not self._learns_longest(str(error), end - start):
                raise
            return self._tag_values(path, end - self.longest_s, end)
        try:
            values = _decoded(body, _Values).tagValues or ()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise SourceError(f"{self.name}: services that are not Tempo's JSON; {ADVICE}") from None
        names = {value if isinstance(value, str) else value.value for value in values}
        return sorted(names - {""})

    def _learns_longest(self, refusal: str, asked: int) -> bool:
        """Learn from ``refusal`` how long a search may be; false where it is about something else."""
        longest = _range(refusal)
        if longest is None or not _SHORTEST_S <= longest < asked or self._lessons >= _LESSONS:
            return False
        self._lessons += 1
        self.longest_s = longest
        return True

    def latest_services(self) -> list[str]:
        """Return the names of the services of as much time as one search may span, until now."""
        now = int(time.time())
        return self.services(now - self.longest_s, now)

    # --- Searches ---

    def search(self, wanted: Wanted, start: int, end: int, limit: int) -> Page:
        """Return up to ``limit`` traces that overlap ``[start, end)``, Unix s.

        Raises TooLarge, RangeTooLong, and SourceError for all other failures. What the server says of its own
        limits is obeyed from then on.
        """
        hint = NEWEST if self.newest_first else ""
        params = {
            "q": wanted.traceql() + hint,
            "start": str(start),
            "end": str(end),
            "limit": str(min(limit, self.largest)),
            "spss": "1",
        }
        try:
            body, protobuf = self._body("/api/search", params)
        except (TooLarge, NotFound):
            raise
        except SourceError as error:
            text = str(error)
            if self._learns_longest(text, end - start):
                raise RangeTooLong from None
            found = _LIMIT.search(text) if self._lessons < _LESSONS else None
            if found and 0 < int(found[1]) < min(limit, self.largest):
                self._lessons += 1
                self.largest = int(found[1])
                return self.search(wanted, start, end, limit)
            if hint and "invalid TraceQL" in text:
                self.newest_first = False
                return self.search(wanted, start, end, limit)
            raise
        return self._read(lambda: read_page(body, protobuf))

    def learn_limit(self) -> None:
        """Learn the largest limit of a search, by asking for more than any server gives, of one second."""
        now = int(time.time())
        largest, self.largest = self.largest, 2**31 - 1
        try:
            self.search(Wanted(operation="grademl doctor"), now - 1, now, self.largest)
        finally:
            self.largest = min(largest, self.largest)

    # --- Traces ---

    def trace(self, trace: int) -> Envelope | None:
        """Return a trace, or None when there is no such trace.

        Raises TooLarge when the server cannot give it because of its size, and SourceError.
        """
        if self.traces_api == 2:
            try:
                body, protobuf = self._body(f"/api/v2/traces/{trace:032x}")
            except NotFound as error:
                if _NO_SUCH_PATH not in str(error):
                    return None
                self.traces_api = 1  # before 2.7
            else:
                return self._read(lambda: open_envelope(body, protobuf, 2))
        try:
            body, protobuf = self._body(f"/api/traces/{trace:032x}")
        except NotFound:
            return None
        return self._read(lambda: open_envelope(body, protobuf, 1))

    def _body(self, path: str, params: Mapping[str, str] | None = None) -> tuple[bytes, bool]:
        """Return an answer, and whether it is in protobuf. One that took too long is asked for once more."""
        try:
            return self._ask(path, params)
        except SourceError as error:
            if _OUT_OF_TIME not in str(error):
                raise
        try:
            return self._ask(path, params)
        except SourceError as error:
            raise TooLarge(str(error)) if _OUT_OF_TIME in str(error) else error from None

    def _ask(
        self, path: str, params: Mapping[str, str] | None = None, accept: str = PROTOBUF
    ) -> tuple[bytes, bool]:
        with self._client.get(path, params, accept) as answer:
            protobuf = "protobuf" in answer.content_type
            if accept == PROTOBUF:
                self.protobuf = protobuf
            return answer.body, protobuf

    def _read(self, read: Callable[[], Found]) -> Found:
        try:
            return read()
        except Unreadable as fault:
            raise SourceError(f"{self.name}: {fault}; {ADVICE}") from None


class _Value(msgspec.Struct, gc=False):
    value: str = ""


class _Values(msgspec.Struct, gc=False):
    tagValues: list[str | _Value] | None = None
    """Text before 2.0."""


class _BuildInfo(msgspec.Struct, gc=False):
    version: str = ""


def _decoded(body: bytes, kind: type[Found]) -> Found:
    return msgspec.json.decode(body, type=kind)


def _version(body: bytes) -> str | None:
    try:
        return _decoded(body, _BuildInfo).version[:40] or None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _range(text: str) -> int | None:
    """Return the longest time of a search, in s, from the server's refusal of a longer one."""
    if "range specified" not in text or (found := _RANGE.search(text)) is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds
