# SPDX-License-Identifier: Apache-2.0
"""A table that is made when a statement scans it, and of it only the columns that the statement needs.

DuckDB asks a dataset of Arrow for a scanner of so many columns with such a filter, when it knows them from
its own plan: nothing here has to understand SQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from threading import Lock
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

Make = Callable[[Collection[str]], pa.Table]
_WORD: Final = re.compile(r"\w+")


class LazyTable(ds.InMemoryDataset):  # type: ignore[misc]
    """A dataset whose rows ``make`` returns; each column is made once."""

    def __init__(self, schema: pa.Schema, make: Make) -> None:
        super().__init__([], schema=schema)
        self._make = make
        self._made: dict[str, pa.ChunkedArray] = {}
        self._lock = Lock()  # a statement may scan a table in several threads
        self.failure: BaseException | None = None
        """What went wrong in making it: of DuckDB's error only the text would be left."""
        self.scanned = False

    def scanner(self, columns: list[str] | None = None, filter: Any = None, **options: Any) -> ds.Scanner:
        names = set(self.schema.names if columns is None else columns)
        if filter is not None:  # it may be of columns that are no part of the answer
            names |= set(_WORD.findall(str(filter))).intersection(self.schema.names)
        try:
            table = self._table(names)
        except BaseException as error:
            self.failure = error
            raise
        self.scanned = True
        return ds.InMemoryDataset(table).scanner(columns=columns, filter=filter, **options)

    def _table(self, names: Collection[str]) -> pa.Table:
        # One column at least: it tells how many rows there are.
        wanted = [name for name in self.schema.names if name in names] or self.schema.names[:1]
        with self._lock:
            if missing := [name for name in wanted if name not in self._made]:
                table = self._make(missing)
                self._made.update(zip(table.column_names, table.columns, strict=True))
            return pa.table([self._made[name] for name in wanted], names=wanted)
