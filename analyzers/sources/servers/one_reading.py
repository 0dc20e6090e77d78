# SPDX-License-Identifier: Apache-2.0
"""What one reading of a server holds, whichever server it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from grademl_otel.analyzers.errors import SourceError
from grademl_otel.analyzers.model.columns import Ledger, Telemetry
from grademl_otel.analyzers.sources.base import SourceOptions
from grademl_otel.analyzers.sources.buffer import SpanBuilder


class OneReading:
    """What was read of a server so far, for one answer; ``name`` begins each line for people."""

    def __init__(self, uri: str, name: str, options: SourceOptions, ledger: Ledger | None = None) -> None:
        self.name = name
        self.ledger = Ledger() if ledger is None else ledger
        self._uri = uri
        self._options = options
        self._restart()

    def _restart(self) -> None:
        """Forget what was read: it was to find out what to read."""
        self._builder = SpanBuilder(self._options.max_spans)

    def telemetry(self) -> Telemetry:
        """Return all that was read, and what is known to be missing."""
        if self._builder.full and not self.ledger.capped:
            self.ledger.capped = True
            self.ledger.warnings.append(
                f"{self.name}: more spans not fetched beyond {self._options.max_spans:,} spans;"
                " see --max-spans"
            )
        return Telemetry(self._uri, self._builder.finish(self.ledger), self.ledger)

    def so_far(self) -> Telemetry:
        """What is known while reading goes on; its counts are not the ledger's."""
        return Telemetry(self._uri, self._builder.finish(Ledger()), Ledger())

    @contextmanager
    def _broken_off(self) -> Iterator[None]:
        """Keep what was read when the server fails midway, and say so; raise when there is nothing yet."""
        try:
            yield
        except SourceError as error:
            if not len(self._builder):
                raise
            self.ledger.broken = str(error)
