# SPDX-License-Identifier: Apache-2.0
"""HTTP to one host: retried, bounded, not redirected elsewhere; a failure is one line with advice."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import responses
from typing import Final
from urllib.parse import urljoin, urlsplit

import msgspec
import requests
import requests.adapters
import urllib3

from grademl_otel.analyzers.errors import SourceError
from grademl_otel.analyzers.sources.base import SourceOptions
from grademl_otel.version import __version__

_CONNECT_S: Final = 5.0
_RETRIES: Final = 4
_LONGEST_PAUSE_S: Final = 15.0
_REDIRECTS: Final = 5
_CHUNK: Final = 1 << 16
_ERROR_BYTES: Final = 4096
_ASK_LESS: Final = "ask for less time (--since, --from, --to) or for one trace (--trace)"
CONNECTIONS: Final = 4


class NotFound(SourceError):
    """The server answered 404."""


class TooLarge(SourceError):
    """The answer exceeds a bound, ours or the server's; asking for less may work."""


@dataclass(frozen=True)
class Answer:
    """The whole of a server's answer of status 200."""

    body: bytes
    headers: Mapping[str, str]
    """Names in any case."""
    sent_ns: int
    received_ns: int
    """Unix ns here when it was asked for, and when it began to come."""

    @property
    def content_type(self) -> str:
        """As "application/json", without parameters, in lower case."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()


class _PatientRetry(urllib3.Retry):
    """Obeys Retry-After, but not for longer than a person would wait."""

    def get_retry_after(self, response: urllib3.BaseHTTPResponse) -> float | None:
        try:
            asked = super().get_retry_after(response)
        except urllib3.exceptions.HTTPError:  # an unreadable Retry-After
            return None
        return None if asked is None else min(asked, _LONGEST_PAUSE_S)


class HttpClient:
    """GET requests to one server, below one base address.

    ``name`` (as "jaeger http://host:16686") begins each error line and ``advice`` ends those that say that
    there is no such server. Headers go to this host only; ``.netrc`` is not consulted, so that none is added.
    """

    def __init__(
        self, name: str, base: str, advice: str, options: SourceOptions, tenant_header: str = "x-tenant"
    ) -> None:
        self.name = name
        self.advice = advice
        self._tenant_header = tenant_header
        self._base = base.rstrip("/")
        self._options = options
        self._session = requests.Session()
        self._session.headers["User-Agent"] = f"grademl/{__version__}"
        self._session.headers.update(options.headers)
        self._session.auth = _no_netrc
        retry = _PatientRetry(
            total=_RETRIES,
            connect=0,
            read=False,  # not 0, which would hide a time-out in an error about retries
            other=0,
            redirect=False,
            status=_RETRIES,
            status_forcelist=(429, 502, 503, 504),
            allowed_methods=("GET",),
            backoff_factor=0.5,
            backoff_max=_LONGEST_PAUSE_S,
            backoff_jitter=0.25,
            raise_on_status=False,
        )
        adapter = requests.adapters.HTTPAdapter(max_retries=retry, pool_maxsize=CONNECTIONS)
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)

    def get_json(self, path: str, params: Mapping[str, str] | None = None) -> bytes:
        """Return the body of a JSON answer, not parsed. Raises as `get` does."""
        body = self.get(path, params).body
        start = body[:64].lstrip()
        if not start.startswith((b"{", b"[")):
            what = "an HTML page" if start.startswith(b"<") else "something else" if start else "nothing"
            raise SourceError(f"{self.name}: answered with {what}, not with JSON; {self.advice}")
        return body

    def get(self, path: str, params: Mapping[str, str] | None = None, accept: str = "*/*") -> Answer:
        """Return an answer of any kind.

        Raises NotFound for 404, TooLarge, and SourceError for all other failures.
        """
        url = self._base + path
        for _ in range(_REDIRECTS):
            sent = time.time_ns()
            try:
                with self._session.get(
                    url,
                    params=params,
                    headers={"Accept": accept},
                    timeout=(min(_CONNECT_S, self._options.timeout_s), self._options.timeout_s),
                    stream=True,
                    allow_redirects=False,
                ) as response:
                    if response.is_redirect:
                        url, params = self._redirected(response), None
                        continue
                    received = time.time_ns()
                    return Answer(self._body(response), response.headers, sent, received)
            except requests.RequestException as error:
                raise self._failure(error) from None
        raise SourceError(f"{self.name}: redirects without end; {self.advice}")

    def _redirected(self, response: requests.Response) -> str:
        target = urljoin(response.url, response.headers["Location"])
        here, there = urlsplit(response.url), urlsplit(target)
        if (here.scheme, here.netloc) != (there.scheme, there.netloc):
            where = f"{there.scheme}://{there.netloc.rpartition('@')[2]}"
            raise SourceError(
                f"{self.name}: redirects to {where}, which is not followed;"
                " name that address as SOURCE, or pass --header with what its login needs"
            )
        return target

    def _body(self, response: requests.Response) -> bytes:
        if response.status_code != 200:
            raise self._refusal(response.status_code, self._read(response, _ERROR_BYTES, cut=True))
        return self._read(response, self._options.max_bytes)

    def _read(self, response: requests.Response, limit: int, cut: bool = False) -> bytes:
        """Read at most ``limit`` bytes; more is cut, or is TooLarge."""
        deadline = time.monotonic() + 20 * self._options.timeout_s
        chunks, size = [], 0
        for chunk in response.iter_content(_CHUNK):
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                if cut:
                    break
                raise TooLarge(f"{self.name}: an answer of more than {limit:,} bytes; {_ASK_LESS}")
            if time.monotonic() > deadline:
                raise SourceError(
                    f"{self.name}: an answer trickles in without end; allow more with --timeout"
                )
        return b"".join(chunks)

    def _refusal(self, status: int, body: bytes) -> SourceError:
        said = error_text(body)
        text = f"{status} {said.removeprefix(f'{status} ') or responses.get(status, '')}".strip()
        if status in (401, 403):
            return SourceError(
                f"{self.name}: {text}; pass --header NAME=VALUE"
                f" (a tenant: {self._tenant_header}=..., a token: Authorization=...)"
            )
        if status == 404:
            return NotFound(f"{self.name}: {text}; {self.advice}")
        if status == 429:
            return SourceError(f"{self.name}: {text}; the server asks for fewer requests; try again later")
        if status in (413, 422, 502, 504) or (status == 500 and "larger than the max" in said):
            return TooLarge(f"{self.name}: {text}; the answer may be too large; {_ASK_LESS}")
        return SourceError(f"{self.name}: {text}")

    def _failure(self, error: requests.RequestException) -> SourceError:
        reason = str(error)
        if isinstance(error, requests.exceptions.SSLError):
            return SourceError(
                f"{self.name}: TLS failed; is it plain http://, or is its certificate not trusted?"
            )
        if isinstance(error, requests.exceptions.ProxyError):
            return SourceError(
                f"{self.name}: the proxy of $HTTP(S)_PROXY failed; set NO_PROXY for this host?"
            )
        if isinstance(error, requests.exceptions.Timeout):
            waited = f"no answer within {self._options.timeout_s:g} s"
            return SourceError(f"{self.name}: {waited}; {self.advice}; or allow more with --timeout")
        if isinstance(error, requests.exceptions.RetryError):
            return SourceError(f"{self.name}: still overloaded after {_RETRIES} tries; try again later")
        if "Connection refused" in reason:
            return SourceError(f"{self.name}: connection refused; {self.advice}")
        if "NameResolutionError" in reason or "getaddrinfo" in reason:
            return SourceError(f"{self.name}: no such host; check the name")
        if isinstance(error, requests.exceptions.ChunkedEncodingError):
            return TooLarge(
                f"{self.name}: the answer broke off; the server may have run out of time or memory"
            )
        if "RemoteDisconnected" in reason or "Connection aborted" in reason or "BadStatusLine" in reason:
            return TooLarge(f"{self.name}: closed the connection without an answer; {self.advice}")
        if isinstance(error, requests.exceptions.ConnectionError):
            return SourceError(f"{self.name}: cannot connect; {self.advice}")
        return SourceError(f"{self.name}: {type(error).__name__}; {self.advice}")


def _no_netrc(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """An authentication that adds nothing: without one, requests would take credentials from ``.netrc``."""
    return request


def error_text(body: bytes) -> str:
    """Return the message in an error answer, one short line: Jaeger's JSON of v1 or v3, or plain text."""
    text = body.decode("utf-8", "replace").strip()
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        answer = None
    if isinstance(answer, dict):
        error = answer.get("error") or (answer.get("errors") or [None])[0]
        if isinstance(error, dict):
            text = str(error.get("message") or error.get("msg") or "")
        else:
            text = str(error or answer.get("message") or "")
    if text.startswith("<"):
        return ""
    return " ".join(text.split())[:200]
