# SPDX-License-Identifier: Apache-2.0
"""Settings: every environment variable of ours, and whether the user's OpenTelemetry settings forbid us.

Configuration never stops a training: a value that makes no sense becomes one complaint, which the process
that trains shows as one line on stderr, and the default is used. Nothing is read at import; callers pass the
environment they mean.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from grademl_otel import values
from grademl_otel.semconv import DEFAULT_STORE

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
    Variable(
        "GRADEML_RUN_ID",
        "random",
        "name of a process' first run, 32 hex digits; the same for all its ranks, see [runs.md](runs.md)",
    ),
    Variable(
        "GRADEML_EXIT_WAIT", "2", "longest time in s that the exit waits until the telemetry is delivered"
    ),
    Variable(
        "GRADEML_BUDGET",
        "1",
        "what recording may cost, in per cent of a training step, 0.01 to 100; above it less is recorded:"
        " see levels.md",
    ),
    Variable(
        "GRADEML_DEVICE_TIME",
        "1",
        "0: no device times and no device memory are recorded where CUDA is in use; see devices.md",
    ),
    Variable(
        "GRADEML_GPU_INTERVAL",
        "1",
        "s between two samples of each GPU, 0.1 to 3600; 0: GPUs are not sampled; see hardware.md",
    ),
    Variable(
        "GRADEML_HOST_INTERVAL",
        "1",
        "s between two samples of the host, its network and the job's processes, 0.1 to 3600; 0: these are"
        " not sampled; see hardware.md",
    ),
    Variable("GRADEML_PROC", "$HOST_PROC, else /proc", "where the host's `/proc` is, for a container"),
    Variable("GRADEML_SYS", "$HOST_SYS, else /sys", "where the host's `/sys` is, for a container"),
    Variable(
        "GRADEML_IN_PROCESS",
        "0",
        "1: convert and export in the training process; no relay process is started",
    ),
    Variable(
        "GRADEML_RING_DIR",
        "no file: sealed memory (Linux)",
        "folder for memory-mapped rings as files, which others can truncate: only where it must be",
    ),
    Variable("GRADEML_RING_BYTES", "2097152", "size of a ring in bytes, 65536 to 1073741824"),
    Variable(
        "GRADEML_SPOOL_DIR",
        "$XDG_STATE_HOME/grademl, else ~/.local/state/grademl",
        "folder where the relay keeps what a collector did not take",
    ),
    Variable(
        "GRADEML_SPOOL_BYTES",
        "268435456",
        "size of the spool in bytes, 1048576 to 1099511627776; see collectors.md",
    ),
    Variable("GRADEML_RELAY_LOG", "no log", "file to which the relay writes what it does, to find faults"),
    Variable("GRADEML_RELAY", "-", "internal: 1 in the relay process, where nothing is instrumented"),
)
"""The one table of our variables; docs/configuration.md is written from it."""

READ_ELSEWHERE: Final = (
    "GRADEML_SOURCE", "GRADEML_HEADERS", "GRADEML_USER",
    "GRADEML_CA", "GRADEML_CLIENT_CERT", "GRADEML_CLIENT_KEY",
    "GRADEML_GATEWAYS", "GRADEML_HOST_ROOT",
)  # fmt: skip
"""What the analyzer and collector-config/ read: no typing errors where a program is recorded."""
_FAMILIES_ELSEWHERE: Final = (
    "GRADEML_COLLECTOR_", "GRADEML_DECISION_", "GRADEML_GATEWAY_", "GRADEML_HOST_METRICS_",
    "GRADEML_JAEGER_", "GRADEML_PROMETHEUS_", "GRADEML_SAMPLE_", "GRADEML_SLOW_",
    "GRADEML_SPAN_", "GRADEML_TEMPO_", "GRADEML_TEST_", "GRADEML_WRITE_",
)  # fmt: skip
"""Of the pipelines in collector-config/, of tests and benchmarks."""
_PREFIX: Final = "GRADEML_"
_FEW: Final = 3
_PATHS: Final = (
    "GRADEML_SPOOL_DIR", "GRADEML_RELAY_LOG", "GRADEML_PROC", "GRADEML_SYS", "HOST_PROC", "HOST_SYS",
)  # fmt: skip
"""Those that the relay reads, which works in another folder."""

DEFAULT_RING_BYTES: Final = 2 * 1024 * 1024
MIN_RING_BYTES: Final = 64 * 1024
MAX_RING_BYTES: Final = 1024 * 1024 * 1024
DEFAULT_SPOOL_BYTES: Final = 256 * 1024 * 1024
DEFAULT_EXIT_WAIT_S: Final = 2.0
MAX_EXIT_WAIT_S: Final = 600.0
_ring_bytes: Final = values.integer(MIN_RING_BYTES, MAX_RING_BYTES, "bytes")
_spool_bytes: Final = values.integer(1 << 20, 1 << 40, "bytes")
_otlp_timeout: Final = values.number(0.001, 1e6, "s")
_exit_wait: Final = values.number(0, MAX_EXIT_WAIT_S, "s")
DEFAULT_INTERVAL_S: Final = 1.0
LEAST_INTERVAL_S: Final = 0.1
MOST_INTERVAL_S: Final = 3600.0
DEFAULT_BUDGET: Final = 1.0
_budget: Final = values.number(0.01, 100, "per cent")

INSTRUMENTOR_NAME: Final = "grademl_torch"
GPU_INSTRUMENTOR_NAME: Final = "grademl_gpu"


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
    spool_bytes: int
    exit_wait_s: float
    budget: float
    """Per cent of a training step that recording may cost."""
    device_times: bool
    """What an asynchronous device does is recorded, too."""
    gpu_interval_s: float
    """Between two samples of a GPU; 0: none are taken."""
    host_interval_s: float
    """The same of the host, its network and the job's processes."""
    proc_dir: Path
    sys_dir: Path
    """Where the kernel tells of the host."""
    run_id: str | None
    relay_log: Path | None
    in_process: bool
    """The user asked for no relay process."""
    complaints: tuple[str, ...] = field(default=(), compare=False)
    """One line for each value that makes no sense and each name that is none of ours; see `messages`."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from ``environ`` (the process' own by default); never raises, says nothing."""
        read = _Reader(os.environ if environ is None else environ)
        return cls(
            exporters=read("GRADEML_EXPORTER", _exporters, None),
            store_dir=read("GRADEML_STORE", values.folder, _absolute(DEFAULT_STORE)),
            ring_dir=read("GRADEML_RING_DIR", values.folder, None),
            ring_bytes=read("GRADEML_RING_BYTES", _ring_bytes, DEFAULT_RING_BYTES),
            spool_dir=read("GRADEML_SPOOL_DIR", values.folder, _state_folder(read.environ)),
            spool_bytes=read("GRADEML_SPOOL_BYTES", _spool_bytes, DEFAULT_SPOOL_BYTES),
            exit_wait_s=read("GRADEML_EXIT_WAIT", _exit_wait, DEFAULT_EXIT_WAIT_S),
            budget=read("GRADEML_BUDGET", _budget, DEFAULT_BUDGET),
            device_times=read("GRADEML_DEVICE_TIME", values.flag, True),
            gpu_interval_s=read("GRADEML_GPU_INTERVAL", _interval, DEFAULT_INTERVAL_S),
            host_interval_s=read("GRADEML_HOST_INTERVAL", _interval, DEFAULT_INTERVAL_S),
            proc_dir=read("GRADEML_PROC", values.tree, Path(read.environ.get("HOST_PROC") or "/proc")),
            sys_dir=read("GRADEML_SYS", values.tree, Path(read.environ.get("HOST_SYS") or "/sys")),
            run_id=read("GRADEML_RUN_ID", _run_id, None),
            relay_log=read("GRADEML_RELAY_LOG", values.file, None),
            in_process=read("GRADEML_IN_PROCESS", values.flag, False),
            complaints=read.complaints(),
        )


def disabled(environ: Mapping[str, str], instrumentor: str = INSTRUMENTOR_NAME) -> bool:
    """Return True when nothing of ``instrumentor`` is to be installed.

    The user's OpenTelemetry settings or ours say so, or this process is the relay.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return True
    with suppress(ValueError):
        if values.flag(environ.get("GRADEML_RELAY", "0").strip()):
            return True
    if environ.get("GRADEML_EXPORTER", "").strip().lower() == NONE:
        return True
    names = {name.strip() for name in environ.get("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "").split(",")}
    return bool(names & {"*", instrumentor})


def with_absolute_paths(environ: Mapping[str, str]) -> dict[str, str]:
    """Return ``environ`` for a process that works in another folder."""
    result = dict(environ)
    for name in _PATHS:
        text = result.get(name, "").strip()
        if text:
            result[name] = str(_absolute(text))
    return result


class _Reader:
    """Reads the values of one environment and collects what is wrong with them."""

    def __init__(self, environ: Mapping[str, str]):
        self.environ = environ
        self.faults: list[str] = []

    def __call__(self, name: str, parse: Callable[[str], T], default: T) -> T:
        text = self.environ.get(name, "").strip()
        if not text:
            return default
        try:
            return parse(text)
        except ValueError as error:
            self.faults.append(f"{name}={values.shown(text)}: {error}; the default is used")
            return default

    def complaints(self) -> tuple[str, ...]:
        """All complaints, those about names that are none of ours at last."""
        self("GRADEML_RELAY", values.flag, False)
        return (*self.faults, *_unknown_names(self.environ))


def otlp_complaints(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What is wrong with OTLP settings that are then left out; for where no SDK has read and told them.

    A protocol or an endpoint that cannot be followed is none of these: nothing is sent, which the end tells.
    """
    read = _Reader(environ)
    complaints = []
    for signal in ("", "TRACES_", "METRICS_"):
        prefix = f"OTEL_EXPORTER_OTLP_{signal}"
        read(f"{prefix}TIMEOUT", _otlp_timeout, None)
        read(f"{prefix}COMPRESSION", _compression, None)
        pairs = environ.get(f"{prefix}HEADERS", "").split(",")
        if any(pair.strip() and not pair.partition("=")[2].strip() for pair in pairs):
            # The value may be a secret.
            complaints.append(f"{prefix}HEADERS: expected name=value, comma between; the rest is left out")
    return (*read.faults, *complaints)


def _unknown_names(environ: Mapping[str, str]) -> Iterator[str]:
    """One line for all names that start like ours and mean nothing: most are typing errors."""
    known = [*(variable.name for variable in VARIABLES), *READ_ELSEWHERE]
    unknown = [
        name
        for name in sorted(environ)
        if name.startswith(_PREFIX) and name not in known and not name.startswith(_FAMILIES_ELSEWHERE)
    ]
    if not unknown:
        return
    from difflib import get_close_matches  # here, because few make typing errors

    ends = [name.removeprefix(_PREFIX) for name in known]
    told = []
    for name in unknown[:_FEW]:
        near = get_close_matches(name.removeprefix(_PREFIX), ends, n=1)
        told.append(f"{name} (did you mean {_PREFIX}{near[0]}?)" if near else name)
    if len(unknown) > _FEW:
        told.append(f"{len(unknown) - _FEW} more")
    yield f"no such setting: {', '.join(told)}"


def _exporters(text: str) -> tuple[str, ...]:
    names = {part.strip().lower() for part in text.split(",") if part.strip()}
    if not names or names - {FILE, OTLP, NONE} or (NONE in names and len(names) > 1):
        raise ValueError("expected file, otlp, file,otlp or none")
    return tuple(name for name in (FILE, OTLP) if name in names)


def _compression(text: str) -> str:
    if text.lower() not in {"gzip", "deflate", "none"}:
        raise ValueError("expected gzip or none")
    return text


def _interval(text: str) -> float:
    seconds = values.number(0, MOST_INTERVAL_S, "s")(text)
    if 0 < seconds < LEAST_INTERVAL_S:
        raise ValueError(f"expected 0, or {LEAST_INTERVAL_S:g} to {MOST_INTERVAL_S:g} s")
    return seconds


def _run_id(text: str) -> str:
    run_id = text.lower().replace("-", "")
    if len(run_id) != 32 or set(run_id) - set("0123456789abcdef") or not int(run_id, 16):
        raise ValueError("expected 32 hex digits, not all zero")
    return run_id


def _absolute(text: str) -> Path:
    path = Path(text)
    try:
        return Path(os.path.abspath(path.expanduser()))
    except (OSError, RuntimeError):  # no home folder, or the working folder is gone
        return path


def _state_folder(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_STATE_HOME", "")
    return _absolute(os.path.join(base if os.path.isabs(base) else "~/.local/state", "grademl"))
