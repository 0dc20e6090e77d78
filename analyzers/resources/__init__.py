# SPDX-License-Identifier: Apache-2.0
"""The resource model: what phases use, as monitors saw it, from all places where they tell it.

``analyzers.resources(...)`` asks the question of the same name: whoever has loaded this package finds it
under that name, so it answers to being called.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Asked(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Return what `analyzers.api.resources` does."""
        from grademl_otel.analyzers.api import resources

        return resources(*arguments, **options)


sys.modules[__name__].__class__ = _Asked
