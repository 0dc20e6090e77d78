# SPDX-License-Identifier: Apache-2.0
"""The container that a process is in: its id, what runs it, its image where that is told."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from grademl_otel import semconv
from grademl_otel.resource_detectors import files
from grademl_otel.resource_detectors.partial import Facts

_LARGEST: Final = 1 << 19
_ID: Final = "([0-9a-f]{64})"
_OF_CGROUP: Final = (
    rf"(?:^|[/:-]){_ID}(?:\.scope)?(?:/(?:container|init(?:\.scope)?|libpod-payload-[0-9a-f]+))?$"
)
_OF_MOUNTS: Final = (
    rf"/(?:containers|overlay-containers)/{_ID}/(?:userdata/)?(?:hostname|resolv\.conf|hosts)\s"
)
# Patterns are compiled where there is something to look for: mostly there is not.
_RUNTIMES: Final = (
    ("libpod", "podman"),
    ("cri-containerd", "containerd"),
    ("crio", "cri-o"),
    ("docker", "docker"),
)
_MARKS: Final = (("run/.containerenv", "podman"), (".dockerenv", "docker"), (".singularity.d", "apptainer"))
"""Files that a runtime leaves in the root of its containers."""
_TOLD: Final = {
    "podman": "podman",
    "docker": "docker",
    "lxc": "lxc",
    "systemd-nspawn": "systemd-nspawn",
    "oci": "",
}
"""What runtimes put into the variable `container`."""
_IMAGE: Final = r"[A-Za-z0-9][A-Za-z0-9._/:-]*(?:@sha256:[0-9a-f]{64})?"


def container_facts(environ: Mapping[str, str], proc: str = "/proc", root: str = "/") -> Facts:
    """Return id, runtime and image; empty outside of containers, in part where one hides what it is."""
    identity, group = _of_group(proc)
    if not identity:
        mounts = files.read(f"{proc}/self/mountinfo", _LARGEST) or b""
        if b"containers/" in mounts:
            match = re.search(_OF_MOUNTS, mounts.decode("utf-8", "replace"))
            identity = match[1] if match else ""
    runtime = _runtime(environ, root, group)
    return {
        semconv.CONTAINER_ID: identity,
        semconv.CONTAINER_RUNTIME: runtime,
        semconv.CONTAINER_IMAGE: _image(environ, root, runtime),
    }


def _of_group(proc: str) -> tuple[str, str]:
    """The id in the path of a control group, and that path."""
    for line in files.read_text_lines(f"{proc}/self/cgroup"):
        path = line.split(":", 2)[-1].strip()
        match = re.search(_OF_CGROUP, path) if len(path) >= 64 else None
        if match:
            return match[1], path
    return "", ""


def _runtime(environ: Mapping[str, str], root: str, group: str) -> str:
    if environ.get("APPTAINER_CONTAINER"):
        return "apptainer"
    if environ.get("SINGULARITY_CONTAINER"):
        return "singularity"
    for part, name in _RUNTIMES:
        if part in group:
            return name
    for mark, name in _MARKS:
        if os.path.lexists(os.path.join(root, mark)):
            return name
    return _TOLD.get(environ.get("container", ""), "")


def _image(environ: Mapping[str, str], root: str, runtime: str) -> str:
    told = ""
    if runtime in ("apptainer", "singularity"):
        told = os.path.basename(environ.get("APPTAINER_NAME") or environ.get("SINGULARITY_NAME") or "")
    elif runtime == "podman":
        for line in files.read_text_lines(os.path.join(root, "run/.containerenv")):
            name, _, value = line.partition("=")
            if name == "image":
                told = value.strip().strip('"')
    return told if told and len(told) <= 256 and re.fullmatch(_IMAGE, told) else ""
