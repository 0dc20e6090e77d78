# SPDX-License-Identifier: Apache-2.0
"""Lets a sub-package share its name with a verb of `api`: ``analyzers.report`` can be called."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Verb(ModuleType):
    """A module that, called, does what the function of its name in `api` does."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        home, _, verb = self.__name__.rpartition(".")
        return getattr(import_module(f"{home}.api"), verb)(*args, **options)


def callable_as_verb(name: str) -> None:
    """Make the module ``name``, a sub-package of the analyzers, callable as the verb of the same name."""
    sys.modules[name].__class__ = _Verb
