# SPDX-License-Identifier: Apache-2.0
"""Threads of spans that are asked for, as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.trees.span_tree import THREAD
from grademl_otel.analyzers.model.columns import SpanColumns

_KEY = THREAD.encode()


class Threads:
    """Only those of spans that may have one are decoded."""

    def __init__(self, spans: SpanColumns) -> None:
        self._spans = spans
        self._numbers: dict[tuple[int, Any], int] = {}

    def units(self, some: IntArray) -> IntArray:
        """Return a number for the thread, within its process, of each of ``some`` spans; -1 if unknown."""
        found = np.full(len(some), -1, np.int64)
        may = np.flatnonzero(self._spans.raw_attributes.that_may_have(_KEY, some))
        for at, ix in zip(may.tolist(), some[may].tolist(), strict=True):
            thread = self._spans.attributes(ix).get(THREAD)
            if isinstance(thread, int | str):
                key = int(self._spans.resource_ix[ix]), thread
                found[at] = self._numbers.setdefault(key, len(self._numbers))
        return found
