# SPDX-License-Identifier: Apache-2.0
"""Telemetry whose every string is out to do harm: to end a script, to start one, to turn the line around.

`MARK` is in every name, so that a page can be asked whether it shows them; `ALERT` is what none may call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from grademl_otel import semconv as sc

from .synthetic import EPOCH_UNIX_NS, MS, Training, attributes, simulate

MARK: Final = "h0stile"
ALERT: Final = "alert(1)"
NAMES: Final = (
    f"<script>{ALERT}</script>{MARK}",
    f"</script></style><img src=x onerror={ALERT}>{MARK}",
    f"{MARK}\"' onmouseover={ALERT} x='",
    f"]]>--><!--<svg onload={ALERT}>{MARK}",
    f"{{{{7*7}}}}{{% raw %}}&lt;{MARK}&amp;\\u003c",
    f"\u202e\u2066{MARK}\u2028\u2029\x1b[31m\u0000\r\n\t\x85",
    f'=HYPERLINK("http://{MARK}.invalid","x")',
    f"{MARK}<iframe src=javascript:{ALERT}>" * 2_000,
)
"""Names as programs, hosts and errors could have them; the last has 80 kB."""

_OURS: Final = (
    sc.SCRIPT,
    sc.RUN_NAME,
    sc.DEVICE,
    sc.OPEN_PHASE,
    "error.type",
    "service.name",
    "host.name",
    "process.command",
    "os.type",
    "telemetry.sdk.language",
    sc.FRAMEWORK_NAME,
    sc.FRAMEWORK_VERSION,
    sc.CLOCK_ID,
)


def hostile_run(folder: Path) -> Path:
    """Write a run of ours that a rank of was killed in, with such strings wherever they can be chosen."""
    simulated = simulate(
        Training(ranks=2, epochs=2, steps_per_epoch=30, checkpoint_ns=20 * MS, killed_at=50, workers=2)
    )
    names = cycle(NAMES)
    for rank, span in list(simulated.spans):
        if span["name"] == sc.EPOCH:
            simulated.spans.append((rank, _own_phase(span, next(names))))
        if span["status"]:
            span["status"]["message"] = next(names)
        span["attributes"] += attributes({next(names)[:500]: next(names)})
    path = folder / simulated.folder / "traces.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\n".join(_poisoned(simulated.otlp_lines())) + b"\n")
    return path


def hostile_traces(folder: Path, traces: int = 1) -> Path:
    """Write traces of others' services, with such names of services, operations, lanes and attributes."""
    names = cycle(NAMES)
    batches = []
    for number in range(traces):
        at = EPOCH_UNIX_NS + number * 1_000 * MS
        batches += [
            _batch(next(names), _foreign(number, child, at, next(names), next(names))) for child in range(8)
        ]
    path = folder / "traces.jsonl"
    path.write_text("".join(json.dumps({"resourceSpans": [one]}) + "\n" for one in batches), "utf-8")
    return path


def _own_phase(epoch: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a phase that the program named, in the place of an epoch."""
    other = f"{int(epoch['spanId'], 16) ^ 1:016x}"
    return {
        **epoch,
        "spanId": other,
        "parentSpanId": epoch["spanId"],
        "name": name,
        "attributes": attributes({sc.LANE: "main", sc.PHASE: name}),
    }


def _poisoned(lines: bytes) -> Iterator[bytes]:
    names = cycle(NAMES)
    chosen: dict[str, str] = {}

    def poison(value: Any) -> None:
        if isinstance(value, list):
            for one in value:
                poison(one)
        elif isinstance(value, dict):
            if value.get("key") in _OURS and "stringValue" in value.get("value", {}):
                # One value wherever it is said: hosts and services must stay the same.
                said = value["key"] + value["value"]["stringValue"]
                value["value"]["stringValue"] = chosen.setdefault(said, next(names))
            for one in value.values():
                poison(one)

    for line in lines.splitlines():
        document = json.loads(line)
        poison(document)
        yield json.dumps(document).encode()


def _foreign(trace: int, child: int, at: int, name: str, more: str) -> dict[str, Any]:
    """Return one span of a trace: the first is the root of the others, which come one after the other."""
    start, length = (at, 900 * MS) if child == 0 else (at + child * 100 * MS, 90 * MS)
    span: dict[str, Any] = {
        "traceId": f"{trace + 1:032x}",
        "spanId": f"{trace * 100 + child + 1:016x}",
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + length),
        "attributes": attributes({more[:500]: name, "http.route": more}),
        "status": {"code": 2, "message": more},
    }
    if child:
        span["parentSpanId"] = f"{trace * 100 + 1:016x}"
    return span


def _batch(service: str, span: dict[str, Any]) -> dict[str, Any]:
    return {
        "resource": {"attributes": attributes({"service.name": service, "host.name": service})},
        "scopeSpans": [{"scope": {"name": service, "version": service}, "spans": [span]}],
    }
