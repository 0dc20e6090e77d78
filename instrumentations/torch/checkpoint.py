# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of `torch.save` and `torch.load`, with the size where it is known."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Final

import torch

from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch.checkpointing import (
    LOAD,
    SAVE,
    Arguments,
    Running,
    Size,
    Whole,
    argument,
    called_by_distributed,
    outermost,
)

_FORMAT: Final = "torch"


def install(patches: Patches) -> None:
    """Wrap both functions under both of their names."""
    for name, calls in (
        ("save", _Calls("torch.save", SAVE, _FORMAT, _saved)),
        ("load", _Calls("torch.load", LOAD, _FORMAT, _loaded)),
    ):
        with patches.together(f"torch.{name}"):
            wrapper = outermost(getattr(torch.serialization, name), calls)
            patches.replace(torch.serialization, name, wrapper)
            patches.replace(torch, name, wrapper)


class _Calls(Whole):
    def begin(self, args: Arguments, kwargs: dict[str, Any]) -> Running | None:
        return None if called_by_distributed() else super().begin(args, kwargs)


def _saved(args: Arguments, kwargs: dict[str, Any]) -> Size:
    target = argument(args, kwargs, 1, "f")
    return partial(_written, target, _position(target))


def _loaded(args: Arguments, kwargs: dict[str, Any]) -> Size:
    return partial(_read, argument(args, kwargs, 0, "f"))


def _written(target: Any, before: int, _: Any) -> int:
    """The size of the file, or how far an open one has moved on."""
    try:
        if isinstance(target, (str, os.PathLike)):
            return os.stat(target).st_size
        return max(0, _position(target) - before)
    except Exception:
        return 0


def _read(source: Any, _: Any) -> int:
    try:
        if isinstance(source, (str, os.PathLike)):
            return os.stat(source).st_size
        return os.fstat(source.fileno()).st_size
    except Exception:
        return 0


def _position(target: Any) -> int:
    try:
        return int(target.tell())
    except Exception:
        return 0
