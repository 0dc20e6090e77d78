# SPDX-License-Identifier: Apache-2.0
"""What repeated requests tell of the order of their calls."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from grademl_otel import semconv
from grademl_otel.analyzers.graph.learned_siblings import Siblings, learned_siblings
from grademl_otel.analyzers.model.columns import SpanColumns
from tests.support.build import S, columns

US, MS = 1_000, 1_000_000


def requests(seed: int, count: int = 60, *, sequential: bool = False) -> list[S]:
    """Requests that ask for who it is, then for two things at once, then for a page of both; and a log."""
    dice = np.random.default_rng(seed)
    spans = []

    def after(ready: int) -> int:
        return ready + int(dice.integers(5 * US, 40 * US))

    for n in range(count):
        root = int(dice.integers(10_000 * MS))  # requests overlap, and come in any order
        took = {name: int(dice.integers(2 * MS, 8 * MS)) for name in ("login", "catalog", "price", "page")}
        login = after(root)
        catalog = after(login + took["login"])
        price = after(catalog + took["catalog"]) if sequential else after(login + took["login"])
        page = after(max(catalog + took["catalog"], price + took["price"]))
        log = root + int(dice.integers(1 * MS, 9 * MS))
        end = page + took["page"] + 1 * MS
        spans.append(S(f"{n}", root, end, None, "GET /", trace=n + 1, resource={"service.name": "web"}))
        of = {"catalog": "shop", "price": "shop"}
        starts = {"login": login, "catalog": catalog, "price": price, "page": page, "log": log}
        for name, start in starts.items():
            until, where = start + took.get(name, 200 * US), {"service.name": of.get(name, name)}
            spans.append(S(f"{n}.{name}", start, until, f"{n}", name, trace=n + 1, resource=where))
    return spans


def named(spans: SpanColumns, found: Siblings) -> set[tuple[str, str]]:
    return {(spans.name(a), spans.name(b)) for a, b in zip(found.source, found.target, strict=True)}


@pytest.mark.parametrize("seed", range(5))
def test_calls_that_need_answers_of_others(seed: int) -> None:
    spans = columns(requests(seed, 120))
    found = learned_siblings(spans)
    assert named(spans, found) == {
        ("login", "catalog"), ("login", "price"), ("catalog", "page"), ("price", "page"),
    }  # fmt: skip
    assert (spans.parent_ix[found.source] == spans.parent_ix[found.target]).all()
    assert (spans.end[found.source] <= spans.start[found.target]).all()
    assert (found.confidence > 0.7).all()


def test_program_order_of_one_service_is_not_learned() -> None:
    """It decides when the next begins, so that nothing else is taken for the cause; but it is no news."""
    spans = columns(requests(1, sequential=True))
    assert named(spans, learned_siblings(spans)) == {("login", "catalog"), ("price", "page")}


def test_lanes_of_one_service_are_told_apart() -> None:
    spans = requests(2, sequential=True)
    laned = [replace(span, attributes={semconv.LANE: span.name}) for span in spans]
    told = columns(laned)
    assert ("catalog", "price") in named(told, learned_siblings(told))


def test_few_requests_tell_nothing() -> None:
    assert len(learned_siblings(columns(requests(3, 19))).source) == 0
    assert len(learned_siblings(columns([S("r", 0, 10), S("a", 1, 2, "r")])).source) == 0
    assert len(learned_siblings(columns([])).source) == 0


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_spans_decides_nothing(seed: int) -> None:
    spans, shift = requests(seed, 40), 12_345_678_901
    shuffled = [replace(span, start=span.start + shift, end=span.end + shift) for span in spans]
    random.Random(seed).shuffle(shuffled)

    def pairs(ids: list[S]) -> set[tuple[str, str]]:
        found = learned_siblings(columns(ids))
        return {(ids[a].id, ids[b].id) for a, b in zip(found.source, found.target, strict=True)}

    assert pairs(spans) == pairs(shuffled) != set()
