# SPDX-License-Identifier: Apache-2.0
"""What the job's resource detector reads of launchers."""

from __future__ import annotations

import os

import pytest

from grademl_otel import semconv
from grademl_otel.resource_detectors import detectors
from grademl_otel.resource_detectors.detectors import JobResourceDetector

LAUNCHERS = (
    "SLURM", "TORCHELASTIC", "RANK", "LOCAL_RANK", "WORLD_SIZE", "OMPI", "PMI", "MPI_", "MV2", "JSM", "LSB",
    "PBS", "RAY_", "KUBERNETES", "JOB_COMPLETION_INDEX", "SM_", "TRAINING_JOB", "CLOUD_ML", "AZUREML", "FLUX",
    "HOROVOD", "POD_", "NODE_NAME", "GROUP_WORLD_SIZE",
)  # fmt: skip


@pytest.fixture(autouse=True)
def started_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)


def test_a_process_started_by_hand() -> None:
    resource = JobResourceDetector().detect()
    assert dict(resource.attributes) == {}
    assert resource.schema_url == ""


def test_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "TORCHELASTIC_RUN_ID": "job-7",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    resource = JobResourceDetector().detect()
    assert dict(resource.attributes) == {
        "grademl.job.launcher": "torchrun",
        "grademl.job.id": "job-7",
        "grademl.job.elastic_id": "job-7",
        "grademl.job.restarts": 1,
        "grademl.job.rank": 3,
        "grademl.job.world_size": 4,
        semconv.RANK: 3,
        semconv.LOCAL_RANK: 1,
        semconv.WORLD_SIZE: 4,
        semconv.ATTEMPT: 1,
    }
    assert resource.schema_url == ""


def test_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "SLURM_JOB_ID": "991",
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_NAME": "train",
        "SLURMD_NODENAME": "n17",
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "1",
        "SLURM_NTASKS": "2",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    attributes = dict(JobResourceDetector().detect().attributes)
    assert attributes["grademl.job.launcher"] == "slurm"
    assert attributes["grademl.job.id"] == "991"
    assert attributes["grademl.job.step"] == "0"
    assert attributes["grademl.job.name"] == "train"
    assert attributes["grademl.job.node"] == "n17"
    assert attributes[semconv.RANK] == 1
    assert not any(key.startswith("service.") for key in attributes)


@pytest.mark.parametrize(
    ("variables", "facts"),
    [
        (
            {"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "100", "SLURM_RESTART_COUNT": "2"},
            {"grademl.job.id": "7", "grademl.job.elastic_id": "100", "grademl.job.restarts": 2},
        ),
        ({"SLURM_RESTART_COUNT": "often"}, {}),
        (
            {"LSB_JOBID": "5", "JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "2"},
            {"grademl.job.id": "5", "grademl.job.launcher": "lsf", "grademl.job.rank": 1},
        ),
        ({"LSB_JOBNAME": "train[1-9]", "LSB_JOBINDEX": "3"},
         {"grademl.job.name": "train[1-9]", "grademl.job.index": "3"}),
        # LSF calls a job that has no name by its command; one that is in no array has the index 0.
        ({"LSB_JOBNAME": "python train.py --key hunter2", "LSB_JOBINDEX": "0"}, {}),
        ({"LSB_JOBNAME": "KEY=hunter2"}, {}),
        (
            {"MV2_COMM_WORLD_RANK": "3", "MV2_COMM_WORLD_SIZE": "4"},
            {"grademl.job.launcher": "mpi", "grademl.job.rank": 3, "grademl.job.world_size": 4},
        ),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "train-0", "JOB_COMPLETION_INDEX": "0"},
            {"k8s.pod.name": "train-0", "grademl.job.index": "0", "grademl.job.platform": "kubernetes"},
        ),
        (
            {"RAY_JOB_ID": "01000000", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2",
             "RAY_NODE_ID": "ab"},
            {"grademl.job.launcher": "ray", "grademl.job.rank": 1, "grademl.job.id": "01000000",
             "grademl.job.platform": "ray", "grademl.job.node": "ab"},
        ),
        ({"RAY_JOB_ID": "01000000"}, {"grademl.job.platform": "ray"}),
        (
            {"SM_CURRENT_HOST": "algo-2", "SM_HOSTS": '["algo-1", "algo-2"]', "TRAINING_JOB_NAME": "t-1",
             "TORCHELASTIC_RUN_ID": "none", "RANK": "8", "WORLD_SIZE": "16"},
            {"grademl.job.platform": "sagemaker", "grademl.job.node": "algo-2", "grademl.job.nodes": 2,
             "grademl.job.id": "t-1", "grademl.job.name": "t-1", "grademl.job.launcher": "torchrun"},
        ),
        ({"SM_CURRENT_HOST": "a", "SM_HOSTS": "[" * 90_000}, {"grademl.job.platform": "sagemaker"}),
        ({"CLOUD_ML_JOB_ID": "9"}, {"grademl.job.platform": "vertex_ai", "grademl.job.id": "9"}),
        ({"AZUREML_RUN_ID": "a_1"}, {"grademl.job.platform": "azure_ml", "grademl.job.id": "a_1"}),
        (
            {"FLUX_JOB_ID": "f1", "FLUX_TASK_RANK": "3", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_SIZE": "4",
             "FLUX_JOB_NNODES": "2"},
            {"grademl.job.launcher": "flux", "grademl.job.rank": 3, "grademl.job.nodes": 2,
             "grademl.local_rank": 1},
        ),
        (
            {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "1"},
            {"grademl.job.launcher": "horovod", "grademl.job.world_size": 2},
        ),
        ({"PBS_JOBID": "4.s", "PBS_ARRAYID": "2"}, {"grademl.job.platform": "pbs", "grademl.job.index": "2"}),
        (
            {"TORCHELASTIC_RUN_ID": "e", "RANK": "0", "WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"},
            {"grademl.job.nodes": 2},
        ),
        ({"SLURM_JOB_NAME": "n\udc80\n" + "x" * 999}, {"grademl.job.name": "n\\udc80 " + "x" * 248}),
    ],
)  # fmt: skip
def test_what_else_launchers_say(
    variables: dict[str, str], facts: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = dict(JobResourceDetector().detect().attributes)
    assert found.items() >= facts.items()
    assert set(facts) or not found


def test_an_error_gives_an_empty_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(environ: object) -> None:
        raise RuntimeError("odd")

    monkeypatch.setattr(detectors, "job_facts", fail)
    assert dict(JobResourceDetector().detect().attributes) == {}
    with pytest.raises(RuntimeError):
        JobResourceDetector(raise_on_error=True).detect()
