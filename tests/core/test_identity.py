# SPDX-License-Identifier: Apache-2.0
"""Run ids and what launchers say of a process' place."""

from __future__ import annotations

import pytest

from grademl_otel import identity
from grademl_otel.identity import Place, new_run_id, place_from_environment


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


def test_the_clock_id_is_stable() -> None:
    assert identity.clock_id() == identity.clock_id() != ""
