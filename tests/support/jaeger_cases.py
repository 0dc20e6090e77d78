# SPDX-License-Identifier: Apache-2.0
"""The span trees whose critical path is agreed on, and Jaeger documents made of such short notations.

A tree is written ``id<parent [start,end)`` in microseconds, `kind` and `follows` after a slash:
``A [1,31)/producer  B<A [10,20)/consumer/follows``.
"""

from __future__ import annotations

import re
from typing import Any

ORIGIN_US = 1_796_113_322_763_869

CASES: dict[int, tuple[str, str]] = {
    1: ("C[1,101) D<C[20,40) E<C[50,60)", "C60-101 E50-60 C40-50 D20-40 C1-20"),
    2: ("X[1,101) A<X[10,50) C<X[20,60)", "X60-101 C20-60 X1-20"),
    3: ("A[100,140) B<A[200,500)", "A100-140"),
    4: ("A[1,31) B<A[40,80) c<B[50,60)", "A1-31"),
    5: ("A[1,31)/producer B<A[10,20)/consumer/follows C<B[12,14)", "A1-31"),
    6: ("A[1,30) B<A[15,35) C<B[10,25)", "B25-30 C15-25 A1-15"),
    7: ("A[1,30) B<A[15,35) C<B[20,40)", "C20-30 B15-20 A1-15"),
    8: ("A[10,30) B<A[5,35)", "B10-30"),
    9: ("A[10,30) B<A[1,5)", "A10-30"),
    10: ("R[0,40) A<R[10,20) B<R[20,30)", "R30-40 B20-30 A10-20 R0-10"),
    11: ("s1[1,101) s2<s1[1,2) s3<s1[2,3) s4<s1[3,101)", "s43-101 s32-3 s21-2"),
    12: (
        "s1[1,101) s2<s1[6,31) s3<s1[41,91) s4<s3[61,81) s5<s3[51,81)",
        "s191-101 s381-91 s551-81 s341-51 s131-41 s26-31 s11-6",
    ),
}
"""Number -> (spans, expected sections as ``<id><start>-<end>``, the latest first)."""

_SPAN = re.compile(
    r"(?P<id>[A-Za-z]\d?)(?:<(?P<parent>[A-Za-z]\d?))?\[(?P<start>\d+),(?P<end>\d+)\)(?P<more>[/a-z]*)"
)


def jaeger_document(
    notation: str, *, trace: int = 1, service: str = "shop", origin_us: int = ORIGIN_US
) -> dict[str, Any]:
    """Return a Jaeger v1 document with one trace of the spans in ``notation``."""
    matches = list(_SPAN.finditer(notation))
    trace_id = f"{trace:032x}"
    number = {match["id"]: index for index, match in enumerate(matches, 1)}
    spans = []
    for match in matches:
        more = match["more"].split("/")
        references = []
        if match["parent"]:
            kind = "FOLLOWS_FROM" if "follows" in more else "CHILD_OF"
            parent = f"{trace:08x}{number[match['parent']]:08x}"
            references.append({"refType": kind, "traceID": trace_id, "spanID": parent})
        kinds = [kind for kind in ("producer", "consumer") if kind in more]
        spans.append(
            {
                "traceID": trace_id,
                "spanID": f"{trace:08x}{number[match['id']]:08x}",
                "operationName": match["id"],
                "references": references,
                "startTime": origin_us + int(match["start"]),
                "duration": int(match["end"]) - int(match["start"]),
                "tags": [{"key": "span.kind", "type": "string", "value": kind} for kind in kinds],
                "logs": [],
                "processID": "p1",
            }
        )
    processes = {"p1": {"serviceName": service, "tags": []}}
    return {"data": [{"traceID": trace_id, "spans": spans, "processes": processes}]}


def many_traces(notations: list[str], service: str = "shop") -> dict[str, Any]:
    """Return one Jaeger v1 document with a trace for each notation."""
    documents = [
        jaeger_document(notation, trace=number, service=service, origin_us=ORIGIN_US + 1_000_000 * number)
        for number, notation in enumerate(notations, 1)
    ]
    return {"data": [document["data"][0] for document in documents]}
