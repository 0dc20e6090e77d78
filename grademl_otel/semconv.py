# SPDX-License-Identifier: Apache-2.0
"""Every name and derived id by which the recording half and the analyzing half understand each other.

The two halves meet in telemetry only. Whatever both must agree on (span names, attribute keys, trace ids,
window numbers) is defined here and nowhere else; docs/telemetry.md describes the same in prose.
This module imports the standard library only and is free of side effects.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

SCOPE_NAME: Final = "grademl_otel"

DEFAULT_STORE: Final = "grademl-runs"
"""Folder of the runs that are kept in files, in the one that a program or command was started in."""

# --- Span names -------------------------------------------------------------------------------------------
RUN: Final = "run"
FIT: Final = "fit"
EPOCH: Final = "epoch"
EVALUATE: Final = "evaluate"
PREDICT: Final = "predict"
TRIAL: Final = "trial"
WINDOW: Final = "window"
STEP: Final = "step"

DATA_WAIT: Final = "data.wait"
DATA_FETCH: Final = "data.fetch"
DATA_COLLATE: Final = "data.collate"
DATA_TRANSFER: Final = "data.transfer"
FORWARD: Final = "forward"
RECOMPUTE: Final = "recompute"
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer"
ZERO_GRAD: Final = "zero_grad"
COLLECTIVE: Final = "collective"
COLLECTIVE_WAIT: Final = "collective.wait"
DEVICE_SYNC: Final = "device.sync"
CHECKPOINT_SAVE: Final = "checkpoint.save"
CHECKPOINT_LOAD: Final = "checkpoint.load"
COMPILE: Final = "compile"
GC: Final = "gc"
LOG: Final = "log"

PHASES: Final[tuple[str, ...]] = (
    DATA_WAIT,
    DATA_FETCH,
    DATA_COLLATE,
    DATA_TRANSFER,
    FORWARD,
    RECOMPUTE,
    BACKWARD,
    OPTIMIZER,
    ZERO_GRAD,
    COLLECTIVE,
    DEVICE_SYNC,
    CHECKPOINT_SAVE,
    CHECKPOINT_LOAD,
    COMPILE,
    GC,
    LOG,
    COLLECTIVE_WAIT,
)
"""Phases in the order of their numbers in a mark. Append only: the order is the wire format."""

PHASE_INDEX: Final[dict[str, int]] = {name: index for index, name in enumerate(PHASES)}

WAIT_PHASES: Final[frozenset[str]] = frozenset({DATA_WAIT, DEVICE_SYNC, COLLECTIVE_WAIT})
"""Phases that are waits as a whole. Of a collective only the part before the last arrival is one."""

WORKER_PHASES: Final[tuple[str, ...]] = (DATA_FETCH, DATA_COLLATE)
"""Phases that run in a loader worker's lane, or inside `data.wait` when the loader has no workers."""

DEVICE_PREFIX: Final = "device."
"""What a device did for a phase has the phase's name after this: `device.forward`, in spans and tables."""
DEVICE_PHASES: Final[tuple[str, ...]] = (DATA_TRANSFER, FORWARD, BACKWARD, OPTIMIZER)
"""Phases whose time on an asynchronous device is recorded beside that of the host."""

USER_PREFIX: Final = "user."
"""In step tables a phase that the program named has its name after this; so has, everywhere, one whose name
is taken."""
SAYABLE: Final[frozenset[str]] = frozenset(
    {
        DATA_WAIT, DATA_TRANSFER, FORWARD, BACKWARD, OPTIMIZER, ZERO_GRAD, DEVICE_SYNC, CHECKPOINT_SAVE,
        CHECKPOINT_LOAD, LOG,
    }
)  # fmt: skip
"""Phases that a program may name itself, to be told as those that are seen."""
RESERVED: Final[frozenset[str]] = (
    frozenset(PHASES) - SAYABLE
    | {RUN, FIT, EPOCH, EVALUATE, PREDICT, TRIAL, WINDOW, STEP}
    | {"start-up", "epoch gap", "teardown", "idle", "untraced", "other", "loader start"}
)
"""Names that a phase of the program's own cannot have: they are other spans', or the analyzer's."""

# --- Attribute keys ---------------------------------------------------------------------------------------
# On the resource (identity of the process that did the work)
RUN_ID: Final = "grademl.run.id"  # str, 32 hex digits
ATTEMPT: Final = "grademl.attempt"  # int, the launcher's restart count
RANK: Final = "grademl.rank"  # int
LOCAL_RANK: Final = "grademl.local_rank"  # int
WORLD_SIZE: Final = "grademl.world_size"  # int
CLOCK_ID: Final = "grademl.clock.id"  # str, one per host boot
JOB_LAUNCHER: Final = "grademl.job.launcher"  # str: torchrun, ray, torch, slurm, flux, horovod, mpi, lsf
JOB_ID: Final = "grademl.job.id"  # str
JOB_STEP: Final = "grademl.job.step"  # str
JOB_NAME: Final = "grademl.job.name"  # str
JOB_NODE: Final = "grademl.job.node"  # str
JOB_INDEX: Final = "grademl.job.index"  # str, in an array of jobs
JOB_ELASTIC_ID: Final = "grademl.job.elastic_id"  # str, torchrun's rendezvous id
JOB_RESTARTS: Final = "grademl.job.restarts"  # int, as the launcher counts them
JOB_RANK: Final = "grademl.job.rank"  # int, the launcher's rank, which need not be one of the run
JOB_WORLD_SIZE: Final = "grademl.job.world_size"  # int, tasks that the launcher started
JOB_PLATFORM: Final = "grademl.job.platform"  # str: slurm, lsf, pbs, kubernetes, sagemaker, ...
JOB_NODES: Final = "grademl.job.nodes"  # int, hosts of the job
FRAMEWORK_NAME: Final = "grademl.framework.name"  # str
FRAMEWORK_VERSION: Final = "grademl.framework.version"  # str
FRAMEWORKS: Final = "grademl.frameworks"  # str[], "name==version" of what is installed
ACCELERATOR_VENDOR: Final = "grademl.accelerator.vendor"  # str: nvidia, amd, intel, habana, aws, google
ACCELERATOR_MODEL: Final = "grademl.accelerator.model"  # str, several with commas between
ACCELERATOR_COUNT: Final = "grademl.accelerator.count"  # int, on this host or in this container
ACCELERATOR_VISIBLE: Final = "grademl.accelerator.visible"  # int, that CUDA_VISIBLE_DEVICES and such leave
ACCELERATOR_MEMORY: Final = "grademl.accelerator.memory"  # int, bytes of one; absent where they differ
ACCELERATOR_DRIVER: Final = "grademl.accelerator.driver.version"  # str
ACCELERATOR_CUDA: Final = "grademl.accelerator.cuda.version"  # str
ACCELERATOR_ROCM: Final = "grademl.accelerator.rocm.version"  # str
SOURCE_DIRTY: Final = "grademl.source.dirty"  # bool: tracked files differ from the commit
SOURCE_REVISION: Final = "vcs.ref.head.revision"  # str, the commit in hex
SOURCE_BRANCH: Final = "vcs.ref.head.name"  # str
SOURCE_REPOSITORY: Final = "vcs.repository.url.full"  # str, without credentials
CONTAINER_ID: Final = "container.id"  # str
CONTAINER_RUNTIME: Final = "container.runtime.name"  # str: docker, podman, containerd, apptainer, ...
CONTAINER_IMAGE: Final = "container.image.name"  # str
RUNTIME_NAME: Final = "process.runtime.name"  # str
RUNTIME_VERSION: Final = "process.runtime.version"  # str

# On spans
LANE: Final = "grademl.lane"  # str: main, loader-worker-3, stream-0.0
STEP_NUMBER: Final = "grademl.step"  # int, completed updates before this step
STEP_KIND: Final = "grademl.step.kind"  # str: train, evaluate, incomplete
STEP_MICRO: Final = "grademl.step.micro"  # int, micro-batches
STEP_SAMPLES: Final = "grademl.step.samples"  # int
STEP_SKIPPED: Final = "grademl.step.skipped"  # int, updates that a scaler skipped
STEP_OUTLIER: Final = "grademl.step.outlier"  # true on steps of twice the median of those before, or longer
EPOCH_NUMBER: Final = "grademl.epoch"  # int, completed training passes before this one
PHASE: Final = "grademl.phase"  # str
ITEM: Final = "grademl.item"  # str "<pass>:<batch>": ties a fetch to the wait that it ends
WEIGHT: Final = "grademl.weight"  # int, how many steps this one stands for; 0 for a kept outlier
EVIDENCE: Final = "grademl.evidence"  # str: observed, attribute, inferred
LINK_KIND: Final = "grademl.link.kind"  # str on a link: run, parent, blocking, follows, host
COLLECTIVE_KEY: Final = "grademl.collective"  # str "<16 hex>:<sequence>": ties the same one across ranks
COLLECTIVE_OP: Final = "grademl.collective.op"  # str: all_reduce, all_gather, send, barrier, ...
COLLECTIVE_SIZE: Final = "grademl.collective.size"  # int, members of the group
COLLECTIVE_BLOCKING: Final = "grademl.collective.blocking"  # bool: the caller stood still in the call
COLLECTIVE_COMPLETED: Final = "grademl.collective.completed"  # bool: its completion was observed
BYTES: Final = "grademl.bytes"  # int: written, read or sent
COMPILE_ID: Final = "grademl.compile.id"  # str "<frame>/<version>", as in Dynamo's own logs
COMPILE_FUNCTION: Final = "grademl.compile.function"  # str: the function that is compiled
COMPILE_TRIGGER: Final = "grademl.compile.trigger"  # str: frame, backward, cuda_graph
COMPILE_AGAIN: Final = "grademl.compile.recompile"  # bool: the function was compiled before
COMPILE_REASON: Final = "grademl.compile.reason"  # str: why again, as Dynamo says it
CHECKPOINT_FORMAT: Final = "grademl.checkpoint.format"  # str: torch, safetensors, distributed
CHECKPOINT_NUMBER: Final = "grademl.checkpoint"  # int: ties the parts of one that is saved in the background
CHECKPOINT_PART: Final = "grademl.checkpoint.part"  # str on both parts: blocking, background
CHECKPOINT_COMPLETED: Final = "grademl.checkpoint.completed"  # bool on the background part
RUN_NAME: Final = "grademl.run.name"  # str on run and trial: the user's own name for it
RUN_PARENT: Final = "grademl.run.parent"  # str on run: run id of the process that started this one
SCRIPT: Final = "grademl.script"  # str on run and windows: base name of the program
DEVICE: Final = "grademl.device"  # str on run and windows
GPU_ID: Final = "grademl.gpu.id"  # str[] on run and windows: hw.id of the GPUs that the rank uses
EXPORTERS: Final = "grademl.exporters"  # str[] on run: where the telemetry went
DEVICE_MEMORY_INDEX: Final = "grademl.device.memory.index"  # int[] on windows: devices of the following
DEVICE_MEMORY_ALLOCATED: Final = "grademl.device.memory.allocated"  # int[] on windows, bytes
DEVICE_MEMORY_RESERVED: Final = "grademl.device.memory.reserved"  # int[] on windows, bytes
DEVICE_MEMORY_PEAK: Final = "grademl.device.memory.peak"  # int[] on windows, bytes allocated at most
DEVICE_DROPPED: Final = "grademl.device.dropped"  # int on windows: device times that were given up
TERMINATED: Final = "grademl.terminated"  # str on spans closed by the relay: killed
RECOVERED: Final = "grademl.recovered"  # true on a run whose process was gone before a relay served it
OPEN_PHASE: Final = "grademl.open_phase"  # str on run: what the process died in; on windows: what runs now
OPEN_SINCE: Final = "grademl.open_since"  # int on windows, Unix ns: since when that phase runs
ENDED: Final = "grademl.ended"  # str on run: exit, exception, killed
STEPS_TOTAL: Final = "grademl.steps"  # int on run and passes: training steps
EVAL_STEPS_TOTAL: Final = "grademl.eval_steps"  # int on run and passes: evaluation steps
INCOMPLETE_STEPS_TOTAL: Final = "grademl.incomplete_steps"  # int on run
TRACER_COST: Final = "grademl.tracer.cost_fraction"  # double on run: own time / wall time
TRACER_DROPPED: Final = "grademl.tracer.dropped"  # int on run and windows: marks lost
TRACER_UNSENT: Final = "grademl.tracer.unsent"  # int on run: spans lost on their way, before this one
GATEWAY_PERCENT: Final = "grademl.gateway.percent"  # int or double on run and windows: of steps, kept
SPANS_EMITTED: Final = "grademl.spans.emitted"  # int on run and windows: spans sent by this rank so far
PASSES_LEFT_OUT: Final = "grademl.left_out.passes"  # int on run and windows: passes that had no room
PHASES_LEFT_OUT: Final = "grademl.left_out.phases"  # int on run and windows: the same of checkpoints

LOADER_ID: Final = "grademl.loader.id"
LOADER_WORKERS: Final = "grademl.loader.workers"
LOADER_PREFETCH: Final = "grademl.loader.prefetch"  # batches prepared ahead per worker
LOADER_BATCH_SIZE: Final = "grademl.loader.batch_size"
LOADER_PERSISTENT: Final = "grademl.loader.persistent"  # bool
LOADER_IN_ORDER: Final = "grademl.loader.in_order"  # bool

WINDOW_NUMBER: Final = "grademl.window"  # int
WINDOW_PART: Final = "grademl.window.part"  # int
WINDOW_LAST: Final = "grademl.window.last"  # bool: no further part of this window follows
WINDOW_STEPS_SO_FAR: Final = "grademl.window.cumulative_steps"  # int: training steps of this rank up to here
WINDOW_EVAL_SO_FAR: Final = "grademl.window.cumulative_eval_steps"  # int
WINDOW_ROWS_SO_FAR: Final = "grademl.window.cumulative_rows"  # int: rows of all parts up to and with this one
WINDOW_DETAIL_LEVEL: Final = "grademl.window.detail_level"  # int L: kept when the hash has L trailing zeros
WINDOW_RECORD_LEVEL: Final = "grademl.window.record_level"  # int, 0 = all phases
WINDOW_RECORD_REASON: Final = "grademl.window.record_reason"  # str
WINDOW_LANES: Final = "grademl.window.lanes"  # str[]: lanes of the rows, where they are not all in `main`

TABLE_VERSION: Final = "grademl.table.version"
TABLE_PREFIX: Final = "grademl.table."

RESOURCES_PREFIX: Final = "grademl.resources."
"""Resource tables: what devices and the host did, on window and run spans, see docs/telemetry.md."""
RESOURCES_VERSION: Final = "grademl.resources.version"  # int
RESOURCES_START: Final = "grademl.resources.start_us"  # int, of the first bin, from the start of the span
RESOURCES_BIN: Final = "grademl.resources.bin_ms"  # int, length of a bin
RESOURCES_BINS: Final = "grademl.resources.bins"  # int, how many
RESOURCES_ABSENT: Final = -1
"""In a column: nothing is known of that device in that bin."""

FLAG_OUTLIER: Final = 1
FLAG_INCOMPLETE: Final = 2
FLAG_EVALUATE: Final = 4
FLAG_DETAILED: Final = 8
FLAG_SKIPPED: Final = 16

# --- Metric names -----------------------------------------------------------------------------------------
METRIC_STEP_DURATION: Final = "grademl.step.duration"  # histogram, s
METRIC_PHASE_TIME: Final = "grademl.phase.time"  # cumulative sum, s, attribute grademl.phase
METRIC_STEPS: Final = "grademl.steps"  # cumulative sum, {step}, attribute grademl.step.kind
METRIC_SAMPLES: Final = "grademl.samples"  # cumulative sum, {sample}
METRIC_TRACER_COST: Final = "grademl.tracer.cost"  # cumulative sum, s
METRIC_TRACER_LOST: Final = "grademl.tracer.lost"  # cumulative sum, {mark}
METRIC_TRACER_UNSENT: Final = "grademl.tracer.unsent"  # cumulative sum, {span}, attribute grademl.reason

REASON: Final = "grademl.reason"  # str on METRIC_TRACER_UNSENT: one of the following
UNSENT_SPOOLED: Final = "spooled"  # put into the spool at some time; sent since, or not yet
UNSENT_DROPPED: Final = "dropped"  # given up by us: no room, no place, too old
UNSENT_REFUSED: Final = "refused"  # refused by the destination for good

STEP_DURATION_BOUNDS_S: Final[tuple[float, ...]] = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0,
)  # fmt: skip

# --- Derived ids ------------------------------------------------------------------------------------------
# Ranks and the analyzer compute the same ids without talking to each other.
TRACE_RUN: Final = "run"
TRACE_WINDOW: Final = "window"
TRACE_STEP: Final = "step"
TRACE_EVAL_STEP: Final = "evalstep"
TRACE_INCOMPLETE_STEP: Final = "incomplete"

RANKS_PER_RUN_SHARD: Final = 64
"""Ranks that share a trace of the run."""
RANKS_PER_SHARD: Final = 16
"""Ranks that share a trace of a window."""
PARTS_PER_SHARD: Final = 16
"""Parts of a window that share a trace; fewer where many ranks share it, see `parts_per_shard`."""
_WINDOWS_PER_SHARD: Final = 64
MAX_SPANS_PER_TRACE: Final = 2000
MAX_BYTES_PER_TRACE: Final = 5_000_000
MAX_ROWS_PER_PART: Final = 512
MAX_STEPS_PER_ROW: Final = 4096
SLOW_STEP_NS: Final = 100_000_000
"""Steps of at least this length always keep their detail: they are rare enough per second to afford it."""


def trace_id(run_id: str, attempt: int, kind: str, number: int = 0, shard: int = 0) -> int:
    """Return the 128-bit trace id of one part of a run; never 0.

    The id is the first 16 bytes of SHA-256 over ``run_id/attempt/kind/number/shard`` in ASCII.
    """
    text = f"{run_id}/{attempt}/{kind}/{number}/{shard}"
    return int.from_bytes(sha256(text.encode("ascii")).digest()[:16], "big") or 1


def span_id(run_id: str, attempt: int, kind: str, number: int = 0, rank: int = 0, part: int = 0) -> int:
    """Return the 64-bit id of a span that others must be able to point at without having seen it; never 0."""
    text = f"span/{run_id}/{attempt}/{kind}/{number}/{rank}/{part}"
    return int.from_bytes(sha256(text.encode("ascii")).digest()[:8], "big") or 1


def event_id(base: int, sequence: int) -> int:
    """Return the 64-bit id of what the mark ``sequence`` of a ring tells, under the ring's ``base``; never 0.

    SplitMix64: different marks of a ring never get the same id. The base is ``span_id(run, attempt, "mark",
    0, rank)``; whoever converts the same mark again names its span the same.
    """
    value = base + sequence * 0x9E3779B97F4A7C15 & _U64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _U64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _U64
    return value ^ value >> 31 or 1


_U64: Final = (1 << 64) - 1


def run_shard(rank: int) -> int:
    """Return the shard of the run's trace that holds the scopes of ``rank``; shard 0 is that of rank 0."""
    return rank // RANKS_PER_RUN_SHARD


def ranks_per_shard(world_size: int) -> int:
    """Return how many ranks share a trace of a window, a power of two; a ``world_size`` of 0 is not known."""
    return min(RANKS_PER_SHARD, 1 << (world_size - 1).bit_length()) if world_size else RANKS_PER_SHARD


def parts_per_shard(world_size: int) -> int:
    """Return how many parts of a rank share a trace of a window; ``world_size`` is what that rank says."""
    return min(PARTS_PER_SHARD, _WINDOWS_PER_SHARD // ranks_per_shard(world_size))


def window_shard(rank: int, part: int, world_size: int) -> int:
    """Return the shard of a window's trace that holds ``part`` of ``rank``."""
    return (rank // RANKS_PER_SHARD) * 65536 + part // parts_per_shard(world_size)


_FIRST_WINDOW: Final = 16
_DOUBLINGS: Final = 8  # 16, 32, ... 4,096, then constant
_LAST_WINDOW: Final = _FIRST_WINDOW << _DOUBLINGS
_CONSTANT_FROM: Final = _LAST_WINDOW - _FIRST_WINDOW  # first step of the first window of constant length


def window_of_step(step: int) -> int:
    """Return the number of the window that holds ``step``; a pure function, so that all ranks agree."""
    if step < _CONSTANT_FROM:
        return (step // _FIRST_WINDOW + 1).bit_length() - 1
    return _DOUBLINGS + (step - _CONSTANT_FROM) // _LAST_WINDOW


def window_first_step(window: int) -> int:
    """Return the first step of ``window``; the inverse of :func:`window_of_step`."""
    if window <= _DOUBLINGS:
        return (_FIRST_WINDOW << window) - _FIRST_WINDOW
    return _CONSTANT_FROM + (window - _DOUBLINGS) * _LAST_WINDOW


def detail_bits(run_id: str, step: int) -> int:
    """Return the number of trailing zero bits of hash(run, step), 0 to 64.

    A step's detail is kept at level L when this is at least L, so that kept sets are nested: whatever level
    each rank has reached, the coarsest rank's steps are kept on all.
    """
    value = int.from_bytes(sha256(f"{run_id}/{step}".encode("ascii")).digest()[:8], "big")
    return 64 if value == 0 else (value & -value).bit_length() - 1
