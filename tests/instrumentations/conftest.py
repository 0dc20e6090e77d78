# SPDX-License-Identifier: Apache-2.0
"""The torch instrumentation in this process, with lists in the place of the ring."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from grademl_otel.instrumentations.torch import TorchInstrumentor
from grademl_otel.lifecycle import session
from tests.support.listwriter import ListTransport, ListWriter


@dataclass
class Recording:
    """The run of one test; `finish` ends it, after which all that was written is there."""

    writer: ListWriter = field(default_factory=ListWriter)
    transport: ListTransport = field(default_factory=ListTransport)

    def finish(self) -> ListWriter:
        gc.collect()
        session.end()
        return self.writer


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    """Torch is instrumented; a run starts with the first event."""
    for name in list(os.environ):
        if name.startswith(("OTEL_", "GRADEML_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GRADEML_EXPORTER", "file")
    monkeypatch.setenv("GRADEML_BUDGET", "100")
    gc.collect()  # optimizers of earlier tests
    made = Recording()

    def opened(*_: Any) -> tuple[ListWriter, ListTransport]:
        return made.writer, made.transport

    monkeypatch.setattr(session, "_open_ring", opened)
    monkeypatch.setattr(session, "_refused", False)
    monkeypatch.setattr(session, "recorder", None)
    excepthook = sys.excepthook
    instrumentor = TorchInstrumentor()
    instrumentor.instrument(skip_dep_check=True)
    yield made
    instrumentor.uninstrument()
    sys.excepthook = excepthook
