# SPDX-License-Identifier: Apache-2.0
"""What shows that a trace is not whole: the server says so, counts more, or the size is that of its cap.

A trace above ``max_bytes_per_trace`` (5 MB by default) is cut when it comes in, with every sender told that
all is well, and is later given out as if it were whole. Only its size tells.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from grademl_otel.analyzers.model.columns import ORPHAN, Ledger, SpanColumns
from grademl_otel.analyzers.sources.servers.tempo_wire import Envelope

CAP: Final = 5_000_000
_NEAR: Final = 0.1
_LISTED: Final = 3
_MASK64: Final = 2**64 - 1


@dataclass
class Losses:
    """What was seen of the traces that were read."""

    _said: dict[int, str] = field(default_factory=dict)
    _fewer: dict[int, tuple[int, int]] = field(default_factory=dict)
    _near: dict[int, int] = field(default_factory=dict)
    _absent: list[int] = field(default_factory=list)
    _refused: dict[int, str] = field(default_factory=dict)

    def note(self, trace: int, answer: Envelope, spans: int, expected: int | None) -> None:
        """Take a trace of which ``spans`` spans came, where a search had counted ``expected``."""
        if answer.partial is not None:
            self._said[trace] = answer.partial
        elif expected is not None and spans < expected:
            self._fewer[trace] = (spans, expected)
        # JSON is two to four times as long: its size tells nothing.
        if answer.protobuf and abs(len(answer.body) - CAP) <= _NEAR * CAP:
            self._near[trace] = len(answer.body)

    def absent(self, trace: int) -> None:
        """Take a trace that should be there and is not."""
        self._absent.append(trace)

    def refused(self, trace: int, why: str) -> None:
        """Take a trace that the server cannot give because of its size."""
        self._refused[trace] = why

    @property
    def refusals(self) -> list[str]:
        """One line for each trace that the server cannot give."""
        return [f"trace {trace:032x} was not given: {why}" for trace, why in self._refused.items()]

    def tell(self, ledger: Ledger, spans: SpanColumns | None = None) -> None:
        """Write what was seen into ``ledger``; ``spans`` are all that were read, where they are known."""
        cut = [*self._said, *self._fewer, *self._absent, *self._refused]
        ledger.partial_traces += [f"{trace:032x}" for trace in dict.fromkeys(cut)]
        lines = [f"trace {t:032x}: the server has given a part of it: {why}" for t, why in self._said.items()]
        lines += [
            f"trace {trace:032x}: {received:,} of the {expected:,} spans that the server counts"
            for trace, (received, expected) in self._fewer.items()
        ]
        lines += self.refusals
        if len(lines) > _LISTED:
            lines[_LISTED:] = [f"{len(lines) - _LISTED:,} more traces that are not whole"]
        ledger.warnings += lines
        for trace, size in self._near.items():
            line = (
                f"trace {trace:032x} has {size / 1e6:.1f} MB, about the {CAP / 1e6:g} MB at which Tempo cuts"
                " traces silently unless configured otherwise (max_bytes_per_trace)"
            )
            orphans = 0 if spans is None else _orphans(spans, trace)
            if orphans:
                line += f": probably cut, {orphans:,} of its spans name a parent that is not here"
            ledger.near_cap.append(line)


def _orphans(spans: SpanColumns, trace: int) -> int:
    """Return the number of spans of ``trace`` whose parent is named and not there."""
    hi, lo = np.uint64(trace >> 64), np.uint64(trace & _MASK64)
    orphans = (spans.parent_ix == ORPHAN) & (spans.trace_lo == lo) & (spans.trace_hi == hi)
    return int(np.count_nonzero(orphans))
