# SPDX-License-Identifier: Apache-2.0
"""Which frameworks of machine learning are installed, and the Python that runs; none is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Final

from grademl_otel import semconv
from grademl_otel.resource_detectors.budget import Budget, OverBudget
from grademl_otel.resource_detectors.partial import Facts

FRAMEWORKS: Final = (
    "accelerate", "catboost", "datasets", "deepspeed", "diffusers", "fairscale", "flash-attn", "flax",
    "horovod", "jax", "jaxlib", "keras", "lightgbm", "lightning", "megatron-core", "nemo-toolkit", "optax",
    "optuna", "peft", "pytorch-lightning", "ray", "scikit-learn", "sentence-transformers", "sglang",
    "tensorflow", "timm", "torch", "torch-xla", "torchdata", "torchvision", "transformer-engine",
    "transformers", "trl", "vllm", "xgboost",
)  # fmt: skip
"""Names of distributions, normalized."""
_MODULES: Final = {"scikit-learn": "sklearn", "megatron-core": "megatron.core", "nemo-toolkit": "nemo"}
"""Modules that are not called as their distribution, with - for _."""
_ENDINGS: Final = (".dist-info", ".egg-info")
_LONGEST_VERSION: Final = 64
_IN_VERSIONS: Final = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.!+_-")
_MOST_FOLDERS: Final = 64
_MOST_NAMES: Final = 20_000
_OFTEN: Final = 256


def framework_facts(
    budget: Budget, path: Sequence[str] | None = None, modules: Mapping[str, ModuleType] | None = None
) -> Facts:
    """Return `name==version` of each framework that is installed, and name and version of the interpreter.

    What a module that is imported already says of its version counts more than what is installed. Where the
    time is not enough for all folders of ``path`` the list is left out: it would look like all.
    """
    facts: Facts = {
        semconv.RUNTIME_NAME: sys.implementation.name,
        semconv.RUNTIME_VERSION: _python(),
    }
    try:
        found = _installed(sys.path if path is None else path, budget)
    except OverBudget:
        return facts
    found.update(_imported(sys.modules if modules is None else modules))
    facts[semconv.FRAMEWORKS] = [f"{name}=={found[name]}" for name in sorted(found) if found[name]]
    return facts


def _installed(path: Sequence[str], budget: Budget) -> dict[str, str]:
    """Version by name, as the metadata in the folders of ``path`` are called; the first folder wins.

    A name that one folder has with several versions has an empty one: which of them is meant is not known.
    """
    found: dict[str, str] = {}
    folders = [folder for folder in dict.fromkeys(path) if isinstance(folder, str)]
    for folder in folders[:_MOST_FOLDERS]:
        for name, version in _in_folder(folder or ".", budget).items():
            found.setdefault(name, version)
    return found


def _in_folder(folder: str, budget: Budget) -> dict[str, str]:
    found: dict[str, str] = {}
    budget.check()
    try:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number % _OFTEN == _OFTEN - 1:
                    budget.check()
                if number >= _MOST_NAMES:
                    raise OverBudget
                if not entry.name.endswith(_ENDINGS):
                    continue
                name, _, rest = entry.name.rpartition(".")[0].partition("-")
                name = name.replace("_", "-").replace(".", "-").lower()
                if name in _WANTED:
                    version = rest.partition("-py")[0]  # eggs also name the Python
                    known = _is_version(version) and found.get(name, version) == version
                    found[name] = version if known else ""
    except (OSError, ValueError):
        return {}  # an archive, or nothing at all
    return found


_WANTED: Final = frozenset(FRAMEWORKS)


def _is_version(text: str) -> bool:
    return text[:1].isdigit() and len(text) <= _LONGEST_VERSION and _IN_VERSIONS.issuperset(text)


def _imported(modules: Mapping[str, ModuleType]) -> dict[str, str]:
    found = {}
    for name in FRAMEWORKS:
        module = modules.get(_MODULES.get(name, name.replace("-", "_")))
        # Not by getattr: that makes lazy modules import others.
        version = getattr(module, "__dict__", {}).get("__version__")
        if isinstance(version, str) and _is_version(version):
            found[name] = str.__str__(version)
    return found


def _python() -> str:
    """As OpenTelemetry's own detector writes it."""
    version = sys.version_info
    final = version.releaselevel == "final" and not version.serial
    return ".".join(map(str, version[:3] if final else version))
