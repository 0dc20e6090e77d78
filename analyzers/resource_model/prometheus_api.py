# SPDX-License-Identifier: Apache-2.0
"""The HTTP API of Prometheus, and of what speaks it (Mimir, Thanos, VictoriaMetrics): samples of series.

Samples are asked for as they are stored (`metric[range]`), not at steps of ours: none is shown twice, and
none lies between two steps. Windows are halved while the server, or our bound, finds them too large.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import numpy as np

from grademl_otel.analyzers.arrays import FloatArray, IntArray
from grademl_otel.analyzers.errors import SourceError, UsageError, without_secrets
from grademl_otel.analyzers.sources.base import SourceOptions
from grademl_otel.analyzers.sources.credentials import from_environment, headers_from
from grademl_otel.analyzers.sources.servers.http_client import HttpClient
from grademl_otel.analyzers.sources.servers.refusals import TooLarge

HEADERS_VARIABLE: Final = "GRADEML_PROMETHEUS_HEADERS"
USER_VARIABLE: Final = "GRADEML_PROMETHEUS_USER"
PORT: Final = 9090
_SCHEMES: Final = {"prometheus": "http", "prometheuss": "https", "http": "http", "https": "https"}
_ADVICE: Final = (
    "is a Prometheus there? write http://HOST:9090, with the path before /api/v1 where there is one"
)
_MS: Final = 1_000_000
_LATEST_S: Final = (1 << 62) / 1e9
_NAMES_AT_ONCE: Final = 40
"""In one selector: addresses of requests have bounds of some KB."""
_WINDOW_NS: Final = 3600 * 10**9
_SHORTEST_NS: Final = 10 * 10**9
MOST_SERIES: Final = 100_000


class Labelled(msgspec.Struct):
    """A series and its samples: (Unix s, value as text)."""

    metric: dict[str, str]
    values: list[tuple[float, str]] = []


class _Result(msgspec.Struct):
    result: list[Labelled] = []


class _Samples(msgspec.Struct):
    status: str
    data: _Result = msgspec.field(default_factory=_Result)


class _Series(msgspec.Struct):
    status: str
    data: list[dict[str, str]] = []


class _Values(msgspec.Struct):
    status: str
    data: list[str] = []


class Prometheus:
    """One server."""

    def __init__(self, uri: str, headers: Mapping[str, str], options: SourceOptions) -> None:
        """Raises UsageError for what is no address. Of ``options`` no header and no login is used."""
        base = _base(uri)
        self.name = f"prometheus {without_secrets(base)}"
        options = replace(
            options, headers=headers_from(HEADERS_VARIABLE, USER_VARIABLE, headers), anonymous=True
        )
        self._client = HttpClient(
            self.name, base, _ADVICE, from_environment(options), tenant_header="X-Scope-OrgID"
        )

    def names(self, start: int, end: int) -> list[str]:
        """Return the names of all metrics of a time (Unix ns), as far as the server heeds it."""
        asked = {"start": _seconds(start), "end": _seconds(end)}
        found: list[str] = self._decoded("/api/v1/label/__name__/values", asked, _Values).data
        return found

    def series(self, names: Sequence[str], start: int, end: int) -> list[dict[str, str]]:
        """Return the labels of all series of these metrics."""
        found: list[dict[str, str]] = []
        for selector in _selectors(names, {}):
            asked = {"match[]": selector, "start": _seconds(start), "end": _seconds(end)}
            found += self._decoded("/api/v1/series", asked, _Series).data
            if len(found) > MOST_SERIES:
                raise SourceError(
                    f"{self.name}: more than {MOST_SERIES:,} series of hosts and GPUs; name a server that has"
                    " fewer, or a shorter time"
                )
        return found

    def samples(
        self, names: Sequence[str], matching: Mapping[str, Sequence[str]], start: int, end: int
    ) -> Iterator[list[Labelled]]:
        """Yield the samples of these metrics from ``start`` to ``end``, some at a time; see `as_arrays`.

        ``matching``: label -> values, of which series have one. A series comes again in each window.
        """
        start, end = start // _MS * _MS, -(-end // _MS) * _MS
        for selector in _selectors(names, matching):
            yield from self._windows(selector, start, end)

    def close(self) -> None:
        self._client.abort()

    def _windows(self, selector: str, start: int, end: int) -> Iterator[list[Labelled]]:
        since, window = start, _WINDOW_NS
        while since < end:
            until = min(since + window, end)
            asked = {
                # Up to and with the second given; what two windows have in common is there once at the end.
                "query": f"{selector}[{max(1, (until - since) // _MS)}ms]",
                "time": _seconds(until),
            }
            try:
                yield self._decoded("/api/v1/query", asked, _Samples).data.result
            except TooLarge:
                if until - since <= _SHORTEST_NS:
                    raise
                window = max((until - since) // 2 // _MS * _MS, _SHORTEST_NS)
                continue
            since = until

    def _decoded(self, path: str, asked: Mapping[str, str], form: type[Any]) -> Any:
        body = self._client.get_json(path, asked)
        try:
            answer = msgspec.json.decode(body, type=form)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise SourceError(f"{self.name}: an answer that is not Prometheus's; {_ADVICE}") from None
        if answer.status != "success":
            raise SourceError(f"{self.name}: {answer.status}; {_ADVICE}")
        return answer


def as_arrays(values: Sequence[tuple[float, str]]) -> tuple[IntArray, FloatArray]:
    """Return times in Unix ns, and values; what is no number (a stale marker) is NaN.

    Samples of no time that there was are left out: nobody asked for them.
    """
    seconds = np.array([at for at, _ in values], np.float64)
    told = (seconds >= 0) & (seconds < _LATEST_S)
    time = np.rint(seconds[told] * 1e3).astype(np.int64) * _MS
    return time, np.array([_number(text) for _, text in values], np.float64)[told]


def _number(text: str) -> float:
    try:
        return float(text)  # NaN, +Inf and -Inf are written so
    except ValueError:
        return float("nan")


def _selectors(names: Sequence[str], matching: Mapping[str, Sequence[str]]) -> Iterator[str]:
    labels = "".join(f",{_label(label)}=~{_one_of(values)}" for label, values in matching.items())
    for at in range(0, len(names), _NAMES_AT_ONCE):
        yield f"{{__name__=~{_one_of(names[at : at + _NAMES_AT_ONCE])}{labels}}}"


def _label(name: str) -> str:
    """Return a label as selectors write it; in quotes where it is none of those that every server knows."""
    return name if _PLAIN.fullmatch(name) else msgspec.json.encode(name).decode()


_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPECIAL: Final = frozenset("\\.+*?()|[]{}^$")


def _one_of(values: Sequence[str]) -> str:
    """Return a quoted regular expression that is these values, and nothing else."""
    parts = ("".join(f"\\{char}" if char in _SPECIAL else char for char in value) for value in values)
    return msgspec.json.encode("|".join(parts)).decode()


def _seconds(ns: int) -> str:
    """Return a time as Prometheus takes it, in whole milliseconds."""
    ms = -(-ns // _MS)
    return f"{ms // 1000}.{ms % 1000:03d}"


def _base(uri: str) -> str:
    shown = without_secrets(uri)
    try:
        parts = urlsplit(uri if "://" in uri else f"http://{uri}")
        port = parts.port
    except ValueError:
        raise UsageError(f"{shown}: no host and port in it; write http://HOST:{PORT}") from None
    if parts.username or parts.password:
        raise UsageError(
            f"{shown}: no secrets in addresses; put name:password into ${USER_VARIABLE}, or a token into"
            f" ${HEADERS_VARIABLE}"
        )
    scheme = _SCHEMES.get(parts.scheme.lower())
    if scheme is None or not parts.hostname:
        raise UsageError(f"{shown}: no address of a Prometheus; write http://HOST:{PORT}")
    if port is None and parts.scheme.lower().startswith("prometheus"):
        port = PORT
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.partition("/api/v1")[0].rstrip("/")
    for page in ("/graph", "/query"):
        path = path.removesuffix(page)
    return f"{scheme}://{host}{f':{port}' if port else ''}{path}"
