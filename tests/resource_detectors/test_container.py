# SPDX-License-Identifier: Apache-2.0
"""Containers and pods, from what their runtimes put into /proc and the root."""

from __future__ import annotations

from pathlib import Path

import pytest

from grademl_otel.resource_detectors.container import container_facts
from grademl_otel.resource_detectors.kubernetes import kubernetes_facts

from .test_accelerators import tree

ID = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4
UID = "0a1b2c3d-0000-4000-8000-000000000001"
MOUNTS = (
    "1 2 0:52 / / rw,relatime master:1 - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/X\n"
    "3 1 254:1 /{path} /etc/hostname rw,relatime - ext4 /dev/vda1 rw\n"
)
DOCKER = {
    "/proc/self/cgroup": f"12:pids:/docker/{ID}\n0::/system.slice/docker-{ID}.scope\n",
    "/.dockerenv": "",
}

GROUPS = {
    f"12:pids:/docker/{ID}\n": "docker",
    f"0::/system.slice/docker-{ID}.scope\n": "docker",
    f"0::/user.slice/user-1.slice/user@1.service/user.slice/libpod-{ID}.scope/container\n": "podman",
    f"0::/machine.slice/libpod-{ID}.scope\n": "podman",
    f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/"
    f"cri-containerd-{ID}.scope\n": "containerd",
    f"11:cpu:/kubepods/burstable/pod{UID}/{ID}\n": None,
    f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/crio-{ID}.scope\n": "cri-o",
    f"1:name=systemd:/kubepods-besteffort-pod{UID}.slice:cri-containerd:{ID}\n": "containerd",
}


@pytest.mark.parametrize("group", GROUPS)
def test_by_its_control_group(group: str, tmp_path: Path) -> None:
    places = tree(tmp_path, {"/proc/self/cgroup": group})
    found = container_facts({}, places.proc, str(tmp_path))
    assert (found["container.id"], found["container.runtime.name"] or None) == (ID, GROUPS[group])


@pytest.mark.parametrize(
    ("path", "identity"),
    [
        (f"var/lib/docker/containers/{ID}/hostname", ID),
        (f"home/u/.local/share/containers/storage/overlay-containers/{ID}/userdata/hostname", ID),
        (f"var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/{OTHER}/hostname", ""),  # that is the pod's
        (f"var/lib/docker/containers/{ID[:-1]}/hostname", ""),
    ],
)
def test_by_its_mounts(path: str, identity: str, tmp_path: Path) -> None:
    places = tree(tmp_path, {"/proc/self/cgroup": "0::/\n", "/proc/self/mountinfo": MOUNTS.format(path=path)})
    assert container_facts({}, places.proc, str(tmp_path))["container.id"] == identity


@pytest.mark.parametrize(
    ("environ", "files", "runtime", "image"),
    [
        ({}, {}, "", ""),
        ({}, {"/.dockerenv": ""}, "docker", ""),
        (
            {},
            {"/run/.containerenv": 'engine="podman"\nname="x"\nimage="docker.io/org/i:1"\n'},
            "podman",
            "docker.io/org/i:1",
        ),
        ({}, {"/run/.containerenv": 'image="https://u:p@host/i"\n'}, "podman", ""),
        ({"container": "podman"}, {}, "podman", ""),
        ({"container": "lxc"}, {}, "lxc", ""),
        ({"container": "secret"}, {}, "", ""),
        ({"APPTAINER_CONTAINER": "/home/u/i.sif", "APPTAINER_NAME": "i.sif"}, {}, "apptainer", "i.sif"),
        ({"SINGULARITY_CONTAINER": "/i", "SINGULARITY_NAME": "/home/u/i.sif"}, {}, "singularity", "i.sif"),
    ],
)
def test_by_marks_and_variables(
    environ: dict[str, str], files: dict[str, str], runtime: str, image: str, tmp_path: Path
) -> None:
    places = tree(tmp_path, {"/proc/self/cgroup": "0::/init.scope\n"} | files)
    found = container_facts(environ, places.proc, str(tmp_path))
    assert (found["container.runtime.name"], found["container.image.name"]) == (runtime, image)
    assert found["container.id"] == ""


# --- Pods ---------------------------------------------------------------------------------------------------

IN_A_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


@pytest.mark.parametrize(
    ("environ", "files", "expected"),
    [
        ({"HOSTNAME": "train-0"}, {ACCOUNT: "ml\n"}, {"k8s.pod.name": "train-0", "k8s.namespace.name": "ml"}),
        (
            {"HOSTNAME": "n1", "NODE_NAME": "n1", "POD_NAMESPACE": "x"}, {ACCOUNT: "ml"},
            {"k8s.node.name": "n1", "k8s.namespace.name": "x"},
        ),
        (
            {"POD_NAME": "p", "MY_NODE_NAME": "n", "K8S_POD_UID": UID, "CONTAINER_NAME": "c"},
            {},
            {"k8s.pod.name": "p", "k8s.node.name": "n", "k8s.pod.uid": UID, "k8s.container.name": "c"},
        ),
        ({"POD_NAME": "no name", "NODE_NAME": "$(secret)"}, {ACCOUNT: "a b"}, {}),
        (
            {},
            {"/proc/self/cgroup": f"0::/pod{UID.replace('-', '_')}.slice/cri-containerd-{ID}.scope\n"},
            {"k8s.pod.uid": UID},
        ),
        (
            {}, {"/proc/self/mountinfo": MOUNTS.format(path=f"var/lib/kubelet/pods/{UID}/etc-hosts")},
            {"k8s.pod.uid": UID},
        ),
        (
            {},
            {"/etc/podinfo/labels": 'app="x"\nbatch.kubernetes.io/job-name="train"\n'
             'jobset.sigs.k8s.io/jobset-name="set"\nbroken\nray.io/cluster=""\n'},
            {"k8s.job.name": "train", "grademl.job.name": "set"},
        ),
    ],
)  # fmt: skip
def test_a_pod(
    environ: dict[str, str], files: dict[str, str], expected: dict[str, str], tmp_path: Path
) -> None:
    places = tree(tmp_path, {"/proc/self/status": ""} | files)
    assert kubernetes_facts(IN_A_POD | environ, places.proc, str(tmp_path)) == expected
    assert kubernetes_facts(environ, places.proc, str(tmp_path)) == {}
