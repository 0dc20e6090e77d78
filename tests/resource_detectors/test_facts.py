# SPDX-License-Identifier: Apache-2.0
"""All facts together: the table, partial answers, secrets, and detectors as OpenTelemetry runs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource

from grademl_otel.resource_detectors import facts as facts_module
from grademl_otel.resource_detectors import files
from grademl_otel.resource_detectors.accelerators import accelerator_facts
from grademl_otel.resource_detectors.attributes import ATTRIBUTES
from grademl_otel.resource_detectors.budget import Budget, OverBudget
from grademl_otel.resource_detectors.container import container_facts
from grademl_otel.resource_detectors.detectors import (
    AcceleratorResourceDetector,
    ContainerResourceDetector,
    FrameworkResourceDetector,
    JobResourceDetector,
    SourceResourceDetector,
)
from grademl_otel.resource_detectors.frameworks import framework_facts
from grademl_otel.resource_detectors.kubernetes import kubernetes_facts
from grademl_otel.resource_detectors.launcher import job_facts
from grademl_otel.resource_detectors.partial import Facts, collect
from grademl_otel.resource_detectors.source import source_facts

from ..support import training
from ..support.repositories import committed, git
from .test_accelerators import EIGHT, NVIDIA, tree
from .test_container import DOCKER

ROOT = Path(__file__).parents[2]
TYPES = {"str": str, "int": int, "bool": bool, "str[]": list}
SECRET = "hunter2-0123456789abcdef-secret"
POD = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAME": "train-0", "POD_NAMESPACE": "ml", "NODE_NAME": "n1",
    "POD_UID": "0a1b2c3d-0000-4000-8000-000000000001", "CONTAINER_NAME": "main", "K8S_JOB_NAME": "train",
}  # fmt: skip
SLURM = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_JOB_NAME": "j", "SLURMD_NODENAME": "n1",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1", "SLURM_NTASKS": "2", "SLURM_NNODES": "1", "SLURM_ARRAY_TASK_ID": "3",
    "SLURM_RESTART_COUNT": "1", "TORCHELASTIC_RUN_ID": "e", "CUDA_VISIBLE_DEVICES": "0",
}  # fmt: skip


DETECTORS = (
    AcceleratorResourceDetector,
    ContainerResourceDetector,
    FrameworkResourceDetector,
    JobResourceDetector,
    SourceResourceDetector,
)
PRIVATE = (
    "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZUREML_RUN_TOKEN", "HF_TOKEN", "WANDB_API_KEY",
    "PASSWORD", "GITHUB_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS", "SM_HP_PASSWORD", "SLURM_JWT",
    "KUBECONFIG", "USER", "LOGNAME", "SUDO_USER", "SM_TRAINING_ENV", "SM_USER_ARGS", "CLUSTER_SPEC",
    "SLURM_JOB_USER", "HOME", "SLURM_JOB_ACCOUNT", "PBS_O_LOGNAME", "LSB_SUB_USER",
    "RAY_REDIS_PASSWORD", "SINGULARITY_BIND",
)  # fmt: skip


def _everything(folder: Path, environ: dict[str, str]) -> Facts:
    """As much as one machine can say."""
    repository = committed(folder / "repository", a_py="one\n")
    git(repository, "remote", "add", "origin", f"https://me:{SECRET}@host.example/org/repo")
    places = tree(
        folder / "root",
        NVIDIA | EIGHT | DOCKER | {"/usr/local/cuda/version.json": '{"cuda":{"version":"12"}}'},
    )
    return collect(
        [
            lambda: accelerator_facts(environ, 10, places, {}),
            lambda: job_facts(environ),
            lambda: kubernetes_facts(environ, places.proc, str(folder / "root")),
            lambda: framework_facts(Budget(10)),
            lambda: source_facts(10, str(repository / "a.py")),
            lambda: container_facts(environ, places.proc, str(folder / "root")),
        ]
    )


def test_each_fact_is_in_the_table_with_its_type(tmp_path: Path) -> None:
    found = _everything(tmp_path, POD | SLURM)
    types = {attribute.key: TYPES[attribute.type] for attribute in ATTRIBUTES}
    assert {key: type(value) for key, value in found.items()} == {key: types[key] for key in found}
    only_elsewhere = {
        "grademl.accelerator.memory", "grademl.accelerator.rocm.version", "container.image.name"
    }  # fmt: skip
    assert set(types) - set(found) == only_elsewhere
    assert len(json.dumps(found)) < 3000  # each span has it in Jaeger


def test_the_page_has_the_table() -> None:
    page = (ROOT / "docs/resource.md").read_text()
    rows = re.findall(r"^\| `([a-z0-9_.]+)` \| (\S+) \| `(\w+)` \| (.*) \|$", page, re.MULTILINE)
    assert rows == [tuple(attribute) for attribute in ATTRIBUTES]


def test_nothing_secret_gets_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets where programs have them: variables, service accounts, URLs, configurations, labels."""
    environ = POD | SLURM | dict.fromkeys(PRIVATE, SECRET)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    tree(
        tmp_path / "root",
        {
            "/var/run/secrets/kubernetes.io/serviceaccount/token": SECRET,
            "/etc/podinfo/labels": f'job-name="train"\nsecret="{SECRET}"\n',
            "/etc/podinfo/annotations": f'token="{SECRET}"\n',
            "/root/.git-credentials": f"https://me:{SECRET}@host.example\n",
            "/repository/.netrc": SECRET,
        },
    )
    repository = committed(tmp_path / "repository", a_py=SECRET)
    git(repository, "config", "http.extraHeader", f"Authorization: {SECRET}")
    git(repository, "config", f"url.https://{SECRET}@host.example/.insteadOf", "https://host.example/")
    git(repository, "config", "user.name", SECRET)
    found = _everything(tmp_path, environ)
    assert found["vcs.repository.url.full"] == "https://host.example/org/repo"
    assert found["k8s.job.name"] == "train"
    everything = (
        json.dumps(found) + json.dumps(facts_module.look(environ)) + json.dumps(facts_module.facts(environ))
    )
    for detector in DETECTORS:
        everything += detector().detect().to_json()
    assert SECRET not in everything
    assert "hunter2" not in everything


def test_one_that_fails_costs_only_what_it_would_have_said() -> None:
    def fails() -> Facts:
        raise RuntimeError("odd")

    assert collect([lambda: {"a": 1}, fails, lambda: {"b": "", "c": [], "d": False, "e": 0}]) == {
        "a": 1,
        "d": False,
        "e": 0,
    }


def test_it_is_looked_at_once_but_for_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def look(environ: object) -> Facts:
        looks.append(1)
        return {"grademl.frameworks": ["torch==2"], "grademl.job.id": "never"}

    monkeypatch.setattr(facts_module, "_looked_at", None)
    monkeypatch.setattr(facts_module, "look", look)
    assert facts_module.facts({"SLURM_JOB_ID": "1"})["grademl.job.id"] == "1"
    assert facts_module.facts({"SLURM_JOB_ID": "2"}) == {
        "grademl.frameworks": ["torch==2"],
        "grademl.job.id": "2",
        "grademl.job.platform": "slurm",
    }
    assert looks == [1]


def test_the_time_is_up() -> None:
    with pytest.raises(OverBudget):
        Budget(-1).check()
    Budget(60).check()
    assert 0 < Budget(60).left() <= 60
    assert "grademl.frameworks" not in framework_facts(Budget(-1))


@pytest.mark.parametrize(
    ("files_there", "left"),
    [({}, 0.001), ({"/dev/dri/card0": ""}, 0.001), (NVIDIA | EIGHT, 0.038)],
    ids=["no accelerator", "a display", "accelerators"],
)
def test_all_share_the_time(
    files_there: dict[str, str], left: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    given: list[float] = []

    def frameworks(budget: Budget) -> Facts:
        clock[0] += 0.002
        return {}

    def source(seconds: float) -> Facts:
        given.append(seconds)
        return {}

    monkeypatch.setattr("grademl_otel.resource_detectors.budget.thread_time", lambda: clock[0])
    monkeypatch.setattr("grademl_otel.resource_detectors.facts.perf_counter", lambda: clock[0])
    monkeypatch.setattr("grademl_otel.resource_detectors.frameworks.framework_facts", frameworks)
    monkeypatch.setattr("grademl_otel.resource_detectors.source.source_facts", source)
    facts_module.look({}, tree(tmp_path, files_there))
    assert given == [pytest.approx(left)]


# --- Files that nobody vouches for --------------------------------------------------------------------------


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _big(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


def _round(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("make", [_pipe, _big, _round, Path.mkdir], ids=["pipe", "big", "round", "folder"])
def test_what_is_no_small_file_is_not_read(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "x")
    assert files.read(str(tmp_path / "x")) is None
    assert files.read_text(str(tmp_path / "x")) == ""
    assert files.read_text_lines(str(tmp_path / "x")) == []


def test_files_that_grow_and_names_that_are_none(tmp_path: Path) -> None:
    assert files.read("/dev/zero") is None
    assert files.read("a\0b") is None
    assert list(files.names("a\0b", 9)) == []
    (tmp_path / "x").write_bytes(b"12345")
    assert files.read(str(tmp_path / "x"), 5) == b"12345"
    assert files.read(str(tmp_path / "x"), 4) is None
    (tmp_path / "l").symlink_to("x")
    with pytest.raises(OSError, match="symbolic links"):
        list(files.pieces(str(tmp_path / "l"), 1, follow=False))
    assert len(list(files.names(str(tmp_path), 1))) == 1


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b" a b\n", "a b"), (b"a\xff", "a�"), (b"\x1b[31mred\0", "[31mred"), (b"x" * 9999, "x" * 256),
        ("\udc80", "\\udc80"), ("é" * 300, "é" * 256), (b"", ""), ("a\nb", "a b"),
    ],
)  # fmt: skip
def test_texts_can_be_sent(raw: bytes | str, text: str) -> None:
    assert files.text(raw) == text
    text.encode()


# --- Frameworks ---------------------------------------------------------------------------------------------


def _install(folder: Path, *names: str) -> str:
    for name in names:
        (folder / name).mkdir(parents=True)
    return str(folder)


def test_what_is_installed(tmp_path: Path) -> None:
    first = _install(
        tmp_path / "1", "torch-2.5.1+cu124.dist-info", "scikit_learn-1.5.2.dist-info", "numpy-2.0.dist-info",
        "Lightning-2.4.0.dist-info", "keras-3.6.0-py3.11.egg-info", "torch-.dist-info.x", "ray.dist-info",
        "vllm-0.6-x y.dist-info",
    )  # fmt: skip
    second = _install(
        tmp_path / "2",
        "torch-1.0.dist-info",
        "xgboost-2.1.dist-info",
        "jax-0.4.dist-info",
        "jax-0.5.dist-info",
    )
    found = framework_facts(Budget(10), [first, second, str(tmp_path / "none"), __file__], {})
    assert found["grademl.frameworks"] == [
        "keras==3.6.0", "lightning==2.4.0", "scikit-learn==1.5.2", "torch==2.5.1+cu124", "xgboost==2.1",
    ]  # fmt: skip


def test_what_is_imported_says_more_and_nothing_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys, types\n"
        "from grademl_otel.resource_detectors.budget import Budget\n"
        "from grademl_otel.resource_detectors.frameworks import framework_facts\n"
        "class Lazy(types.ModuleType):\n"
        "    def __getattr__(self, name): raise SystemExit('asked')\n"
        "sys.modules['transformers'] = Lazy('transformers')\n"
        "jax = sys.modules['jax'] = types.ModuleType('jax'); jax.__version__ = '9.9'\n"
        "before = set(sys.modules)\n"
        "print(framework_facts(Budget(10))['grademl.frameworks'], set(sys.modules) - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "'jax==9.9'" in done.stdout
    assert "'torch==" in done.stdout
    assert done.stdout.endswith(" set()\n")


def test_the_interpreter_is_told_as_opentelemetry_tells_it() -> None:
    from opentelemetry.sdk.resources import ProcessResourceDetector

    theirs = ProcessResourceDetector().detect().attributes
    ours = collect([lambda: framework_facts(Budget(10), [], {})])
    assert ours == {key: theirs[key] for key in ("process.runtime.name", "process.runtime.version")}


# --- In OpenTelemetry ---------------------------------------------------------------------------------------


def test_opentelemetry_runs_them(tmp_path: Path) -> None:
    """As a user names them; when they run, the program is known by its arguments alone."""
    folder = committed(
        tmp_path / "r",
        show_py="from opentelemetry import trace\nprint(trace.get_tracer_provider().resource.to_json())\n",
    )
    (folder / "show.py").rename(tmp_path / "show.py")
    git(folder, "checkout", "-q", "show.py")
    names = "grademl_accelerator,grademl_job,grademl_framework,grademl_source,grademl_container,otel"
    environ = training.clean_environ(
        tmp_path,
        {
            "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": names,
            "OTEL_RESOURCE_ATTRIBUTES": "service.name=mine,vcs.ref.head.name=other",
            "OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none",
            "SLURM_JOB_ID": "7",
        },
    )  # fmt: skip
    done = subprocess.run(
        [training.BIN / "opentelemetry-instrument", sys.executable, folder / "show.py"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    said = json.loads(done.stdout)
    assert said["schema_url"] == ""
    assert said["attributes"]["service.name"] == "mine"
    assert said["attributes"]["vcs.ref.head.name"] == "other"
    assert said["attributes"]["vcs.ref.head.revision"] == git(folder, "rev-parse", "HEAD").strip()
    assert said["attributes"]["grademl.job.id"] == "7"
    assert any(one.startswith("torch==") for one in said["attributes"]["grademl.frameworks"])
    assert done.stderr == ""


def test_all_ranks_say_the_same(tmp_path: Path) -> None:
    code = (
        "import json, os\n"
        "from grademl_otel.resource_detectors.facts import look\n"
        "print(json.dumps(look(os.environ)))\n"
    )
    folder = committed(tmp_path / "r", a_py=code)
    said = {
        subprocess.run(
            [sys.executable, folder / "a.py"],
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
            capture_output=True, text=True, check=True,
        ).stdout
        for rank in range(2)
    }  # fmt: skip
    assert len(said) == 1


def test_a_detector_never_raises_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from grademl_otel.resource_detectors import detectors

    def fails(*arguments: object) -> Facts:
        raise OSError("odd")

    for name in ("accelerator_facts", "framework_facts", "source_facts", "container_facts"):
        monkeypatch.setattr(detectors, name, fails)
    for detector in set(DETECTORS) - {JobResourceDetector}:
        assert detector().detect() == Resource.get_empty()
        with pytest.raises(OSError, match="odd"):
            detector(raise_on_error=True).detect()
