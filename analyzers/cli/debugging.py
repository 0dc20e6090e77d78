# SPDX-License-Identifier: Apache-2.0
"""What `--debug` shows while a command works: what is asked of servers, and which of their APIs answers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from grademl_otel.analyzers.printable import clean
from grademl_otel.analyzers.secrecy import hidden


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"grademl: {hidden(clean(record.getMessage()))}"


@contextmanager
def debugging(wanted: bool) -> Iterator[None]:
    """Write the analyzer's log to standard error during the block, if it is wanted."""
    if not wanted:
        yield
        return
    log, handler = logging.getLogger("grademl_otel.analyzers"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.setLevel(before)
        log.removeHandler(handler)
