# SPDX-License-Identifier: Apache-2.0
"""An answer as text for people."""

from __future__ import annotations

from grademl_otel.analyzers.shown import Shown


def render(
    answer: Shown,
    *,
    by: str | None = None,
    top: int | None = None,
    color: bool | None = None,
    width: int | None = None,
) -> str:
    """Return ``answer`` as text that ends with a newline.

    ``by`` names the key of a critical path's table, ``top`` how much of it is shown. ``color`` and ``width``
    default to what standard output is: plain and 110 columns when it is not a terminal.
    """
    chosen = {name: value for name, value in (("by", by), ("top", top)) if value is not None}
    return answer.to_text(color=color, width=width, **chosen)
