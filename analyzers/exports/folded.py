# SPDX-License-Identifier: Apache-2.0
"""`grademl export --to folded`: stacks for flame graphs, a line each: frames, and the time that was theirs.

The format is that of Brendan Gregg's FlameGraph: frames from the outermost, a `;` between two, a space, a
number; here ns, exactly. Of time (the default) the number is *self time*: what a phase took while none of its
parts ran, so that all numbers together are all time that anything ran. Of the path they are the length of the
critical path, to the nanosecond.
"""

from __future__ import annotations

from collections import defaultdict
from typing import IO, Final

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.errors import NothingFound
from grademl_otel.analyzers.execution.beside import LOADER_WORKER
from grademl_otel.analyzers.execution.model import BESIDE, SELF, Types
from grademl_otel.analyzers.execution.of_run import RANK
from grademl_otel.analyzers.execution.whole import ExecutionModel, execution_model
from grademl_otel.analyzers.exports.forms import PATH, TIME
from grademl_otel.analyzers.graph.path import KINDS
from grademl_otel.analyzers.modelled import model_of
from grademl_otel.analyzers.printable import clean
from grademl_otel.analyzers.subject import Subject
from grademl_otel.analyzers.tables.material import MadePath, material

MAIN: Final = "main"
_ESCAPED: Final = str.maketrans({";": "\uff1b", " ": "\u00a0"})
"""What divides frames, and a stack from its number, as characters that look alike."""
_MOST_FRAMES: Final = 500
"""Of a stack of time: what is within itself thousands of times would be gigabytes."""
_DEEPER: Final = "..."

Stack = tuple[str, ...]


def write(about: Subject, file: IO[bytes], of: str = TIME) -> dict[str, int]:
    """Write the stacks of `TIME` or of the critical `PATH`, sorted; return how many, and their time in ns."""
    stacks = _of_path(material(about).made_path) if of == PATH else _of_time(about)
    if not stacks:
        raise NothingFound(f"{about.telemetry.uri}: nothing in it took any time")
    for stack in sorted(stacks):
        file.write(f"{';'.join(map(frame, stack))} {stacks[stack]}\n".encode())
    return {"stacks": len(stacks), "nanoseconds": sum(stacks.values())}


def frame(name: str) -> str:
    """Return ``name`` as a frame: without line ends, its spaces and semicolons by others that look alike."""
    return clean(name).translate(_ESCAPED)


def _of_path(made: MadePath) -> dict[Stack, int]:
    """Return the time of the sections by rank, lane, phase and kind."""
    sections = made.sections
    keys = np.stack([sections.lane, sections.phase, sections.kind], axis=1)
    distinct, which = np.unique(keys, axis=0, return_inverse=True)
    stacks: dict[Stack, int] = defaultdict(int)
    times = sections.by(which.reshape(-1), len(distinct))
    for (lane, phase, kind), ns in zip(distinct.tolist(), times.tolist(), strict=True):
        rank, name = sections.lanes[lane]
        owner = () if rank is None else (f"rank {rank}",)
        stacks[(*owner, name, sections.phases[phase], KINDS[kind])] += ns
    return {stack: ns for stack, ns in stacks.items() if ns}


def _of_time(about: Subject) -> dict[Stack, int]:
    """Return the self time of all phases by their types, below the lane in which they ran."""
    run = about.run
    model = model_of(about) if run is None else execution_model(run.spans, [run], others=False)
    phases, types = model.phases, model.types
    leaves = np.flatnonzero(phases.leaves & (phases.busy > 0))
    holder = np.where(phases.has(SELF)[leaves], phases.parent[leaves], leaves).astype(np.int64)
    anchor = _anchors(model)[holder] if run is not None else np.zeros(len(holder), np.int64)
    keys = np.stack([anchor, phases.type[holder].astype(np.int64)], axis=1)
    distinct, which = np.unique(keys, axis=0, return_inverse=True)
    times = np.zeros(len(distinct), np.int64)
    np.add.at(times, which.reshape(-1), phases.busy[leaves])
    stacks: dict[Stack, int] = defaultdict(int)
    shown = _shown(types)
    for (above, kind), ns in zip(distinct.tolist(), times.tolist(), strict=True):
        frames = [_DEEPER] if shown[kind] != kind else []
        top, kind = int(phases.type[above]), shown[kind]
        while kind not in (top, 0):
            frames.append(_called(types, kind))
            kind = int(types.parent[kind])
        stacks[(*_owners(model, above), *reversed(frames))] += ns
    return stacks


def _shown(types: Types) -> list[int]:
    """Return for each type the one that its stack ends with: itself, or its ancestor at `_MOST_FRAMES`."""
    depth, shown = [0], [0]
    for kind, parent in enumerate(types.parent[1:].tolist(), 1):  # a parent stands before its children
        depth.append(depth[parent] + 1)
        shown.append(kind if depth[kind] <= _MOST_FRAMES else shown[parent])
    return shown


def _called(types: Types, kind: int) -> str:
    """Return name and tags of a type as its identifier has them, but nothing escaped: it is no pattern."""
    tags = ", ".join(f"{key}={value}" for key, value in types.tags[kind])
    return f"{types.name[kind]}[{tags}]" if tags else types.name[kind]


def _anchors(model: ExecutionModel) -> IntArray:
    """Return for each phase the nearest that has time of its own: what runs beside, a rank, else the root."""
    phases = model.phases
    ranks = np.array([kind.name == RANK for kind in phases.all_kinds], np.bool_)[phases.kind]
    own = phases.has(BESIDE) | ranks
    own[0] = True
    up = np.where(own, np.arange(len(phases)), phases.parent).astype(np.int64)
    while not np.array_equal(further := up[up], up):
        up = further
    return up


def _owners(model: ExecutionModel, anchor: int) -> Stack:
    """Return the frames of an anchor: its rank, and the lane."""
    phases = model.phases
    if anchor == 0:
        return ()
    above = next((one for one in (anchor, *phases.ancestors(anchor)) if phases.name(one) == RANK), None)
    if above is None:
        return (_lane(model, anchor),)
    lane = MAIN if above == anchor else _lane(model, anchor)
    return f"{RANK} {int(phases.number[above])}", lane


def _lane(model: ExecutionModel, node: int) -> str:
    """Return what the lane is called, as in paths: `loader1-worker-0`, `stream-0.7`."""
    phases, number = model.phases, int(model.phases.number[node])
    name, label = phases.name(node), int(phases.label[node])
    said = "".join(value for _, value in phases.labels[label]) if label >= 0 else ""
    if name == LOADER_WORKER:
        name = name.replace("-", f"{said}-", 1)
    elif said:
        name = f"{name}-{said}"
    return f"{name}-{number}" if number >= 0 else name
