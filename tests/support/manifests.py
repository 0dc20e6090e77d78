# SPDX-License-Identifier: Apache-2.0
"""The manifests of collector-config/kubernetes, as they are written and as they are sent to a cluster."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from .servers import COLLECTOR_CONFIGS as CONFIGS

KUBERNETES = CONFIGS / "kubernetes"

Json = dict[str, Any]


def read(path: Path) -> Json:
    loaded: Json = yaml.safe_load(path.read_text("utf-8"))
    return loaded


def read_all(path: Path) -> list[Json]:
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def job() -> list[Json]:
    """The objects of the example job."""
    return read_all(KUBERNETES / "job.yaml")


def kustomization() -> Json:
    """Return collector-config/Kustomization."""
    return read(CONFIGS / "Kustomization")


def plain() -> list[Json]:
    """Return all objects as they are written, those of the example among them."""
    return [each for path in sorted(KUBERNETES.glob("*.yaml")) for each in read_all(path)]


def rendered() -> list[Json]:
    """What `kubectl kustomize` makes of the folder, but for the digests behind names of config maps.

    Of kustomize only what collector-config/Kustomization uses is known here, so that a machine without
    kubectl checks the same objects.
    """
    asked = kustomization()
    assert set(asked) == {"apiVersion", "kind", "namespace", "resources", "configMapGenerator", "labels"}
    objects = [each for path in asked["resources"] for each in read_all(CONFIGS / path)]
    for generated in asked["configMapGenerator"]:
        data = {file: (CONFIGS / file).read_text("utf-8") for file in generated.get("files", ())}
        data |= dict(literal.split("=", 1) for literal in generated.get("literals", ()))
        meta = {"name": generated["name"]}
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
    (labels,) = asked["labels"]
    objects = copy.deepcopy(objects)
    for each in objects:
        each["metadata"].setdefault("labels", {}).update(labels["pairs"])
        if each["kind"] != "Namespace":
            each["metadata"]["namespace"] = asked["namespace"]
    return objects


def config_map(name: str) -> dict[str, str]:
    """Return what is in the config map of this name."""
    data: dict[str, str] = next(
        each["data"]
        for each in rendered()
        if each["kind"] == "ConfigMap" and each["metadata"]["name"] == name
    )
    return data


def pod(manifest: Json) -> Json | None:
    """Return what an object says of its pods, if it has any."""
    found: Json | None = manifest.get("spec", {}).get("template", {}).get("spec")
    return found


def containers(manifests: list[Json]) -> Iterator[Json]:
    """All containers of these objects, also those that run first."""
    for manifest in manifests:
        found = pod(manifest)
        if found is not None:
            yield from found.get("initContainers", ())
            yield from found["containers"]
