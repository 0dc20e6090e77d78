# SPDX-License-Identifier: Apache-2.0
"""The pod that a process is in, by the names that OpenTelemetry has for it.

A pod knows its own name; the rest only where its manifest says so (the downward API), by the variables and
the folder that are usual for it, or where mounts betray it. The API server is never asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from grademl_otel import semconv
from grademl_otel.resource_detectors import files
from grademl_otel.resource_detectors.partial import Facts

_TOLD: Final = (
    ("k8s.pod.name", ("K8S_POD_NAME", "POD_NAME", "MY_POD_NAME", "OTEL_RESOURCE_ATTRIBUTES_POD_NAME")),
    ("k8s.pod.uid", ("K8S_POD_UID", "POD_UID", "MY_POD_UID", "OTEL_RESOURCE_ATTRIBUTES_POD_UID")),
    ("k8s.namespace.name", ("K8S_NAMESPACE_NAME", "K8S_POD_NAMESPACE", "POD_NAMESPACE", "MY_POD_NAMESPACE")),
    ("k8s.node.name", ("K8S_NODE_NAME", "NODE_NAME", "MY_NODE_NAME", "OTEL_RESOURCE_ATTRIBUTES_NODE_NAME")),
    ("k8s.container.name", ("K8S_CONTAINER_NAME", "CONTAINER_NAME", "MY_CONTAINER_NAME")),
    ("k8s.job.name", ("K8S_JOB_NAME",)),
)
"""Variables in which manifests usually hand it on; the first that is set counts."""
_LABELS: Final = {
    "batch.kubernetes.io/job-name": "k8s.job.name",
    "job-name": "k8s.job.name",
    "jobset.sigs.k8s.io/jobset-name": semconv.JOB_NAME,
    "training.kubeflow.org/job-name": semconv.JOB_NAME,
    "ray.io/cluster": semconv.JOB_NAME,
}
"""Labels of which something is told; all others are the user's own affair."""
_LARGEST: Final = 1 << 18
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_UID: Final = re.compile(
    r"pods?/?([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})(?=[/.])"
)
_LABEL: Final = re.compile(r'([A-Za-z0-9./_-]+)="([A-Za-z0-9._-]*)"')


def kubernetes_facts(environ: Mapping[str, str], proc: str = "/proc", root: str = "/") -> Facts:
    """Return what is known of the pod; empty for a process that is in none."""
    if not environ.get("KUBERNETES_SERVICE_HOST"):
        return {}
    facts: Facts = {}
    root = root.rstrip("/")
    for line in files.read_text_lines(f"{root}/etc/podinfo/labels", _LARGEST):
        match = _LABEL.fullmatch(line.strip())
        if match is not None and match[1] in _LABELS and match[2]:
            facts.setdefault(_LABELS[match[1]], match[2])
    for key, variables in _TOLD:
        value = next((environ[name] for name in variables if environ.get(name)), "")
        if _NAME.fullmatch(value):
            facts[key] = value
    # On the host's network the host's name is not the pod's.
    host = environ.get("HOSTNAME", "")
    if "k8s.pod.name" not in facts and host != facts.get("k8s.node.name") and _NAME.fullmatch(host):
        facts["k8s.pod.name"] = host
    if "k8s.namespace.name" not in facts:
        told = files.read_text(f"{root}/var/run/secrets/kubernetes.io/serviceaccount/namespace", 256)
        if _NAME.fullmatch(told):
            facts["k8s.namespace.name"] = told
    if "k8s.pod.uid" not in facts:
        uid = _uid(proc)
        if uid:
            facts["k8s.pod.uid"] = uid
    return facts


def _uid(proc: str) -> str:
    """As control groups and mounts of the pod are called."""
    for name in ("cgroup", "mountinfo"):
        match = _UID.search((files.read(f"{proc}/self/{name}", _LARGEST) or b"").decode("utf-8", "replace"))
        if match is not None:
            return match[1].replace("_", "-")
    return ""
