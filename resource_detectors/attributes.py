# SPDX-License-Identifier: Apache-2.0
"""The one table of what detectors tell; docs/resource.md is written from it."""

from __future__ import annotations

from typing import Final, NamedTuple

from grademl_otel import semconv


class Attribute(NamedTuple):
    """One attribute of the resource."""

    key: str
    type: str
    """str, bool, int or str[]."""
    detector: str
    """Name of the entry point that has it, too."""
    meaning: str


ACCELERATOR: Final = "grademl_accelerator"
JOB: Final = "grademl_job"
FRAMEWORK: Final = "grademl_framework"
SOURCE: Final = "grademl_source"
CONTAINER: Final = "grademl_container"

ATTRIBUTES: Final[tuple[Attribute, ...]] = (
    Attribute(
        semconv.ACCELERATOR_VENDOR,
        "str",
        ACCELERATOR,
        "`nvidia`, `amd`, `intel`, `habana`, `aws` or `google`; of several the one with the most devices",
    ),
    Attribute(
        semconv.ACCELERATOR_MODEL, "str", ACCELERATOR, "as the driver calls it; several with commas between"
    ),
    Attribute(
        semconv.ACCELERATOR_COUNT,
        "int",
        ACCELERATOR,
        "devices on this host, or those that this container was given",
    ),
    Attribute(
        semconv.ACCELERATOR_VISIBLE,
        "int",
        ACCELERATOR,
        "how many of them `CUDA_VISIBLE_DEVICES` and such leave; absent where none of these is set",
    ),
    Attribute(
        semconv.ACCELERATOR_MEMORY,
        "int",
        ACCELERATOR,
        "bytes of one; absent where devices differ, and for NVIDIA unless a PyTorch has initialized CUDA",
    ),
    Attribute(semconv.ACCELERATOR_DRIVER, "str", ACCELERATOR, "version of the driver"),
    Attribute(
        semconv.ACCELERATOR_CUDA,
        "str",
        ACCELERATOR,
        "that the imported PyTorch was built with, else of the toolkit in `/usr/local/cuda`",
    ),
    Attribute(
        semconv.ACCELERATOR_ROCM,
        "str",
        ACCELERATOR,
        "that the imported PyTorch was built with, else of `/opt/rocm`",
    ),
    Attribute(
        semconv.JOB_LAUNCHER,
        "str",
        JOB,
        "what gave this process a rank: `torchrun`, `ray`, `torch`, `slurm`, `flux`, `horovod`, `mpi`, `lsf`",
    ),
    Attribute(
        semconv.JOB_PLATFORM,
        "str",
        JOB,
        "`ray`, `sagemaker`, `vertex_ai`, `azure_ml`, `slurm`, `lsf`, `pbs`, `flux` or `kubernetes`",
    ),
    Attribute(semconv.JOB_ID, "str", JOB, "the platform's id of the job, else the launcher's"),
    Attribute(semconv.JOB_STEP, "str", JOB, "Slurm's step"),
    Attribute(semconv.JOB_NAME, "str", JOB, "the job's name"),
    Attribute(semconv.JOB_NODE, "str", JOB, "the platform's name of this host"),
    Attribute(semconv.JOB_NODES, "int", JOB, "hosts of the job"),
    Attribute(semconv.JOB_INDEX, "str", JOB, "which one of an array of jobs"),
    Attribute(semconv.JOB_ELASTIC_ID, "str", JOB, "`torchrun`'s rendezvous id"),
    Attribute(semconv.JOB_RESTARTS, "int", JOB, "how often the launcher has started it again"),
    Attribute(semconv.JOB_RANK, "int", JOB, "the launcher's rank, which need not be one of the run"),
    Attribute(semconv.JOB_WORLD_SIZE, "int", JOB, "tasks that the launcher started"),
    Attribute(
        "k8s.pod.name", "str", JOB, "of the variable `POD_NAME` (or another usual one), else the host's name"
    ),
    Attribute("k8s.pod.uid", "str", JOB, "of `POD_UID`, else of the names of control groups and mounts"),
    Attribute("k8s.namespace.name", "str", JOB, "of `POD_NAMESPACE`, else of the service account"),
    Attribute("k8s.node.name", "str", JOB, "of `NODE_NAME`"),
    Attribute("k8s.container.name", "str", JOB, "of `CONTAINER_NAME`"),
    Attribute("k8s.job.name", "str", JOB, "of the pod's labels in `/etc/podinfo/labels`"),
    Attribute(
        semconv.FRAMEWORKS,
        "str[]",
        FRAMEWORK,
        "`name==version` of each framework that is installed, imported or not",
    ),
    Attribute(semconv.RUNTIME_NAME, "str", FRAMEWORK, "the Python implementation"),
    Attribute(semconv.RUNTIME_VERSION, "str", FRAMEWORK, "its version"),
    Attribute(semconv.SOURCE_REVISION, "str", SOURCE, "the commit that is checked out"),
    Attribute(
        semconv.SOURCE_BRANCH, "str", SOURCE, "the branch; absent where a commit itself is checked out"
    ),
    Attribute(
        semconv.SOURCE_REPOSITORY, "str", SOURCE, "where it was cloned from, without user and password"
    ),
    Attribute(
        semconv.SOURCE_DIRTY,
        "bool",
        SOURCE,
        "tracked files or the index differ from the commit, or it does not have the program's file",
    ),
    Attribute(semconv.CONTAINER_ID, "str", CONTAINER, "64 hex digits"),
    Attribute(
        semconv.CONTAINER_RUNTIME,
        "str",
        CONTAINER,
        "`docker`, `podman`, `containerd`, `cri-o`, `apptainer`, `singularity`, `lxc` or `systemd-nspawn`",
    ),
    Attribute(semconv.CONTAINER_IMAGE, "str", CONTAINER, "where it is told: Podman, Apptainer"),
)
