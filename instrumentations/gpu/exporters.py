# SPDX-License-Identifier: Apache-2.0
"""Exporters of the meter provider in place, when nobody takes what they send.

Without us many a program has no metrics to export. It must not complain, or end later, because of ours:

* where no endpoint was set and nothing listens at the default one, nothing is given to export;
* at the end of the program, an exporter that is just trying is told to stop, and not waited for where it
  cannot: it may have been talking to a collector that takes calls and never answers. A meter provider waits
  for it, 10 s or so.

The SDK has no public way to either; where its insides are other ones, exporters do what they do.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from typing import Any, Final

from grademl_otel.semconv import SCOPE_NAME

_PROBE_S: Final = 0.1
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
_DEFAULTS: Final = {"localhost:4317": ("localhost", 4317), "localhost:4318": ("localhost", 4318)}
_PAUSES: Final = (("_shutdown_in_progress",), ("_client", "_shutdown_event"))
"""Where exporters have what ends the pause between two tries: those of gRPC, those of HTTP."""
_ANSWER_S: Final = 0.1
"""A collector that is about to answer is given so long."""


def nobody_listens(meter: Any) -> bool:
    """Return True when all exporters of ``meter``'s provider send to where nobody was ever said to listen."""
    if any(os.environ.get(name) for name in _ENDPOINTS):
        return False  # who sets one wants to be told that nobody takes anything there
    readers = list(_readers(meter))
    return bool(readers) and not any(_listens(getattr(reader, "_exporter", None)) for reader, _ in readers)


def give_up_waiting(meter: Any) -> None:
    """Have exporters of ``meter``'s provider that carry only what is ours try nothing again.

    To be called at the program's end, when nothing of ours is collected any more.
    """
    for reader, storage in _readers(meter):
        recorded = getattr(storage, "_instrument_view_instrument_matches", None)
        if recorded is None or any(_scope(instrument) != SCOPE_NAME for instrument in tuple(recorded)):
            continue
        exporter = getattr(reader, "_exporter", None)
        for path in _PAUSES:
            event = exporter
            for name in path:
                event = getattr(event, name, None)
            if isinstance(event, threading.Event):
                event.set()
        if _exports(reader):
            channel = getattr(exporter, "_channel", None)
            if channel is not None:  # of gRPC: ends the call
                channel.close()
            if _exports(reader):
                reader._daemon_thread = None  # else its provider waits for it


def _exports(reader: Any) -> bool:
    """Whether ``reader`` is exporting, and still is a little later."""
    lock = getattr(reader, "_export_lock", None)
    if lock is None or not lock.acquire(timeout=_ANSWER_S):
        return lock is not None
    lock.release()
    return False


def _readers(meter: Any) -> Iterator[tuple[Any, Any]]:
    """The readers of the provider, each with what it has recorded."""
    consumer = getattr(getattr(meter, "_real_meter", None) or meter, "_measurement_consumer", None)
    yield from dict(getattr(consumer, "_reader_storages", {})).items()


def _listens(exporter: Any) -> bool:
    """Whether somebody may take what ``exporter`` sends; only OTLP's default endpoint is looked at."""
    endpoint = str(getattr(exporter, "_endpoint", ""))
    default = _DEFAULTS.get((endpoint.partition("://")[2] or endpoint).partition("/")[0])
    if default is None:
        return True
    try:
        with socket.create_connection(default, _PROBE_S):
            return True
    except OSError:
        return False


def _scope(instrument: Any) -> str:
    return str(getattr(getattr(instrument, "instrumentation_scope", None), "name", ""))
