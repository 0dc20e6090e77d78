# SPDX-License-Identifier: Apache-2.0
"""The resource model of a real training whose relay sampled the host, and GPUs of a stand-in for NVML."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.resource_model.assemble import resources_of
from grademl_otel.analyzers.subject import read_subject
from tests.support import nvml, training
from tests.support.deaths import Scene
from tests.support.hardware import tables
from tests.support.needed import cannot_be_had
from tests.support.rank_program import free_port
from tests.support.relays import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts of other systems are not sampled")

PROGRAM = training.ROOT / "tests" / "support" / "hardware_program.py"


def test_what_a_relay_sampled_is_one_series_a_metric(tmp_path: Path) -> None:
    if find_spec("pynvml") is None:
        cannot_be_had("nvidia-ml-py is not installed")
    gpus = nvml.Control(tmp_path, "h100", count=2)
    gpus.run()
    scene = Scene(tmp_path, {**gpus.environment(), "OTEL_METRIC_EXPORT_INTERVAL": "3000"})
    program = subprocess.Popen(
        training.traced_command(PROGRAM, "6"),
        env={
            **scene.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": "1",
            "RANK": "0",
            "LOCAL_RANK": "0",
        },
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = program.communicate(timeout=120)
        assert program.returncode == 0, err
        until(lambda: scene.log.read_text().count("finished ") == 1)
    finally:
        program.kill()
        scene.clear()
        gpus.heal()

    about = read_subject(Query.of(str(scene.store)))
    assert about.run is not None
    model = resources_of(about)
    (host,) = (one for one in model.resources if one.type == "host")
    assert {one.machine for one in model.resources} == {host.id}
    found = {metric.type: metric for metric in model.metrics}
    for type_ in ("cpu.busy", "memory.used", "process.cpu", "gpu.utilization", "gpu.memory", "gpu.power"):
        assert np.isfinite(found[type_].observed.capacity), type_
        assert found[type_].sources == ("resource tables", "metrics"), type_
    gpu = {model.resources[metric.resource].id for metric in model.metrics if metric.type == "gpu.memory"}
    assert gpu == set(gpus.ids)
    # The bins of the tables are what is finest: each stands in the model as it was written.
    written = tables(scene.spans())["process", "rank 0", "cpu"]
    cpu = found["process.cpu"].observed
    of_bin = dict(zip((cpu.start // 1_000_000).tolist(), cpu.value.tolist(), strict=True))
    inside = {at for at in written.values if at * 1_000_000 + 10**9 > about.run.start}
    for at in inside:
        near = min(of_bin, key=lambda one: abs(one - at))
        assert abs(near - at) <= 2
        assert of_bin[near] == pytest.approx(written.values[at] / 1000)
    used = float(cpu.value @ ((cpu.end - cpu.start) / 1e9))
    assert 0 < used <= float(out) + 0.5
    bad = (" says ", "cannot be read", "left out", "does not know", "do not meet", "no phase ran")
    assert not [line for line in model.problems if any(words in line for words in bad)]
