# SPDX-License-Identifier: Apache-2.0
"""Rings that chance or malice has changed: whatever is in them, only spans come out that could be true."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from zlib import crc32

import pytest

from grademl_otel import marks, semconv
from grademl_otel.config import Settings
from grademl_otel.convert.emitter import UNNAMED
from grademl_otel.convert.spans import Metric, Resource, Span
from grademl_otel.digest import destination_digest
from grademl_otel.export.otlp import trace_requests
from grademl_otel.export.otlpjson import metric_line, trace_line
from grademl_otel.pump import Pump, Sink
from grademl_otel.ring import layout
from grademl_otel.ring.reader import RingCorrupt, RingReader
from grademl_otel.ring.writer import RingWriter

from ..support.mark_script import MS, MarkScript
from ..support.relays import Workplace, until

RING_BYTES = 64 * 1024
GEOMETRY = layout.geometry(RING_BYTES)
STEPS = 4
MUTATIONS = 10_000
THROUGH_A_RELAY = 300
WORST = (0, 1, -1, 2, 255, 65_535, 1 << 31, 1 << 53, (1 << 62) + 5, (1 << 63) - 1, -(1 << 63), -7)
"""Values of fields that are more often wrong than others."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, int]:
    """A ring of a short run with all kinds of marks, and how many these are."""
    folder = tmp_path_factory.mktemp("written")
    ring = RingWriter.create(
        Settings.from_env({"GRADEML_RING_DIR": str(folder), "GRADEML_RING_BYTES": str(RING_BYTES)})
    )
    now = time.perf_counter_ns()
    start = now - 2 * STEPS * 10 * MS
    script = MarkScript(start=start, perf_to_unix_ns=time.time_ns() - now, store=str(folder))
    script.open_scope(2, semconv.EPOCH, start, number=0)
    for step in range(STEPS):
        script.phase(semconv.DATA_FETCH, start, start + MS, 10 + step, item=(2, step), lane="loader-worker-0")
        script.step(10 + step, step, start + 10 * step * MS, 9 * MS, pass_serial=2)
    script.phase(semconv.CHECKPOINT_SAVE, start + MS, start + 2 * MS, number=4096)
    script.scope_int(2, semconv.LOADER_WORKERS, 1)
    script.scope_bool(2, semconv.LOADER_IN_ORDER, True)
    script.scope_double(1, "grademl.test", 0.5)
    script.scope_text(1, semconv.DEVICE, "cpu")
    script.close_scope(2, semconv.EPOCH, start + 10 * STEPS * MS)
    for text in script.strings[1:]:
        ring.intern(text)
    for mark in script.marks:
        ring.write(*mark)
    ring.began(1, marks.phase_kind(semconv.FORWARD), now)
    assert ring.path is not None
    reader = ring.reader()
    Pump(reader, lambda *_: [], 0).turn(4096, now)  # leaves its progress
    data = ring.path.read_bytes()
    ring.close(unlink=True)
    return data, len(script.marks)


class Bytes:
    """A ring in plain memory."""

    def __init__(self, data: bytearray):
        self.data = data

    def read(self, offset: int, length: int) -> bytes:
        part = bytes(self.data[offset : offset + length])
        if len(part) != length:
            raise RingCorrupt(f"ends at byte {len(self.data)}")
        return part

    def write(self, offset: int, data: bytes) -> None:
        self.data[offset : offset + len(data)] = data

    def held(self) -> bool:
        return False

    def close(self) -> None: ...


class Collecting(Sink):
    """Keeps what it is given."""

    problem = None
    taken = delivered = 0
    unsent = (0, 0, 0)

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.metrics: list[Metric] = []

    def take_spans(self, spans: Sequence[Span]) -> None:
        self.spans += spans

    def take_metrics(self, metrics: Sequence[Metric], final: bool) -> None:
        self.metrics += metrics

    def close(self) -> None: ...


# --- Changes ----------------------------------------------------------------------------------------------


def mutate(data: bytes, number_of_marks: int, chance: random.Random) -> bytearray:
    """A few changes; half of the marks and records that are changed get a check word that fits."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        chance.choice(CHANGES)(changed, number_of_marks, chance)
    if chance.random() < 0.05:
        del changed[chance.randrange(len(changed)) :]
    return changed


def _forge_mark(data: bytearray, number: int, chance: random.Random) -> None:
    sequence = 1 + chance.randrange(number)
    offset = _slot(sequence)
    body = list(layout.BODY.unpack_from(data, offset + 12))
    field = chance.randrange(len(body))
    body[field] = chance.randrange(256) if field < 2 else _value(chance, body[field])
    _put_mark(data, offset, sequence, layout.BODY.pack(*body))


def _swap_marks(data: bytearray, number: int, chance: random.Random) -> None:
    one, other = 1 + chance.randrange(number), 1 + chance.randrange(number)
    bodies = [bytes(data[_slot(each) + 12 : _slot(each) + layout.SLOT.size]) for each in (one, other)]
    _put_mark(data, _slot(one), one, bodies[1])
    _put_mark(data, _slot(other), other, bodies[0])


def _spoil_bytes(data: bytearray, number: int, chance: random.Random) -> None:
    if data:
        start = chance.randrange(len(data))
        data[start : start + 4] = chance.randbytes(len(data[start : start + 4]))


def _spoil_header(data: bytearray, number: int, chance: random.Random) -> None:
    offset = 8 * chance.randrange(32)
    layout.I64.pack_into(data, offset, _value(chance, layout.I64.unpack_from(data, offset)[0]))


def _spoil_totals(data: bytearray, number: int, chance: random.Random) -> None:
    offset = layout.ACCUMULATORS + 8 * chance.randrange(marks.ACC_SLOTS)
    layout.I64.pack_into(data, offset, _value(chance, 0))


def _forge_open_phase(data: bytearray, number: int, chance: random.Random) -> None:
    offset = layout.OPEN_PHASES + layout.OPEN_PHASE_STRIDE * chance.randrange(layout.OPEN_LANES)
    layout.OPEN_PHASE.pack_into(
        data, offset, chance.randrange(65_536), chance.randrange(80), 0, _value(chance, 5)
    )


def _forge_progress(data: bytearray, number: int, chance: random.Random) -> None:
    length, _ = layout.STRING_HEAD.unpack_from(data, layout.PROGRESS)
    start = layout.PROGRESS + layout.STRING_HEAD.size
    try:
        values = json.loads(data[start : start + length])
    except ValueError:
        return
    if not isinstance(values, list) or not values:
        return
    values[chance.randrange(len(values))] = chance.choice(
        (_value(chance, 3), [], [[1]], "x", None, 0.5, [[_value(chance, 1)] * 9])
    )
    raw = json.dumps(values).encode()[: layout.PROGRESS_BYTES]
    layout.STRING_HEAD.pack_into(data, layout.PROGRESS, len(raw), crc32(raw))
    data[start : start + len(raw)] = raw


def _value(chance: random.Random, now: int) -> int:
    return chance.choice(
        (chance.choice(WORST), chance.randrange(-(1 << 63), 1 << 63), now ^ 1 << chance.randrange(62))
    )


CHANGES = (
    *3 * (_forge_mark,),
    _swap_marks,
    _spoil_bytes,
    _spoil_header,
    _spoil_totals,
    _forge_open_phase,
    _forge_progress,
)


def _slot(sequence: int) -> int:
    return GEOMETRY.first_slot + sequence % GEOMETRY.slots * layout.SLOT.size


def _put_mark(data: bytearray, offset: int, sequence: int, body: bytes) -> None:
    layout.SLOT.pack_into(data, offset, sequence, crc32(body, sequence & 0xFFFFFFFF), body)


# --- What may come out ------------------------------------------------------------------------------------


NAMES = {
    *semconv.PHASES,
    *(semconv.DEVICE_PREFIX + name for name in semconv.PHASES),
    *marks.SCOPES,
    semconv.STEP,
    semconv.WINDOW,
    UNNAMED,
}


def check(span: Span, latest_ns: int) -> None:
    assert span.name in NAMES, span
    assert 0 < span.trace_id < 1 << 128
    assert 0 < span.span_id < 1 << 64
    assert 0 <= span.parent_id < 1 << 64
    # The clock of the host counts from its boot.
    assert latest_ns - time.perf_counter_ns() - 60 * 10**9 <= span.start_ns <= span.end_ns <= latest_ns, span
    for key, value in span.attributes.items():
        assert isinstance(key, str)
        check_value(value)
    for key in (semconv.STEP_NUMBER, semconv.STEPS_TOTAL, semconv.EVAL_STEPS_TOTAL, semconv.TRACER_DROPPED,
                semconv.SPANS_EMITTED, semconv.WINDOW_NUMBER, semconv.WINDOW_PART):  # fmt: skip
        number = span.attributes.get(key, 0)
        assert isinstance(number, int)
        assert number >= 0, (key, span)
    if span.name == semconv.WINDOW:
        steps = span.attributes[f"{semconv.TABLE_PREFIX}step"]
        assert isinstance(steps, Sequence)
        assert all(isinstance(step, int) and step >= 0 for step in steps)


def check_value(value: object) -> None:
    if isinstance(value, str):
        value.encode("utf-8")
    elif isinstance(value, int):
        assert -(1 << 63) <= value < 1 << 63
    elif isinstance(value, float):
        assert math.isfinite(value)
    else:
        assert isinstance(value, Sequence)
        assert len({type(element) for element in value}) <= 1
        for element in value:
            check_value(element)


def test_ten_thousand_mutations(written: tuple[bytes, int]) -> None:
    """The pump that a relay runs, over a ring in memory: at worst the ring is refused or given up."""
    data, number = written
    chance = random.Random(20_240_229)
    told = refused = 0
    for attempt in range(MUTATIONS):
        sink = Collecting()
        try:
            reader = RingReader(Bytes(mutate(data, number, chance)), None)
            pump = Pump(reader, lambda *_, sink=sink: [sink], 0)
            now = time.perf_counter_ns()
            while pump.turn(4096, now) == 4096:
                pass
            pump.finish(chance.choice(("exit", "killed")), now)
        except RingCorrupt:
            refused += 1
        latest = time.time_ns() + 3 * 10**9
        for span in sink.spans:
            check(span, latest)
        told += bool(sink.spans)
        if attempt % 16 == 0:
            trace_line(Resource({}), sink.spans)
            metric_line(Resource({}), sink.metrics)
            list(trace_requests(Resource({}), sink.spans))
    assert told > MUTATIONS / 2  # else the changes only break the header, and nothing was tried
    assert refused > 0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    workplace = Workplace(tmp_path)
    yield workplace
    workplace.stop_relays()


def test_some_hundreds_through_a_relay(place: Workplace, written: tuple[bytes, int]) -> None:
    data, number = written
    chance = random.Random(7)
    place.rings.mkdir(parents=True, mode=0o700)
    digest = destination_digest(place.environment())
    named = data.replace(_digest_of(data), digest.encode())
    for each in range(THROUGH_A_RELAY):
        path = place.rings / f"{digest}-{each:016x}{layout.SUFFIX}"
        path.touch(0o600)
        path.write_bytes(mutate(named, number, chance))
    assert place.train("relay", "5", "close")[1]["delivered"]
    pid = place.attached_relay()

    def handled() -> int:
        log = place.log.read_text()
        return sum(log.count(fate) for fate in ("finished", "left alone", "given up"))

    until(lambda: handled() >= THROUGH_A_RELAY + 1, 60)
    assert place.relay_pids() == [pid]
    assert "Traceback" not in place.log.read_text()


def _digest_of(data: bytes) -> bytes:
    return bytes(layout.IDENTITY.unpack_from(data)[7])
