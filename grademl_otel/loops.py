# SPDX-License-Identifier: Apache-2.0
"""What step inference keeps of a loop: the passes over its loaders, and the row that is open in each."""

from __future__ import annotations

from typing import Final, NamedTuple

from grademl_otel.marks import pack_item


class LoaderFacts(NamedTuple):
    """What a loader says of itself; None where it has no such thing."""

    loader: int
    """Number of the loader in this process, from 0."""
    workers: int = 0
    prefetch: int | None = None
    batch_size: int | None = None
    persistent: bool = False
    in_order: bool = True


class Row:
    """A stretch of a loop that may become a row of the step table."""

    __slots__ = (
        "backward", "batches", "failed", "forward", "fresh", "grad", "joined", "joined_at", "joined_samples",
        "last", "roots", "said", "samples", "serial", "start", "stepped",
    )  # fmt: skip

    def __init__(self, serial: int, start: int) -> None:
        self.serial = serial
        self.start = start
        self.last = start
        self.batches = 0
        self.samples = 0
        self.forward = False
        self.grad = False
        self.backward = False
        self.failed = False
        """A backward raised."""
        self.fresh = False
        """A batch has come since the last compute."""
        self.stepped: set[int] = set()
        self.roots: set[int] = set()
        self.joined = False
        """A batch of another loader belongs to it."""
        self.joined_at = start
        self.joined_samples = 0
        self.said: int | None = None
        """Its kind, where the program says itself what a step is."""

    @property
    def computed(self) -> bool:
        return self.forward or self.backward or bool(self.stepped)


PENDING: Final = 0
"""The iterator exists, nobody asked it yet."""
ACTIVE: Final = 1
"""On the stack."""
JOINED: Final = 2
"""Its batches belong to the rows of another pass."""
CLOSED: Final = 3


class Pass:
    """One pass over a loader, or the bottom of a thread's stack (serial 0)."""

    __slots__ = (
        "batches", "consumed", "ended", "eval_steps", "facts", "host", "incomplete", "interleaved", "leading",
        "made_at", "opened", "owed", "row", "serial", "state", "steps",
    )  # fmt: skip

    def __init__(self, serial: int, facts: LoaderFacts | None, made_at: int) -> None:
        self.facts = facts
        self.restart(serial, made_at)

    def restart(self, serial: int, made_at: int) -> None:
        """Become a new pass of the same iterator."""
        self.serial = serial
        self.made_at = made_at
        self.state = PENDING
        self.host: Pass | None = None
        self.interleaved = False
        self.row: Row | None = None
        self.batches = 0
        self.consumed = 0
        self.leading = 0
        """Batches asked for before the first compute: more than one means read-ahead or skipping."""
        self.ended = False
        """No ``next()`` can come any more, but a row may still run."""
        self.owed = 0
        """Rows still to come after the end, for batches that were read ahead."""
        self.opened = False
        self.steps = 0
        self.eval_steps = 0
        self.incomplete = 0

    @property
    def asked(self) -> bool:
        """Whether a batch was ever asked for."""
        return self.state != PENDING

    @property
    def item(self) -> int:
        """The packed item of the batch being asked for."""
        return pack_item(self.serial, self.batches)
