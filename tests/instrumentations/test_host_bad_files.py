# SPDX-License-Identifier: Apache-2.0
"""Files that are not there, cut, spoiled, or block: each of them in turn, on each recorded host."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.catalog.host import METRICS
from grademl_otel.catalog.metric import COUNTER
from grademl_otel.instrumentations.host import files, providers
from grademl_otel.instrumentations.host.provider import HostProvider
from grademl_otel.sampling.roots import Roots
from grademl_otel.sampling.sampler import Sampler
from grademl_otel.sampling.source import Reading, Source

from ..support.hosttrees import HostTree, shapes, told, unpack

KNOWN = set(map(id, METRICS))
COUNTERS = {metric.name for metric in METRICS if metric.kind == COUNTER}


def _sound(readings: list[Reading]) -> dict[str, int | float]:
    """Return readings by name, which are all that a source may say whatever it reads."""
    for series, value in readings:
        assert id(series.metric) in KNOWN
        assert set(series.attributes) - {"system.device"} == set(series.metric.attributes)
        assert math.isfinite(value)
        assert value >= 0
        assert series.capacity is None or series.capacity >= 0
    return told(readings)


def _read(sources: list[Source]) -> dict[str, dict[str, int | float]]:
    """Return what each source says, nothing of those that say that they cannot."""
    found = {}
    for source in sources:
        try:
            found[source.name] = _sound(list(source.read()))
        except (OSError, ValueError):
            found[source.name] = {}
    return found


def _lasting_of(found: dict[str, dict[str, int | float]]) -> dict[str, dict[str, int | float | None]]:
    """Return amounts, and which counters there are; those go on from wherever a spoiled file took them."""
    return {
        source: {
            name: None if name.partition("{")[0] in COUNTERS else value
            for name, value in said.items()
            if name != "grademl.host.cpu.busiest"
        }
        for source, said in found.items()
    }


def _halved(tree: HostTree, path: str, content: bytes) -> None:
    tree.write(path, content[: len(content) // 2])


def _cut_by_one(tree: HostTree, path: str, content: bytes) -> None:
    tree.write(path, content[:-2])


def _emptied(tree: HostTree, path: str, content: bytes) -> None:
    tree.write(path, b"")


def _spoiled(tree: HostTree, path: str, content: bytes) -> None:
    tree.write(path, bytes(255 - byte for byte in content))


def _not_numbers(tree: HostTree, path: str, content: bytes) -> None:
    tree.write(path, content.translate(bytes.maketrans(b"0123456789", b"-xNaN\xff\x00.e+")))


def _huge(tree: HostTree, path: str, content: bytes) -> None:
    tree.write(path, content.replace(b"1", b"9" * 25))


def _folder(tree: HostTree, path: str, content: bytes) -> None:
    tree.remove(path)
    (tree.root / path).mkdir()


def _pipe(tree: HostTree, path: str, content: bytes) -> None:
    tree.remove(path)
    os.mkfifo(tree.root / path)


def _missing(tree: HostTree, path: str, content: bytes) -> None:
    tree.remove(path)


def _restore(tree: HostTree, path: str, content: bytes) -> None:
    at = tree.root / path
    if at.is_dir():
        at.rmdir()
    elif at.exists() and not at.is_file():
        at.unlink()
    tree.write(path, content)


DAMAGES: list[Callable[[HostTree, str, bytes], None]] = [
    _halved,
    _cut_by_one,
    _emptied,
    _spoiled,
    _not_numbers,
    _huge,
    _folder,
    _pipe,
]


@pytest.mark.parametrize("shape", shapes())
def test_every_file_is_damaged_in_turn(tmp_path: Path, shape: str) -> None:
    tree = unpack(shape, tmp_path)
    healthy = _lasting_of(_read(list(HostProvider(tree.roots).sources())))
    assert all(healthy.values())
    # One of a kind stands for all: 16 frequencies are read alike.
    paths = [path for path in tree.files() if "cpufreq" not in path or path.endswith("cpu0")]
    for number, path in enumerate(paths):
        content = (tree.root / path).read_bytes()
        sources = list(HostProvider(tree.roots).sources())
        _read(sources)
        # Every second damage each, which ones takes turns.
        for damage in [_missing, *DAMAGES[number % 2 :: 2]]:
            damage(tree, path, content)
            for found in (_read(sources), _read(list(HostProvider(tree.roots).sources()))):
                lasting = _lasting_of(found)
                touched = [name for name, said in healthy.items() if lasting.get(name, {}) != said]
                # A file is of one kind, and the others do not notice; but groups are of all kinds.
                assert len(touched) <= 1 or path.startswith(("proc/self/", "sys/fs/cgroup")), (path, damage)
            _restore(tree, path, content)
        assert _lasting_of(_read(sources)) == healthy, path


@pytest.mark.parametrize("name", ["stat", "meminfo", "diskstats", "pressure/cpu", "vmstat", "loadavg"])
def test_a_file_that_vanishes_after_it_was_listed(tmp_path: Path, name: str) -> None:
    tree = unpack("virtual_machine", tmp_path)
    provider = HostProvider(tree.roots)
    sources = {source.name: source for source in provider.sources()}
    tree.remove(f"proc/{name}")
    assert [source.name for source in provider.sources()] == list(sources)
    found = _read(list(sources.values()))
    assert sum(not said for said in found.values()) == (name in {"stat", "meminfo", "diskstats"}) - (
        name == "meminfo"
    )


def test_a_host_of_nothing(tmp_path: Path) -> None:
    (provider,) = providers(Roots(tmp_path / "proc", tmp_path / "sys"))
    assert provider.name == "host"
    assert provider.sources() == []
    provider.close()


def test_sources_are_the_same_at_each_look_and_new_ones_are_found(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.write("proc/meminfo", "MemTotal: 5 kB\n")
    (provider,) = providers(tree.roots)
    before = list(provider.sources())
    assert [source.name for source in before] == ["memory"]
    tree.write("proc/diskstats", "")
    after = list(provider.sources())
    assert [source.name for source in after] == ["memory", "disk"]
    assert after[0] is before[0]


def test_counters_never_fall(tmp_path: Path) -> None:
    """Whatever number any file says one time: it has no part in a counter once the file is as before."""
    tree = unpack("container_v2", tmp_path)
    sources = list(HostProvider(tree.roots).sources())
    last: dict[str, int | float] = {}
    paths = [path for path in tree.files() if not path.startswith("proc/self/")]
    for step, path in enumerate([*paths, *paths]):
        content = (tree.root / path).read_bytes()
        tree.write(path, content.replace(b"1", b"%d" % (step % 9)))
        for said in _read(sources).values():
            for name, value in said.items():
                if name.partition("{")[0] in COUNTERS:
                    assert value >= last.get(name, 0), (path, name)
                    last[name] = value
        tree.write(path, content)


@settings(max_examples=60)
@given(st.binary(max_size=200))
def test_any_bytes_are_read(data: bytes) -> None:
    assert all(value >= 0 for value in files.keyed(data).values())
    number = files.number(data)
    assert number is None or number >= 0
    numbers = files.numbers_of_list(data)
    assert numbers is None or numbers


def test_a_file_without_an_end(tmp_path: Path) -> None:
    assert len(files.read("/dev/zero")) >= files.MOST_BYTES
    (tmp_path / "long").write_bytes(b"x" * (files.MOST_BYTES * 3))
    assert len(files.read(tmp_path / "long")) < files.MOST_BYTES * 2
    assert len(files.read_line(tmp_path / "long")) == 4096
    assert files.maybe(str(tmp_path / "no")) == files.maybe("a\x00b") == b""


def test_a_pipe_in_the_place_of_a_file_holds_up_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert files.read(tmp_path / "pipe") == b""
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    try:
        with pytest.raises(BlockingIOError):
            files.read(tmp_path / "pipe")
    finally:
        os.close(writer)


def test_what_blocks_stops_its_own_kind_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As LXCFS can: a read that nothing ends."""
    tree = unpack("bare_metal", tmp_path)
    released, read = threading.Event(), files.read

    def blocking(path: files.PathLike) -> bytes:
        if str(path).endswith("meminfo"):
            released.wait(60)
        return read(path)

    monkeypatch.setattr(files, "read", blocking)
    sampler = Sampler(providers(tree.roots), 0.05)
    sampler.start()
    try:
        others = {"system.cpu.logical.count", "system.disk.io_time", "grademl.host.pressure.time"}
        assert _wait_for(lambda: others <= _names(sampler))
        assert not any(name.startswith("system.memory") for name in _names(sampler))
        released.set()
        assert _wait_for(lambda: "system.memory.limit" in _names(sampler))
    finally:
        released.set()
        sampler.stop(5)


def _names(sampler: Sampler) -> set[str]:
    return {sample.series.metric.name for sample in sampler.latest()}


def _wait_for(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + 60
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return condition()
