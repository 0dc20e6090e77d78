# SPDX-License-Identifier: Apache-2.0
"""The hot path of a ring's writing end: the core in C and the one in Python write the same bytes."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import mmap
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel import marks
from grademl_otel.ring import layout, plaincore
from grademl_otel.ring.core import core_over

ROOT = Path(__file__).resolve().parents[2]
PLAIN = plaincore.Core

GEOMETRY = layout.geometry(64 * 1024)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
U16 = st.integers(0, 0xFFFF)
PHASE = st.integers(marks.PHASE_BASE, marks.MAX_PHASES)
TIME = st.integers(0, 1 << 60)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.tuples(U16, U16, I64, I64, I64)),
        st.tuples(st.just("write"), st.tuples(U16, U16, I64, I64, I64, I64, I64, I64)),
        st.tuples(st.just("phase"), st.tuples(PHASE, U16, TIME, TIME, I64, I64, I64, I64)),
        st.tuples(
            st.just("row"),
            st.tuples(
                I64, U16, TIME, TIME, I64, st.sampled_from([0, 2, 4, 128, 130, 132]),
                st.integers(0, 1 << 30), st.integers(0, 1 << 30), st.integers(0, 1 << 30), TIME,
            ),
        ),
        st.tuples(st.just("began"), st.tuples(st.integers(0, 70), PHASE, I64)),
        st.tuples(st.just("ended"), st.tuples(st.integers(0, 70))),
        st.tuples(st.just("measure_all_but"), st.tuples(st.integers(0, (1 << 64) - 1))),
        st.tuples(st.just("seal"), st.tuples()),
    ),
    max_size=80,
)  # fmt: skip


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module in C, built from these sources: whatever is installed may be of others, or have none."""
    if shutil.which(sysconfig.get_config_var("CC").split()[0]) is None:
        pytest.skip("no C compiler; without one an installation has the core in Python")
    folder = tmp_path_factory.mktemp("core")
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", folder, "--build-temp", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    built = list(folder.rglob("_core*.so"))
    if not built:
        pytest.fail(done.stderr[-2000:], pytrace=False)
    assert "warning" not in done.stderr
    spec = importlib.util.spec_from_file_location("grademl_otel.ring._core", built[0])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["c", "python"])
def core_type(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("compiled").Core if request.param == "c" else PLAIN


def made(kind: Any, memory: Any) -> Any:
    return core_over(memory, GEOMETRY, kind)


@pytest.fixture(params=["by carry-less products", "by table"])
def compiled_core(compiled: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The type in C, with either way to compute a checksum."""
    compiled.use_table(request.param == "by table")
    yield compiled.Core
    compiled.use_table(False)


def test_both_cores_write_the_same_bytes(compiled_core: Any) -> None:
    @settings(max_examples=150, deadline=None, database=None)
    @given(EVENTS)
    def same(events: list[tuple[str, tuple[int, ...]]]) -> None:
        memories = bytearray(GEOMETRY.size), bytearray(GEOMETRY.size)
        cores = made(compiled_core, memories[0]), made(PLAIN, memories[1])
        for name, arguments in events:
            returned = [getattr(core, name)(*arguments) for core in cores]
            assert returned[0] == returned[1]
        assert memories[0] == memories[1]

    same()


def test_both_cores_go_round_the_ring_and_nest_deeply(compiled_core: Any) -> None:
    memories = bytearray(GEOMETRY.size), bytearray(GEOMETRY.size)
    for kind, memory in zip((compiled_core, PLAIN), memories, strict=True):
        core = made(kind, memory)
        for number in range(2 * GEOMETRY.slots + 3):
            core.write(5, 1, number, number + 1, number)
        for depth in range(40):
            core.began(3, 1 + depth, 100 + depth)
        for _ in range(25):
            core.ended(3)
    assert memories[0] == memories[1]


def test_what_is_around_a_phase_that_is_not_measured_goes_on_being_shown(core_type: Any) -> None:
    memory = bytearray(GEOMETRY.size)
    core = made(core_type, memory)

    def shown() -> tuple[int, ...]:
        return layout.OPEN_PHASE.unpack_from(memory, layout.OPEN_PHASES)

    core.measure_all_but(1 << 5)
    core.began(3, 40, 100)
    for _ in range(2):
        core.began(3, 5, 200)
        core.began(3, 6, 300)
        assert shown() == (3, 6, 0, 300)
        core.ended(3)
        assert shown() == (3, 40, 0, 100)
        core.ended(3)
        assert shown() == (3, 40, 0, 100)
    core.ended(3)
    assert shown() == (3, 0, 0, 0)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("write", (1, 2, 3, 4)),
        ("write", (1, 2, 3, 4, 5, 6, 7, 8, 9)),
        ("write", (1 << 16, 0, 0, 0, 0)),
        ("write", (1, -1, 0, 0, 0)),
        ("write", (1, 1, 1 << 63, 0, 0)),
        ("write", (1, 1, "now", 0, 0)),
        ("phase", (1, 1, None, 0, 0, 0, 0, 0)),
        ("phase", (1, 1)),
        ("phase", (0, 1, 0, 0, 0, 0, 0, 0)),
        ("phase", (marks.ROW, 1, 0, 0, 0, 0, 0, 0)),
        ("row", (1, 1 << 20, 0, 0, 0, 0, 0, 0, 0, 0)),
        ("began", (1 << 16, 1, 0)),
        ("ended", ()),
    ],
)
def test_what_does_not_fit_raises_and_writes_nothing(
    core_type: Any, method: str, arguments: tuple[Any, ...]
) -> None:
    memory = bytearray(GEOMETRY.size)
    core = made(core_type, memory)
    with pytest.raises(Exception):  # noqa: B017, PT011 - which one is the core's own matter
        getattr(core, method)(*arguments)
    assert not any(memory)


@pytest.mark.parametrize("size", [0, 8192, GEOMETRY.size - 1])
def test_a_memory_that_is_too_small_is_refused(core_type: Any, size: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        made(core_type, bytearray(size))


def test_the_memory_outlives_its_names(compiled: Any) -> None:
    memory = mmap.mmap(-1, GEOMETRY.size)
    core = made(compiled.Core, memory)
    with pytest.raises(BufferError):
        memory.close()
    del memory
    core.write(1, 2, 3, 4, 5)


def test_no_reference_leaks(compiled: Any) -> None:
    memory = bytearray(GEOMETRY.size)
    before = sys.getrefcount(compiled.Core), sys.getrefcount(memory)
    for _ in range(100):
        core = made(compiled.Core, memory)
        core.write(1, 2, 3, 4, 5)
        with pytest.raises(TypeError):
            core.write(None, 2, 3, 4, 5)
        del core
    assert (sys.getrefcount(compiled.Core), sys.getrefcount(memory)) == before


def nothing() -> None:
    """What a thread has to which nothing was bound."""


def test_each_thread_has_what_was_bound_in_it(compiled: Any) -> None:
    cores = [made(compiled.Core, bytearray(GEOMETRY.size)) for _ in range(2)]
    things = [object() for _ in range(3)]
    assert cores[0].mine(nothing) is None
    cores[0].bind(things[0])
    assert cores[0].mine(nothing) is things[0]
    assert cores[1].mine(nothing) is None
    seen: list[object] = []

    def elsewhere() -> None:
        seen.append(cores[0].mine(nothing))
        cores[0].bind(things[1])
        seen.append(cores[0].mine(nothing))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [None, things[1]]
    assert cores[0].mine(nothing) is things[0]
    cores[1].bind(things[2])  # a thread serves one core at a time: the other forgets
    assert (cores[0].mine(nothing), cores[1].mine(nothing)) == (None, things[2])


def test_what_is_bound_in_a_circle_is_collected(compiled: Any) -> None:
    class Thing:
        core: Any

    memory, thing = bytearray(GEOMETRY.size), Thing()
    thing.core = made(compiled.Core, memory)
    thing.core.bind(thing)
    gone = weakref.ref(thing)
    del thing
    gc.collect()
    assert gone() is None
    memory.clear()  # no buffer of it is held


def test_a_child_that_c_code_forked_writes_nothing_into_the_rings_of_its_parent(compiled: Any) -> None:
    memory = mmap.mmap(-1, GEOMETRY.size)  # shared with the child
    core = made(compiled.Core, memory)
    core.write(1, 2, 3, 4, 5)
    core.bind(memory)
    before = memory[:]
    usual = sys.getswitchinterval()
    sys.setswitchinterval(600)  # the child would wait for a thread of others that has asked
    time.sleep(0)  # who has asked gets it
    pid = ctypes.PyDLL(None).fork()
    sys.setswitchinterval(usual)
    if pid == 0:
        core.write(1, 2, 3, 4, 5)
        core.phase(1, 2, 3, 4, 5, 6, 7, 8)
        core.row(1, 2, 3, 4, 5, 0, 1, 1, 1, 1)
        core.began(1, 2, 3)
        core.ended(1)
        os._exit(0 if core.process() == os.getpid() and core.mine(nothing) is None else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert memory[:] == before
    assert core.process() == os.getpid()


@pytest.mark.parametrize("there", ["None", "types.SimpleNamespace(INTERFACE=0, Core=int)"])
def test_where_it_was_not_compiled_the_core_in_python_is_in_use(there: str) -> None:
    script = (
        f"import sys, types; sys.modules['grademl_otel.ring._core'] = {there}\n"
        "from grademl_otel.ring import core, plaincore\n"
        "assert core.Core is plaincore.Core and not core.COMPILED"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
