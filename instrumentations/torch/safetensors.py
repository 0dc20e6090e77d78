# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in the format of safetensors: the functions of `safetensors.torch`.

A file that is opened with `safetensors.safe_open` is read tensor by tensor when the program asks: that is no
call that could be timed.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Final

from safetensors import torch as library

from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch.checkpointing import (
    LOAD,
    SAVE,
    Arguments,
    Measure,
    Running,
    Size,
    Whole,
    argument,
    called_by_distributed,
    outermost,
)

_FORMAT: Final = "safetensors"


def install(patches: Patches) -> None:
    """Wrap each function; one that is missing costs a line, the others are recorded."""
    functions: tuple[tuple[str, int, Measure], ...] = (
        ("save_file", SAVE, partial(_file, 1)),
        ("load_file", LOAD, partial(_file, 0)),
        ("save_model", SAVE, partial(_file, 1)),
        ("load_model", LOAD, partial(_file, 1)),
        ("save", SAVE, _made),
        ("load", LOAD, _given),
    )
    for name, kind, measure in functions:
        title = f"safetensors.torch.{name}"
        with patches.together(title):
            calls = _Calls(title, kind, _FORMAT, measure)
            patches.replace(library, name, outermost(getattr(library, name), calls))


class _Calls(Whole):
    def begin(self, args: Arguments, kwargs: dict[str, Any]) -> Running | None:
        return None if called_by_distributed() else super().begin(args, kwargs)


def _file(position: int, args: Arguments, kwargs: dict[str, Any]) -> Size:
    """The size of the file that the argument ``filename`` names."""
    path = argument(args, kwargs, position, "filename")

    def size(_: Any) -> int:
        try:
            return os.stat(path).st_size
        except (OSError, TypeError, ValueError):
            return 0

    return size


def _made(args: Arguments, kwargs: dict[str, Any]) -> Size:
    """The length of the bytes that were returned."""
    return len


def _given(args: Arguments, kwargs: dict[str, Any]) -> Size:
    """The length of the bytes that are loaded."""
    length = len(argument(args, kwargs, 0, "data"))
    return lambda _: length
