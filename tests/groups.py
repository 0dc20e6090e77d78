# SPDX-License-Identifier: Apache-2.0
"""Which tests share a process, see `python -m tests`.

A process that uses gRPC cannot be forked: gRPC starts its threads in the child, too, and those die of the
channels that are the parent's, with a segmentation fault. So tests that fork are by themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

import pytest

GROUPS: Final = ("programs-1", "programs-2", "programs-3", "servers", "forks")
"""The longest first: then those that run side by side end together."""

_ROOT: Final = Path(__file__).resolve().parents[1]
_PROGRAMS: Final = "tests/e2e"
_FORKS: Final = ("tests/core", "tests/instrumentations")
_SERVERS: Final = ("tests/core/test_export.py", "tests/core/test_filestore.py")
"""Use gRPC, other than the rest of their folder."""


def group_of(module: Path) -> str:
    """Return the group of a module of tests."""
    path = PurePosixPath(module.relative_to(_ROOT))
    folder = str(path.parent)
    if folder == _PROGRAMS:
        # Every third one, by name: each takes about as long as the others.
        number = sorted(each.name for each in module.parent.glob("test_*.py")).index(path.name)
        return f"programs-{1 + number % 3}"
    return "forks" if folder in _FORKS and str(path) not in _SERVERS else "servers"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--group", choices=GROUPS, help="run only the tests of one group, see tests/groups.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import modules of other groups."""
    wanted = config.getoption("group")
    is_module = collection_path.match("test_*.py")
    return True if wanted and is_module and group_of(collection_path) != wanted else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the command line names of other groups; without groups run first what forks."""
    wanted = config.getoption("group")
    groups = {path: group_of(path) for path in {item.path for item in items}}
    if wanted:
        left_out = [item for item in items if groups[item.path] != wanted]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if groups[item.path] == wanted]
    else:
        items.sort(key=lambda item: groups[item.path] != "forks")


# --- No fork beside gRPC ----------------------------------------------------------------------------------

_forked_beside_grpc: list[int] = []


def _before_fork() -> None:
    if _grpc_runs():
        _forked_beside_grpc.append(os.getpid())


os.register_at_fork(before=_before_fork)


def _grpc_runs() -> bool:
    """Whether threads of gRPC's are in this process; on Linux, where they can be seen."""
    for name in Path("/proc/self/task").glob("*/comm"):
        try:
            if name.read_text().startswith("event_engine"):
                return True
        except OSError:
            pass  # a thread that has ended meanwhile
    return False


@pytest.fixture(autouse=True)
def no_fork_beside_grpc() -> Iterator[None]:
    """Fail each test that forks this process while gRPC runs in it, rather than one in fifty at random."""
    _forked_beside_grpc.clear()
    yield
    assert not _forked_beside_grpc, "forked beside gRPC: close that, or put it into a group of its own"
