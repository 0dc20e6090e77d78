# SPDX-License-Identifier: Apache-2.0
"""One small telemetry with all that a span can hold, as plain Python: what every format is written from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from grademl_otel import semconv

T0: Final = 1_796_113_322_763_869_123
"""Unix ns, no whole microsecond."""
WIDE: Final = 0xF694CC85B18FBAC8D40DEB76C8FF4E62
NARROW: Final = 0x00000000000000000BADC0DE00000001
"""A trace id of 64 bits."""
PADDED: Final = 0x00000000000000010123456789ABCDEF
ODD_NAME: Final = 'süß \u2028 \x1b[31m🚆 "a\\b" \u202e\u0301<b>,\t\''


@dataclass(frozen=True)
class Resource:
    service: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Without the service's name."""


@dataclass(frozen=True)
class Scope:
    name: str
    version: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Happening:
    """An event of a span."""

    time: int
    name: str
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Link:
    trace: int
    span: int
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Span:
    """Ids are integers, a parent of 0 is none, times are Unix ns; kinds and statuses are OTLP's numbers."""

    trace: int
    id: int
    parent: int
    name: str
    start: int
    end: int
    resource: Resource
    scope: Scope
    kind: int = 1
    status: int = 0
    message: str = ""
    """Of the status."""
    flags: int = 0
    state: str = ""
    """W3C trace state."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: Sequence[Happening] = ()
    links: Sequence[Link] = ()


_TRAINER = Resource(
    "trainer",
    {
        "host.name": "node0",
        "ml.rank": 3,
        "argv": ["train.py", "--lr=0.1"],
        "gpu": {"name": "H200", "gib": 139},
    },
)
_LOADER = Resource("loader", {"host.name": "node1", "ratio": 0.25, "spot": True})
_NAMED = Scope("train.tracer", "1.2.3", {"schema": "x", "generation": 2})
_PLAIN = Scope("plain")

SPANS: Final = (
    Span(WIDE, 0x0000000000000001, 0, "train.step", T0, T0 + 100_000_321, _TRAINER, _NAMED, flags=0x101),
    Span(
        WIDE,
        0x32BE5299AB06484D,
        1,
        "all types",
        T0 + 1_000_001,
        T0 + 40_999_999,
        _TRAINER,
        _NAMED,
        kind=3,
        status=2,
        message="boom: <b>no</b>",
        state="vendor=1",
        attributes={
            "text": ODD_NAME,
            "empty": "",
            "number": 7,
            "negative": -5,
            "beyond 2^53": 2**53 + 1,
            "smallest": -(2**63),
            "largest": 2**63 - 1,
            "double": 3.5,
            "whole double": 3.0,
            "tiny": 5e-324,
            "yes": True,
            "no": False,
            "bytes": b"\x00\x01\xff",
            "list of numbers": [1, 2**53 + 1, -3],
            "list": ["a", 1, 2.5, True],
            "empty list": [],
            "map": {"k": 1, "inner": {"deep": ["x", {"y": False}]}},
            "": "the empty key",
        },
        events=(
            Happening(T0 + 2_000_003, "nccl.timeout", {"rank": 3, "hosts": ["a", "b"], "left": 0.5}),
            Happening(T0 + 2_000_003, "at the same time"),
        ),
        links=(
            Link(WIDE, 1, {semconv.LINK_KIND: "blocking"}),
            Link(NARROW, 0xA000000000000001, {"why": "batch"}),
        ),
    ),
    Span(
        WIDE,
        0x32BE5299AB06484E,
        0x32BE5299AB06484D,
        "serve",
        T0 + 2_000_000,
        T0 + 30_000_000,
        _LOADER,
        _PLAIN,
        kind=2,
        status=1,
    ),
    Span(WIDE, 0xFFFFFFFFFFFFFFFF, 1, "no length", T0 + 5, T0 + 5, _TRAINER, _PLAIN, attributes={"n": 0}),
    Span(
        WIDE, 0x0000000000000064, 0xDEAD, "orphan", T0 + 50_000_000, T0 + 50_000_001, _LOADER, _PLAIN, kind=5
    ),
    Span(
        NARROW,
        0xA000000000000001,
        0,
        ODD_NAME,
        T0 - 7_200_000_000_000,
        T0 - 7_199_000_000_000,
        _LOADER,
        _PLAIN,
        kind=4,
        events=(Happening(T0 - 7_199_500_000_000, ODD_NAME),),
    ),
    Span(PADDED, 1, 0, "same id, other trace", T0, T0 + 1, _TRAINER, _NAMED, kind=0),
)
"""Seven spans of three traces; no key occurs twice."""

NOT_JSON: Final = Span(
    PADDED,
    2,
    1,
    "no numbers",
    T0,
    T0 + 1000,
    _TRAINER,
    _NAMED,
    attributes={
        "nan": math.nan,
        "most": math.inf,
        "least": -math.inf,
        "nothing": None,
        "both": [None, math.nan],
    },
)
"""Values that JSON has no form for; formats without a rule for them do not get it."""
