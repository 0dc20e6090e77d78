# SPDX-License-Identifier: Apache-2.0
"""The manifests for Kubernetes, as far as they can be judged without a cluster."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from grademl_otel.resource_detectors.kubernetes import kubernetes_facts

from .support import manifests
from .support.manifests import CONFIGS, KUBERNETES, Json
from .support.validated import validate

KUBERNETES_VERSIONS = ("1.30", "1.34", "1.37")


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_manifests_are_valid(version: str) -> None:
    kinds = set()
    for manifest in [*manifests.rendered(), *manifests.job()]:
        kubernetes_validate.validate(manifest, version, strict=True)
        kinds.add(manifest["kind"])
    assert kinds >= {"DaemonSet", "StatefulSet", "Job", "Service", "ConfigMap", "Namespace"}


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_a_wrong_manifest_is_refused(version: str) -> None:
    agent = next(each for each in manifests.rendered() if each["kind"] == "DaemonSet")
    agent["spec"]["template"]["spec"]["hostpid"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(agent, version, strict=True)


def test_all_manifests_of_the_folder_are_used() -> None:
    used = {*manifests.kustomization()["resources"], "kubernetes/job.yaml"}
    there = {f"kubernetes/{path.name}" for path in KUBERNETES.glob("*.yaml")}
    assert used == there


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="the others check the same without kubectl")
def test_kubectl_makes_the_same_of_it(tmp_path: Path) -> None:
    """What the other tests look at is what `kubectl apply -k` sends, but for the digests behind names."""
    assert _by_kubectl(CONFIGS) == {_key(each): each for each in manifests.rendered()}
    with_hosts = tmp_path / "copy"
    shutil.copytree(CONFIGS, with_hosts)
    written = (CONFIGS / "Kustomization").read_text()
    (with_hosts / "Kustomization").write_text(written.replace("# components:", "components:"))
    assert _by_kubectl(with_hosts)["DaemonSet", "agent"] == _agent_with_host_metrics()


def test_the_component_fits_the_agent() -> None:
    """Its patches add to lists that are there."""
    assert "# components: [kubernetes/host-metrics]" in (CONFIGS / "Kustomization").read_text()
    agent = _agent_with_host_metrics()
    for version in KUBERNETES_VERSIONS:
        kubernetes_validate.validate(agent, version, strict=True)
    (container,) = agent["spec"]["template"]["spec"]["containers"]
    configs = {path.removeprefix("--config=/etc/otelcol/") for path in container["args"]}
    assert configs == {"agent.yaml", "agent-host.yaml"}
    assert configs <= set(manifests.config_map("agent-config"))


def test_containers_have_no_more_rights_than_they_need() -> None:
    containers = list(manifests.containers([*manifests.rendered(), *manifests.job()]))
    assert len(containers) == 4
    for container in containers:
        rights = container["securityContext"]
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["capabilities"]["drop"] == ["ALL"]
        assert "privileged" not in rights
        assert "memory" in container["resources"]["limits"], container["name"]
        may = rights["capabilities"].get("add", [])
        assert may == (["CHOWN"] if container["name"] == "folder" else [])
    for manifest in [*manifests.rendered(), *manifests.job()]:
        pod = manifests.pod(manifest)
        if pod is not None:
            assert pod["automountServiceAccountToken"] is False
            assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)


def test_services_select_pods_and_ports_that_exist() -> None:
    objects = [*manifests.rendered(), *manifests.job()]
    pods = [each for each in objects if manifests.pod(each) is not None]
    services = [each for each in objects if each["kind"] == "Service"]
    assert len(services) == 3
    for service in services:
        wanted = service["spec"]["selector"]
        if wanted == {"batch.kubernetes.io/job-name": "train"}:  # set by the controller of jobs
            (pod,) = (each for each in pods if each["kind"] == "Job")
            assert pod["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
            continue
        (pod,) = (
            each
            for each in pods
            if wanted.items() <= each["spec"]["template"]["metadata"].get("labels", {}).items()
        )
        ports = {
            port["name"]: port["containerPort"]
            for container in manifests.containers([pod])
            for port in container.get("ports", ())
        }
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]


def test_pods_read_the_files_of_this_folder() -> None:
    for name, files in (
        ("agent-config", ["agent.yaml", "agent-host.yaml"]),
        ("gateway-config", ["gateway.yaml", "gateway-tempo.yaml"]),
    ):
        assert manifests.config_map(name) == {file: (CONFIGS / file).read_text() for file in files}


@pytest.mark.real
@pytest.mark.parametrize("kind", ["DaemonSet", "StatefulSet"])
def test_the_real_collector_accepts_what_a_pod_gives_it(
    kind: str, collector_binary: Path, tmp_path: Path
) -> None:
    pod = next(each for each in manifests.rendered() if each["kind"] == kind)
    (container,) = pod["spec"]["template"]["spec"]["containers"]
    configs = [CONFIGS / argument.removeprefix("--config=/etc/otelcol/") for argument in container["args"]]
    environ = {each["name"]: each.get("value", "") for each in container["env"]}
    for source in container.get("envFrom", ()):
        environ |= manifests.config_map(source["configMapRef"]["name"])
    read = "".join(path.read_text() for path in CONFIGS.glob("*.yaml"))
    for setting in environ:
        if setting.startswith("GRADEML_"):
            assert f"${{env:{setting}:-" in read, setting
    done = validate(collector_binary, configs, environ, tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_example_job_says_where_it_runs() -> None:
    """Our detectors read the variables that it sets."""
    job = next(each for each in manifests.job() if each["kind"] == "Job")
    (container,) = manifests.containers([job])
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "train-0"}
    for each in container["env"]:
        told = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        environ[each["name"]] = each["value"] if told is None else re.sub(r"\W", "-", told).strip("-")
    facts = kubernetes_facts(environ, proc="/nowhere", root="/nowhere")
    assert facts == {
        "k8s.pod.name": "metadata-name",
        "k8s.pod.uid": "metadata-uid",
        "k8s.namespace.name": "metadata-namespace",
        "k8s.node.name": "spec-nodeName",
        "k8s.job.name": "train",
        "k8s.container.name": "train",
    }


# --- Helpers ----------------------------------------------------------------------------------------------


def _key(manifest: Json) -> tuple[str, str]:
    return manifest["kind"], re.sub(r"-[0-9a-z]{10}$", "", manifest["metadata"]["name"])


def _agent_with_host_metrics() -> Json:
    """The DaemonSet of the agents with the patches of the component."""
    agent = next(each for each in manifests.rendered() if each["kind"] == "DaemonSet")
    (patch,) = manifests.read(KUBERNETES / "host-metrics" / "kustomization.yaml")["patches"]
    for change in yaml.safe_load(patch["patch"]):
        assert change["op"] == "add"
        *path, last = change["path"].strip("/").split("/")
        assert last == "-"
        place: Any = agent
        for step in path:
            place = place[int(step) if step.isdigit() else step]
        place.append(change["value"])
    return agent


def _by_kubectl(folder: Path) -> dict[tuple[str, str], Json]:
    command = ["kubectl", "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    suffix = re.compile(r"^((?:agent|gateway)-(?:config|backends))-[0-9a-z]{10}$")

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        if isinstance(value, list):
            return [plain(each) for each in value]
        return suffix.sub(r"\1", value) if isinstance(value, str) else value

    return {_key(each): plain(each) for each in yaml.safe_load_all(done.stdout)}
