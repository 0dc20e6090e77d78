# SPDX-License-Identifier: Apache-2.0
"""A clock inside the fetchers of data loaders: when fetching a batch starts, and when collating it does.

A fetcher reads ``auto_collation`` first of all and ``collate_fn`` right before it calls it. Descriptors in
their place see both moments without a wrapper, so the user's tracebacks have no frame of ours.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any, Final

from torch.utils.data._utils.fetch import _BaseDatasetFetcher

from grademl_otel.instrumentations.patches import Patches

START: Final = "_grademl_fetch_start"
COLLATE: Final = "_grademl_collate_start"

moments: Final = {START: 0, COLLATE: 0}
"""The same for whichever fetcher ran last: in a worker process there is one."""


class FetchClock:
    """A descriptor that leaves an attribute as it is and notes in the fetcher when it was read."""

    def __init__(self, name: str, note: str) -> None:
        self._name = name
        self._note = note

    def __get__(self, fetcher: Any, owner: type | None = None) -> Any:
        if fetcher is None:
            return self
        values = fetcher.__dict__
        values[self._note] = moments[self._note] = perf_counter_ns()
        try:
            return values[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def __set__(self, fetcher: Any, value: Any) -> None:
        fetcher.__dict__[self._name] = value

    @classmethod
    def install(cls, patches: Patches) -> None:
        """Put the descriptors into the class of all fetchers, once."""
        for name, note in (("auto_collation", START), ("collate_fn", COLLATE)):
            if not isinstance(vars(_BaseDatasetFetcher).get(name), cls):
                patches.replace(_BaseDatasetFetcher, name, cls(name, note))
