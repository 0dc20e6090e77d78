# SPDX-License-Identifier: Apache-2.0
"""What the launcher says of the job that a process belongs to: facts for people, never a run's identity.

Launchers use their ids again: `--rdzv-id=100`, many `srun` in one allocation, a job that is queued again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from grademl_otel import semconv
from grademl_otel.identity import launcher_of, place_from_environment
from grademl_otel.resource_detectors import files
from grademl_otel.resource_detectors.partial import Facts

_Variables = tuple[str, ...]

_TEXTS: Final[tuple[tuple[str, _Variables], ...]] = (
    # The first of the variables that is set gives the attribute.
    (
        semconv.JOB_ID,
        (
            "SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID", "FLUX_JOB_ID", "CLOUD_ML_JOB_ID", "AZUREML_RUN_ID",
            "TRAINING_JOB_NAME", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "RAY_JOB_ID",
        ),
    ),
    (semconv.JOB_STEP, ("SLURM_STEP_ID",)),
    (semconv.JOB_NAME, ("SLURM_JOB_NAME", "LSB_JOBNAME", "PBS_JOBNAME", "TRAINING_JOB_NAME")),
    (semconv.JOB_NODE, ("SLURMD_NODENAME", "SM_CURRENT_HOST", "RAY_NODE_ID")),
    (semconv.JOB_ELASTIC_ID, ("TORCHELASTIC_RUN_ID",)),
    (
        semconv.JOB_INDEX,
        ("SLURM_ARRAY_TASK_ID", "LSB_JOBINDEX", "PBS_ARRAY_INDEX", "PBS_ARRAYID", "JOB_COMPLETION_INDEX"),
    ),
)  # fmt: skip
_NUMBERS: Final[tuple[tuple[str, _Variables], ...]] = (
    (semconv.JOB_RESTARTS, ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")),
    (
        semconv.JOB_NODES,
        (
            "SLURM_NNODES",
            "SLURM_JOB_NUM_NODES",
            "FLUX_JOB_NNODES",
            "SM_HOST_COUNT",
            "PBS_NUM_NODES",
            "GROUP_WORLD_SIZE",
        ),
    ),
)
_PLATFORMS: Final[tuple[tuple[str, _Variables], ...]] = (
    # What runs in something else comes first.
    ("ray", ("RAY_JOB_ID", "RAY_RAYLET_PID")),
    ("sagemaker", ("SM_TRAINING_ENV", "SM_CURRENT_HOST")),
    ("vertex_ai", ("CLOUD_ML_JOB_ID",)),
    ("azure_ml", ("AZUREML_RUN_ID",)),
    ("slurm", ("SLURM_JOB_ID",)),
    ("lsf", ("LSB_JOBID",)),
    ("pbs", ("PBS_JOBID",)),
    ("flux", ("FLUX_JOB_ID",)),
    ("kubernetes", ("KUBERNETES_SERVICE_HOST",)),
)
_LONGEST_LIST: Final = 1 << 16
_IN_NAMES: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-+:@%,[]")


def job_facts(environ: Mapping[str, str]) -> Facts:
    """Return what ``environ`` says of the job; empty for a process that was started by hand."""
    facts: Facts = {}
    launcher = launcher_of(environ)
    if launcher is not None:
        place = place_from_environment(environ)
        facts[semconv.JOB_LAUNCHER] = launcher
        facts[semconv.JOB_RANK] = place.rank
        facts[semconv.JOB_WORLD_SIZE] = place.world_size
    for key, variables in _TEXTS:
        text = _first(environ, variables)
        if text:
            facts[key] = text
    for key, variables in _NUMBERS:
        number = _first(environ, variables)
        if number.isascii() and number.isdigit():
            facts[key] = int(number[:9])
    if semconv.JOB_NODES not in facts:
        hosts = _hosts(environ.get("SM_HOSTS", ""))
        if hosts:
            facts[semconv.JOB_NODES] = hosts
    for platform, variables in _PLATFORMS:
        if any(environ.get(name) for name in variables):
            facts[semconv.JOB_PLATFORM] = platform
            break
    return facts


def _first(environ: Mapping[str, str], variables: _Variables) -> str:
    return files.text(next((value for name in variables if (value := _told(environ, name))), ""))


def _told(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if name == "LSB_JOBNAME" and not _IN_NAMES.issuperset(value):
        return ""  # LSF calls a job that was given no name by its command, with all arguments
    if name == "LSB_JOBINDEX" and value == "0":
        return ""  # in no array
    return value


def _hosts(told: str) -> int:
    """How many hosts SageMaker lists, 0 where it lists none."""
    if not told or len(told) > _LONGEST_LIST:
        return 0
    try:
        hosts = json.loads(told)
    except (ValueError, RecursionError):
        return 0
    return len(hosts) if isinstance(hosts, list) else 0
