# SPDX-License-Identifier: Apache-2.0
"""A wrapper that Dynamo takes for what it wraps.

Dynamo decides by the file and the name of a function what it does with its frames: those of
`nn.Module.__call__` it runs as they are where they come first, and sees through where it traces what calls
them. A wrapper under a name of its own it would compile at the outermost call instead of the user's
``forward``: all modules would then share the code of the wrapper, and its limit of compilations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from inspect import signature
from types import FunctionType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def disguised(wrapper: F, original: Callable[..., Any] | None) -> F:
    """Give ``wrapper`` the name, signature, file and line of ``original``, if that is a Python function.

    The wrapper's globals stay its own, so `tracebacks` still knows it. What it calls of ours is in files that
    Dynamo skips.
    """
    if not isinstance(original, FunctionType) or not isinstance(wrapper, FunctionType):
        return wrapper
    code = original.__code__
    names = {name: getattr(code, name) for name in _NAMES if hasattr(code, name)}
    wrapper.__code__ = wrapper.__code__.replace(**names)
    update_wrapper(wrapper, original)
    del vars(wrapper)["__wrapped__"]  # Dynamo would follow it
    wrapper.__signature__ = signature(original)  # type: ignore[attr-defined]
    return wrapper


_NAMES = ("co_filename", "co_firstlineno", "co_name", "co_qualname")
