# SPDX-License-Identifier: Apache-2.0
"""Marks written by hand, for tests of the conversion: what a recorder would write, without a ring."""

from __future__ import annotations

import struct
from dataclasses import replace

from grademl_otel import marks, semconv
from grademl_otel.ring.reader import Mark

RUN_ID = "0123456789abcdef0123456789abcdef"
OFFSET = 1_700_000_000_000_000_000
"""Unix ns at ``perf_counter_ns`` 0."""
MS = 1_000_000
S = 1_000_000_000

INFO = marks.RunInfo(
    run_id=RUN_ID,
    attempt=0,
    rank=0,
    local_rank=0,
    world_size=1,
    perf_to_unix_ns=OFFSET,
    exporters=("file",),
    store="/nowhere",
    script="train.py",
    resource={"service.name": "trainer"},
)


class MarkScript:
    """Collects marks; ``marks`` and ``strings`` are what a `Converter` is fed."""

    def __init__(self, info: marks.RunInfo = INFO, start: int = 0, **changes: object):
        self.info = replace(info, **changes)  # type: ignore[arg-type]
        self.strings = [""]
        self.marks: list[Mark] = []
        self.open_scope(1, semconv.RUN, start)
        self.add(marks.RUN_INFO, start, start, 1, x=self.text(self.info.to_json()))

    def text(self, text: str) -> int:
        if text not in self.strings:
            self.strings.append(text)
        return self.strings.index(text)

    def add(
        self, kind: int, t0: int, t1: int, row: int, x: int = -1, y: int = 0, z: int = 0, lane: str = "main"
    ) -> None:
        self.marks.append((kind, self.text(lane), t0, t1, row, x, y, z))

    def open_scope(self, serial: int, name: str, at: int, parent: int = 1, number: int = -1) -> None:
        self.add(marks.SCOPE_OPEN, at, at, serial, x=parent, y=marks.SCOPE_INDEX[name], z=number)

    def close_scope(self, serial: int, name: str, at: int, error: str = "") -> None:
        self.add(
            marks.SCOPE_CLOSE,
            at,
            at,
            serial,
            x=int(bool(error)),
            y=marks.SCOPE_INDEX[name],
            z=self.text(error),
        )

    def scope_int(self, serial: int, key: str, value: int) -> None:
        self.add(marks.SCOPE_INT, 0, 0, serial, x=self.text(key), y=value)

    def scope_bool(self, serial: int, key: str, value: bool) -> None:
        self.add(marks.SCOPE_BOOL, 0, 0, serial, x=self.text(key), y=int(value))

    def scope_text(self, serial: int, key: str, value: str) -> None:
        self.add(marks.SCOPE_TEXT, 0, 0, serial, x=self.text(key), y=self.text(value))

    def scope_double(self, serial: int, key: str, value: float) -> None:
        bits = struct.unpack("<q", struct.pack("<d", value))[0]
        self.add(marks.SCOPE_DOUBLE, 0, 0, serial, x=self.text(key), y=bits)

    def phase(
        self,
        name: str,
        t0: int,
        t1: int,
        row: int = 0,
        item: tuple[int, int] | None = None,
        number: int = 0,
        lane: str = "main",
    ) -> None:
        packed = -1 if item is None else marks.pack_item(*item)
        self.add(marks.phase_kind(name), t0, t1, row, x=packed, y=number, lane=lane)

    def row(
        self,
        serial: int,
        step: int,
        t0: int,
        t1: int,
        flags: int = 0,
        micro: int = 1,
        pass_serial: int = 0,
        samples: int = 0,
    ) -> None:
        packed = marks.pack_row(flags, micro, pass_serial)
        self.add(marks.ROW, t0, t1, serial, x=step, y=packed, z=samples)

    def step(self, serial: int, step: int, t0: int, duration: int, pass_serial: int = 0) -> None:
        """A training step: a wait of a tenth, forward to the middle, backward to the end."""
        wait, middle, end = t0 + duration // 10, t0 + duration // 2, t0 + duration
        self.phase(semconv.DATA_WAIT, t0, wait, serial, item=(pass_serial, step) if pass_serial else None)
        self.phase(semconv.FORWARD, wait, middle, serial)
        self.phase(semconv.BACKWARD, middle, end, serial)
        self.row(serial, step, t0, end, pass_serial=pass_serial)
