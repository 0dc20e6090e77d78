# SPDX-License-Identifier: Apache-2.0
"""What a profiler's trace says beside its events: arguments, lanes, the process and its devices."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from grademl_otel import semconv
from grademl_otel.analyzers.model.raw import Event

CATEGORY: Final = "cat"
THREAD_NAME: Final = "thread.name"
PYTORCH: Final = "pytorch profiler"
CHROME: Final = "chrome trace"
_PYTORCH_KEYS: Final = ("schemaVersion", "baseTimeNanoseconds", "deviceProperties", "distributedInfo")
_BROKEN_ESCAPE: Final = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_CONTROL: Final = re.compile(r"[\x00-\x1f]")
_TOKEN: Final = re.compile(
    r'"[^"\\]*(?:\\.[^"\\]*)*"|-?\b(?:NaN|nan|Infinity|inf)\b|,(?=\s*[\]}])', re.DOTALL
)

Place = tuple[Any, Any]
"""(pid, tid) as written: numbers or text."""


@dataclass(frozen=True)
class Kineto:
    """Raw attributes are a list of what all events of a lane and category share, and an event's arguments."""

    @property
    def name(self) -> str:
        return "kineto"

    def attributes(self, raw: bytes) -> dict[str, Any]:
        parts = decoded(raw)
        if not isinstance(parts, list) or len(parts) != 2:
            return {}
        shared, arguments = (part if isinstance(part, dict) else {} for part in parts)
        return {**arguments, **shared}

    def events(self, raw: bytes) -> Sequence[Event]:
        return ()


KINETO: Final = Kineto()


def shared(lane: str, category: str | None, thread: str | None) -> bytes:
    """Return the beginning of raw attributes; arguments and a bracket come after it."""
    values = {semconv.LANE: lane}
    if thread:
        values[THREAD_NAME] = thread
    if category:
        values[CATEGORY] = category
    return b"[%b," % msgspec.json.encode(values)


def repaired(raw: bytes) -> bytes:
    """Return what profilers write, and Chrome reads, as JSON.

    Broken escapes, control characters, Windows-1252 instead of UTF-8, NaN and infinities, trailing commas.
    """
    text = raw.decode("utf-8", "surrogateescape")
    text = re.sub(
        "[\udc80-\udcff]+",
        lambda odd: odd.group().encode("utf-8", "surrogateescape").decode("windows-1252", "replace"),
        text,
    )
    return _TOKEN.sub(_repaired, text).encode("utf-8", "replace")


def _repaired(token: re.Match[str]) -> str:
    text = token.group()
    if text[0] == '"':
        text = _BROKEN_ESCAPE.sub(r"\\\\", text)
        return _CONTROL.sub(lambda control: f"\\u{ord(control.group()):04x}", text)
    return "" if text == "," else f'"{text}"'


def resource(members: Mapping[str, bytes], pytorch: bool) -> dict[str, Any]:
    """Return the attributes of the process; ``pytorch``: its events are PyTorch's, whatever members say."""
    found: dict[str, Any] = {}
    pytorch = pytorch or any(key in members for key in _PYTORCH_KEYS)
    found["service.name"] = PYTORCH if pytorch else CHROME
    host = decoded(members.get("host_name", b""))
    if isinstance(host, str):
        found["host.name"] = host
    job = decoded(members.get("distributedInfo", b""))
    if isinstance(job, dict):
        for key, name in (("rank", semconv.RANK), ("world_size", semconv.WORLD_SIZE)):
            if isinstance(job.get(key), int) and not isinstance(job[key], bool):
                found[name] = job[key]
        if isinstance(job.get("backend"), str):
            found["distributed.backend"] = job["backend"]
    devices = decoded(members.get("deviceProperties", b""))
    for at, device in enumerate(devices if isinstance(devices, list) else ()):
        if isinstance(device, dict):
            number = device.get("id", at)
            found |= {
                f"device.{number}.{key}": value
                for key, value in device.items()
                if key != "id" and isinstance(value, str | int | float)
            }
    return found


def decoded(raw: bytes | msgspec.Raw) -> Any:
    """Return the value of JSON text; None for what is none."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
