# SPDX-License-Identifier: Apache-2.0
"""Which run a process is part of: agreement between ranks, attempts, what children inherit."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from grademl_otel import agreement, family, naming
from grademl_otel.agreement import agree
from grademl_otel.family import Kin, Member
from grademl_otel.identity import Place
from grademl_otel.naming import Namer, name_run

MINE = "a" * 32
THEIRS = "b" * 32
GIVEN = "c" * 32
ELASTIC = {"TORCHELASTIC_RUN_ID": "100", "TORCHELASTIC_USE_AGENT_STORE": "True"}
PARENT = Member("d" * 32, 0, 0, 1, True)


class Store:
    """A c10d store that fails whoever waits."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.sums: dict[str, int] = {}

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if self.values.get(key, "") == expected:
            self.values[key] = desired
        return self.values[key].encode()

    def add(self, key: str, amount: int) -> int:
        self.sums[key] = self.sums.get(key, 0) + amount
        return self.sums[key]

    def get(self, key: str) -> bytes:
        raise AssertionError("a missing key blocks for the store's whole time-out")


def prefixed(store: Any) -> Any:
    """As torch gives it out: prefixes around the store proper."""
    return SimpleNamespace(underlying_store=SimpleNamespace(underlying_store=store))


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delitem(sys.modules, "torch.distributed.distributed_c10d", raising=False)
    monkeypatch.setattr(agreement, "_joined", {})
    monkeypatch.setattr(agreement, "_inherited", [])
    yield
    family.hand_down(None)


def group(
    monkeypatch: pytest.MonkeyPatch, store: Any, rank: int = 3, size: int = 4, initialized: bool = True
) -> None:
    """This process is ``rank`` of a group; each call stands for another process."""
    agreement._joined.clear()
    made = prefixed(store)
    module = SimpleNamespace(
        is_initialized=lambda: initialized,
        get_rank=lambda: rank,
        get_world_size=lambda: size,
        _get_default_store=lambda: made,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", module)


# --- Ranks ------------------------------------------------------------------------------------------------


def test_the_first_rank_to_ask_names_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    group(monkeypatch, store)
    assert agree(THEIRS, Place(), "0", {}) == (THEIRS, Place(3, 0, 4))
    group(monkeypatch, store, rank=1)
    assert agree(MINE, Place(local_rank=1), "0", {}) == (THEIRS, Place(1, 1, 4))
    assert agree(MINE, Place(), "1", {}) == (MINE, Place(1, 0, 4))  # the next run


def test_restarted_workers_are_another_attempt_of_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    for rank in (1, 0):
        group(monkeypatch, store, rank, 2)
        assert agree(f"{rank:x}" * 32 if rank else MINE, Place(), "0", ELASTIC) == (
            "1" * 32,
            Place(rank, 0, 2, 0),
        )
    for rank in (0, 1):
        group(monkeypatch, store, rank, 2)
        restarted = agree(MINE, Place(attempt=1), "0", ELASTIC)
        assert restarted == ("1" * 32, Place(rank, 0, 2, 1))
        assert agree(MINE, Place(attempt=1), "0", ELASTIC) == restarted  # asked twice, joined once


@pytest.mark.parametrize("sizes", [(2, 3, 2), (2, 2)])
def test_workers_restarted_for_a_node_that_came_or_went_are_an_attempt_too(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, attempts = Store(), []
    for size in sizes:  # torchrun does not count these restarts
        places = []
        for rank in range(size):
            group(monkeypatch, store, rank, size)
            named = agree(MINE, Place(), "0", ELASTIC)
            assert named is not None
            places.append(named[1].attempt)
        (attempt,) = set(places)
        attempts.append(attempt)
    assert attempts == list(range(len(sizes)))


def test_a_store_that_the_workers_host_knows_no_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    group(monkeypatch, Store(), 0, 2)
    # The run is a new one, so that this is its first attempt.
    assert agree(MINE, Place(attempt=3), "0", {"TORCHELASTIC_RUN_ID": "100"}) == (MINE, Place(0, 0, 2, 0))


def test_without_a_process_group_nobody_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    assert agree(MINE, Place(), "0", {}) is None
    group(monkeypatch, Store(), initialized=False)
    assert agree(MINE, Place(), "0", {}) is None
    assert not agreement.group_exists()


def test_a_forked_child_leaves_its_parents_group_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    group(monkeypatch, store)
    assert agreement.group_exists()
    agreement.forget()
    assert not agreement.group_exists()
    assert agree(MINE, Place(), "0", {}) is None
    assert store.values == {}
    group(monkeypatch, store)  # one of its own
    assert agree(MINE, Place(), "0", {}) is not None


@pytest.mark.parametrize("answer", [b"", b"no run id", b"\xff" * 32, b"0" * 32])
def test_an_odd_answer_of_the_store_is_none(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    group(monkeypatch, SimpleNamespace(compare_set=lambda *_: answer))
    assert agree(MINE, Place(), "0", {}) is None


def test_a_store_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("rank 0 is gone")

    group(monkeypatch, SimpleNamespace(compare_set=fail))
    assert name_run(None, MINE, "0", Kin(), {}).run_id == MINE


# --- Names ------------------------------------------------------------------------------------------------


def test_a_launchers_ranks_alone_make_no_run() -> None:
    launched = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}
    named = name_run(None, MINE, "0", Kin(), launched)
    assert (named.run_id, named.place, named.firm) == (MINE, Place(), False)  # a group may still come
    assert name_run(None, MINE, "0", Kin(), {}).firm
    given = name_run(GIVEN, MINE, "0", Kin(), launched)
    assert (given.run_id, given.place, given.firm) == (GIVEN, Place(1, 0, 2), True)


def test_the_users_name_goes_to_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    group(monkeypatch, Store(), 1, 2)
    queued_again = {
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "1",
        "SLURM_NTASKS": "2",
        "SLURM_RESTART_COUNT": "1",
    }
    assert name_run(GIVEN, MINE, "0", Kin(), queued_again).place == Place(1, 0, 2, 1)


def test_what_a_child_inherits(monkeypatch: pytest.MonkeyPatch) -> None:
    place = PARENT._replace(rank=2, world_size=0)
    named = name_run(None, MINE, "0", Kin(PARENT, place), {})
    assert (named.run_id, named.place, named.parent) == (PARENT.run_id, Place(2, 2, 0, 0), None)
    named = name_run(None, MINE, "0", Kin(PARENT), {})
    assert (named.run_id, named.place, named.parent) == (MINE, Place(), PARENT)
    # A child whose environment still has the name that its parent's run has taken.
    assert name_run(PARENT.run_id, MINE, "0", Kin(PARENT), {}).run_id == MINE
    assert name_run(PARENT.run_id, MINE, "0", Kin(PARENT, place), {}).place == Place(2, 2, 0, 0)
    group(monkeypatch, Store(), 1, 2)  # ranks of its own: its parent has rank 0 of the other run
    named = name_run(PARENT.run_id, MINE, "0", Kin(PARENT, place), {})
    assert (named.run_id, named.place, named.parent) == (MINE, Place(1, 0, 2), PARENT)


def test_runs_of_a_process_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "kin", lambda *_: Kin())
    asked: list[str] = []
    monkeypatch.setattr(naming.agreement, "agree", lambda *args: asked.append(args[2]))
    namer = Namer()
    first = namer.next(GIVEN, (), {})
    namer.ended()
    second = namer.next(GIVEN, (), {})
    namer.block(entered=True)
    namer.ended()
    namer.block(entered=False)
    third = namer.next(GIVEN, (), {})
    assert first.run_id == GIVEN
    assert len({first.run_id, second.run_id, third.run_id}) == 3
    # A rank that does something between the blocks shifts no number of a later block.
    assert asked == ["0.0.0", "0.0.1", "1.0.0"]


def test_a_child_takes_part_once(monkeypatch: pytest.MonkeyPatch) -> None:
    place = PARENT._replace(rank=2, world_size=0)
    monkeypatch.setattr(naming, "kin", lambda *_: Kin(PARENT, place))
    namer = Namer()
    assert namer.next(None, (), {}).run_id == PARENT.run_id
    namer.block(entered=True)
    in_block = namer.next(None, (), {})
    namer.block(entered=False)
    namer.ended()
    later = namer.next(None, (), {})
    for named in (in_block, later):
        assert named.run_id != PARENT.run_id
        assert (named.place, named.parent) == (Place(), PARENT)


# --- Word to children ---------------------------------------------------------------------------------------


def child(number: tuple[int, ...], target: str = "__main__") -> Any:
    """A process as `multiprocessing` makes it in its parent."""
    made = multiprocessing.Process(target=SimpleNamespace(__module__=target))
    made._identity = number  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize(
    ("process", "rank"),
    [
        (((2,), "__main__"), 2),
        (((2, 1), "__main__"), None),
        (((2,), "multiprocessing.pool"), None),
        (((2,), "concurrent.futures.process"), None),
    ],
)
def test_which_children_take_part(
    process: tuple[tuple[int, ...], str], rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    family.hand_down(PARENT)
    made = child(*process)
    monkeypatch.setattr(family, "_this_process", lambda: made)
    found = family.kin(None, None, ())
    assert found.parent == PARENT
    assert (found.inherited and found.inherited.rank) == rank
    if found.inherited is not None:
        assert (found.inherited.run_id, found.inherited.world_size) == (PARENT.run_id, 0)


def test_children_of_a_rank_have_runs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    family.hand_down(PARENT._replace(world_size=8))
    made = child((1,))
    monkeypatch.setattr(family, "_this_process", lambda: made)
    assert family.kin(None, None, ()).inherited is None  # the run has its rank 1 already


def test_a_child_may_begin_before_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    family.hand_down(PARENT._replace(began=False))
    made = child((1,))
    monkeypatch.setattr(family, "_this_process", lambda: made)
    found = family.kin(None, None, ())
    assert found.parent is None
    assert found.inherited == PARENT._replace(rank=1, world_size=0, began=False)


def test_a_fork_by_hand_knows_its_parents_run() -> None:
    assert family.kin(PARENT, family.this_process(), ()) == Kin(PARENT)
    assert family.kin(None, family.this_process(), ()) == Kin()


@pytest.mark.parametrize("text", [None, 7, "", "a/b", f"{MINE}/0/0/1", f"{MINE}/x/0/1/1", "xyz/0/0/1/1"])
def test_other_words_tell_nothing(text: object) -> None:
    assert Member.parse(text) is None
    assert Member.parse(PARENT.word) == PARENT
