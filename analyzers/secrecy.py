# SPDX-License-Identifier: Apache-2.0
"""Values that are sent and never told: a server may repeat a header in its refusal, and so would we."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

SHOWN: Final = "***"
_SHORTEST: Final = 6
"""Characters: what is shorter is in too many words, and no secret."""

_kept: set[str] = set()


def keep(values: Iterable[str]) -> None:
    """Remember values of headers, and passwords: `hidden` leaves them out from now on.

    Of a value of several words, as a scheme and a token, each counts.
    """
    for value in values:
        _kept.update(word for word in (value, *value.split()) if len(word) >= _SHORTEST)


def hidden(text: str) -> str:
    """Return ``text`` with `SHOWN` in the place of each value that is kept."""
    for value in sorted(_kept, key=len, reverse=True):
        text = text.replace(value, SHOWN)
    return text
