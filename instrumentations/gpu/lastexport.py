# SPDX-License-Identifier: Apache-2.0
"""The end of a program must not wait for an export of ours that a collector does not take.

At its end a meter provider waits for the export that is under way, which is tried again for about 10 s.
Where nothing but metrics of GPUs was ever recorded, that wait would not be without us. The SDK has no public
way to end it; where its insides are other ones, it waits.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from grademl_otel.semconv import SCOPE_NAME

_EVENTS: Final = (
    ("_shutdown_in_progress",),
    ("_client", "_shutdown_event"),
)
"""Where exporters have what ends the pause between two tries: those of gRPC, those of HTTP."""


def give_up_waiting(meter: Any) -> None:
    """Have exporters of ``meter``'s provider that carry only what is ours try nothing again."""
    consumer = getattr(getattr(meter, "_real_meter", None) or meter, "_measurement_consumer", None)
    for reader, storage in dict(getattr(consumer, "_reader_storages", {})).items():
        recorded = getattr(storage, "_instrument_view_instrument_matches", None)
        if recorded is None or any(_scope(instrument) != SCOPE_NAME for instrument in tuple(recorded)):
            continue
        for path in _EVENTS:
            event = getattr(reader, "_exporter", None)
            for name in path:
                event = getattr(event, name, None)
            if isinstance(event, threading.Event):
                event.set()


def _scope(instrument: Any) -> str:
    return str(getattr(getattr(instrument, "instrumentation_scope", None), "name", ""))
