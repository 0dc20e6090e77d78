# SPDX-License-Identifier: Apache-2.0
"""Rules: their file and its mistakes, what they come to for types of phases, what is built in."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.analyzers.attribution.attribute import Attributed
from grademl_otel.analyzers.attribution.builtin import BUILT_IN
from grademl_otel.analyzers.attribution.mapping import with_peers
from grademl_otel.analyzers.attribution.observations import EXACT, NONE, VARIABLE
from grademl_otel.analyzers.attribution.rules import FIT, RULES, Assignment, Blocking, Rule, RuleSet
from grademl_otel.analyzers.attribution.rules_file import parse_rules, read_rules
from grademl_otel.analyzers.errors import SourceError, UsageError
from grademl_otel.analyzers.execution import ExecutionModel
from grademl_otel.analyzers.resource_model.naming import EXPORTERS, OTLP
from grademl_otel.analyzers.resource_model.settings import Capacity

from ..support.attributed import Ph, model_of, observed, rank, resources_of, run_of

WHOLE = """
# What we know of our cluster.
[[rule]]
phase = "**/step/forward"
metric = "gpu.utilization"
exact = 1.0

[[rule]]
phase = ["**/optimizer", "**/backward"]
metric = ["cpu.busy", "disk.*"]
variable = 2
resource = "/host[name=node-1]/**"

[[rule]]
phase = "**/idle"
metric = "*"
none = true

  [[ rule ]]
phase = "/http*"
metric = "cpu.busy"
fit = true

[[blocking]]
phase = "**/rank/comm/**"
by = "**/gc"

[[blocking]]
phase = "**/forward"
metric = "cpu.throttled"
at_least = 0.5

[[blocking]]
phase = "**/forward/io"
none = true

[hosts]
node-1 = ["10.0.0.1", "ip-10-0-0-1"]
node-2 = "10.0.0.2"

[[capacity]]
metric = "network.rx"
resource = "/host*/network[id=eth0]"
value = 12.5e9
unit = "By/s"
"""


def test_a_file_says_rules_what_blocks_other_names_of_hosts_and_capacities() -> None:
    found = parse_rules(WHOLE, "rules.toml")
    assert found.built_in == BUILT_IN

    def of_both(phase: str, metric: str) -> Rule:
        resource = "/host[name=node-1]/**"
        return Rule(phase, metric, VARIABLE, 2.0, resource=resource, where="rules.toml:8")

    assert list(found.rules) == [
        Rule("**/step/forward", "gpu.utilization", EXACT, 1.0, where="rules.toml:3"),
        of_both("**/optimizer", "cpu.busy"),
        of_both("**/optimizer", "disk.*"),
        of_both("**/backward", "cpu.busy"),
        of_both("**/backward", "disk.*"),
        Rule("**/idle", "*", NONE, where="rules.toml:14"),
        Rule("/http*", "cpu.busy", FIT, where="rules.toml:19"),
    ]
    assert list(found.blocking) == [
        Blocking("**/rank/comm/**", by="**/gc", where="rules.toml:24"),
        Blocking("**/forward", metric="cpu.throttled", at_least=0.5, where="rules.toml:28"),
        Blocking("**/forward/io", none=True, where="rules.toml:33"),
    ]
    assert found.aliases == {"node-1": ("10.0.0.1", "ip-10-0-0-1"), "node-2": ("10.0.0.2",)}
    (capacity,) = found.capacities
    assert capacity == Capacity("network.rx", 12.5e9, "By/s", "/host*/network[id=eth0]", "rules.toml:41")


def test_what_is_built_in_can_be_left_out() -> None:
    assert parse_rules("builtin = false") == RuleSet()
    assert parse_rules("builtin = true") == parse_rules("") == RuleSet(BUILT_IN)


RULE = '[[rule]]\nphase = "a"\nmetric = "m"\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\nx y", r"r\.toml:2: no TOML: .*, in column 3"),
        ("[[rule]]\nphase = ", r"r\.toml.*: no TOML"),
        ("rules = 1", r"r\.toml:1: no 'rules' in a file of rules; did you mean rule\?"),
        ("\nbuiltin = 1", r"r\.toml:2: builtin is true or false"),
        ('rule = "x"', r"r\.toml:1: rule is written \[\[rule\]\], once for each of them"),
        ("[rule]\nphase = 'a'", r"r\.toml:1: rule is written \[\[rule\]\]"),
        (RULE + "exac = 1", r"r\.toml:4: \[\[rule\]\]: no 'exac' in it; did you mean exact\?"),
        (RULE, r"r\.toml:1: \[\[rule\]\]: one of exact = N, .*; there is none of them"),
        (RULE + "exact = 1\nnone = true", r"r\.toml:1: \[\[rule\]\]: one of .*; there is none and exact"),
        (RULE + "none = false", r"r\.toml:4: \[\[rule\]\]: none is true, or not there"),
        (RULE + "exact = -1", r"r\.toml:4: \[\[rule\]\]: exact is a number, 0 or more"),
        (RULE + "exact = nan", r"r\.toml:4: \[\[rule\]\]: exact is a number, 0 or more"),
        (RULE + "variable = inf", r"r\.toml:4: \[\[rule\]\]: variable is a number, 0 or more"),
        (
            RULE + "variable = 1e300",
            r"r\.toml:4: \[\[rule\]\]: variable is a number, 0 or more, up to 1e\+30",
        ),
        (RULE + "variable = true", r"r\.toml:4: \[\[rule\]\]: variable is a number, 0 or more"),
        (RULE + 'variable = "1"', r"r\.toml:4: \[\[rule\]\]: variable is a number, 0 or more"),
        ('[[rule]]\nmetric = "m"\nfit = true', r"r\.toml:1: \[\[rule\]\]: phase is missing"),
        ('[[rule]]\nphase = "a["\nmetric = "m"\nfit = true', r"r\.toml:2: \[\[rule\]\]: phase: 'a\[': "),
        ('[[rule]]\nphase = "../a"\nmetric = "m"\nfit = true', r"r\.toml:2: .* goes up"),
        (
            '[[rule]]\nphase = []\nmetric = "m"\nfit = true',
            r"r\.toml:2: .* phase is a text or a list of texts",
        ),
        (
            '[[rule]]\nphase = "a"\nmetric = 3\nfit = true',
            r"r\.toml:3: .* metric is a text or a list of texts",
        ),
        (RULE + "fit = true\nresource = 1", r"r\.toml:5: \[\[rule\]\]: resource is a text"),
        (
            RULE + 'fit = true\nresource = "//"',
            r"r\.toml:5: \[\[rule\]\]: resource: .*a level without a name",
        ),
        (RULE + "fit = true\n" + RULE + "fit = 2", r"r\.toml:8: \[\[rule\]\]: fit is true"),
        ('rule = [{phase = "a", metric = "m"}]', r"r\.toml: \[\[rule\]\] number 1: one of"),
        ('[[blocking]]\nphase = "a"', r"r\.toml:1: \[\[blocking\]\]: one of by = PHASE, .* none of them"),
        ('[[blocking]]\nphase = "a"\nby = "b"\nmetric = "c"', r"there is by and metric"),
        ('[[blocking]]\nphase = "a"\nby = "b"\nat_least = 1', r"r\.toml:4: .*at_least is for a metric"),
        ('[[blocking]]\nphase = "a"\nmetric = "c"', r"r\.toml:1: .*at_least is missing"),
        ('[[blocking]]\nphase = "a"\nmetric = "c"\nat_least = 0', r"r\.toml:4: .*at_least is a number, more"),
        ("hosts = 3", r"r\.toml:1: hosts is a table"),
        ("[hosts]\na = 3", r"r\.toml:2: what a is also called is a text or a list of texts"),
        ('[hosts]\na = ["x"]\nb = ["x"]', r"r\.toml:3: 'x' cannot be both a and b"),
        ('[hosts]\na = ["b"]\nb = "c"', r"r\.toml:2: 'b' cannot be both b and a"),
        ('[[capacity]]\nmetric = "m"\nvalue = 1', r"r\.toml:1: \[\[capacity\]\]: unit is missing"),
        ('[[capacity]]\nmetric = "m"\nunit = "W"\nvalue = 0', r"r\.toml:4: .*value is a number, more than 0"),
        ('[[capacity]]\nmetric = "m"\nunit = ["W"]\nvalue = 1', r"r\.toml:3: .*unit is a text$"),
        ('[[capacity]]\nmetric = "m"\nunits = "W"\nvalue = 1', r"r\.toml:3: .*did you mean unit\?"),
        (RULE + f"exact = {'1' * 5000}", r"r\.toml: no TOML that can be read: a number .* too many digits"),
        (RULE + f"exact = 0x{'f' * 300}", r"r\.toml:4: \[\[rule\]\]: exact is a number, 0 or more"),
        (f"hosts = {'[' * 5000}{']' * 5000}", r"r\.toml: no TOML that can be read: .* within each other"),
        (f"{'a.' * 5000}b = 1", r"r\.toml"),
        ('"a\\nb" = 1', r"^r\.toml: no 'a\\nb' in a file of rules"),
        ('[hosts]\n"a\\nb" = 3', r"^r\.toml:?.*: what a b is also called is a text or a list of texts$"),
    ],
)
def test_a_mistake_is_told_with_its_place_and_what_is_allowed(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parse_rules(text, "r.toml")


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.text(max_size=200),
        st.lists(st.sampled_from(WHOLE.splitlines()), max_size=25).map("\n".join),
    )
)
def test_any_text_is_rules_or_one_line(text: str) -> None:
    said = ""
    try:
        parse_rules(text, "r.toml")
    except UsageError as error:
        said = str(error)
    assert not said or (said.startswith("r.toml") and "\n" not in said)


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"rules\.toml: no such file"):
        read_rules(tmp_path / "rules.toml")
    with pytest.raises(SourceError, match="no such file"):
        read_rules(tmp_path)
    with pytest.raises(SourceError, match="not a directory"):
        read_rules(Path(__file__) / "rules.toml")
    bad = tmp_path / "rules.toml"
    bad.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="UTF-8"):
        read_rules(bad)
    bad.write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(UsageError, match="larger than 1 MiB"):
        read_rules(bad)
    bad.write_text(WHOLE)
    assert len(read_rules(bad).rules) == 7


# --- What they come to -------------------------------------------------------------------------------------


def of(
    model: ExecutionModel, *rules: Rule, built_in: tuple[Rule, ...] = (), metric: str = "cpu.busy"
) -> dict[str, str]:
    """Return type path -> rule of all types of leaves."""
    types = model.types
    found = Assignment(types, RuleSet(built_in, rules), with_peers(model.phases, types)).of_metric(metric)
    return {
        types.path(node): f"{RULES[int(found.kind[node])]} {found.amount[node]:g}"
        for node in range(len(types))
        if types.size[node] == 1
    }


TREE = model_of(
    Ph("a", 0, 10, (Ph("b", 0, 4, (Ph("c", 1, 2),)), Ph("b", 5, 6), Ph("d", 7, 8))),
)


def test_a_rule_holds_for_what_is_part_of_a_phase_until_a_rule_for_the_part_says_otherwise() -> None:
    inner_first = (Rule("**/c", "cpu.*", EXACT, 2), Rule("/a", "cpu.busy", VARIABLE, 3))
    assert of(TREE, *inner_first) == {
        "/a/b/c": "exact 2",
        "/a/b/self": "variable 3",
        "/a/d": "variable 3",
        "/a/self": "variable 3",
    }


def test_of_two_rules_for_the_same_phase_the_later_one_holds() -> None:
    rules = (Rule("**/b", "*", EXACT, 2), Rule("/a/b", "cpu.busy", NONE), Rule("**/b", "gpu.*", EXACT, 1))
    assert of(TREE, *rules)["/a/b/c"] == "none 0"
    assert of(TREE, *rules[::-1])["/a/b/c"] == "exact 2"


def test_without_a_rule_nothing_is_used() -> None:
    assert set(of(TREE, Rule("/a", "disk.*", VARIABLE, 1)).values()) == {"none 0"}


def test_what_a_user_says_of_a_whole_goes_before_what_is_built_in_for_its_parts() -> None:
    built_in = (Rule("**/c", "*", FIT), Rule("**/d", "*", FIT))
    found = of(TREE, Rule("**/b", "*", EXACT, 4), built_in=built_in)
    assert found == {"/a/b/c": "exact 4", "/a/b/self": "exact 4", "/a/d": "fit 0", "/a/self": "none 0"}


def test_a_rule_may_be_for_some_resources_only() -> None:
    resources = resources_of(
        ("disk.read", observed(1.0), "sda", "h"), ("disk.read", observed(1.0), "sdb", "h")
    )
    rules = RuleSet((), (Rule("/a", "disk.*", VARIABLE, 1, resource="/host*/disk[id=sdb]"),))
    found = Attributed(TREE, resources, rules)
    assert [found.use(metric).is_used for metric in range(2)] == [False, True]


def test_types_that_other_patterns_select_do_not_matter() -> None:
    # Types come in preorder: a rule for a later sibling must not reach into an earlier one.
    model = model_of(Ph("x", 0, 1, (Ph("y", 0, 1),)), Ph("z", 0, 1, (Ph("y", 0, 1),)))
    assert of(model, Rule("/x", "*", EXACT, 1), Rule("/z/y", "*", EXACT, 2)) == {
        "/x/y": "exact 1",
        "/z/y": "exact 2",
    }


# --- What is built in --------------------------------------------------------------------------------------


def step(*names: str) -> Ph:
    parts = tuple(Ph(name, at, at + 1) for at, name in enumerate(names))
    return Ph("step", 0, len(names) + 1, parts, number=0)


def lane(name: str, *names: str) -> Ph:
    return Ph(
        name, derived=True, beside=True, parts=tuple(Ph(each, ix, ix + 1) for ix, each in enumerate(names))
    )


def built_in(model: ExecutionModel, metric: str) -> dict[str, str]:
    """Return name of a leaf in its rank (or below the root) -> rule, without those that use nothing."""
    found = of(model, built_in=BUILT_IN, metric=metric)
    return {path.partition("/rank/")[2] or path: rule for path, rule in found.items() if rule != "none 0"}


TRAINING = ("data.wait", "data.transfer", "forward", "backward", "optimizer", "device.sync")


def test_kernels_run_in_the_phases_that_give_them_and_in_waits_for_them() -> None:
    model = model_of(run_of(rank(0, 9, step(*TRAINING), lane("loader-worker", "data.fetch"))))
    computing = ("forward", "backward", "optimizer", "device.sync", "self")
    assert built_in(model, "gpu.utilization") == {f"step/{name}": "variable 1" for name in computing}
    assert built_in(model, "gpu.power") == {f"step/{name}": "fit 0" for name in computing}
    assert built_in(model, "gpu.memory") == built_in(model, "gpu.sm_clock") == {}


def test_where_devices_were_looked_at_only_they_use_a_gpu() -> None:
    device = lane("stream-0.0", "device.data.transfer", "device.forward", "device.backward")
    model = model_of(run_of(rank(0, 9, step(*TRAINING), device)))
    on_device = {"stream-0\\.0/device.forward", "stream-0\\.0/device.backward"}
    found = {path.replace("stream-0.0", "stream-0\\.0") for path in built_in(model, "gpu.utilization")}
    assert found == on_device
    assert not any("stream" in path for path in built_in(model, "cpu.busy"))
    assert set(built_in(model, "gpu.pcie_rx")) == {"stream-0.0/device.data.transfer"}


def test_a_wait_for_data_is_the_fetch_itself_where_no_worker_fetches() -> None:
    alone = model_of(run_of(rank(0, 9, step(*TRAINING))))
    workers = model_of(
        run_of(rank(0, 9, step(*TRAINING), lane("loader-worker", "data.fetch", "data.collate")))
    )
    assert built_in(alone, "disk.read") == {"step/data.wait": "variable 1"}
    assert built_in(workers, "disk.read") == {"loader-worker/data.fetch": "variable 1"}
    assert "step/data.wait" in built_in(alone, "cpu.busy")
    assert "step/data.wait" not in built_in(workers, "cpu.busy")
    assert built_in(workers, "cpu.busy")["loader-worker/data.collate"] == "fit 0"
    assert "loader-worker/data.collate" not in built_in(workers, "process.own_cpu")


def test_collectives_use_links_and_where_none_was_seen_backwards_of_several_ranks() -> None:
    plain = [rank(number, 9, step(*TRAINING)) for number in range(2)]
    for metric in ("gpu.nvlink_tx", "network.tx", "port.rx"):
        assert built_in(model_of(run_of(*plain)), metric).get("step/backward") == "variable 1"
        assert "step/backward" not in built_in(model_of(run_of(plain[0])), metric)
    seen = model_of(
        run_of(*(rank(ix, 9, step(*TRAINING, "collective", "collective.wait")) for ix in range(2)))
    )
    assert built_in(seen, "gpu.nvlink_tx") == {"step/collective": "variable 1"}


def test_checkpoints_use_disks_and_networks() -> None:
    save = Ph("checkpoint.save", 0, 1, tags={"format": "torch"})
    model = model_of(run_of(rank(0, 9, save, Ph("checkpoint.load", 2, 3))))
    assert built_in(model, "disk.write") == {"checkpoint.save[format=torch]": "variable 1"}
    assert built_in(model, "disk.read") == {"checkpoint.load": "variable 1"}
    assert len(built_in(model, "disk.busy")) == len(built_in(model, "network.rx")) == 2


def test_what_a_program_named_itself_uses_what_that_uses_which_it_is_part_of() -> None:
    model = model_of(
        run_of(rank(0, 9, Ph("step", 0, 9, (Ph("forward", 0, 5, (Ph("attention", 1, 2),)),), number=0)))
    )
    assert built_in(model, "gpu.utilization")["step/forward/attention"] == "variable 1"


def test_what_others_use_is_fitted() -> None:
    model = model_of(Ph("GET", 0, 2, (Ph("query", 0, 1),)))
    for metric in ("cpu.busy", "disk.read", "network.tx", "gpu.utilization"):
        assert set(of(model, built_in=BUILT_IN, metric=metric).values()) == {"fit 0"}
    assert built_in(model, "memory.used") == {}


def test_every_built_in_rule_can_match_something() -> None:
    gpu = ("utilization", "power", "memory_busy", "sm_active", "pcie_rx", "nvlink_tx", "xgmi_rx")
    process = ("cpu", "own_cpu", "disk_read", "disk_write", "read", "write")
    others = ("network.rx", "port.tx", "disk.read", "disk.write", "disk.busy", "cpu.busy")
    names = (*(f"gpu.{name}" for name in gpu), *(f"process.{name}" for name in process), *others)
    assert not [rule for rule in BUILT_IN if not any(rule.metrics.fullmatch(name) for name in names)]
    assert len({(rule.phase, rule.metric, rule.kind, rule.unless) for rule in BUILT_IN}) == len(BUILT_IN)


def test_what_is_built_in_names_metrics_that_there_are() -> None:
    """Defect 18: a rule for a metric that nothing is called is a rule for nothing, and nobody sees it."""
    known = {f"{one.type}.{one.name}" for one in (*OTLP, *EXPORTERS)}
    assert {rule.metric for rule in BUILT_IN if rule.metric != "*"}
    for rule in BUILT_IN:
        assert any(rule.metrics.fullmatch(each) for each in known), rule.metric
