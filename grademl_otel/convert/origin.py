# SPDX-License-Identifier: Apache-2.0
"""What a run came out of, as its span tells it: the parent process' run, the span it was launched in."""

from __future__ import annotations

from typing import Final

from grademl_otel import marks, semconv
from grademl_otel.convert.spans import Link
from grademl_otel.identity import is_run_id

_LINK: Final = {semconv.LINK_KIND: "parent"}
_MAX_LINKS: Final = 8
_HIGHEST: Final = 1 << 31


def parent_run(info: marks.RunInfo) -> str | None:
    """Return the run id of the run that this one's process was started by."""
    parent = _parent(info)
    return None if parent is None else parent[0]


def links_of(info: marks.RunInfo) -> list[Link]:
    """Return links to all that the run came out of; what is no id is left out."""
    links = []
    parent = _parent(info)
    if parent is not None:
        run_id, attempt, rank = parent
        trace = semconv.trace_id(run_id, attempt, semconv.TRACE_RUN, 0, semconv.run_shard(rank))
        links.append(Link(trace, semconv.span_id(run_id, attempt, semconv.RUN, 0, rank), dict(_LINK)))
    for trace_text, span_text in info.links[:_MAX_LINKS]:
        ids = _hex(trace_text, 32), _hex(span_text, 16)
        if all(ids):
            links.append(Link(*ids, dict(_LINK)))
    return links


def _parent(info: marks.RunInfo) -> tuple[str, int, int] | None:
    try:
        run_id, attempt, rank = info.parent.split("/")
        numbers = int(attempt), int(rank)
    except (AttributeError, ValueError):
        return None
    if not is_run_id(run_id) or not all(0 <= number < _HIGHEST for number in numbers):
        return None
    return run_id, *numbers


def _hex(text: str, digits: int) -> int:
    return int(text, 16) if len(text) == digits and not set(text) - set("0123456789abcdef") else 0
