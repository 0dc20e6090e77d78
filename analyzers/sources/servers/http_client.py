# SPDX-License-Identifier: Apache-2.0
"""GET requests to one server: tried again where that may help, bounded, never sent on to another host.

Credentials are headers, and headers go to the host of the address only. Neither they nor the parameters of a
request are in any message; ``.netrc`` is not consulted.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from threading import Event, Lock
from typing import Final
from urllib.parse import urlencode, urljoin, urlsplit, urlunsplit

import urllib3

from grademl_otel.analyzers.errors import SourceError
from grademl_otel.analyzers.sources.base import SourceOptions
from grademl_otel.analyzers.sources.files.compression import Broken
from grademl_otel.analyzers.sources.servers import refusals
from grademl_otel.analyzers.sources.servers.answer import Answer
from grademl_otel.analyzers.sources.servers.contents import unpacked
from grademl_otel.analyzers.sources.servers.refusals import TooLarge, Unexpected
from grademl_otel.analyzers.sources.servers.transport import Connections
from grademl_otel.version import __version__

JSON: Final = "application/json"
PROTOBUF: Final = "application/protobuf"
CONNECTIONS: Final = 4

_CONNECT_S: Final = 5.0
_WHOLE: Final = 20
"""How many times the longest silence an answer may take altogether."""
_TRIES: Final = 5
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 15.0
_BUSY: Final = {429: _TRIES, 503: _TRIES, 502: _TRIES, 504: 2}
"""Status -> number of tries: a gateway's time-out is mostly one of the size of the answer."""
_REDIRECTS: Final = 5
_CHUNK: Final = 1 << 16
_ERROR_BYTES: Final = 4096

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Clock:
    """What an answer's Date said: the server's clock minus ours, in ns, and how far off that may be."""

    offset_ns: int
    error_ns: int


class HttpClient:
    """GET requests below one base address, from any number of threads.

    ``name`` (as "jaeger http://host:16686") begins each error line and ``advice`` ends those that say that
    there is no such server.
    """

    def __init__(
        self, name: str, base: str, advice: str, options: SourceOptions, tenant_header: str = "x-tenant"
    ) -> None:
        self.name = name
        self.advice = advice
        self.max_bytes = options.max_bytes
        """Most that an answer may have."""
        self.clock: Clock | None = None
        """From the quickest answer so far."""
        self._base = base.rstrip("/")
        self._options = options
        self._tenant_header = tenant_header
        self._over = Event()
        self._switching = Lock()
        self._connections = self._connect()
        local = urlsplit(self._base).hostname in ("localhost", "127.0.0.1", "::1")
        self._headers = {
            "User-Agent": f"grademl/{__version__}",
            # Packing costs a server more than a loopback carries.
            "Accept-Encoding": "identity" if local else "gzip",
            **options.headers,
        }

    def get(
        self,
        path: str,
        params: Mapping[str, str] | None = None,
        accept: str = "*/*",
        partial: bool = False,
    ) -> Answer:
        """Return an answer in the form ``accept``, which is checked where it is JSON.

        Of one that broke off twice the beginning is returned if ``partial``; `Answer.broken` says so. Raises
        NotFound for 404, TooLarge, and SourceError for all other failures.
        """
        url = self._base + path + (f"?{urlencode(params)}" if params else "")
        for _ in range(_REDIRECTS):
            answer = self._answered(url, accept)
            if isinstance(answer, str):
                url = answer
                continue
            if answer.broken is not None and not partial:
                answer.close()
                raise TooLarge(answer.broken)
            return answer
        raise SourceError(f"{self.name}: redirects without end; {self.advice}")

    def get_json(self, path: str, params: Mapping[str, str] | None = None) -> bytes:
        """Return the body of a JSON answer, not parsed. Raises as `get` does."""
        with self.get(path, params, JSON) as answer:
            return answer.body

    def abort(self) -> None:
        """Break off what is going on in other threads, which then raise; for Ctrl-C."""
        self._over.set()
        self._connections.abort()

    # --- One request, tried again -------------------------------------------------------------------------

    def _answered(self, url: str, accept: str) -> Answer | str:
        """Return the body, or the address that a redirect leads to."""
        broken = False
        for tried in range(1, _TRIES + 1):
            began, sent = time.monotonic(), time.time_ns()
            try:
                response = self._connections.get(
                    url,
                    {"Accept": accept, **self._headers},
                    min(_CONNECT_S, self._options.timeout_s),
                    self._options.timeout_s,
                )
            except urllib3.exceptions.HTTPError as error:
                reset = isinstance(error, urllib3.exceptions.ProtocolError)
                # A kept connection may be closed just when it is used again.
                if reset and tried == 1 and time.monotonic() - began < 1 and not self._over.is_set():
                    continue
                raise refusals.failure(self.name, self.advice, error, self._options.timeout_s) from None
            try:
                self._read_clock(response, began)
                log.debug("%s: GET %s -> %d", self.name, urlsplit(url).path, response.status)
                if response.get_redirect_location():
                    return self._redirected(url, str(response.get_redirect_location()))
                if tried < _BUSY.get(response.status, 0):
                    self._pause(tried, response.headers.get("Retry-After"))
                    continue
                body = self._body(response, accept, sent)
            finally:
                response.close()  # no more than let go of where all was read
            if body.broken is None or broken or tried == _TRIES:
                return body
            broken = True
            body.close()
        raise AssertionError("unreachable")

    def _pause(self, tried: int, asked: str | None) -> None:
        """Wait before the next try: as long as the server asks, else up to twice as long as before."""
        pause = random.uniform(0, _FIRST_PAUSE_S * 2**tried)
        try:
            if asked:
                pause = max(pause, urllib3.Retry().parse_retry_after(asked))
        except (urllib3.exceptions.HTTPError, ValueError, OverflowError):
            pass  # what it asks for cannot be read
        if self._over.wait(min(pause, _LONGEST_PAUSE_S)):
            raise SourceError(f"{self.name}: broken off")

    def _redirected(self, url: str, location: str) -> str:
        try:
            target = urljoin(url, location)
            here, there = _origin(url), _origin(target)
        except ValueError:
            raise SourceError(f"{self.name}: redirects to what is no address; {self.advice}") from None
        if here == ("http", here[1], 80) and there == ("https", here[1], 443):
            self._to_tls()
        elif here != there:
            where = f"{there[0]}://{urlsplit(target).netloc.rpartition('@')[2]}"
            raise SourceError(
                f"{self.name}: redirects to {where}, which is not followed;"
                " name that address as SOURCE, or pass --header with what its login needs"
            )
        return target

    def _to_tls(self) -> None:
        """Speak TLS from now on, as the server asks."""
        with self._switching:
            if self._base.startswith("http://"):
                base = urlsplit(self._base)
                self._base = urlunsplit(("https", base.hostname or "", base.path, "", ""))
                self._connections = self._connect()

    def _connect(self) -> Connections:
        return Connections(self._base, self._options, CONNECTIONS, _WHOLE * self._options.timeout_s)

    # --- The answer ---------------------------------------------------------------------------------------

    def _body(self, response: urllib3.BaseHTTPResponse, accept: str, sent: int) -> Answer:
        if response.status != 200:
            with self._read(response, sent, _ERROR_BYTES) as said:
                text = said.body[:_ERROR_BYTES]
            raise refusals.refusal(self.name, self.advice, self._tenant_header, response.status, text)
        body = self._read(response, sent, self._options.max_bytes)
        try:
            self._check(body, accept)
        except SourceError:
            body.close()
            raise
        return body

    def _read(self, response: urllib3.BaseHTTPResponse, sent: int, limit: int) -> Answer:
        """Read the body, unpacked; of a refusal the beginning is enough."""
        body = Answer(response.headers, sent, time.time_ns())
        began = time.monotonic()
        try:
            packed = response.stream(_CHUNK, decode_content=False)
            for chunk in unpacked(packed, response.headers.get("Content-Encoding", "")):
                body.write(chunk)
                if body.size > limit:
                    if response.status != 200:
                        break
                    raise refusals.beyond(self.name, limit)
        except Broken as error:
            body.broken = f"{self.name}: an answer that cannot be unpacked: {error}"
            if response.status == 200 and not body.size:
                body.close()
                raise SourceError(body.broken) from None
        except urllib3.exceptions.HTTPError as error:
            late = time.monotonic() - began >= (_WHOLE - 1) * self._options.timeout_s
            if response.status != 200:
                pass
            elif body.size:
                why = "was still coming in" if late else "broke off"
                body.broken = (
                    f"{self.name}: the answer {why} after {body.size:,} bytes; the server may have run out of"
                    " time or memory" + ("; allow more with --timeout" if late else "")
                )
            else:
                body.close()
                raise self._no_body(error, late) from None
        except SourceError:
            body.close()
            raise
        return body

    def _no_body(self, error: urllib3.exceptions.HTTPError, late: bool) -> SourceError:
        if late:
            return SourceError(f"{self.name}: an answer trickles in without end; allow more with --timeout")
        if isinstance(error, urllib3.exceptions.ProtocolError):
            return TooLarge(
                f"{self.name}: the answer broke off; the server may have run out of time or memory"
            )
        return refusals.failure(self.name, self.advice, error, self._options.timeout_s)

    def _check(self, body: Answer, accept: str) -> None:
        """Refuse what is no JSON at first sight, as a page for people."""
        start = body.head().lstrip()
        if accept != JSON or start.startswith((b"{", b"[")):
            return
        what = "an HTML page" if start.startswith(b"<") else "something else" if start else "nothing"
        raise Unexpected(f"{self.name}: answered with {what}, not with JSON; {self.advice}")

    def _read_clock(self, response: urllib3.BaseHTTPResponse, began: float) -> None:
        """Compare the answer's Date, in whole seconds, with the middle of the time that it took."""
        took = int((time.monotonic() - began) * 1e9)
        try:
            date = parsedate_to_datetime(response.headers["Date"])
            offset = int(date.timestamp()) * 10**9 + 500_000_000 - (time.time_ns() - took // 2)
        except (KeyError, ValueError, TypeError, OverflowError):
            return
        error = 500_000_000 + took // 2
        if self.clock is None or error < self.clock.error_ns:
            self.clock = Clock(offset, error)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port of an address; raises ValueError where it is none."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
