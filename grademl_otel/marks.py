# SPDX-License-Identifier: Apache-2.0
"""The mark: the only thing that a hook writes, and all that a relay reads.

A mark is one fixed-size record of 64 bytes in native little-endian order::

    seq:u64 check:u32 kind:u16 lane:u16 t0:i64 t1:i64 row:i64 x:i64 y:i64 z:i64

``t0`` and ``t1`` are ``time.perf_counter_ns()``; ``lane`` is the string id of the lane's name. What ``row``,
``x``, ``y`` and ``z`` mean depends on the kind:

=============  =====================  ======================  ==========================  ====================
kind           row                    x                       y                           z
=============  =====================  ======================  ==========================  ====================
1 + phase      serial of the open     item (see `pack_item`)  phase's own number: bytes   string id of a
               row, 0 outside rows    or -1                   of a checkpoint, 1 of an    detail, 0 for none
                                                              update that was skipped,
                                                              else 0
128 + phase    serial of the row      -1                      start of the host's phase   0
ROW            serial of the row      step number             flags | micro << 8          samples
                                                              | pass serial << 32
ROW_CONTEXT    serial of the row      flags foreseen          number foreseen             0
ROW_LINK       serial of the row      trace id, upper half    trace id, lower half        span id
ROW_DEVICE     serial of the row      device times lost       0                           0
ROW_SAID       serial of the row      0                       0                           0
ROW_BESIDE     serial of the row      number of collectives   0                           0
DEVICE_MEMORY  1 + device's number    bytes allocated         bytes reserved              most ever allocated
SCOPE_OPEN     serial of the scope    parent scope or 0       index into `SCOPES`         its number or -1
SCOPE_CLOSE    serial of the scope    0 ok, 1 error           index into `SCOPES` (final) string id of error
SCOPE_INT      serial of the scope    string id of the key    value                       0
SCOPE_BOOL     serial of the scope    string id of the key    0 or 1                      0
SCOPE_TEXT     serial of the scope    string id of the key    string id of the value      0
SCOPE_DOUBLE   serial of the scope    string id of the key    bits of the double          0
RUN_INFO       serial of run's scope  string id of RunInfo's  0, or 1: provisional        0
                                      JSON
=============  =====================  ======================  ==========================  ====================

A *row* is one row of the step table: a training step, an evaluation step or an incomplete one. Its kind and
step number are known only when it closes, so phases refer to its serial and the ROW mark, written last, gives
the rest. Phases of a row that never closes stand outside rows. ROW_CONTEXT says that somebody outside got
the ids of its span, in the trace of the step that was foreseen then; ROW_LINK, that a span of the user's
was current when the row began. Both come before the row's ROW.

What a device did for a phase of a row (128 + phase, in a lane of its own) is known later than the phase,
often after the row's ROW, which then has the flag `DEVICE_LATER`; all of it is there when the row's
ROW_DEVICE comes.

ROW_SAID says that the program itself told where the row begins and ends. A phase that the program named has a
kind of `USER_KINDS` and its name in ``z``, in ``y`` the string id of the exception that left it, or 0.

A collective's ``x`` is `pack_item` of the string id of its group (16 hex digits, a slash, the number of
members) and its number there, -1 where it could not be named; ``y`` is `pack_collective`; ``z`` the string id
of the operation. Its row is the one that was open when it was issued; the mark comes at its end, which may be
after the row's ROW. Then ROW_BESIDE came before that, with the number of collectives of the row that went on
beside the thread.

A checkpoint's ``x`` is its number where it is saved in the background and this is the part for which the
thread waits, else -1; its ``z`` the string id of its format and, after a colon, the type of the error that it
failed with.

A compilation's ``x`` is the string id of the reason why its function is compiled again, or -1; ``y`` is
`pack_compilation`; ``z`` the string id of the function's name and, after a colon, the type of the error that
it failed with.

A *scope* is a span of the workflow: the run, a pass over a loader (an epoch or an evaluation: which one is
known at its close), a fit, a trial; and the background part of a checkpoint, whose number is that of its
other part. Serials are unique in a ring, start at 1 and never repeat.

A rank that trains before its process group exists does not know yet which run it is part of: its first
RUN_INFO is provisional (a space comes before the JSON), and nothing is told of the run before a firm one
follows, or the process has died without.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from struct import Struct
from typing import Any, Final

from grademl_otel import semconv

MARK: Final = Struct("<QIHHqqqqqq")
MARK_SIZE: Final = MARK.size
assert MARK_SIZE == 64

PHASE_BASE: Final = 1
ROW: Final = 64
SCOPE_OPEN: Final = 65
SCOPE_CLOSE: Final = 66
SCOPE_INT: Final = 67
SCOPE_TEXT: Final = 68
SCOPE_DOUBLE: Final = 69
SCOPE_BOOL: Final = 70
RUN_INFO: Final = 71
PROVISIONAL: Final = 1
"""``y`` of a RUN_INFO that another may follow."""
ROW_CONTEXT: Final = 72
ROW_LINK: Final = 73
ROW_SAID: Final = 76
ROW_DEVICE: Final = 74
DEVICE_MEMORY: Final = 75
ROW_BESIDE: Final = 77
DEVICE_BASE: Final = 128
"""Kind of what a device did for phase 0."""

DEVICE_LATER: Final = 32
"""Among the flags of a ROW: times of a device are to come, up to the row's ROW_DEVICE. Not a flag of the step
table.
"""
SEVERAL: Final = 64
"""Among the flags of a ROW: it stands for ``z`` training steps in a row, of which only the ends were seen;
their samples and micro-batches are not known. Not a flag of the step table.
"""
UNSAMPLED: Final = 128
"""Among the flags of a ROW: the user's sampler wants no spans of this step. Not a flag of the step table."""

SCOPES: Final[tuple[str, ...]] = (
    semconv.RUN,
    semconv.FIT,
    semconv.EPOCH,
    semconv.EVALUATE,
    semconv.PREDICT,
    semconv.TRIAL,
    semconv.CHECKPOINT_SAVE,
)
"""Names of scopes in the order of their numbers in a mark. Append only."""
SCOPE_INDEX: Final[dict[str, int]] = {name: index for index, name in enumerate(SCOPES)}

RUN_SCOPE: Final = 1
"""Serial of the run's own scope."""

_BATCH_BITS: Final = 40
_BATCH_MASK: Final = (1 << _BATCH_BITS) - 1


COMPILE_FRAME: Final = 0
"""In a compilation's mark: Dynamo compiles a function."""
COMPILE_BACKWARD: Final = 1
"""The backward of one, when it is first needed."""
COMPILE_CUDA_GRAPH: Final = 2
"""The recording of a CUDA graph of one."""


USER_KINDS: Final = range(40, ROW)
"""Kinds of phases that the program names: one for each name, in the order of their first use in the run."""
assert PHASE_BASE + len(semconv.PHASES) <= USER_KINDS.start


def phase_kind(name: str) -> int:
    """Return the kind of the mark of phase ``name``."""
    return PHASE_BASE + semconv.PHASE_INDEX[name]


def device_kind(name: str) -> int:
    """Return the kind of the mark of what a device did for phase ``name``."""
    return DEVICE_BASE + semconv.PHASE_INDEX[name]


def phase_of(kind: int) -> str:
    """Return the name of the phase that a mark of this kind tells of, of the host or of a device."""
    if kind < DEVICE_BASE:
        return semconv.PHASES[kind - PHASE_BASE]
    return semconv.DEVICE_PREFIX + semconv.PHASES[kind - DEVICE_BASE]


def pack_item(pass_serial: int, batch: int) -> int:
    """Return one integer for batch ``batch`` of the pass ``pass_serial`` over a loader."""
    return pass_serial << _BATCH_BITS | batch


def unpack_item(item: int) -> tuple[int, int]:
    """Return (pass serial, batch) of :func:`pack_item`."""
    return item >> _BATCH_BITS, item & _BATCH_MASK


def pack_collective(size: int, completed: bool, blocking: bool) -> int:
    """Return the ``y`` of a collective of ``size`` bytes; ``completed``: t1 is its completion, not the return
    of the call that issued it; ``blocking``: its thread stood still for it.
    """
    return size << 2 | completed << 1 | blocking


def unpack_collective(y: int) -> tuple[int, bool, bool]:
    """Return (bytes, completed, blocking) of :func:`pack_collective`."""
    return y >> 2, bool(y & 2), bool(y & 1)


def pack_row(flags: int, micro: int, pass_serial: int) -> int:
    """Return the ``y`` of a ROW mark; ``micro`` is capped at 2^24 - 1."""
    return flags | min(micro, 0xFFFFFF) << 8 | pass_serial << 32


def unpack_row(y: int) -> tuple[int, int, int]:
    """Return (flags, micro, pass serial) of :func:`pack_row`."""
    return y & 0xFF, y >> 8 & 0xFFFFFF, y >> 32


def pack_compilation(frame: int, version: int, what: int) -> int:
    """Return the ``y`` of a compilation's mark: Dynamo's numbers of the frame and of this time; -1 unknown.

    ``what`` is `COMPILE_FRAME`, `COMPILE_BACKWARD` or `COMPILE_CUDA_GRAPH`.
    """
    return min(max(frame, -1) + 1, 0x7FFFFFFF) << 32 | min(max(version, -1) + 1, 0xFFFFFF) << 8 | what


def unpack_compilation(y: int) -> tuple[int, int, int]:
    """Return (frame, version, what) of :func:`pack_compilation`."""
    return (y >> 32) - 1, (y >> 8 & 0xFFFFFF) - 1, y & 0xFF


def pack_half(number: int) -> int:
    """Return an unsigned 64-bit number, as an id has, as the signed one that a mark holds."""
    return number - (1 << 64) if number >> 63 else number


def unpack_half(number: int) -> int:
    """Return the unsigned number of :func:`pack_half`."""
    return number & (1 << 64) - 1


@dataclass(frozen=True)
class RunInfo:
    """What the relay must know of a run before it can name a single span; travels as JSON in the ring.

    No header, credential or environment variable is part of it: those stay in the relay's own environment.
    """

    run_id: str
    attempt: int
    rank: int
    local_rank: int
    world_size: int
    perf_to_unix_ns: int
    """Add to ``perf_counter_ns`` to get Unix time; fixed for the run, so that durations never change."""
    exporters: tuple[str, ...]
    """``file``, ``otlp``, both, or empty for none."""
    store: str
    """Absolute path of the folder of run folders, used when ``file`` is among the exporters."""
    script: str
    resource: dict[str, Any] = field(default_factory=dict)
    """Attributes of the process' OpenTelemetry resource, grademl.* identity included."""
    traces: bool = True
    """False when the user's OpenTelemetry settings ask for no spans."""
    metrics: bool = True
    parent: str = ""
    """Run id, attempt and rank, with slashes between, of the run of the process that started this one."""
    links: tuple[tuple[str, str], ...] = ()
    """Trace id and span id, in hex, of the span that this process was launched in."""
    needs_work: bool = False
    """Nobody hears of the run before its first training step or second row: in a notebook, where a cell that
    looks at a batch is no run."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> RunInfo:
        """Parse :meth:`to_json`; raises ValueError or TypeError on anything else."""
        values = json.loads(text)
        values["exporters"] = tuple(values["exporters"])
        values["links"] = tuple((str(trace), str(span)) for trace, span in values.get("links", ()))
        return cls(**values)


# --- Accumulators: cumulative totals in the ring's header ---------------------------------------------------
# They survive lost marks and a restarted relay. All int64.
ACC_STEPS: Final = 0
ACC_EVAL_STEPS: Final = 1
ACC_INCOMPLETE: Final = 2
ACC_SAMPLES: Final = 3
ACC_COST_NS: Final = 4
"""The tracer's own time, estimated from the steps in which it was measured."""
ACC_STEP_SUM_NS: Final = 5
ACC_LOST: Final = 6
"""Marks that the process itself gave up (not laps: those the reader counts)."""
ACC_PHASE_SUM_NS: Final = 8
MAX_PHASES: Final = 63
ACC_PHASE_COUNT: Final = ACC_PHASE_SUM_NS + MAX_PHASES
ACC_HISTOGRAM: Final = ACC_PHASE_COUNT + MAX_PHASES
"""Step durations counted in the buckets of `semconv.STEP_DURATION_BOUNDS_S`, one more than these."""
ACC_USER_NAMES: Final = ACC_HISTOGRAM + 32
"""String ids of the names that the kinds of `USER_KINDS` stand for in this run, in their order."""
ACC_SLOTS: Final = ACC_USER_NAMES + len(USER_KINDS)


def has_worked(totals: Sequence[int]) -> bool:
    """Whether a run with these accumulators made a training step, or more than one row of any kind."""
    steps, evaluations, incomplete = (totals[slot] for slot in (ACC_STEPS, ACC_EVAL_STEPS, ACC_INCOMPLETE))
    return steps > 0 or evaluations + incomplete > 1
