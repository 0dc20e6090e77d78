# SPDX-License-Identifier: Apache-2.0
"""The ring: what is written is read, what cannot be read is counted, and nothing else comes out."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel import marks
from grademl_otel.config import Settings
from grademl_otel.ring import layout
from grademl_otel.ring import mirror as ringmirror
from grademl_otel.ring import place as ringplace
from grademl_otel.ring.mirror import Mirror
from grademl_otel.ring.reader import OpenPhase
from grademl_otel.ring.writer import RingCorrupt, RingReader, RingUnavailable, RingWriter

RING_BYTES = 64 * 1024
SLOTS = layout.geometry(RING_BYTES).slots


def ring_settings(folder: Path) -> Settings:
    return Settings.from_env({"GRADEML_RING_DIR": str(folder), "GRADEML_RING_BYTES": str(RING_BYTES)})


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RingWriter]:
    ring = RingWriter.create(ring_settings(tmp_path))
    yield ring
    ring.close(unlink=True)


@pytest.fixture
def reader(writer: RingWriter) -> Iterator[RingReader]:
    assert writer.path is not None
    opened = RingReader.open(writer.path)
    yield opened
    opened.close()


def number(writer: RingWriter, value: int) -> None:
    """Write a mark that carries ``value``."""
    writer.write(1, 2, value, value + 1, value)


def slot_offset(sequence: int) -> int:
    return layout.geometry(RING_BYTES).first_slot + sequence % SLOTS * layout.SLOT.size


# --- Marks ------------------------------------------------------------------------------------------------


def test_marks_come_out_as_they_went_in(writer: RingWriter, reader: RingReader) -> None:
    writer.write(7, 3, 10, 20, 5)
    writer.write(64, 65_535, -(1 << 63), (1 << 63) - 1, 1, -1, 1 << 62, -5)

    assert reader.read(10) == [
        (7, 3, 10, 20, 5, -1, 0, 0),
        (64, 65_535, -(1 << 63), (1 << 63) - 1, 1, -1, 1 << 62, -5),
    ]
    assert reader.read(10) == []
    assert reader.lost == 0


def test_reading_goes_round_the_ring_many_times(writer: RingWriter, reader: RingReader) -> None:
    seen = []
    for value in range(3 * SLOTS):
        number(writer, value)
        if value % 100 == 0:
            seen += [mark[4] for mark in reader.read(1000)]
    seen += [mark[4] for mark in reader.read(1000)]

    assert seen == list(range(3 * SLOTS))
    assert reader.lost == 0


def test_limit_is_kept(writer: RingWriter, reader: RingReader) -> None:
    for value in range(10):
        number(writer, value)

    assert [mark[4] for mark in reader.read(3)] == [0, 1, 2]
    assert [mark[4] for mark in reader.read(100)] == list(range(3, 10))


@pytest.mark.parametrize("written", [SLOTS + 1, 2 * SLOTS, 2 * SLOTS + 7, 10 * SLOTS - 1])
def test_lapped_marks_are_counted(writer: RingWriter, reader: RingReader, written: int) -> None:
    for value in range(written):
        number(writer, value)

    seen = [mark[4] for mark in reader.read(10 * SLOTS)]

    assert seen[-1] == written - 1
    assert seen == list(range(written - len(seen), written))
    assert len(seen) + reader.lost == written
    assert len(seen) >= SLOTS * 3 // 4


def test_lap_while_reading(writer: RingWriter, reader: RingReader) -> None:
    for value in range(10):
        number(writer, value)
    first = reader.read(5)
    for value in range(10, 3 * SLOTS):
        number(writer, value)

    rest: list[int] = []
    while batch := reader.read(64):
        rest += [mark[4] for mark in batch]

    assert [mark[4] for mark in first] == [0, 1, 2, 3, 4]
    assert rest[-1] == 3 * SLOTS - 1
    assert len(rest) + len(first) + reader.lost == 3 * SLOTS


def test_number_that_was_never_written_is_waited_for_then_lost(
    writer: RingWriter, reader: RingReader
) -> None:
    number(writer, 0)
    writer._core.seal()  # takes a number, as a thread that died before it wrote
    number(writer, 2)

    assert [mark[4] for mark in reader.read(10)] == [0]
    assert reader.read(10) == []
    assert reader.lost == 0
    assert [mark[4] for mark in reader.read(10, final=True)] == [2]
    assert reader.lost == 1


def test_torn_mark_is_not_accepted(writer: RingWriter, reader: RingReader) -> None:
    for value in range(3):
        number(writer, value)
    assert writer.path is not None
    with open(writer.path, "r+b") as file:
        file.seek(slot_offset(2) + 20)
        file.write(b"\xff")

    seen = reader.read(10, final=True) + reader.read(10, final=True)

    assert [mark[4] for mark in seen] == [0, 2]
    assert reader.lost == 1


def test_threads_write_side_by_side(writer: RingWriter, reader: RingReader) -> None:
    per_thread, threads = 2000, 4

    def work(thread: int) -> None:
        for value in range(per_thread):
            writer.write(1, thread, 0, 0, value)
            if value % 50 == 0:
                barrier.wait()  # lets the reader keep up

    barrier = threading.Barrier(threads + 1)
    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    seen: list[tuple[int, int]] = []
    for _ in range(per_thread // 50):
        barrier.wait()
        seen += [(mark[1], mark[4]) for mark in reader.read(10_000)]
    for worker in workers:
        worker.join()
    while batch := reader.read(10_000):
        seen += [(mark[1], mark[4]) for mark in batch]

    assert reader.lost == 0
    for thread in range(threads):
        assert [value for lane, value in seen if lane == thread] == list(range(per_thread))


# --- Strings and header -----------------------------------------------------------------------------------


def test_strings_are_interned(writer: RingWriter, reader: RingReader) -> None:
    main, uni = writer.intern("main"), writer.intern("Zürich \u2028 \U0001f40d")

    assert writer.intern("") == 0
    assert (main, uni) == (1, 2)
    assert writer.intern("main") == main
    reader.read(1)
    assert reader.strings == ["", "main", "Zürich \u2028 \U0001f40d"]
    writer.intern("later")
    reader.read(1)
    assert reader.strings[3] == "later"


def test_threads_that_intern_at_once_share_no_id(tmp_path: Path) -> None:
    ring = RingWriter.create(Settings.from_env({"GRADEML_RING_DIR": str(tmp_path)}))
    ids: list[dict[str, int]] = []

    def intern(name: str) -> None:
        ids.append({text: ring.intern(text) for text in (f"{name} {n}" for n in range(1500))})

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=intern, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    reader = ring.reader()
    reader.read(1)
    assert all(reader.strings[number] == text for each in ids for text, number in each.items())
    ring.close(unlink=True)


def test_full_string_section_gives_id_zero(writer: RingWriter, reader: RingReader) -> None:
    assert writer.intern("x" * RING_BYTES) == 0
    assert writer.intern("short") == 1
    reader.read(1)
    assert reader.strings == ["", "short"]


def test_open_phases_nest(writer: RingWriter, reader: RingReader) -> None:
    writer.began(1, 7, 100)
    writer.began(1, 6, 150)
    writer.began(2, 1, 160)

    assert reader.open_phases() == [OpenPhase(1, 6, 150), OpenPhase(2, 1, 160)]
    writer.ended(1)
    assert reader.open_phases() == [OpenPhase(1, 7, 100), OpenPhase(2, 1, 160)]
    writer.ended(1)
    writer.ended(1)  # one too many does no harm
    writer.ended(2)
    writer.ended(77)
    assert reader.open_phases() == []


def test_more_lanes_than_the_table_holds(writer: RingWriter, reader: RingReader) -> None:
    for lane in range(1, layout.OPEN_LANES + 10):
        writer.began(lane, 1, lane)

    assert len(reader.open_phases()) == layout.OPEN_LANES
    writer.ended(layout.OPEN_LANES + 5)


def test_header_values_travel(writer: RingWriter, reader: RingReader) -> None:
    totals = array("q", range(marks.ACC_SLOTS))
    for slot, value in enumerate(totals):
        writer.totals[slot] = value
    writer.beat(12345)
    number(writer, 0)

    assert reader.accumulators() == totals
    assert reader.heartbeat == 12345
    assert reader.pid == os.getpid()
    assert reader.digest == writer.digest
    assert not reader.closing
    assert writer.mark_closing() == 1
    assert writer.mark_closing() == 1
    assert reader.closing
    assert not reader.drained
    reader.read(10)
    assert reader.drained
    reader.acknowledge(1)
    assert writer.acked == 1
    assert not writer.relay_alive(10)
    reader.attend(10)
    assert writer.relay_alive(11)
    assert not writer.relay_alive(11 + 10**10)


def test_progress_travels_to_the_next_reader(writer: RingWriter, reader: RingReader) -> None:
    assert reader.load_progress() == b""
    reader.save_progress(b"x" * layout.PROGRESS_BYTES)
    assert writer.reader().load_progress() == b"x" * layout.PROGRESS_BYTES
    assert reader.accumulators() == array("q", [0] * marks.ACC_SLOTS)
    assert reader.open_phases() == []


def test_late_writes_after_close_do_nothing(tmp_path: Path) -> None:
    ring = RingWriter.create(ring_settings(tmp_path))
    ring.close(unlink=True)

    ring.write(1, 2, 3, 4, 5)


def test_ring_in_memory(tmp_path: Path) -> None:
    ring = RingWriter.in_memory(ring_settings(tmp_path))
    number(ring, 4)

    assert ring.path is None
    assert [mark[4] for mark in ring.reader().read(5)] == [4]


# --- Rings without a name ---------------------------------------------------------------------------------

sealed_memory = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd")


@pytest.fixture
def sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RingWriter]:
    monkeypatch.setattr(ringplace, "SHARED_MEMORY", tmp_path)
    ring = RingWriter.create(Settings.from_env({"GRADEML_RING_BYTES": str(RING_BYTES)}))
    yield ring
    ring.close(unlink=True)


@sealed_memory
def test_ring_without_a_name_is_found_by_its_pointer(sealed: RingWriter) -> None:
    assert sealed.path is not None
    assert sealed.path.suffix == layout.POINTER_SUFFIX
    number(sealed, 4)
    opened = RingReader.open(sealed.path)
    assert [mark[4] for mark in opened.read(5)] == [4]
    opened.acknowledge(1)
    assert sealed.acked == 1
    pid, descriptor, *_ = os.readlink(sealed.path).split()
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.truncate(f"/proc/{pid}/fd/{descriptor}", size)
    opened.close()
    sealed.close(unlink=True)
    assert list(sealed.path.parent.iterdir()) == []


@sealed_memory
def test_inherited_descriptor_outlives_the_owner(sealed: RingWriter) -> None:
    assert sealed.path is not None
    assert sealed.descriptor is not None
    number(sealed, 4)
    inherited = os.dup(sealed.descriptor)
    sealed.close(unlink=False)
    with pytest.raises((FileNotFoundError, PermissionError)):
        RingReader.open(sealed.path)
    opened = RingReader.open(sealed.path, [inherited])
    assert [mark[4] for mark in opened.read(5)] == [4]
    opened.close()
    os.close(inherited)
    for path in sealed.path.parent.iterdir():
        path.unlink()


@sealed_memory
def test_pointer_and_lock_are_made_anew(sealed: RingWriter) -> None:
    assert sealed.path is not None
    folder = sealed.path.parent
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert sealed.keep_reachable()
    assert {path.suffix for path in folder.iterdir()} == {layout.POINTER_SUFFIX, layout.LOCK_SUFFIX}
    RingReader.open(sealed.path).close()


@sealed_memory
def test_copy_follows_the_ring(sealed: RingWriter) -> None:
    """Round the ring several times, with laps: what the copy tells is what the reader was told of late."""
    assert sealed.path is not None
    reader = sealed.reader()
    copy = sealed.path.with_suffix(layout.SUFFIX)
    mirror = Mirror(copy)
    written = 0
    for burst in (1, 10, SLOTS // 2, 5, SLOTS, 3 * SLOTS, SLOTS - 1, 7):
        for _ in range(burst):
            number(sealed, written)
            written += 1
        sealed.intern(f"burst of {burst}")
        seen = []
        while marks_read := reader.read(100):
            seen += [mark[4] for mark in marks_read]
        mirror.update(reader)
        again = RingReader.open(copy)
        told = []
        while marks_read := again.read(10 * SLOTS, final=True):
            told += [mark[4] for mark in marks_read]
        again.read(1)
        latest = min(len(seen), SLOTS * 3 // 4)  # a reader that was lapped leaves out the oldest
        assert told[-latest:] == seen[-latest:]
        assert told[-1] == written - 1
        assert again.strings == reader.strings
        assert again.accumulators() == reader.accumulators()
        again.close()
    mirror.remove()
    assert not copy.exists()


@sealed_memory
def test_no_room_for_a_copy(sealed: RingWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sealed.path is not None
    monkeypatch.setattr(ringmirror, "has_room", lambda folder, size: False)
    mirror = Mirror(sealed.path.with_suffix(layout.SUFFIX))
    for _ in range(2):
        mirror.update(sealed.reader())
    assert {path.suffix for path in sealed.path.parent.iterdir()} == {
        layout.POINTER_SUFFIX,
        layout.LOCK_SUFFIX,
    }


@sealed_memory
def test_ring_that_no_relay_has_seen_is_left_as_a_file(sealed: RingWriter) -> None:
    assert sealed.path is not None
    number(sealed, 9)
    sealed.leave_copy()
    left = RingReader.open(sealed.path.with_suffix(layout.SUFFIX))
    assert [mark[4] for mark in left.read(5)] == [9]
    left.close()


# --- Places -----------------------------------------------------------------------------------------------


def test_files_are_private_and_removed(tmp_path: Path) -> None:
    ring = RingWriter.create(ring_settings(tmp_path))
    assert ring.path is not None
    folder = ring.path.parent

    assert folder == tmp_path / f"grademl-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.suffix for path in folder.iterdir()} == {".ring", ".lock"}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())
    assert ring.path.stat().st_blocks * 512 >= ring.path.stat().st_size
    ring.close(unlink=True)
    assert list(folder.iterdir()) == []


def _other_places(monkeypatch: pytest.MonkeyPatch, runtime: Path) -> None:
    monkeypatch.setattr(ringplace, "SHARED_MEMORY", Path("/nowhere/shm"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))


def test_folder_open_to_others_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, runtime = tmp_path / "asked", tmp_path / "runtime"
    _other_places(monkeypatch, runtime)
    (asked / f"grademl-{os.getuid()}").mkdir(parents=True, mode=0o755)

    ring = RingWriter.create(ring_settings(asked))

    assert ring.path is not None
    assert ring.path.is_relative_to(runtime)
    ring.close(unlink=True)


def test_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: real + 1)
    monkeypatch.setattr(ringplace, "SHARED_MEMORY", tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    folder = tmp_path / f"grademl-{real + 1}"
    folder.mkdir(mode=0o700)

    with pytest.raises(RingUnavailable, match="not a folder of this user alone"):
        RingWriter.create(Settings.from_env({"GRADEML_RING_BYTES": str(RING_BYTES)}))
    assert list(folder.iterdir()) == []


def test_planted_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, target = tmp_path / "asked", tmp_path / "target"
    target.mkdir(mode=0o700)
    asked.mkdir()
    (asked / f"grademl-{os.getuid()}").symlink_to(target)
    _other_places(monkeypatch, tmp_path / "file")
    (tmp_path / "file").write_text("no folder")

    with pytest.raises(RingUnavailable, match="not a folder of this user alone"):
        RingWriter.create(ring_settings(asked))
    assert list(target.iterdir()) == []


def test_full_place_is_left_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, runtime = tmp_path / "asked", tmp_path / "runtime"
    _other_places(monkeypatch, runtime)
    allocate = ringplace._allocate
    calls = []

    def full_once(descriptor: int, size: int) -> None:
        calls.append(size)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(descriptor, size)

    monkeypatch.setattr(ringplace, "_allocate", full_once)
    ring = RingWriter.create(ring_settings(asked))

    assert ring.path is not None
    assert ring.path.is_relative_to(runtime)
    assert list((asked / f"grademl-{os.getuid()}").iterdir()) == []
    ring.close(unlink=True)


# --- Life and death of the owner --------------------------------------------------------------------------

_OWNER = """
import sys, time
from grademl_otel.config import Settings
from grademl_otel.ring.writer import RingWriter
ring = RingWriter.create(Settings.from_env())
print(ring.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    environ = {**os.environ, "GRADEML_RING_DIR": str(tmp_path), "GRADEML_RING_BYTES": str(RING_BYTES)}
    process = subprocess.Popen(
        [sys.executable, "-c", _OWNER],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def test_owner_is_dead_only_when_its_lock_is_free_and_nothing_moves(owner: subprocess.Popen[str]) -> None:
    assert owner.stdout is not None
    opened = RingReader.open(Path(owner.stdout.readline().strip()))
    now, second = 10**15, 10**9

    assert not opened.owner_dead(now)
    assert not opened.owner_dead(now + 10 * second)  # long without a sign of life, but it lives
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert opened.owner_unlocked()
    assert opened.owner_dead(now + 20 * second)
    opened.close()


def test_forked_child_leaves_the_ring_alone(writer: RingWriter) -> None:
    assert writer.path is not None
    pid = os.fork()
    if pid == 0:
        writer.close(unlink=True)
        os._exit(0)
    os.waitpid(pid, 0)

    assert writer.path.exists()
    script = f"import sys; from pathlib import Path; from grademl_otel.ring.writer import RingReader;\
        sys.exit(RingReader.open(Path({str(writer.path)!r})).owner_unlocked())"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_lock_that_cannot_be_looked_at_is_no_sign_of_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay without descriptors left must not take living processes for dead."""
    lock = tmp_path / "some.lock"
    assert ringplace.is_unlocked(lock)
    lock.touch()
    assert ringplace.is_unlocked(lock)

    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", none_left)
    with pytest.raises(OSError, match="Too many open files"):
        ringplace.is_unlocked(lock)


# --- Damage -----------------------------------------------------------------------------------------------


def _written_ring(folder: Path, number_of_marks: int) -> tuple[bytes, set[int]]:
    ring = RingWriter.create(ring_settings(folder))
    assert ring.path is not None
    ring.intern("main")
    ring.intern("loader-worker-0")
    for value in range(number_of_marks):
        number(ring, value)
    data = ring.path.read_bytes()
    ring.close(unlink=True)
    return data, set(range(number_of_marks))


@pytest.fixture(scope="module")
def written() -> Iterator[tuple[bytes, set[int]]]:
    with tempfile.TemporaryDirectory() as folder:
        yield _written_ring(Path(folder), SLOTS + SLOTS // 2)


@settings(max_examples=200, deadline=None)
@given(
    damage=st.lists(
        st.tuples(
            st.one_of(st.integers(0, 4095), st.integers(0, RING_BYTES - 9)), st.binary(min_size=1, max_size=8)
        ),
        min_size=1,
        max_size=20,
    ),
    length=st.one_of(st.none(), st.integers(0, RING_BYTES)),
)
def test_damaged_ring_yields_only_marks_that_were_written(
    written: tuple[bytes, set[int]], damage: list[tuple[int, bytes]], length: int | None
) -> None:
    data, values = written
    changed = bytearray(data)
    for offset, new in damage:
        changed[offset : offset + len(new)] = new
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged.ring"
        path.write_bytes(changed[:length])
        try:
            opened = RingReader.open(path)
        except RingCorrupt:
            return
        try:
            for _ in range(10):
                for mark in opened.read(SLOTS, final=True):
                    assert mark == (1, 2, mark[4], mark[4] + 1, mark[4], -1, 0, 0)
                    assert mark[4] in values
            assert len(opened.strings) <= layout.MAX_STRINGS + 1
            opened.open_phases()
            opened.accumulators()
            opened.load_progress()
            assert opened.owner_dead(0) in (True, False)
            opened.acknowledge(opened.next - 1)
        except RingCorrupt:
            pass
        finally:
            opened.close()


def test_other_version_and_other_files_are_refused(tmp_path: Path) -> None:
    data, _ = _written_ring(tmp_path, 1)
    path = tmp_path / "other.ring"
    path.write_bytes(data[:8] + b"\x63" + data[9:])
    with pytest.raises(RingCorrupt, match="layout version 99"):
        RingReader.open(path)
    path.write_bytes(b"hello, world" * 10_000)
    with pytest.raises(RingCorrupt, match="no ring"):
        RingReader.open(path)
    path.write_bytes(b"")
    with pytest.raises(RingCorrupt, match="ends at byte 0"):
        RingReader.open(path)


def test_only_old_rings_of_dead_processes_are_forgotten(tmp_path: Path) -> None:
    def leave(name: str, age_s: float) -> Path:
        path = tmp_path / f"{name}.ring"
        for each in (path, path.with_suffix(".lock")):
            each.touch()
            os.utime(each, (time.time() - age_s,) * 2)
        return path

    old, new = leave("old", 2000), leave("new", 500)
    half = leave("half", 2000).rename(tmp_path / "half.new")
    pointer = leave("pointer", 2000)
    pointer.unlink()
    pointer = pointer.with_suffix(".memfd")
    pointer.symlink_to("1 2 3 4")
    os.utime(pointer, (0, 0), follow_symlinks=False)
    living = leave("living", 2000)
    held, free = tmp_path / "relay-held.lock", tmp_path / "relay-free.lock"
    for lock in (held, free):
        lock.touch()
        os.utime(lock, (0, 0))
    free.with_suffix(".wake").touch()
    with open(held) as relay:
        fcntl.flock(relay, fcntl.LOCK_EX)
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(living.with_suffix(".lock"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert holder.stdout is not None
        holder.stdout.readline()
        assert set(ringplace.remove_forgotten(tmp_path, 1000)) == {old, half, pointer}
    assert {path.name for path in tmp_path.iterdir()} == {
        new.name, "new.lock", living.name, "living.lock", "relay-held.lock",
    }  # fmt: skip
    holder.communicate()
    assert ringplace.remove_forgotten(tmp_path, 1000) == [living]


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""
