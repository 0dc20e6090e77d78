# SPDX-License-Identifier: Apache-2.0
"""Graphs that Dynamo traces have nothing of ours in them.

A function that is compiled may have a phase of the program's own in it, or be decorated. Dynamo cannot trace
these, would break the graph at them and, where that must be whole, raise an error. What it is to trace
instead is told to it as soon as it is imported. Only torch 2.5 and newer can be told. This file must not be
among those that Dynamo skips: it traces `nothing`.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final
from weakref import WeakKeyDictionary

_instead: Final[WeakKeyDictionary[Any, Any]] = WeakKeyDictionary()
_watching: Final[list[bool]] = []
_told: Final[list[bool]] = []
_MOST_TOLD: Final = 256
"""Functions that Dynamo is told of, which it keeps for good; a program may decorate one in each step."""


def traced_as(ours: Any, instead: Any) -> None:
    """Have Dynamo trace the function ``instead`` where a function that it compiles calls ``ours``."""
    _instead[ours] = instead
    watch()
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and hasattr(dynamo, "decorators"):
        _tell(dynamo, ours, instead)


def watch() -> None:
    """Be told when Dynamo is imported, as soon as there may be one.

    A program without torch is not to pay for the import of wrapt.
    """
    if _watching or ("torch" not in sys.modules and "wrapt" not in sys.modules):
        return
    _watching.append(True)
    try:
        import wrapt

        wrapt.register_post_import_hook(_tell_all, "torch._dynamo")
    except Exception:
        pass  # the graphs break


def nothing(*_: Any, **__: Any) -> AbstractContextManager[None]:
    """Stand for a block that is to be traced."""
    return nullcontext()


def _tell(dynamo: Any, ours: Any, instead: Any) -> None:
    if len(_told) >= _MOST_TOLD:
        return
    _told.append(True)
    try:
        dynamo.decorators.substitute_in_graph(ours, skip_signature_check=True)(instead)
    except Exception:
        pass  # another torch: the graph breaks there


def _tell_all(dynamo: Any) -> None:
    for ours, instead in list(_instead.items()):
        _tell(dynamo, ours, instead)
