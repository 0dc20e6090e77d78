# SPDX-License-Identifier: Apache-2.0
"""What repeated requests tell of the order of their calls."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from grademl_otel.analyzers.execution.whole import execution_model
from grademl_otel.analyzers.graph.inferences.learned_siblings import Siblings, learned_siblings
from grademl_otel.analyzers.graph.path import EVIDENCE
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


def test_calls_one_after_the_other() -> None:
    spans = columns(requests(1, sequential=True))
    expected = {("login", "catalog"), ("catalog", "price"), ("price", "page")}
    assert named(spans, learned_siblings(spans)) == expected


def test_only_some_of_the_spans() -> None:
    spans = columns(requests(1))
    kept = np.flatnonzero(spans.name_ix != spans.names.index("login"))
    assert named(spans, learned_siblings(spans, kept)) == {("catalog", "page"), ("price", "page")}


def test_the_execution_model_has_what_is_learned() -> None:
    """Times of one request say that its page came after the log, too; those of all say that it did not."""
    spans = columns(requests(2, 80))
    model = execution_model(spans, [])
    phases, told = model.phases, model.dependencies

    def kind_of(phase: int) -> str:
        return phases.name(phase).partition("[")[0]

    names = {
        (kind_of(a), kind_of(b)) for a, b in zip(told.source.tolist(), told.target.tolist(), strict=True)
    }
    pages = {source for source, target in names if target == "page"}
    assert pages == {"catalog", "price"}
    assert {EVIDENCE[one] for one in told.evidence} == {"inferred"}
    assert len(model.observed().dependencies) == 0


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
