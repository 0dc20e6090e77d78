# SPDX-License-Identifier: Apache-2.0
"""One telemetry in every format: what comes out is what was put in, less what the format loses by its nature.

`LOSSES` is the list of that; docs/sources.md tells it to people, and a test compares the two.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from grademl_otel import semconv
from grademl_otel.analyzers.copy.pull import origin_of, pull
from grademl_otel.analyzers.model.columns import NO_PARENT, ORPHAN, SpanColumns, Telemetry
from grademl_otel.analyzers.sources import open_source
from grademl_otel.analyzers.sources.base import Selection

from ..support.every_format import FORMATS, PACKED
from ..support.foreign_formats import dump, kineto
from ..support.truth import NOT_JSON, SPANS, T0, Span

DOCS = Path(__file__).resolve().parents[2] / "docs" / "sources.md"

Row = dict[str, Any]
Change = Callable[[Row], None]


# --- The truth, and what of it a format loses -------------------------------------------------------------


def truth(spans: Sequence[Span]) -> dict[tuple[int, int], Row]:
    """What a reader that loses nothing returns, by (trace, span)."""
    known = {(span.trace, span.id) for span in spans}
    return {
        (span.trace, span.id): {
            "parent": span.parent,
            "linked up": NO_PARENT if not span.parent else (span.trace, span.parent) in known or ORPHAN,
            "name": span.name,
            "start": span.start,
            "end": span.end,
            "kind": span.kind,
            "status": span.status,
            "flags": span.flags,
            "service": span.resource.service,
            "resource": {"service.name": span.resource.service, **span.resource.attributes},
            "scope": (span.scope.name, span.scope.version, dict(span.scope.attributes)),
            "attributes": {
                **span.attributes,
                **({"otel.status_description": span.message} if span.message else {}),
            },
            "events": [(event.time, event.name, dict(event.attributes)) for event in span.events],
            "links": [
                (link.trace, link.span, link.attributes.get(semconv.LINK_KIND, "follows"))
                for link in span.links
            ],
        }
        for span in spans
    }


def microseconds(row: Row) -> None:
    length = row["end"] - row["start"]
    row["start"] = row["start"] // 1000 * 1000
    row["end"] = row["start"] + length // 1000 * 1000
    row["events"] = [(time // 1000 * 1000, *rest) for time, *rest in row["events"]]


def at_least_one(row: Row) -> None:
    row["end"] = max(row["end"], row["start"] + 1000)


def no_flags(row: Row) -> None:
    row["flags"] = 0


def lists_as_text(row: Row) -> None:
    row["attributes"] = _with_texts(row["attributes"])
    row["resource"] = _with_texts(row["resource"])
    row["events"] = [(time, name, _with_texts(attributes)) for time, name, attributes in row["events"]]


def _with_texts(attributes: Mapping[str, Any]) -> Row:
    return {k: dump(v).decode() if isinstance(v, list | dict) else v for k, v in attributes.items()}


def no_scope_attributes(row: Row) -> None:
    row["scope"] = (*row["scope"][:2], {})


def links_follow(row: Row) -> None:
    row["links"] = [(trace, span, "follows") for trace, span, _ in row["links"]]


def no_links_to_parents(row: Row) -> None:
    row["links"] = [link for link in row["links"] if link[1] != row["parent"]]


def all_text(row: Row) -> None:
    row["attributes"] = {
        key: _base64(value)
        if isinstance(value, bytes)
        else value
        if isinstance(value, str)
        else dump(value).decode()
        for key, value in row["attributes"].items()
    }


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def no_event_attributes(row: Row) -> None:
    row["events"] = [
        (time, f'"{name}": {dump(attributes).decode()}' if attributes else name, {})
        for time, name, attributes in row["events"]
    ]


def no_links(row: Row) -> None:
    row["links"] = []


def service_only(row: Row) -> None:
    row["resource"] = {"service.name": row["service"]}


def no_internal(row: Row) -> None:
    row["kind"] = row["kind"] if row["kind"] > 1 else 0


WORDS: Final[dict[Change, str]] = {
    microseconds: "times are cut to microseconds",
    at_least_one: "a span takes at least a microsecond",
    no_flags: "no flags",
    lists_as_text: "lists and maps become JSON text",
    no_scope_attributes: "no attributes of scopes",
    links_follow: "no attributes of links, so every link follows",
    no_links_to_parents: "a link to the parent is lost",
    all_text: "attributes become text",
    no_event_attributes: "attributes of events become part of their names",
    no_links: "no links",
    service_only: "of the resource only the service's name",
    no_internal: "internal spans have no kind",
}
_JAEGER: Final = (
    microseconds,
    no_flags,
    lists_as_text,
    no_scope_attributes,
    links_follow,
    no_links_to_parents,
)
_ZIPKIN: Final = (
    *(
        microseconds,
        at_least_one,
        no_flags,
        all_text,
        no_event_attributes,
        no_links,
        service_only,
        no_internal,
    ),
    no_scope_attributes,
)
LOSSES: Final[dict[str, tuple[Change, ...]]] = {
    "Jaeger v1": _JAEGER,
    "Jaeger traces": _JAEGER,
    "Tempo v1 JSON": (no_flags,),
    "Tempo v2 JSON": (no_flags,),
    "Zipkin": _ZIPKIN,
}
"""Format -> what is lost in it, in this order; a format that is not here loses nothing."""


# --- What comes out ---------------------------------------------------------------------------------------


def found(spans: SpanColumns) -> dict[tuple[int, int], Row]:
    """The columns as rows like those of `truth`."""
    ids = [
        (int(hi) << 64 | int(lo), int(span))
        for hi, lo, span in zip(spans.trace_hi, spans.trace_lo, spans.span_id, strict=True)
    ]
    assert len(set(ids)) == len(ids)
    links: list[list[tuple[int, int, str]]] = [[] for _ in ids]
    for span_ix, hi, lo, span, kind in zip(
        spans.links.span_ix,
        spans.links.trace_hi,
        spans.links.trace_lo,
        spans.links.span_id,
        spans.links.kind,
        strict=True,
    ):
        links[int(span_ix)].append((int(hi) << 64 | int(lo), int(span), kind))
    rows = {}
    for ix, key in enumerate(ids):
        parent, parent_ix = int(spans.parent_id[ix]), int(spans.parent_ix[ix])
        if parent_ix >= 0:
            assert ids[parent_ix] == (key[0], parent)
        scope = spans.scope(ix) or {"name": "", "version": "", "attributes": {}}
        rows[key] = {
            "parent": parent,
            "linked up": parent_ix >= 0 or parent_ix,
            "name": spans.name(ix),
            "start": int(spans.start[ix]),
            "end": int(spans.end[ix]),
            "kind": int(spans.kind[ix]),
            "status": int(spans.status[ix]),
            "flags": int(spans.flags[ix]),
            "service": spans.service(ix),
            "resource": spans.resource(ix),
            "scope": (scope["name"], scope["version"], scope["attributes"]),
            "attributes": spans.attributes(ix),
            "events": [(event.time, event.name, event.attributes) for event in spans.events(ix)],
            "links": links[ix],
        }
    return rows


def expected(name: str, spans: Sequence[Span] = SPANS) -> dict[tuple[int, int], Row]:
    rows = truth(spans)
    for row in rows.values():
        for change in LOSSES.get(name, ()):
            change(row)
    return rows


def typed(value: Any) -> Any:
    """``value`` such that 1, 1.0 and True differ, and NaN is itself."""
    if isinstance(value, Mapping):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [typed(item) for item in value]
    return (type(value).__name__, "nan" if isinstance(value, float) and math.isnan(value) else value)


def read(path: Path) -> Telemetry:
    return open_source(str(path)).read(Selection())


def same(got: Mapping[tuple[int, int], Row], wanted: Mapping[tuple[int, int], Row]) -> None:
    assert got.keys() == wanted.keys()
    for key, row in wanted.items():
        for column, value in row.items():
            assert typed(got[key][column]) == typed(value), (f"{key[1]:x}", row["name"], column)


def lossless(telemetry: Telemetry) -> None:
    ledger = telemetry.ledger
    assert (ledger.duplicates, ledger.impossible_times, ledger.unreadable_lines) == (0, 0, 0)
    assert (ledger.partial_traces, ledger.capped, ledger.broken) == ([], False, None)


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("name", FORMATS)
def test_all_that_a_format_can_hold_comes_out(name: str, packed: str, tmp_path: Path) -> None:
    path = tmp_path / "spans"
    path.write_bytes(PACKED[packed](FORMATS[name](SPANS)))
    telemetry = read(path)
    same(found(telemetry.spans), expected(name))
    lossless(telemetry)


@pytest.mark.parametrize("name", [name for name in FORMATS if name.startswith(("OTLP", "Collector"))])
def test_what_is_no_number_comes_out(name: str, tmp_path: Path) -> None:
    spans = (*SPANS, NOT_JSON)
    path = tmp_path / "spans"
    path.write_bytes(FORMATS[name](spans))
    same(found(read(path).spans), expected(name, spans))


@pytest.mark.parametrize("name", FORMATS)
def test_several_files_are_one_source(name: str, tmp_path: Path) -> None:
    for number, part in enumerate((SPANS[:3], SPANS[3:])):
        (tmp_path / f"part-{number}.json").write_bytes(FORMATS[name](part))
    same(found(read(tmp_path).spans), expected(name))


@pytest.mark.parametrize("name", FORMATS)
def test_a_copy_is_what_it_is_a_copy_of(name: str, tmp_path: Path) -> None:
    source = tmp_path / "spans"
    source.write_bytes(FORMATS[name](SPANS))
    opened = open_source(str(source))
    pull(opened, tmp_path / "copy", origin_of(str(source), opened.uri, Selection(), None))
    telemetry = read(tmp_path / "copy")
    same(found(telemetry.spans), expected(name))
    lossless(telemetry)


def test_a_profile_keeps_names_times_and_arguments(tmp_path: Path) -> None:
    names = ("all types", "no length")
    inner = [span for span in SPANS if span.name in names]
    lane = [SPANS[0], *inner]
    plain = [
        Span(
            **{
                **span.__dict__,
                "attributes": {k: v for k, v in span.attributes.items() if not isinstance(v, bytes)},
            }
        )
        for span in lane
    ]
    path = tmp_path / "trace.json"
    path.write_bytes(kineto(plain))
    rows = {row["name"]: row for row in found(read(path).spans).values()}
    for span in plain:
        row = rows[span.name]
        assert (row["start"], row["end"]) == (span.start, span.end)
        for key, value in span.attributes.items():
            assert typed(row["attributes"][key]) == typed(value), key
    by_id = {key[1]: row["name"] for key, row in found(read(path).spans).items()}
    assert {by_id[rows[name]["parent"]] for name in names} == {"train.step"}
    assert min(row["start"] for row in rows.values()) == T0


def test_the_page_tells_the_same_losses() -> None:
    text = DOCS.read_text("utf-8")
    table = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", text, re.MULTILINE))
    told = {
        name: {words for words in WORDS.values() if words in table.get(name, "")}
        for name in ("Jaeger v1 JSON", "Tempo", "Zipkin")
    }
    wanted = {"Jaeger v1 JSON": _JAEGER, "Tempo": LOSSES["Tempo v2 JSON"], "Zipkin": _ZIPKIN}
    assert told == {name: {WORDS[change] for change in changes} for name, changes in wanted.items()}
