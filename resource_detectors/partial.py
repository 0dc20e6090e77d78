# SPDX-License-Identifier: Apache-2.0
"""Facts by the names of their attributes, in part where not all can be had."""

from __future__ import annotations

from collections.abc import Callable, Iterable

Fact = str | bool | int | list[str]
Facts = dict[str, Fact]


def collect(parts: Iterable[Callable[[], Facts]]) -> Facts:
    """Return what all ``parts`` say; one that fails says nothing. What is empty is not known."""
    found: Facts = {}
    for part in parts:
        try:
            found.update({key: value for key, value in part().items() if value not in ("", [])})
        except Exception:  # what this machine says may be anything; the others' facts are still worth having
            continue
    return found
