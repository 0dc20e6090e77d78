# SPDX-License-Identifier: Apache-2.0
"""The names of a run's items, made when one is looked at: a long run has millions of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np

from grademl_otel.analyzers.graph.runs.items import Items
from grademl_otel.analyzers.graph.runs.main_lane import Waits


class ItemTexts(Sequence[str]):
    """Items as `grademl.item` writes them: those of the workers, then those that waits were for."""

    def __init__(self, items: Items, waits: Waits) -> None:
        self._pass = np.concatenate([items.pass_serial, waits.pass_serial])
        self._batch = np.concatenate([items.batch, waits.batch])

    def __len__(self) -> int:
        return len(self._batch)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        return f"{int(self._pass[at])}:{int(self._batch[at])}"
