# SPDX-License-Identifier: Apache-2.0
"""Requests to a shop, as Jaeger's v1 API gives them: traces of others whose lengths are known."""

from __future__ import annotations

from random import Random
from typing import Any


def requests(
    service: str, count: int, slower: float = 1.0, failing: int = 0, more: str | None = None
) -> dict[str, Any]:
    """Return a Jaeger document of requests: GET /cart of 10 ms and more, in it a SELECT of half of that."""
    data, dice = [], Random(count)
    for number in range(count):
        start, length = 1_790_000_000_000_000 + number * 1_000_000, dice.randrange(9_000, 12_000)
        fails = dice.randrange(100) < failing
        inner = round(length / 2 * slower)
        length += inner - length // 2
        names = [("GET /cart", start, length, None), ("SELECT", start + 100, inner, 0)]
        names += [(more, start + 100 + inner, 1_000, 0)] if more is not None else []
        spans = []
        for at, (name, begun, took, parent) in enumerate(names):
            tags = [{"key": "span.kind", "type": "string", "value": "server" if at == 0 else "client"}]
            tags += [{"key": "error", "type": "bool", "value": True}] if at == 0 and fails else []
            references = []
            if parent is not None:
                references = [{"refType": "CHILD_OF", "traceID": f"{number + 1:032x}", "spanID": f"{1:016x}"}]
            spans.append(
                {
                    "traceID": f"{number + 1:032x}", "spanID": f"{at + 1:016x}", "operationName": name,
                    "references": references, "startTime": begun, "duration": took, "tags": tags,
                    "logs": [], "processID": "p1",
                }
            )  # fmt: skip
        processes = {"p1": {"serviceName": service, "tags": []}}
        data.append({"traceID": f"{number + 1:032x}", "spans": spans, "processes": processes})
    return {"data": data}
