# SPDX-License-Identifier: Apache-2.0
"""Every query of the dashboards and alerts is put to a real Prometheus, which has metrics to answer from.

They come the way that users' do: through an agent and a gateway. Two things are sent: points of every metric
of the catalog and of two ranks (so that no query may come back empty), and a real training whose relay
samples this host and the stand-in for NVIDIA's library (so that labels are those that the samplers write).
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from grademl_otel import catalog, marks, semconv
from grademl_otel.catalog import metric as kinds
from grademl_otel.catalog import prometheus_names
from grademl_otel.convert.spans import Attributes, Gauge, Metric, Point, Resource, Sum, UpDown
from grademl_otel.convert.totals import metrics_of
from grademl_otel.export.otlpjson import metric_line
from tests.support import dashboards, nvml, servers
from tests.support.fabrics import add_devices
from tests.support.hosttrees import HostTree
from tests.support.pipeline import Pipeline, send
from tests.support.training import clean_environ

pytestmark = pytest.mark.real

PROGRAM = Path(__file__).parents[1] / "support" / "metered_training.py"
RULES = servers.COLLECTOR_CONFIGS / "prometheus" / "rules.yml"
RUN = "0123456789abcdef0123456789abcdef"
JOB, REAL_JOB = "dashboards-fed", "dashboards-real"
HOST = "fed-host"
INSTANCE = "MIG-0"
RANKS = (0, 1)
APART_S = 20
"""Between the two exports that are fed: a rate needs two points."""

VALUES: dict[str, Sequence[str | int | bool]] = {
    "cpu.mode": ("user", "idle"),
    "cpu.logical_number": (0, 1),
    "disk.io.direction": ("read", "write"),
    "error.type": ("ecc.uncorrected", "symbol_error"),
    "grademl.gpu.clock.domain": ("sm", "memory"),
    "grademl.gpu.link.type": ("pcie", "nvlink"),
    "grademl.gpu.throttle.reason": ("sw_power_cap",),
    "grademl.host.pressure.kind": ("some", "full"),
    "grademl.host.pressure.resource": ("cpu", "io"),
    "hw.gpu.task": ("general",),
    "network.interface.name": ("eth0", "lo"),
    "network.io.direction": ("receive", "transmit"),
    "process.pid": (4711,),
}
"""Of attributes of points; any other one has the value "x"."""

LEFT_OUT_OF_REAL = {
    # No such device, or no such trouble, wherever this is run.
    "What could not be sampled",
    "Held down by a quota",
    "Pressure",
    "Disks",
    "Network",
    "Waiting for other ranks by rank",
    "Collectives by rank",
    "Rows of memory that were replaced",
    "What did not arrive",
    "Memory by process",
    "Inside these, and beside them",
}


@pytest.fixture(scope="module")
def fed(pipeline: Pipeline) -> Pipeline:
    """The pipeline, after points of everything have gone through it."""
    now = time.time_ns()
    for number, at in enumerate((now - APART_S * 10**9, now)):
        for resource, metrics in _everything(number, now - 100 * 10**9, at):
            send(pipeline.agent.otlp_http, metric_line(resource, metrics), "metrics")
    expected = f'grademl_steps_total{{job="{JOB}",grademl_rank="1"}}'
    servers.wait_until(lambda: len(pipeline.prometheus.query(expected)) == 2, "arriving in Prometheus")
    # The gateway's queue to Prometheus has one consumer: what was sent before is there, too.
    return pipeline


@pytest.fixture(scope="module")
def trained(pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """The pipeline, after a training beside two stand-ins for GPUs and for ports has been sent through it."""
    folder = tmp_path_factory.mktemp("trained")
    control = nvml.Control(folder, "h100", count=2)
    tree = HostTree(folder / "host")
    add_devices(tree, "hdr", count=2)
    settings = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": pipeline.agent.otlp_grpc,
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        "OTEL_SERVICE_NAME": REAL_JOB,
        "GRADEML_EXPORTER": "otlp",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "GRADEML_SYS": str(tree.root / "sys"),
        **control.environment(),
    }
    steps = folder / "steps"
    command = [sys.executable, str(PROGRAM), "1", str(steps)]
    environ = {**os.environ, **clean_environ(folder, settings)}
    with subprocess.Popen(command, env=environ, cwd=folder, stdout=subprocess.PIPE, text=True) as program:
        try:
            # Two points of a counter that moves: then it has a rate.
            for second in range(1, 4):
                control.advance(second)
                time.sleep(1)
            servers.wait_until(
                lambda: _answer(pipeline, f'rate(hw_energy_joules_total{{job="{REAL_JOB}"}}[5m])') != [],
                "sampling the GPUs",
            )
            Path(f"{steps}.stop").touch()
            out, _ = program.communicate(timeout=60)
        finally:
            program.kill()
    done = json.loads(out)
    series = f'grademl_steps_total{{job="{REAL_JOB}",grademl_step_kind="train"}}'
    servers.wait_until(
        lambda: [float(each["value"][1]) for each in pipeline.prometheus.query(series)] == [done["train"]],
        "arriving of all steps",
    )
    return pipeline


ASKED = [query for name, page in dashboards.load().items() for query in dashboards.asked(name, page)]
ASKED_OF_REAL = [query for query in ASKED if query.where.rpartition(" ")[0] not in LEFT_OUT_OF_REAL]


def _place(query: dashboards.Asked) -> str:
    return f"{query.page} {query.where}"


def test_prometheus_calls_metrics_what_the_dashboards_take_them_for(fed: Pipeline) -> None:
    """All names, whether a dashboard asks for them or not."""
    there = set(fed.prometheus.names())
    for metric in catalog.METRICS:
        assert prometheus_names.metric_name(metric.name, metric.unit, metric.kind) in there, metric.name
    for name, (unit, kind) in dashboards.tool("asking").TRAINING.items():
        series = prometheus_names.metric_name(name, unit, kind)
        assert (f"{series}_bucket" if kind == prometheus_names.HISTOGRAM else series) in there, name


@pytest.mark.parametrize("query", ASKED, ids=_place)
def test_every_query_has_an_answer(query: dashboards.Asked, fed: Pipeline) -> None:
    chosen = {"job": JOB, "run": RUN, "host": HOST}
    found = _answer(fed, dashboards.filled(query.expr, **chosen))
    assert found, query.expr
    assert any(not math.isnan(float(series["value"][1])) for series in found), found


@pytest.mark.parametrize("query", ASKED_OF_REAL, ids=_place)
def test_a_real_training_answers_it(query: dashboards.Asked, trained: Pipeline) -> None:
    host = _answer(trained, f'grademl_steps_total{{job="{REAL_JOB}"}}')[0]["metric"]["host_name"]
    found = _answer(trained, dashboards.filled(query.expr, job=REAL_JOB, host=host))
    assert found, query.expr


def test_nothing_is_excused_that_is_not_there() -> None:
    assert {query.where.rpartition(" ")[0] for query in ASKED} >= LEFT_OUT_OF_REAL


def test_a_misspelt_metric_or_label_has_no_answer(fed: Pipeline) -> None:
    """So that the tests above could fail."""
    query = next(query for query in ASKED if query.where.startswith("Utilization by GPU"))
    good = dashboards.filled(query.expr, host=HOST)
    assert _answer(fed, good)
    assert _answer(fed, good.replace("hw_gpu_utilization_ratio", "hw_gpu_utilization")) == []
    assert _answer(fed, good.replace('hw_gpu_task="general"', 'hw_gpu_tasks="general"')) == []
    with pytest.raises(urllib.error.HTTPError):
        _answer(fed, good + ")")


def test_variables_have_the_values_that_can_be_chosen(fed: Pipeline) -> None:
    expected = {
        "job": {JOB},
        "run": {RUN},
        "rank": {"0", "1"},
        "host": {HOST},
        "gpu": {"GPU-0", "GPU-1", INSTANCE},
    }
    for page in dashboards.load().values():
        for name, (selector, label) in dashboards.variables(page).items():
            asked = dashboards.filled(selector, job=JOB, run=RUN, host=HOST)
            assert expected[name] <= set(_label_values(fed, asked, label)), name
            if "$" in selector:
                assert set(_label_values(fed, asked, label)) == expected[name], name


def test_choosing_a_rank_or_a_gpu_leaves_the_others_out(fed: Pipeline) -> None:
    by_rank = next(query for query in ASKED if query.where.startswith("Duration of a step by rank"))
    found = _answer(fed, dashboards.filled(by_rank.expr, job=JOB, rank="1"))
    assert [series["metric"] for series in found] == [{"grademl_run_id": RUN, "grademl_rank": "1"}]
    by_gpu = next(query for query in ASKED if query.where.startswith("Power by GPU"))
    found = _answer(fed, dashboards.filled(by_gpu.expr, host=HOST, gpu="GPU-1"))
    assert [series["metric"]["hw_id"] for series in found] == ["GPU-1"]


def test_the_share_of_a_phase_that_one_rank_has_is_a_mean_of_all(fed: Pipeline) -> None:
    query = next(query for query in ASKED if query.where.startswith("Where the time goes"))
    found = _answer(fed, dashboards.filled(query.expr, job=JOB))
    share = {series["metric"]["grademl_phase"]: float(series["value"][1]) for series in found}
    assert share[semconv.CHECKPOINT_SAVE] == pytest.approx(share[semconv.FORWARD] / 2)


def test_instances_of_a_gpu_are_not_counted_beside_it(fed: Pipeline) -> None:
    for title, expected in (("GPUs A", 2), ("Memory A", 1)):
        query = next(query for query in ASKED if query.page == "gpu.json" and query.where == title)
        (found,) = _answer(fed, dashboards.filled(query.expr, host=HOST))
        assert float(found["value"][1]) == expected, query.expr


def test_several_reports_of_one_gpu_are_one(fed: Pipeline) -> None:
    """Two programs on a host, each with a relay: a GPU has not twice the power."""
    now = time.time_ns()
    for resource, metrics in _everything(1, now - 100 * 10**9, now):
        other = Resource({**resource.attributes, "service.name": "another"})
        if semconv.RANK not in resource.attributes:
            send(fed.agent.otlp_http, metric_line(other, metrics), "metrics")
    raw = f'hw_power_watts{{hw_type="gpu",host_name="{HOST}"}}'
    servers.wait_until(lambda: len(_answer(fed, raw)) == 4, "arriving in Prometheus")
    power = next(query for query in ASKED if query.where.startswith("Power A") and query.page == "gpu.json")
    ((_at, watts),) = (series["value"] for series in _answer(fed, dashboards.filled(power.expr, host=HOST)))
    one = _answer(fed, f"max by (hw_id) ({raw})")
    assert len(one) == 2
    assert float(watts) == pytest.approx(sum(float(series["value"][1]) for series in one))


def test_prometheus_has_loaded_the_alerts_and_can_evaluate_them(fed: Pipeline) -> None:
    loaded = _get(fed, "/api/v1/rules", {})["data"]["groups"]
    rules = {rule["name"]: rule for group in loaded for rule in group["rules"]}
    written = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert set(rules) == {rule["alert"] for rule in written}
    for rule in written:
        # Without the limits there is something for each of them to judge.
        for part in rule["expr"].split(" and on"):
            measured = part.rpartition(" > ")[0] or part.rpartition(" == ")[0]
            assert _answer(fed, measured), rule["alert"]


def test_alerts_tell_of_what_they_are_for_and_of_nothing_else(fed: Pipeline) -> None:
    """A run that stands still and waits for data all the time, beside a GPU that is held down and fails."""
    job, host = "dashboards-bad", "bad-host"
    of_rank = Resource({"service.name": job, "host.name": host, semconv.RUN_ID: "f" * 32, semconv.RANK: 0})
    of_host = Resource({"service.name": job, "host.name": host})
    gpu: Attributes = {"hw.id": "GPU-9", "hw.type": "gpu", "grademl.gpu.index": "0"}
    source: Attributes = {"grademl.sampler.source": "gpu 0", "error.type": "GPU_IS_LOST"}
    now = time.time_ns()
    start = now - 400 * 10**9
    for seconds in range(100, 401, 50):
        at = start + seconds * 10**9
        waited = Point(seconds, {semconv.PHASE: semconv.DATA_WAIT})
        steps = Point(50, {semconv.STEP_KIND: "train"})
        lost = Point(7, {semconv.REASON: "dropped"})
        metrics: list[Metric] = [
            Sum(semconv.METRIC_PHASE_TIME, "s", "", start, at, [waited]),
            Sum(semconv.METRIC_STEPS, "{step}", "", start, at, [steps]),
            Sum(semconv.METRIC_TRACER_UNSENT, "{span}", "", start, at, [lost]),
        ]
        send(fed.agent.otlp_http, metric_line(of_rank, metrics), "metrics")
        metrics = [
            Gauge(catalog.gpu.THROTTLED.name, "1", "", at, [Point(1, gpu)]),
            Sum(catalog.gpu.ERRORS.name, "{error}", "", start, at, [Point(1, {**gpu, "error.type": "xid"})]),
            Sum(catalog.sampler.FAILURES.name, "{failure}", "", start, at, [Point(seconds, source)]),
        ]
        send(fed.agent.otlp_http, metric_line(of_host, metrics), "metrics")
    arrived = f'rate(grademl_sampler_failures_total{{host_name="{host}"}}[5m])'
    servers.wait_until(lambda: _answer(fed, arrived) != [], "arriving in Prometheus")
    good = {JOB, HOST}
    for rule in (rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]):
        told = [series["metric"] for series in _answer(fed, rule["expr"])]
        whom = {labels.get("job") or labels["host_name"] for labels in told}
        assert whom & {job, host}, rule["alert"]
        if rule["alert"] in ("TrainingWaitsForData", "TrainingStandsStill", "GpuHeldDown"):
            assert not whom & good, rule["alert"]


# --- Helpers ----------------------------------------------------------------------------------------------


def _everything(number: int, start_ns: int, at_ns: int) -> Iterator[tuple[Resource, list[Metric]]]:
    """Points of every metric as of the export ``number``: of two ranks, and of a host with two GPUs."""
    common: Attributes = {"service.name": JOB, "host.name": HOST, semconv.RUN_ID: RUN, semconv.ATTEMPT: 0}
    for rank in RANKS:
        of_rank = Resource({**common, semconv.RANK: rank})
        yield of_rank, _training(rank, number, start_ns, at_ns) + _catalog("process", number, start_ns, at_ns)
    host = Resource({"service.name": JOB, "host.name": HOST})
    yield host, _catalog("host", number, start_ns, at_ns)


def _training(rank: int, number: int, start_ns: int, at_ns: int) -> list[Metric]:
    """All phases, but that only rank 0 saves checkpoints."""
    totals = [0] * marks.ACC_SLOTS
    steps = 100 * (number + 1)
    totals[marks.ACC_HISTOGRAM + 6] = totals[marks.ACC_STEPS] = steps
    totals[marks.ACC_STEP_SUM_NS] = steps * 150_000_000
    totals[marks.ACC_EVAL_STEPS] = steps // 10
    totals[marks.ACC_SAMPLES] = steps * 32
    totals[marks.ACC_COST_NS] = steps * 1_000_000
    for index, phase in enumerate(semconv.PHASES):
        if phase == semconv.CHECKPOINT_SAVE and rank > 0:
            continue
        totals[marks.ACC_PHASE_SUM_NS + index] = steps * 10_000_000
        totals[marks.ACC_PHASE_COUNT + index] = steps
    lost = (1, 2, 0)
    return metrics_of(totals, 3, lost, start_ns, at_ns, lambda kind: semconv.PHASES[kind - marks.PHASE_BASE])


def _catalog(whose: str, number: int, start_ns: int, at_ns: int) -> list[Metric]:
    """The metrics of processes (which a rank's resource has) or all others, of two devices each."""
    points: dict[tuple[str, str, str], dict[str, Point]] = {}
    for metric in catalog.METRICS:
        if metric.name.startswith(("process.", "grademl.process.")) is not (whose == "process"):
            continue
        for attributes in _attributes(metric):
            value = 1 + 5 * number if metric.kind == kinds.COUNTER else 0.5
            at = points.setdefault((metric.name, metric.unit, metric.kind), {})
            at[json.dumps(attributes)] = Point(value, attributes)
    made: list[Metric] = []
    for (name, unit, kind), found in points.items():
        values = list(found.values())
        if kind == kinds.GAUGE:
            made.append(Gauge(name, unit, "", at_ns, values))
        else:
            shape = Sum if kind == kinds.COUNTER else UpDown
            made.append(shape(name, unit, "", start_ns, at_ns, values))
    return made


def _attributes(metric: kinds.Metric) -> list[Attributes]:
    """Those of points: every value of every key, for each of two devices."""
    made: list[Attributes] = [{}]
    for key in metric.attributes:
        made = [{**each, key: value} for each in made for value in VALUES.get(key, ("x",))]
    of_gpu = metric in catalog.gpu.METRICS
    if of_gpu or metric.name.startswith("hw."):
        kind = "gpu" if of_gpu else "network"
        devices: list[Attributes] = [
            {"hw.id": f"{kind.upper()}-{index}", "hw.type": kind, "grademl.gpu.index": str(index)}
            if of_gpu
            else {"hw.id": f"mlx5_{index}/1", "hw.type": kind}
            for index in range(2)
        ]
        if metric.name.startswith("hw.gpu.memory."):
            of_one = {"hw.id": INSTANCE, "hw.type": "gpu", "hw.parent": "GPU-0", "grademl.gpu.index": "0:1"}
            devices.append(of_one)
        made = [{**device, **each} for device in devices for each in made]
    elif metric.name.startswith("grademl.network.congestion"):
        made = [{"hw.id": "mlx5_0/1", "hw.type": "network", **each} for each in made]
    elif metric.name.startswith("system.disk"):
        made = [{"system.device": "nvme0n1", **each} for each in made]
    return made


def _answer(pipeline: Pipeline, expr: str) -> list[dict[str, Any]]:
    found = _get(pipeline, "/api/v1/query", {"query": expr})["data"]["result"]
    assert isinstance(found, list)
    return found


def _label_values(pipeline: Pipeline, selector: str, label: str) -> list[str]:
    found = _get(pipeline, f"/api/v1/label/{label}/values", {"match[]": selector})["data"]
    assert isinstance(found, list)
    return found


def _get(pipeline: Pipeline, path: str, asked: dict[str, str]) -> Any:
    url = f"{pipeline.prometheus.url}{path}?{urllib.parse.urlencode(asked)}"
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as answer:
        return json.load(answer)
