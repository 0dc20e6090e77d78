# SPDX-License-Identifier: Apache-2.0
"""What the launcher says of the job that a process belongs to: facts for people, never a run's identity.

Launchers use their ids again: `--rdzv-id=100`, many `srun` in one allocation, a job that is queued again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from grademl_otel import semconv
from grademl_otel.identity import launcher_of, place_from_environment

_Variables = tuple[str, ...]

_TEXTS: Final[tuple[tuple[str, _Variables], ...]] = (
    # The first of the variables that is set gives the attribute.
    (
        semconv.JOB_ID,
        ("SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "RAY_JOB_ID"),
    ),
    (semconv.JOB_STEP, ("SLURM_STEP_ID",)),
    (semconv.JOB_NAME, ("SLURM_JOB_NAME", "LSB_JOBNAME", "PBS_JOBNAME")),
    (semconv.JOB_NODE, ("SLURMD_NODENAME",)),
    (semconv.JOB_ELASTIC_ID, ("TORCHELASTIC_RUN_ID",)),
    (semconv.JOB_INDEX, ("SLURM_ARRAY_TASK_ID", "LSB_JOBINDEX", "PBS_ARRAY_INDEX", "JOB_COMPLETION_INDEX")),
)
_RESTARTS: Final = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_LONGEST: Final = 256


def job_facts(environ: Mapping[str, str]) -> dict[str, str | int]:
    """Return what ``environ`` says of the job; empty for a process that was started by hand."""
    facts: dict[str, str | int] = {}
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
    restarts = _first(environ, _RESTARTS)
    if restarts.isascii() and restarts.isdigit():
        facts[semconv.JOB_RESTARTS] = int(restarts[:9])
    if environ.get("KUBERNETES_SERVICE_HOST"):
        facts.update(_pod(environ))
    return facts


def _first(environ: Mapping[str, str], variables: _Variables) -> str:
    return next((environ[name] for name in variables if environ.get(name)), "")[:_LONGEST]


def _pod(environ: Mapping[str, str]) -> dict[str, str]:
    """The pod, by the names that OpenTelemetry has for it."""
    pod = {"k8s.pod.name": environ.get("HOSTNAME", "")}
    try:
        pod["k8s.namespace.name"] = _NAMESPACE.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        pass  # a pod without an account
    return {key: value[:_LONGEST] for key, value in pod.items() if value}
