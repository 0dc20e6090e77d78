# SPDX-License-Identifier: Apache-2.0
"""What gets lost on the way from a run to who looks at it: OTLP/JSON lines in, fewer or other ones out.

broken = without(sim.otlp_lines(), window(3, part=1))
broken, cut = cut_traces(sim.otlp_lines(), spans=20)
other = shifted(sim.otlp_lines(), "node-1", -30 * MS)
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection
from typing import Any

from grademl_otel import semconv as sc

from .synthetic import Span, attributes

Lost = Callable[[dict[str, Any], Span], bool]
"""Whether a span, of a resource with these attributes, is lost."""


def plain(said: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the attributes of an OTLP/JSON resource or span with plain values."""
    return {attribute["key"]: _plain(attribute["value"]) for attribute in said}


def _plain(value: dict[str, Any]) -> Any:
    ((kind, raw),) = value.items()
    if kind == "arrayValue":
        return [_plain(element) for element in raw["values"]]
    return int(raw) if kind == "intValue" else raw


def each(lines: bytes, change: Callable[[dict[str, Any], Span], Span | None]) -> bytes:
    """Return ``lines`` with each span as ``change`` returns it, without those for which that is None."""
    out = []
    for line in lines.splitlines():
        request = json.loads(line)
        for group in request["resourceSpans"]:
            resource = plain(group["resource"]["attributes"])
            for scope in group["scopeSpans"]:
                kept = (change(resource, span) for span in scope["spans"])
                scope["spans"] = [span for span in kept if span is not None]
        if any(scope["spans"] for group in request["resourceSpans"] for scope in group["scopeSpans"]):
            out.append(json.dumps(request, separators=(",", ":"), ensure_ascii=False) + "\n")
    return "".join(out).encode()


def without(lines: bytes, lost: Lost) -> bytes:
    """Return ``lines`` without the spans that are ``lost``."""
    return each(lines, lambda resource, span: None if lost(resource, span) else span)


def ranks(*numbers: int) -> Lost:
    return lambda resource, span: resource.get(sc.RANK) in numbers


def window(number: int, part: int | None = None, rank: int | None = None) -> Lost:
    """Lose the tables of a window, or of one part of it."""

    def lost(resource: dict[str, Any], span: Span) -> bool:
        said = plain(span["attributes"])
        return (
            span["name"] == sc.WINDOW
            and said[sc.WINDOW_NUMBER] == number
            and part in (None, said[sc.WINDOW_PART])
            and rank in (None, resource.get(sc.RANK))
        )

    return lost


def named(*names: str, rank: int | None = None) -> Lost:
    return lambda resource, span: span["name"] in names and rank in (None, resource.get(sc.RANK))


def some(share: float, seed: int = 0) -> Lost:
    """Lose about this share of the spans."""
    chance = random.Random(seed)
    return lambda resource, span: chance.random() < share


def cut_traces(lines: bytes, *, spans: int | None = None, size: int | None = None) -> tuple[bytes, list[str]]:
    """Return ``lines`` with traces that end after so many spans, or bytes of JSON, and the ids of those cut.

    As of servers with a limit for each trace, which drop what comes later.
    """
    held: dict[str, tuple[int, int]] = {}
    cut: dict[str, None] = {}

    def lost(resource: dict[str, Any], span: Span) -> bool:
        trace = span["traceId"]
        count, length = held.get(trace, (0, 0))
        count, length = count + 1, length + len(json.dumps(span))
        full = (spans is not None and count > spans) or (size is not None and length > size)
        if full or trace in cut:
            cut[trace] = None
            return True
        held[trace] = count, length
        return False

    return without(lines, lost), list(cut)


def shifted(lines: bytes, host: str, by: int | Callable[[int], int]) -> bytes:
    """Return ``lines`` as if the clock of ``host`` had shown ``by`` ns more; a function of time may drift."""

    def moved(resource: dict[str, Any], span: Span) -> Span:
        if resource["host.name"] != host:
            return span
        times = {}
        for key in ("startTimeUnixNano", "endTimeUnixNano"):
            time = int(span[key])
            times[key] = str(time + (by(time) if callable(by) else by))
        return {**span, **times}

    return each(lines, moved)


def on_hosts(lines: bytes, host_of: dict[int, str]) -> bytes:
    """Return ``lines`` with each rank on its host, whose clock has an id of its own."""
    out = []
    for line in lines.splitlines():
        request = json.loads(line)
        for group in request["resourceSpans"]:
            rank = plain(group["resource"]["attributes"])[sc.RANK]
            for attribute in group["resource"]["attributes"]:
                if rank in host_of and attribute["key"] in ("host.name", sc.CLOCK_ID):
                    boot = attribute["key"] == sc.CLOCK_ID
                    attribute["value"] = {
                        "stringValue": f"boot of {host_of[rank]}" if boot else host_of[rank]
                    }
        out.append(json.dumps(request, separators=(",", ":")) + "\n")
    return "".join(out).encode()


def spans_of(lines: bytes, names: Collection[str] | None = None) -> list[tuple[dict[str, Any], Span]]:
    """Return (attributes of the resource, span) of all spans, or of those with these names."""
    found: list[tuple[dict[str, Any], Span]] = []
    each(lines, lambda resource, span: found.append((resource, span)))
    return [one for one in found if names is None or one[1]["name"] in names]


def request(resource: dict[str, Any], spans: list[Span]) -> bytes:
    """Return an OTLP/JSON line with ``spans`` of a resource with these attributes."""
    said = attributes(resource)
    group = {"resource": {"attributes": said}, "scopeSpans": [{"scope": {}, "spans": spans}]}
    return json.dumps({"resourceSpans": [group]}).encode() + b"\n"
