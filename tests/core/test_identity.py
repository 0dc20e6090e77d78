# SPDX-License-Identifier: Apache-2.0
"""Run id, place in the job, agreement between ranks."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from grademl_otel import identity
from grademl_otel.identity import Place, agree, new_run_id, place_from_environment

MINE = "a" * 32
THEIRS = "b" * 32


def test_run_ids_are_128_random_bits() -> None:
    ids = {new_run_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(run_id) == 32 and int(run_id, 16) for run_id in ids)


@pytest.mark.parametrize(
    ("environ", "launcher", "place"),
    [
        ({}, None, Place()),
        (
            {
                "TORCHELASTIC_RUN_ID": "100",
                "TORCHELASTIC_RESTART_COUNT": "2",
                "RANK": "5",
                "LOCAL_RANK": "1",
                "WORLD_SIZE": "8",
            },
            "torchrun",
            Place(5, 1, 8, 2),
        ),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "torch", Place(1, 0, 2, 0)),
        (
            {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_LOCALID": "3", "SLURM_NTASKS": "4"},
            "slurm",
            Place(3, 3, 4, 0),
        ),
        # A batch script: no step, so its tasks are not this process' ranks.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None, Place()),
        (
            {
                "OMPI_COMM_WORLD_RANK": "2",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                "OMPI_COMM_WORLD_SIZE": "3",
            },
            "mpi",
            Place(2, 0, 3, 0),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "mpi", Place(1, 0, 2, 0)),
        ({"RANK": "one", "WORLD_SIZE": "two"}, "torch", Place(0, 0, 1, 0)),
        ({"RANK": "7", "WORLD_SIZE": "2"}, "torch", Place(7, 0, 8, 0)),
    ],
)
def test_place_from_the_launchers_variables(
    environ: dict[str, str], launcher: str | None, place: Place
) -> None:
    assert identity.launcher_of(environ) == launcher
    assert place_from_environment(environ) == place


class Store:
    """As a c10d store compares and sets: the first value stays."""

    def __init__(self, **values: str) -> None:
        self.values = values

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if key not in self.values and expected == "":
            self.values[key] = desired
        return self.values[key].encode()


def _group(monkeypatch: pytest.MonkeyPatch, store: Any, initialized: bool = True) -> None:
    group = SimpleNamespace(
        is_initialized=lambda: initialized,
        get_rank=lambda: 3,
        get_world_size=lambda: 4,
        _get_default_store=lambda: store,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", group)


def test_the_first_rank_to_ask_names_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    _group(monkeypatch, store)
    assert agree(THEIRS, Place())[0] == THEIRS
    assert agree(MINE, Place(attempt=0)) == (THEIRS, Place(rank=3, local_rank=0, world_size=4))
    assert agree(MINE, Place(attempt=1))[0] == MINE  # a restart is another attempt, with a name of its own


def test_without_a_process_group_each_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.distributed.distributed_c10d", raising=False)
    assert agree(MINE, Place(1, 1, 2)) == (MINE, Place(1, 1, 2))
    _group(monkeypatch, Store(), initialized=False)
    assert agree(MINE, Place()) == (MINE, Place())


@pytest.mark.parametrize("answer", [b"", b"no run id", b"\xff" * 32])
def test_an_odd_answer_of_the_store_changes_nothing(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    _group(monkeypatch, SimpleNamespace(compare_set=lambda *_: answer))
    assert agree(MINE, Place())[0] == MINE


def test_a_store_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("rank 0 is gone")

    _group(monkeypatch, SimpleNamespace(compare_set=fail))
    assert agree(MINE, Place())[0] == MINE


def test_the_clock_id_is_stable() -> None:
    assert identity.clock_id() == identity.clock_id() != ""
