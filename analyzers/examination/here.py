# SPDX-License-Identifier: Apache-2.0
"""Whether `opentelemetry-instrument python train.py` would record here: packages, entry points, settings."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from grademl_otel.config import FILE, INSTRUMENTOR_NAME, Settings, disabled
from grademl_otel.destination import decide_destination

OK: Final = "ok"
NOTE: Final = "note"
BAD: Final = "bad"

_PACKAGES: Final = (
    "opentelemetry-sdk",
    "opentelemetry-instrumentation",
    "opentelemetry-distro",
    "opentelemetry-exporter-otlp",
)
_SOMETIMES: Final = (
    ("pyarrow", "copies"),
    ("zstandard", "files compressed with zstd"),
    ("grpc", "jaeger+grpc://"),
    ("urllib3", "servers"),
)
_ENTRY_POINTS: Final = (
    ("opentelemetry_instrumentor", INSTRUMENTOR_NAME),
    ("opentelemetry_pre_instrument", "grademl"),
    ("opentelemetry_post_instrument", "grademl"),
)
_INSTALL: Final = "pip install grademl-otel"
_GPUS: Final = (
    ("NVIDIA", Path("/proc/driver/nvidia"), "nvidia-ml-py", "pynvml", "pip install 'grademl-otel[gpu]'"),
    ("AMD", Path("/sys/module/amdgpu"), "amdsmi", "amdsmi", "install amdsmi of your ROCm: docs/gpu.md"),
)
"""Vendor, what is there where its driver is, the package that reads it, its module, how to get that."""
COMMAND: Final = "opentelemetry-instrument"


@dataclass(frozen=True)
class Check:
    """One thing that recording needs here."""

    what: str
    state: str
    """ok, note (works, and is worth knowing), or bad."""
    detail: str
    how_to_fix: str | None = None


def checks(environ: Mapping[str, str]) -> list[Check]:
    """Return what can be said without recording anything."""
    return [_command(), _packages(), _extra(), _entry_points(), _torch(), *_gpus(), *_settings(environ)]


def instrument_command() -> str | None:
    """Return the path of `opentelemetry-instrument`, the one beside this interpreter if there is one."""
    beside = Path(sys.executable).parent / COMMAND
    return str(beside) if beside.is_file() else shutil.which(COMMAND)


def _command() -> Check:
    found = instrument_command()
    if found is None:
        return Check(
            "command", BAD, f"there is no {COMMAND} in $PATH", f"activate the environment, or {_INSTALL}"
        )
    on_path = shutil.which(COMMAND)
    if on_path is None or Path(on_path).resolve() != Path(found).resolve():
        where = "is not in $PATH" if on_path is None else f"is another one in $PATH: {on_path}"
        return Check(
            "command", NOTE, f"{found}; {COMMAND} {where}", "activate this environment to train with it"
        )
    return Check("command", OK, found)


def _packages() -> Check:
    versions = {name: _version(name) for name in _PACKAGES}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        return Check("packages", BAD, f"not installed: {', '.join(missing)}", _INSTALL)
    return Check("packages", OK, ", ".join(f"{name} {version}" for name, version in versions.items()))


def _extra() -> Check:
    """What the analyzer needs only for some sources; without the rest this command does not start."""
    missing = [f"{name} (for {use})" for name, use in _SOMETIMES if find_spec(name) is None]
    if missing:
        how = "pip install 'grademl-otel[analyzer]'"
        return Check("analyzer", NOTE, f"not installed: {', '.join(missing)}", how)
    return Check("analyzer", OK, "all kinds of sources can be read")


def _entry_points() -> Check:
    installed = metadata.entry_points()
    missing = [
        f"{group}:{name}" for group, name in _ENTRY_POINTS if not installed.select(group=group, name=name)
    ]
    if missing:
        how = f"{_INSTALL} again: it was installed without its metadata"
        return Check("entry points", BAD, f"not found: {', '.join(missing)}", how)
    return Check("entry points", OK, ", ".join(name for _, name in _ENTRY_POINTS[:1]))


def _torch() -> Check:
    version = _version("torch")
    if version is None:
        how = "fine for a loop that tells its steps itself: docs/manual.md"
        return Check("PyTorch", NOTE, "not installed in this environment", how)
    from packaging.requirements import Requirement  # what opentelemetry-instrumentation checks with

    from grademl_otel.instrumentations.torch.package import instruments

    if not all(Requirement(wanted).specifier.contains(version, prereleases=True) for wanted in instruments):
        return Check(
            "PyTorch", BAD, f"{version} is older than what is hooked", f"needed: {', '.join(instruments)}"
        )
    return Check("PyTorch", OK, version)


def _gpus() -> list[Check]:
    """Whether the GPUs that have a driver here can be sampled; nothing where there is none."""
    found = []
    for vendor, driver, package, module, how in _GPUS:
        if not driver.exists():
            continue
        if find_spec(module) is None:
            text = f"of {vendor} have a driver here and are not sampled: {package} is not installed"
            found.append(Check("GPUs", NOTE, text, how))
        else:
            found.append(Check("GPUs", OK, f"of {vendor} are sampled through {package}"))
    return found


def _settings(environ: Mapping[str, str]) -> list[Check]:
    if disabled(environ):
        names = (
            "OTEL_SDK_DISABLED",
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS",
            "GRADEML_EXPORTER",
            "GRADEML_RELAY",
        )
        given = [name for name in names if environ.get(name)]
        return [Check("settings", BAD, f"recording is switched off by {', '.join(given)}", "unset it")]
    settings = Settings.from_env(environ)
    found = [
        Check("settings", NOTE, complaint, "see docs/configuration.md") for complaint in settings.complaints
    ]
    destination = decide_destination(settings, environ)
    if destination.nowhere:
        text = (
            "there is nowhere to send telemetry to: OTEL_TRACES_EXPORTER and OTEL_METRICS_EXPORTER are none"
        )
        return [*found, Check("destination", BAD, text, "unset one of them, or set GRADEML_EXPORTER=file")]
    ways = [
        *destination.exporters,
        *(["the program's own tracer provider"] if destination.through_provider else []),
    ]
    found.append(Check("destination", OK, " and ".join(ways)))
    if FILE in destination.exporters:
        found.append(_writable("file store", settings.store_dir, "GRADEML_STORE"))
    if "otlp" in destination.exporters:
        found.append(_writable("spool", settings.spool_dir, "GRADEML_SPOOL_DIR"))
    return found


def _writable(what: str, folder: Path, variable: str) -> Check:
    """Look whether ``folder`` can be written to, or made; makes nothing."""
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return Check(what, OK, str(folder) if there == folder else f"{folder}, not made yet")
    why = "is no folder" if not there.is_dir() else "cannot be written to"
    return Check(what, BAD, f"{there} {why}", f"set {variable} to a folder of yours")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
