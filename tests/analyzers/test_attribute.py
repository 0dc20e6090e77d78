# SPDX-License-Identifier: Apache-2.0
"""Who used what, from execution model and resource model to answers: vectors, machines, blocking, defects."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel import semconv as sc
from grademl_otel.analyzers.attribution import fitted
from grademl_otel.analyzers.attribution.activity import activity_of
from grademl_otel.analyzers.attribution.attribute import Attributed
from grademl_otel.analyzers.attribution.builtin import BUILT_IN
from grademl_otel.analyzers.attribution.fit import best_fit
from grademl_otel.analyzers.attribution.mapping import Gpus, RankKey, gpus_of
from grademl_otel.analyzers.attribution.observations import EXACT, NONE, VARIABLE, Observations
from grademl_otel.analyzers.attribution.rules import FIT, Blocking, Rule, RuleSet
from grademl_otel.analyzers.attribution.rules_file import parse_rules
from grademl_otel.analyzers.execution import SELF, ExecutionModel, execution_model
from grademl_otel.analyzers.resource_model.model import ResourceModel

from ..support.attributed import SECOND, Ph, model_of, observed, rank, resources_of, run_of
from ..support.build import R, S, run_from
from ..support.build import run_of as trained_run
from ..support.synthetic import Training


def attributed(
    model: ExecutionModel,
    resources: ResourceModel,
    *rules: Rule,
    blocking: tuple[Blocking, ...] = (),
    gpus: Gpus | None = None,
) -> Attributed:
    return Attributed(model, resources, RuleSet((), rules, blocking), gpus)


def used(found: Attributed, metric: int = 0) -> dict[str, float]:
    """Return type path -> use of all types of leaves of which anything is said."""
    types, totals = found.model.types, found.of_types(metric)
    return {
        types.path(node): float(totals.usage[node])
        for node in range(len(types))
        if types.size[node] == 1 and not math.isnan(totals.usage[node])
    }


def at(found: Attributed, pattern: str) -> int:
    (node,) = found.model.select(pattern).tolist()
    return int(node)


CPU = ("cpu.busy", observed(7, capacity=10))


# --- The vectors, end to end -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "parts", "expected", "unplaced"),
    [
        pytest.param(5, [(0.5, 8, 0), (0.5, 0, 1)], (8, 2), 0, id="U1"),
        pytest.param(5, [(0.25, 2, 1), (0.5, 2, 3), (0.25, 0, 0)], (4, 8, 0), 0, id="U2"),
        pytest.param(8, [(0.5, 0, 1), (0.5, 0, 9)], (6, 10), 0, id="U3"),
        pytest.param(6, [(0.5, 4, 0), (0.5, 0, 0)], (8, 4), 0, id="U4"),
        pytest.param(12, [(0.5, 0, 1), (0.5, 0, 1.5)], (10, 10), 2, id="U5"),
    ],
)
def test_upsampling_of_the_vectors(
    value: float, parts: list[tuple[float, float, float]], expected: tuple[float, ...], unplaced: float
) -> None:
    phases, rules, edge = [], [], 0.0
    for number, (fraction, exact, weight) in enumerate(parts):
        for name, kind, amount in (("e", EXACT, exact), ("v", VARIABLE, weight)):
            phases.append(Ph(f"{name}{number}", edge, edge + fraction))
            rules.append(Rule(f"/{name}{number}", "cpu.busy", kind, amount))
        edge += fraction
    resources = resources_of(("cpu.busy", observed(value, capacity=10)))
    found = attributed(model_of(*phases), resources, *rules)
    over_time = found.attribution(0).upsampled
    assert over_time.value == pytest.approx(expected, abs=1e-9)
    assert found.balance(0).unplaced == pytest.approx(unplaced, abs=1e-9)


@pytest.mark.parametrize(
    ("value", "rules", "usage", "capacity"),
    [
        pytest.param(7, [(EXACT, 4), (VARIABLE, 1), (VARIABLE, 2)], (4, 1, 2), (4, 2, 4), id="A1"),
        pytest.param(3, [(EXACT, 4), (VARIABLE, 1)], (3, 0), (4, 6), id="A2"),
        pytest.param(3, [(EXACT, 0), (VARIABLE, 0), (VARIABLE, 2)], (0, 0, 3), (10, 10, 10), id="demand 0"),
    ],
)
def test_attribution_of_the_vectors(
    value: float, rules: list[tuple[int, float]], usage: tuple[float, ...], capacity: tuple[float, ...]
) -> None:
    model = model_of(*(Ph(f"p{number}", 0, 1) for number in range(len(rules))))
    resources = resources_of(("cpu.busy", observed(value, capacity=10)))
    asked = [Rule(f"/p{ix}", "cpu.busy", kind, amount) for ix, (kind, amount) in enumerate(rules)]
    found = attributed(model, resources, *asked)
    for number, (one, most) in enumerate(zip(usage, capacity, strict=True)):
        total = found.total(at(found, f"/p{number}"), 0)
        assert total is not None
        assert (total.usage, total.capacity) == pytest.approx((one, most))
        assert (total.observed, total.active) == (1, 1)


@pytest.mark.parametrize(
    ("values", "weights", "background"),
    [
        pytest.param((2, 5, 4, 3, 1.5), (2, 3), 0, id="N1"),
        pytest.param((2, 1, 0, 0, 0), (4 / 3, 0), 0, id="N2"),
        pytest.param((3, 6, 5, 4, 2.5), (2, 3), 1, id="N1 on a background of 1: defect 21"),
    ],
)
def test_the_best_fit_of_the_vectors(
    values: tuple[float, ...], weights: tuple[float, ...], background: float
) -> None:
    model = model_of(Ph("a", 0, 2), Ph("b", 1, 4), Ph("a", 2, 2.5), Ph("b", 4, 4.5))
    resources = resources_of(("cpu.busy", observed(*values)))
    use = attributed(model, resources, Rule("/", "*", FIT)).use(0)
    assert use.fitted is not None
    assert use.fitted.fit.weight == pytest.approx(weights, abs=1e-9)
    assert use.background == pytest.approx(background, abs=1e-9)
    assert use.amount == pytest.approx(weights, abs=1e-9)
    assert (use.rule == VARIABLE).all()


# --- What the best fit leaves alone ------------------------------------------------------------------------


def test_a_best_fit_takes_off_what_exact_rules_took_and_scales_variable_ones() -> None:
    # Over time e uses 2, v (weight 3) uses 6, a uses 1: so one unit of weight is 2.
    model = model_of(Ph("e", 0, 2), Ph("v", 1, 3), Ph("a", 2, 5), Ph("a", 6, 7))
    resources = resources_of(("cpu.busy", observed(2, 8, 7, 1, 1, 0, 1)))
    rules = (Rule("/", "*", FIT), Rule("/e", "*", EXACT, 2), Rule("/v", "*", VARIABLE, 3))
    found = attributed(model, resources, *rules)
    use, types = found.use(0), found.model.types
    amounts = {
        types.path(int(of)): amount for of, amount in zip(found.signatures.type, use.amount, strict=True)
    }
    assert amounts == pytest.approx({"/a": 1, "/e": 2, "/v": 6})
    assert used(found) == pytest.approx({"/a": 4, "/e": 4, "/v": 12})


def test_what_an_idle_machine_uses_is_nobodys() -> None:
    """Defect 21: without a background all of it is given to whoever is active."""
    model = model_of(Ph("a", 2, 4), Ph("a", 6, 7))
    resources = resources_of(("gpu.power", observed(50, 50, 250, 250, 50, 50, 250, 50)))
    found = attributed(model, resources, Rule("/", "*", FIT))
    assert used(found) == pytest.approx({"/a": 600})
    balance = found.balance(0)
    assert (balance.observed, balance.used, balance.background) == pytest.approx((1000, 600, 400))
    rest = found.background(0)
    assert rest.usage == pytest.approx(50)


def test_types_that_were_always_active_together_share_alike_and_it_is_said() -> None:
    model = model_of(Ph("a", 1, 3), Ph("b", 1, 3), Ph("c", 4, 5))
    found = attributed(model, resources_of(("cpu.busy", observed(0, 4, 4, 0, 1))), Rule("/", "*", FIT))
    assert used(found) == pytest.approx({"/a": 4, "/b": 4, "/c": 1})
    assert found.problems == [
        "cpu.busy: /a, /b were active in the same proportion all the time; how they divide it is not known,"
        " taken as equal"
    ]


def test_types_share_by_the_time_that_was_observed() -> None:
    """How long one of them went on where nobody looked says nothing."""
    model = model_of(Ph("a", 0, 2), Ph("b", 0, 1), Ph("c", 3, 4))
    found = attributed(model, resources_of(("cpu.busy", observed(4, math.nan, 0, 1))), Rule("/", "*", FIT))
    assert found.use(0).amount == pytest.approx([2, 2, 1])
    balance = found.balance(0)
    assert (balance.used, balance.background) == pytest.approx((5, 0), abs=1e-9)


def test_what_is_always_active_has_no_background_beside_it_and_it_is_said() -> None:
    model = model_of(Ph("a", 0, 4), Ph("b", -1, 2), Ph("b", 2, 9), Ph("c", 1, 2))
    found = attributed(model, resources_of(("cpu.busy", observed(6, 7, 6, 6))), Rule("/", "*", FIT))
    assert found.use(0).background == 0
    assert used(found) == pytest.approx({"/a": 12, "/b": 12, "/c": 1})
    assert found.problems == [
        "cpu.busy: /a, /b were active all the time, as far as its intervals tell: what is used whoever is"
        " active cannot be told apart, and counts as theirs; how they divide it is not known, taken as equal"
    ]


def test_a_background_that_is_all_but_nothing_is_none() -> None:
    """Shares of so little demand would be so large that sums over time lose all others."""
    found = attributed(
        model_of(Ph("a", 0.1, 0.2)),
        resources_of(("cpu.busy", observed(1, 0, 0, every=0.7, capacity=1))),
        Rule("/**", "*", FIT),
    )
    assert found.use(0).background == 0
    assert used(found) == pytest.approx({"/a": 0.1})
    balance = found.balance(0)
    assert (balance.background, balance.unplaced) == pytest.approx((0.6, 0))


def test_a_type_that_was_never_active_while_it_was_observed_has_no_rule() -> None:
    found = attributed(
        model_of(Ph("a", 0, 1), Ph("b", 5, 6)),
        resources_of(("cpu.busy", observed(1, 0))),
        Rule("/", "*", FIT),
    )
    assert used(found) == pytest.approx({"/a": 1})
    assert found.total(at(found, "/b"), 0) is None


def test_fits_are_kept_by_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 14: rules that were kept by paths were used for other inputs with the same paths."""
    made: list[int] = []
    real = best_fit

    def counted(*given: Any) -> Any:
        made.append(1)
        return real(*given)

    monkeypatch.setattr(fitted, "best_fit", counted)
    model = model_of(Ph("a", 11, 13), Ph("b", 12, 14))

    def weights(*values: float, of: ExecutionModel = model) -> Any:
        resources = resources_of(("cpu.busy", observed(*values, start=11)))
        return attributed(of, resources, Rule("/", "*", FIT)).use(0).amount

    first = weights(1, 3, 2, 0)
    assert weights(1, 3, 2, 0) == pytest.approx(first)
    assert len(made) == 1
    assert weights(2, 6, 4, 0) == pytest.approx(2 * first)  # the same paths, other values
    assert weights(1, 3, 2, 0, of=model_of(Ph("a", 11, 14), Ph("b", 12, 14))) != pytest.approx(first)
    assert len(made) == 3


def test_of_fits_those_are_kept_that_were_asked_for_last(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[float] = []
    real = best_fit

    def counted(seen: Observations, *given: Any) -> Any:
        made.append(float(seen.value[0]))
        return real(seen, *given)

    monkeypatch.setattr(fitted, "best_fit", counted)
    monkeypatch.setattr(fitted, "_KEPT", 2)
    monkeypatch.setattr(fitted, "_fits", type(fitted._fits)())
    model = model_of(Ph("a", 0, 1))
    for value in (1.0, 2.0, 1.0, 3.0, 1.0, 2.0):
        use = attributed(model, resources_of(("cpu.busy", observed(value, 0))), Rule("/", "*", FIT)).use(0)
        assert use.amount == pytest.approx([value])
    assert made == [1, 2, 3, 2]


# --- When leaves are active --------------------------------------------------------------------------------


def test_self_time_is_active_in_its_gaps_only() -> None:
    model = model_of(Ph("step", 0, 10, (Ph("forward", 1, 3), Ph("backward", 4, 9))))
    found = attributed(
        model, resources_of(("cpu.busy", observed(*[1.0] * 10))), Rule("/step", "*", VARIABLE, 1)
    )
    assert used(found) == pytest.approx({"/step/forward": 2, "/step/backward": 5, "/step/self": 3})
    over_time = found.of_phase(at(found, "/step/self"), 0)
    assert over_time is not None
    within = (over_time.edges[:-1] >= SECOND) & (over_time.edges[1:] <= 3 * SECOND)
    assert within.any()
    assert (over_time.usage[within] == 0).all()


def test_all_that_a_run_did_is_active_as_long_as_it_was_busy() -> None:
    run = trained_run(Training(ranks=2, epochs=2, steps_per_epoch=4, eval_batches=2, explicit=True))
    phases = execution_model(run.spans, [run]).phases
    activity = activity_of(phases)
    seconds = np.zeros(len(phases), np.int64)
    np.add.at(seconds, activity.leaf, activity.end - activity.start)
    leaves = phases.leaves
    assert (seconds[leaves] == phases.busy[leaves]).all()
    assert (seconds[~leaves] == 0).all()
    assert phases.has(SELF).sum() > 10
    same = np.diff(activity.leaf) == 0
    assert (activity.start[1:][same] >= activity.end[:-1][same]).all()


# --- Whole phases ------------------------------------------------------------------------------------------


def test_a_whole_could_have_used_no_more_than_there_is() -> None:
    """Defect 22: three parts that want nothing could have used the machine once, not three times."""
    model = model_of(Ph("w", 0, 2, (Ph("a", 0, 2, beside=True), Ph("b", 0, 2, beside=True), Ph("c", 0, 1))))
    resources = resources_of(("cpu.busy", observed(6, 6, capacity=10)))
    rules = (
        Rule("/w", "*", NONE),
        Rule("/w/a", "*", EXACT, 0),
        Rule("/w/b", "*", VARIABLE, 0),
        Rule("/w/c", "*", VARIABLE, 1),
    )
    found = attributed(model, resources, *rules)
    whole = found.total(at(found, "/w"), 0)
    assert whole is not None
    assert (whole.usage, whole.capacity) == pytest.approx((6, 20))
    by_type = found.of_types(0)
    paths = {found.model.types.path(node): node for node in range(len(found.model.types))}
    assert by_type.capacity[paths["/w"]] == pytest.approx(20)
    assert by_type.capacity[paths["/w/a"]] == pytest.approx(20)
    assert by_type.utilization[paths["/w"]] == pytest.approx(0.3)
    only_zero = attributed(model, resources, *rules[:3])
    assert only_zero.of_types(0).capacity[paths["/w"]] == pytest.approx(20)


def test_a_whole_is_the_sum_of_its_parts_within_its_own_time() -> None:
    late = Ph("device", 1, 5, beside=True)  # still runs when its step is over
    model = model_of(Ph("step", 0, 3, (Ph("forward", 0, 2), late)), Ph("step", 3, 5))
    found = attributed(
        model,
        resources_of(("gpu.utilization", observed(1, 1, 1, 1, 1, capacity=2))),
        Rule("**/device", "*", VARIABLE, 1),
        Rule("**/forward", "*", VARIABLE, 1),
    )
    first = found.total(at(found, "/step[n=0]"), 0)
    assert first is not None
    assert first.usage == pytest.approx(1 + 1 + 1)  # forward alone, both, the device until the step's end
    assert (first.observed, first.active) == (3, 3)
    assert first.mean == pytest.approx(1)
    assert found.total(at(found, "/step[n=1]"), 0) is None  # its self time has no rule
    assert used(found) == pytest.approx({"/step/device": 3.5, "/step/forward": 1.5})


def test_of_what_has_no_rule_nothing_is_said() -> None:
    """Defect 10: a phase without any attributed metric is no error."""
    found = attributed(
        model_of(Ph("a", 0, 1), Ph("b", 0, 1)), resources_of(CPU), Rule("/a", "*", VARIABLE, 1)
    )
    b = at(found, "/b")
    assert found.of_phase(b, 0) is None
    assert found.total(b, 0) is None
    signature = int(np.flatnonzero(found.signatures.type == found.model.types.at("/b"))[0])
    assert found.metrics_of(signature) == []
    assert math.isnan(found.of_signatures(0).usage[signature])


def test_without_metrics_or_phases_there_is_nothing_to_say() -> None:
    assert len(attributed(model_of(Ph("a", 0, 1)), ResourceModel())) == 0
    empty = attributed(model_of(Ph("a", 1, 1)), resources_of(CPU), Rule("/", "*", FIT))
    assert empty.balance(0).background == pytest.approx(7)
    assert empty.problems == []
    never = attributed(model_of(Ph("a", 0, 1)), resources_of(("cpu.busy", observed())), Rule("/", "*", FIT))
    assert never.balance(0).observed == 0
    assert used(never) == {}


def test_what_is_not_known_is_not_zero() -> None:
    """Defect 15: a capacity that nobody told is not made up."""
    found = attributed(
        model_of(Ph("a", 0, 4)),
        resources_of(("network.rx", observed(5, math.nan, 5))),
        Rule("/", "*", VARIABLE, 1),
    )
    totals = found.of_types(0)
    a = found.model.types.at("/a")
    assert (totals.usage[a], totals.capacity[a]) == (10, math.inf)
    assert math.isnan(totals.utilization[a])
    assert totals.coverage[a] == pytest.approx(0.5)
    over_time = found.of_phase(at(found, "/a"), 0)
    assert over_time is not None
    assert over_time.usage == pytest.approx([5, math.nan, 5], nan_ok=True)


def test_leaves_tell_one_by_one() -> None:
    model = model_of(Ph("s", 0, 4, (Ph("f", 0, 1), Ph("f", 2, 4))))
    found = attributed(
        model, resources_of(("cpu.busy", observed(1, 2, 3, 5, capacity=8))), Rule("/s", "*", VARIABLE, 1)
    )
    leaves, usage, capacity, seconds = found.of_leaves(0)
    rows = {found.model.phases.path(int(leaf)): row for row, leaf in enumerate(leaves)}
    assert usage[rows["/s/f[n=1]"]] == pytest.approx(8)
    assert usage[rows["/s/self"]] == pytest.approx(2)
    assert (capacity.sum(), seconds.sum()) == pytest.approx((32, 4))
    over_time = found.of_type(found.model.types.at("/s/f"), 0)
    assert over_time is not None
    assert over_time.usage == pytest.approx([1, 0, 3, 5])
    assert found.of_type(found.model.types.at("/s/f"), 0) is not None


# --- Machines, GPUs, processes -----------------------------------------------------------------------------


def by_host(found: Attributed) -> list[set[str]]:
    """Return for each metric the phases that use it."""
    phases, result = found.model.phases, []
    for metric in range(len(found)):
        leaves = found.activity.leaf[found.periods(metric)]
        result.append({phases.path(int(leaf)) for leaf in leaves})
    return result


def test_phases_use_what_is_on_their_machine() -> None:
    model = model_of(Ph("a", 0, 1, host="h1"), Ph("b", 0, 1, host="h2"), Ph("c", 0, 1))
    seen = observed(6, capacity=8)
    resources = resources_of(
        ("cpu.busy", seen, "", "h1"), ("cpu.busy", seen, "", "h2"), ("cpu.busy", seen, "", "")
    )
    found = attributed(model, resources, Rule("/", "*", VARIABLE, 1))
    # Where one side does not say which machine it is, nothing speaks against it.
    assert by_host(found) == [{"/a", "/c"}, {"/b", "/c"}, {"/a", "/b", "/c"}]
    assert used(found, 0) == pytest.approx({"/a": 3, "/c": 3})
    assert used(found, 2) == pytest.approx({"/a": 2, "/b": 2, "/c": 2})


def test_a_host_may_have_other_names() -> None:
    model = model_of(Ph("a", 0, 1, host="node-1.cluster"), Ph("b", 0, 1, host="10.0.0.2"))
    seen = observed(6)
    names = {"node-1.cluster": "node-1", "10.0.0.2": "node-2"}
    resources = resources_of(
        ("cpu.busy", seen, "", "node-1"), ("cpu.busy", seen, "", "node-2"), machines=names
    )
    assert by_host(attributed(model, resources, Rule("/", "*", VARIABLE, 1))) == [{"/a"}, {"/b"}]


def test_a_phase_is_where_its_nearest_ancestor_is() -> None:
    model = model_of(Ph("job", 0, 9, (Ph("a", 0, 1), Ph("b", 1, 2, host="h2")), host="h1"))
    seen = observed(6)
    resources = resources_of(("cpu.busy", seen, "", "h1"), ("cpu.busy", seen, "", "h2"))
    assert by_host(attributed(model, resources, Rule("/", "*", VARIABLE, 1))) == [
        {"/job/a", "/job/self"},
        {"/job/b"},
    ]


def two_ranks() -> ExecutionModel:
    return model_of(run_of(*(rank(ix, 1, Ph("forward", 0, 1), host="h") for ix in range(2))))


def forward(number: int) -> str:
    return f"/run[id=r, script=train.py]/attempt[attempt=0]/rank[rank={number}]/forward"


def test_a_rank_uses_the_gpus_that_it_names() -> None:
    seen = observed(1)
    resources = resources_of(
        *(("gpu.utilization", seen, name, "h") for name in ("GPU-0", "GPU-1", "MIG-1")),
        tags={"MIG-1": {"parent": "GPU-1"}},
    )
    rules = Rule("/", "*", VARIABLE, 1)
    both = {forward(0), forward(1)}
    named = {RankKey("r", 0, 0): frozenset({"GPU-0"}), RankKey("r", 0, 1): frozenset({"MIG-1"})}
    found = attributed(two_ranks(), resources, rules, gpus=named)
    # The whole GPU is shared by those who use an instance of it.
    assert by_host(found) == [{forward(0)}, {forward(1)}, {forward(1)}]
    assert found.problems == []
    half = attributed(two_ranks(), resources, rules, gpus={RankKey("r", 0, 0): frozenset({"GPU-0"})})
    assert by_host(half) == [both, {forward(1)}, {forward(1)}]
    assert half.problems == ["rank 1 named no GPU, and the host has several: counted on all of them"]
    other_run = attributed(two_ranks(), resources, rules, gpus={RankKey("x", 0, 0): frozenset({"GPU-0"})})
    assert by_host(other_run)[0] == both
    assert other_run.problems == ["ranks 0, 1 named no GPU, and the host has several: counted on all of them"]


def test_a_run_names_its_gpus_on_its_spans() -> None:
    def span(id: str, name: str, of: int, ids: Any) -> S:
        return S(id, 0, 9, name=name, attributes={sc.GPU_ID: ids}, resource={sc.RANK: of})

    spans = [
        span("a", sc.RUN, 0, ["GPU-0"]),
        span("b", sc.WINDOW, 1, ["GPU-1"]),  # of a process that never said that it ended
        span("c", sc.WINDOW, 1, ["GPU-2", 3]),
        span("d", sc.WINDOW, 2, []),
        span("e", sc.FIT, 2, ["GPU-9"]),
        S("f", 0, 9, name=sc.WINDOW, resource={sc.RANK: 3}),
    ]
    run = run_from([R(0, 9)], 0, 9, spans=spans)
    keys = [RankKey(run.run_id, run.attempt, number) for number in range(2)]
    assert gpus_of([run]) == {keys[0]: {"GPU-0"}, keys[1]: {"GPU-1", "GPU-2"}}


def test_what_is_told_of_a_process_is_used_by_its_rank_alone() -> None:
    seen = observed(1)
    resources = resources_of(
        ("process.cpu", seen, "rank 0", "h"),
        ("process.cpu", seen, "rank 1", "h"),
        ("process.cpu", seen, "other run", "h"),
        ("process.cpu", seen, "somebody", "h"),
        tags={
            "rank 0": {"rank": "0"},
            "rank 1": {"rank": "1", "run": "r", "attempt": "0"},
            "other run": {"rank": "1", "run": "x"},
        },
    )
    found = attributed(two_ranks(), resources, Rule("/", "*", VARIABLE, 1))
    assert by_host(found) == [{forward(0)}, {forward(1)}, set(), set()]


def test_hosts_that_do_not_meet_are_told() -> None:
    model = model_of(Ph("a", 0, 1, host="h1"), Ph("b", 0, 1, host="h2"))
    seen, rule = observed(1), Rule("/", "*", VARIABLE, 1)
    (line,) = attributed(model, resources_of(("cpu.busy", seen, "", "10.0.0.1")), rule).problems
    assert line.startswith(
        "metrics are of 10.0.0.1, phases ran on h1, h2: if these are the same machines, say"
    )
    (line,) = attributed(model, resources_of(("cpu.busy", seen, "", "h1")), rule).problems
    assert line == "no metric is of h2, where phases ran"


# --- What stops phases -------------------------------------------------------------------------------------


def test_while_it_is_stopped_a_phase_uses_nothing() -> None:
    ranks = [
        rank(ix, 4, Ph("forward", 0, 4, beside=True), Ph("gc", 1 + ix, 2 + ix, beside=True))
        for ix in range(2)
    ]
    model = model_of(run_of(*ranks))
    found = attributed(
        model,
        resources_of(("cpu.busy", observed(1, 1, 1, 1))),
        Rule("**/forward", "*", VARIABLE, 1),
        blocking=(Blocking("**/rank/**", by="**/gc"),),
    )
    # Only the collections of its own process stop a phase.
    usage = [found.total(at(found, forward(ix)), 0) for ix in range(2)]
    assert [one.usage for one in usage if one is not None] == pytest.approx(
        [0.5 + 0 + 1 + 0.5, 0.5 + 1 + 0 + 0.5]
    )
    assert [one.active for one in usage if one is not None] == [3, 3]
    phases = found.model.phases
    rows = zip(found.blocked.leaf, found.blocked.start, found.blocked.end, found.blocked.by, strict=True)
    # Self time of ranks is stopped as well; gc does not stop itself.
    told = {(phases.path(int(leaf)), start // SECOND, end // SECOND, by) for leaf, start, end, by in rows}
    assert {row for row in told if "forward" in row[0]} == {(forward(0), 1, 2, 0), (forward(1), 2, 3, 0)}
    assert not any("gc" in row[0] for row in told)


def test_where_no_process_is_known_a_phase_is_stopped_by_those_of_its_host() -> None:
    model = model_of(*(Ph(f"a{host}", 0, 2, host=host) for host in "hg"), Ph("gc", 0, 1, host="h"))
    found = attributed(
        model, resources_of(CPU), Rule("/", "*", VARIABLE, 1), blocking=(Blocking("/a*", by="/gc"),)
    )
    active = {
        found.model.phases.path(int(leaf)): (start / SECOND, end / SECOND)
        for leaf, start, end in zip(
            found.activity.leaf, found.activity.start, found.activity.end, strict=True
        )
    }
    assert active == {"/ah": (1, 2), "/ag": (0, 2), "/gc": (0, 1)}


def test_a_metric_may_say_that_phases_stand_still() -> None:
    model = model_of(
        Ph("a", 0.5, 4, host="h1"), Ph("b", 0, 4, host="h2"), Ph("c", 0, 4, (Ph("d", 1, 4),), host="h1")
    )
    resources = resources_of(
        ("cpu.busy", observed(1, 1, 1, 1), "", "h1"), ("cpu.throttled", observed(0, 1, 0.5, 0.2), "", "h1")
    )
    blocking = (
        Blocking("/**", metric="cpu.*", at_least=0.5),
        Blocking("/c", none=True),
        Blocking("/c/d", metric="cpu.throttled", at_least=1),
    )
    rules = Rule("/**", "cpu.busy", VARIABLE, 1)
    found = attributed(
        model, resources, rules, blocking=(replace(blocking[0], metric="cpu.throttled"), *blocking[1:])
    )
    active = {}
    for pattern in ("/a", "/b", "/c/d", "/c/self"):
        mine = found.activity.leaf == at(found, pattern)
        active[pattern] = [
            (start / SECOND, end / SECOND)
            for start, end in zip(found.activity.start[mine], found.activity.end[mine], strict=True)
        ]
    assert active == {
        "/a": [(0.5, 1), (3, 4)],  # stopped for two intervals
        "/b": [(0, 4)],  # on another machine
        "/c/d": [(2, 4)],  # freed by the second rule, stopped by the third
        "/c/self": [(0, 1)],
    }
    assert found.problems == ["no metric is of h2, where phases ran"]


def test_what_stops_nothing_is_told() -> None:
    model = model_of(Ph("a", 0, 1), Ph("b", 2, 3))
    blocking = (
        Blocking("/x", by="/b", where="r.toml:1"),
        Blocking("/a", by="/y", where="r.toml:2"),
        Blocking("/a", by="/b", where="r.toml:3"),
        Blocking("/a", metric="gpu.*", at_least=1, where="r.toml:4"),
        Blocking("/a", metric="cpu.busy", at_least=8, where="r.toml:5"),
    )
    found = attributed(model, resources_of(CPU), Rule("/", "*", VARIABLE, 1), blocking=blocking)
    assert found.problems == [
        'r.toml:1: blocking of phase = "/x": no phase is called so',
        'r.toml:2: blocking by "/y": no phase is called so',
        'r.toml:3: "/a" was never stopped by "/b"',
        'r.toml:4: blocking by metric = "gpu.*": there is no such metric',
        'r.toml:5: "/a" was never stopped by "cpu.busy"',
    ]


# --- What is missing ---------------------------------------------------------------------------------------


def test_rules_that_match_nothing_are_told_with_their_place() -> None:
    rules = parse_rules(
        'builtin = false\n[[rule]]\nphase = "/x"\nmetric = "cpu.busy"\nfit = true\n'
        '[[rule]]\nphase = "/a"\nmetric = "gpu.*"\nfit = true\n'
        '[[rule]]\nphase = "/a"\nmetric = "cpu.*"\nresource = "/host*/cpu[id=1]"\nfit = true\n',
        "r.toml",
    )
    found = Attributed(model_of(Ph("a", 0, 1)), resources_of(CPU, problems=["told before"]), rules)
    assert found.problems == [
        "told before",
        'r.toml:2: the rule for phase = "/x", metric = "cpu.busy": no phase is called so',
        'r.toml:6: the rule for phase = "/a", metric = "gpu.*": there is no such metric; there are cpu.busy',
        'r.toml:10: the rule for phase = "/a", metric = "cpu.*": no resource with it is "/host*/cpu[id=1]"',
    ]


def test_times_that_do_not_meet_are_told() -> None:
    model = model_of(Ph("a", 10, 20))
    resources = resources_of(("cpu.busy", observed(1, 1)), ("disk.read", observed(1, start=3600)))
    found = attributed(model, resources, Rule("/", "*", VARIABLE, 1))
    assert found.problems == [
        "cpu.busy: observed only before the first phase began, 8.0 s or more apart; if clocks differ, see"
        " --clocks",
        "disk.read: observed only after the last phase had ended, 3,580.0 s or more apart; if clocks differ,"
        " see --clocks",
    ]
    assert found.balance(0).background == pytest.approx(2)


# --- Properties --------------------------------------------------------------------------------------------

NAMES = st.sampled_from(("a", "b", "c"))


def trees(depth: int) -> st.SearchStrategy[Ph]:
    times = st.tuples(st.integers(0, 60), st.integers(0, 40))

    def made(drawn: tuple[str, tuple[int, int], list[Ph], bool, str]) -> Ph:
        name, (start, length), parts, beside, host = drawn
        return Ph(name, start / 10, (start + length) / 10, parts, beside=beside, host=host)

    parts = st.just([]) if depth == 0 else st.lists(trees(depth - 1), max_size=3)
    return st.tuples(NAMES, times, parts, st.booleans(), st.sampled_from(("", "h", "g"))).map(made)


RULES = st.lists(
    st.builds(
        Rule,
        st.sampled_from(("/**", "/a", "**/a", "**/b", "/*/c", "**/self")),
        st.just("*"),
        st.sampled_from((NONE, EXACT, VARIABLE, FIT)),
        st.one_of(st.just(0.0), st.floats(0.1, 5)),
    ),
    max_size=5,
)
VALUES = st.lists(st.one_of(st.just(math.nan), st.floats(0, 12)), min_size=1, max_size=9)


@settings(max_examples=120, deadline=None)
@given(
    st.lists(trees(2), min_size=1, max_size=4), RULES, VALUES, st.one_of(st.just(math.inf), st.floats(1, 12))
)
def test_all_that_was_observed_is_somewhere(
    phases: list[Ph], rules: list[Rule], values: list[float], capacity: float
) -> None:
    resources = resources_of(
        ("cpu.busy", observed(*values, capacity=capacity), "", "h"),
        ("cpu.busy", observed(*values[::-1], capacity=capacity, every=0.7), "", ""),
    )
    found = attributed(model_of(*phases), resources, *rules)
    for metric in range(2):
        balance = found.balance(metric)
        whole = balance.used + balance.background + balance.unplaced
        assert whole == pytest.approx(balance.observed, rel=1e-9, abs=1e-300)
        assert min(balance.used, balance.background, balance.unplaced) >= -1e-9 * balance.observed
        by_type = found.of_types(metric)
        assert np.nan_to_num(by_type.usage)[0] == pytest.approx(balance.used, rel=1e-9, abs=1e-300)
        _check_wholes(found, metric, capacity)


def _check_wholes(found: Attributed, metric: int, capacity: float) -> None:
    """A whole used what its leaves used within its time, and could have used no more than there is."""
    phases = found.model.phases
    for node in range(1, len(phases)):
        total, over_time = found.total(node, metric), found.of_phase(node, metric)
        if total is None or over_time is None:
            assert total is None
            assert over_time is None
            continue
        low, high = int(phases.start[node]), int(phases.end[node])
        expected = 0.0
        for leaf in range(node, node + int(phases.size[node])):
            if phases.size[leaf] > 1 or (of_leaf := found.of_phase(leaf, metric)) is None:
                continue
            inside = np.diff(np.clip(of_leaf.edges, low, max(low, high))) / SECOND
            expected += float(np.nansum(of_leaf.usage * inside))
        assert total.usage == pytest.approx(expected, abs=1e-6)
        assert total.observed <= total.active + 1e-9
        known = over_time.capacity[~np.isnan(over_time.capacity)]
        assert (known <= capacity).all()
        seen = found.resources.metrics[metric].observed
        if len(seen) and seen.value.max() <= capacity:
            assert total.usage <= total.capacity + 1e-6


@settings(max_examples=40, deadline=None)
@given(st.lists(trees(1), min_size=1, max_size=4), RULES, VALUES, st.integers(0, 10**9))
def test_neither_date_nor_order_change_anything(
    phases: list[Ph], rules: list[Rule], values: list[float], later: int
) -> None:
    def moved(phase: Ph) -> Ph:
        return replace(
            phase,
            start=phase.start + later,
            end=phase.end + later,
            parts=[moved(part) for part in reversed(phase.parts)],
        )

    first = attributed(model_of(*phases), resources_of(("cpu.busy", observed(*values, capacity=9))), *rules)
    shifted = resources_of(("cpu.busy", observed(*values, capacity=9, start=later)))
    second = attributed(model_of(*(moved(phase) for phase in reversed(phases))), shifted, *rules)
    assert used(second) == pytest.approx(used(first), abs=1e-6)


# --- A run, by what is built in ----------------------------------------------------------------------------


def test_a_run_is_attributed_by_what_is_built_in() -> None:
    run = trained_run(Training(ranks=2, epochs=2, steps_per_epoch=6, eval_batches=2, explicit=True))
    model = execution_model(run.spans, [run])
    low, high = int(model.phases.start[1]), int(model.phases.end[1])
    every, start = (high - low) / SECOND / 40, low / SECOND
    rng = np.random.default_rng(0)
    resources = resources_of(
        (
            "gpu.utilization",
            observed(*rng.random(40), capacity=1, start=start, every=every),
            "GPU-0",
            "node-0",
        ),
        ("cpu.busy", observed(*rng.random(40) * 8, capacity=8, start=start, every=every), "", "node-0"),
        ("disk.read", observed(*rng.random(40) * 1e9, start=start, every=every), "sda", "node-0"),
        ("memory.used", observed(*rng.random(40), capacity=1, start=start, every=every), "", "node-0"),
    )
    gpus = {RankKey(run.run_id, run.attempt, 0): frozenset({"GPU-0"}),
            RankKey(run.run_id, run.attempt, 1): frozenset({"GPU-1"})}  # fmt: skip
    found = Attributed(model, resources, RuleSet(BUILT_IN), gpus)
    assert [use.is_used for use in found] == [True, True, True, False]
    assert all("rank=1" not in path for path in by_host(found)[0])
    assert any("rank=1" in path for path in by_host(found)[1])
    names = {path.rpartition("/")[2] for path in used(found, 2)}
    assert names == {"data.fetch"}
    step = found.model.select("/run*/attempt*/rank[rank=0]/epoch*/step*").tolist()[0]
    total = found.total(step, 0)
    assert total is not None
    assert 0 < total.usage <= total.capacity
    for metric in range(4):
        balance = found.balance(metric)
        assert balance.used + balance.background == pytest.approx(balance.observed)


def test_all_that_a_rank_did_is_on_its_machine() -> None:
    """Defect 13: epochs that name no machine use what is on all of them."""
    run = trained_run(Training(ranks=2, epochs=2, steps_per_epoch=4, eval_batches=2, explicit=True))
    model = execution_model(run.spans, [run])
    seen = observed(*[1.0] * 9, start=int(model.phases.start[1]) / SECOND)
    found = attributed(
        model,
        resources_of(("cpu.busy", seen, "", "node-0"), ("cpu.busy", seen, "", "elsewhere")),
        Rule("**/rank/**", "*", VARIABLE, 1),
    )
    mine, others = by_host(found)
    assert any("/epoch" in path for path in mine)
    assert others == set()
