# SPDX-License-Identifier: Apache-2.0
"""Addresses of Jaegers, those pasted from its user interface among them: what they say is asked for."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import parse_qs, urlsplit

from grademl_otel.analyzers.errors import UsageError, without_secrets
from grademl_otel.analyzers.sources.base import Selection

HTTP_PORT: Final = 16686
GRPC_PORT: Final = 16685
_SCHEMES: Final = {
    "jaeger": ("http", HTTP_PORT),
    "jaegers": ("https", HTTP_PORT),
    "jaeger+grpc": ("grpc", GRPC_PORT),
    "jaeger+grpcs": ("grpcs", GRPC_PORT),
    "http": ("http", None),
    "https": ("https", None),
}
_TRACE: Final = re.compile(
    r"(?P<base>.*?)/(?:trace|api/traces|api/v3/traces)/(?P<id>[0-9A-Fa-f]{1,32})"
    r"(?:\.\.\.(?P<other>[0-9A-Fa-f]{1,32}))?/?"
)
_PAGE: Final = re.compile(r"/(?P<page>search|dependencies|monitor|compare|quality|index\.html)?/?$")
_LOOKBACK: Final = re.compile(r"(\d{1,6})(m|h|d|w)")
_UNIT_S: Final = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_S: Final = 1_000_000_000


@dataclass(frozen=True)
class Address:
    """Where a Jaeger is, and what its address asks for."""

    scheme: str
    """http, https, grpc or grpcs."""
    host: str
    """With the port: ``host:16686``; an IPv6 address in brackets."""
    base: str
    """Path before the API's: empty or as ``/jaeger``."""
    selection: Selection
    """Of a pasted trace or search; empty otherwise."""

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}{self.base}"


def parse(uri: str) -> Address:
    """Return the parts of ``jaeger://host[:port][/base]`` and its kin, or of a page's; raises UsageError."""
    shown = without_secrets(uri)
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        raise UsageError(f"{shown}: no host and port in it; write jaeger://host:{HTTP_PORT}") from None
    if parts.username or parts.password:
        raise UsageError(
            f"{shown}: no secrets in addresses; put name:password into $GRADEML_USER,"
            " or pass --header Authorization=..."
        )
    if not parts.hostname:
        raise UsageError(f"{shown}: no host in it; write jaeger://host:{HTTP_PORT}")
    scheme, default = _SCHEMES[parts.scheme.lower()]
    port = port or default
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if port:
        host += f":{port}"
    pasted = _TRACE.fullmatch(parts.path)
    if pasted:
        ids = tuple(int(text, 16) for text in (pasted["id"], pasted["other"]) if text)
        return Address(scheme, host, pasted["base"], Selection(trace_ids=ids))
    page = _PAGE.search(parts.path)
    base = parts.path[: page.start()] if page else parts.path.rstrip("/")
    searched = page is not None and page["page"] == "search"
    return Address(scheme, host, base, _searched(parts.query) if searched else Selection())


def asked_in(uri: str | None) -> Selection:
    """Return what ``uri`` asks for, as the address of a trace or of a search; any other asks for nothing."""
    if uri is None or uri.partition(":")[0].lower() not in _SCHEMES:
        return Selection()
    return parse(uri).selection


def names_traces(uri: str | None) -> bool:
    """Whether ``uri`` is the address of traces, or of a search for some."""
    asked = asked_in(uri)
    return bool(asked.trace_ids or asked.operation or asked.attributes)


def merged(asked: Selection, address: Selection) -> Selection:
    """Return ``asked`` with what it leaves open taken from the address."""
    times = (asked.start, asked.end)
    if times == (None, None):
        times = (address.start, address.end)
    return replace(
        asked,
        trace_ids=asked.trace_ids or address.trace_ids,
        service=asked.service or address.service,
        operation=asked.operation or address.operation,
        attributes=asked.attributes or address.attributes,
        start=times[0],
        end=times[1],
    )


def _searched(query: str) -> Selection:
    """Return what a search of the user interface asks for; times in it are microseconds."""
    given = parse_qs(query)
    one = {key: values[-1] for key, values in given.items()}
    ids = tuple(
        int(text, 16) for text in given.get("traceID", ()) if re.fullmatch(r"[0-9A-Fa-f]{1,32}", text)
    )
    start, end = _microseconds(one.get("start")), _microseconds(one.get("end"))
    lookback = _LOOKBACK.fullmatch(one.get("lookback", ""))
    if lookback:  # from now on, not from when the page was opened
        end = None
        start = time.time_ns() - int(lookback[1]) * _UNIT_S[lookback[2]] * _S
    operation = one.get("operation")
    return Selection(
        trace_ids=ids,
        service=one.get("service"),
        operation=None if operation == "all" else operation,
        attributes=_tags(one.get("tags")),
        start=start,
        end=end,
    )


def _microseconds(text: str | None) -> int | None:
    return int(text) * 1000 if text and re.fullmatch(r"\d{1,16}", text) else None


def _tags(text: str | None) -> tuple[tuple[str, str], ...]:
    try:
        tags = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return ()
    return tuple((key, str(value)) for key, value in tags.items()) if isinstance(tags, dict) else ()
