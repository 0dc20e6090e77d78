# SPDX-License-Identifier: Apache-2.0
"""Configuration: every environment variable of ours, and what the user's OpenTelemetry settings ask of us.

Configuration never stops a training: a value that makes no sense costs one line on stderr and the default is
used. Nothing is read at import; callers pass the environment they mean.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")

FILE: Final = "file"
OTLP: Final = "otlp"
NONE: Final = "none"


class Variable(NamedTuple):
    """One environment variable: its name, its default in words, and what it means."""

    name: str
    default: str
    meaning: str


VARIABLES: Final[tuple[Variable, ...]] = (
    Variable(
        "GRADEML_EXPORTER",
        "chosen: see Destination",
        "where telemetry goes: `file`, `otlp`, both (comma between), or `none` (nothing is recorded)",
    ),
    Variable("GRADEML_STORE", "./grademl-runs", "folder of the file store; each run is a folder in it"),
    Variable("GRADEML_RUN_ID", "random", "run id, 32 hex digits; taken as it is when set"),
    Variable(
        "GRADEML_EXIT_WAIT", "2", "longest time in s that the exit waits until the telemetry is delivered"
    ),
    Variable(
        "GRADEML_IN_PROCESS",
        "0",
        "1: convert and export in the training process; no relay process is started",
    ),
    Variable("GRADEML_RING_DIR", "/dev/shm, else $XDG_RUNTIME_DIR", "folder for the memory-mapped rings"),
    Variable("GRADEML_RING_BYTES", "2097152", "size of a ring in bytes, 65536 to 1073741824"),
    Variable(
        "GRADEML_SPOOL_DIR",
        "$XDG_STATE_HOME/grademl, else ~/.local/state/grademl",
        "folder where the relay keeps what a collector did not take",
    ),
    Variable("GRADEML_RELAY_LOG", "no log", "file to which the relay writes what it does, to find faults"),
    Variable("GRADEML_RELAY", "-", "internal: 1 in the relay process, where nothing is instrumented"),
)
"""The one table of our variables; docs/configuration.md is written from it."""

DEFAULT_STORE: Final = "grademl-runs"
DEFAULT_RING_BYTES: Final = 2 * 1024 * 1024
MIN_RING_BYTES: Final = 64 * 1024
MAX_RING_BYTES: Final = 1024 * 1024 * 1024
DEFAULT_EXIT_WAIT_S: Final = 2.0
MAX_EXIT_WAIT_S: Final = 600.0

ENDPOINT_VARIABLES: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)
DEFAULT_COLLECTOR: Final = ("localhost", 4317)
PROBE_TIMEOUT_S: Final = 0.1
INSTRUMENTOR_NAME: Final = "grademl_torch"


@dataclass(frozen=True)
class Settings:
    """What the user set, parsed; paths are absolute, because the program may change its folder."""

    exporters: tuple[str, ...] | None
    """``file`` and ``otlp`` in this order, empty for ``none``; None when the user did not say."""
    store_dir: Path
    ring_dir: Path | None
    """None: the places of `ring.py` are tried in order."""
    ring_bytes: int
    spool_dir: Path
    exit_wait_s: float
    run_id: str | None
    relay_log: Path | None
    in_process: bool
    """The user asked for no relay process."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from ``environ`` (the process' own by default); never raises."""
        env = os.environ if environ is None else environ
        return cls(
            exporters=_parse(env, "GRADEML_EXPORTER", _exporters, None),
            store_dir=_absolute(env.get("GRADEML_STORE") or DEFAULT_STORE),
            ring_dir=_optional_path(env, "GRADEML_RING_DIR"),
            ring_bytes=_parse(env, "GRADEML_RING_BYTES", _ring_bytes, DEFAULT_RING_BYTES),
            spool_dir=_optional_path(env, "GRADEML_SPOOL_DIR") or _state_folder(env),
            exit_wait_s=_parse(env, "GRADEML_EXIT_WAIT", _exit_wait, DEFAULT_EXIT_WAIT_S),
            run_id=_parse(env, "GRADEML_RUN_ID", _run_id, None),
            relay_log=_optional_path(env, "GRADEML_RELAY_LOG"),
            in_process=_parse(env, "GRADEML_IN_PROCESS", _flag, False),
        )


@dataclass(frozen=True)
class Destination:
    """Where the telemetry of a run goes, decided once at its start."""

    exporters: tuple[str, ...]
    """``file``, ``otlp`` or both; empty when the user's own provider takes the spans."""
    traces: bool
    metrics: bool
    through_provider: bool
    """Spans go through the tracer provider in place, in this process."""

    @property
    def nowhere(self) -> bool:
        """True when there is nothing to record for."""
        return not (self.traces or self.metrics) or not (self.exporters or self.through_provider)


def decide_destination(
    settings: Settings,
    environ: Mapping[str, str],
    foreign_provider: bool = False,
    probe: Callable[[], bool] | None = None,
) -> Destination:
    """Decide where the telemetry goes.

    `GRADEML_EXPORTER` says it; else a user's own exporter or provider (``foreign_provider``: not built by the
    configurator, or with processors that the user added) takes the spans; else an OTLP endpoint in the
    environment does; else the file store, and OTLP as well when ``probe`` finds a collector at the default
    endpoint.
    `OTEL_TRACES_EXPORTER=none` and `OTEL_METRICS_EXPORTER=none` hold whatever else is said.
    """
    traces = _exporter_names(environ, "OTEL_TRACES_EXPORTER")
    metrics = _exporter_names(environ, "OTEL_METRICS_EXPORTER")
    through_provider = False
    exporters: tuple[str, ...]
    if settings.exporters is not None:
        exporters = settings.exporters
    elif foreign_provider or traces - {OTLP, NONE, "otlp_proto_grpc", "otlp_proto_http"}:
        exporters = ()
        through_provider = True
    elif any(environ.get(name) for name in ENDPOINT_VARIABLES):
        exporters = (OTLP,)
    else:
        exporters = (FILE, OTLP) if (probe or collector_answers)() else (FILE,)
    return Destination(
        exporters=exporters,
        traces=NONE not in traces,
        metrics=NONE not in metrics,
        through_provider=through_provider and NONE not in traces,
    )


def disabled(environ: Mapping[str, str]) -> bool:
    """Return True when nothing of ours is to be installed.

    The user's OpenTelemetry settings or ours say so, or this process is the relay. Says nothing of nonsense
    values: child processes ask too, and one line in the process that trains is enough.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return True
    if (
        environ.get("GRADEML_RELAY", "").strip()
        or environ.get("GRADEML_EXPORTER", "").strip().lower() == NONE
    ):
        return True
    names = {name.strip() for name in environ.get("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "").split(",")}
    return bool(names & {"*", INSTRUMENTOR_NAME})


def collector_answers() -> bool:
    """Return True when something listens at OTLP's default endpoint; costs at most 0.1 s."""
    try:
        with socket.create_connection(DEFAULT_COLLECTOR, PROBE_TIMEOUT_S):
            return True
    except OSError:
        return False


def without_credentials(endpoint: str) -> str:
    """Return ``endpoint`` as it may be shown: without user, password and query."""
    scheme, separator, rest = endpoint.rpartition("://")
    return f"{scheme}{separator}{rest.partition('?')[0].rpartition('@')[2]}"


def warn(text: str) -> None:
    """Write one line to stderr; silent where stderr is closed."""
    try:
        sys.stderr.write(f"grademl: {text}\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        pass


def _parse(env: Mapping[str, str], name: str, parse: Callable[[str], T], default: T) -> T:
    text = env.get(name, "").strip()
    if not text:
        return default
    try:
        return parse(text)
    except ValueError as error:
        warn(f"{name}={text!r}: {error}; the default is used")
        return default


def _exporters(text: str) -> tuple[str, ...]:
    names = {part.strip().lower() for part in text.split(",") if part.strip()}
    if names - {FILE, OTLP, NONE} or (NONE in names and len(names) > 1):
        raise ValueError("expected file, otlp, file,otlp or none")
    return tuple(name for name in (FILE, OTLP) if name in names)


def _ring_bytes(text: str) -> int:
    with suppress(ValueError):
        value = int(text)
        if MIN_RING_BYTES <= value <= MAX_RING_BYTES:
            return value
    raise ValueError(f"expected {MIN_RING_BYTES} to {MAX_RING_BYTES} bytes")


def _exit_wait(text: str) -> float:
    with suppress(ValueError):
        value = float(text)
        if 0 <= value <= MAX_EXIT_WAIT_S:
            return value
    raise ValueError(f"expected 0 to {MAX_EXIT_WAIT_S:g} s")


def _run_id(text: str) -> str:
    run_id = text.lower().replace("-", "")
    if len(run_id) != 32 or set(run_id) - set("0123456789abcdef") or not int(run_id, 16):
        raise ValueError("expected 32 hex digits, not all zero")
    return run_id


def _flag(text: str) -> bool:
    lowered = text.lower()
    if lowered in {"1", "true", "yes", "on"}:
        return True
    if lowered in {"0", "false", "no", "off"}:
        return False
    raise ValueError("expected 1 or 0")


def _absolute(text: str) -> Path:
    path = Path(text)
    try:
        return Path(os.path.abspath(path.expanduser()))
    except (OSError, RuntimeError):  # no home folder, or the working folder is gone
        return path


def _optional_path(env: Mapping[str, str], name: str) -> Path | None:
    text = env.get(name, "").strip()
    return _absolute(text) if text else None


def _state_folder(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_STATE_HOME", "").strip()
    return _absolute(os.path.join(base or "~/.local/state", "grademl"))


def _exporter_names(environ: Mapping[str, str], name: str) -> set[str]:
    return {part.strip().lower() for part in environ.get(name, "").split(",") if part.strip()}
