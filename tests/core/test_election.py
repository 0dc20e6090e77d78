# SPDX-License-Identifier: Apache-2.0
"""Elections between processes: one holds, another takes over at its death, a forked child holds nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from grademl_otel.sampling.election import Elections

DIGEST = "0123456789abcdef01234567"
OTHER_SETTINGS = "fedcba987654321001234567"
OTHER_NAMESPACE = "0123456789abcdef89abcdef"
HOLDER = """
import sys
from pathlib import Path
from grademl_otel.sampling.election import Elections
elections = Elections(Path(sys.argv[1]), sys.argv[2])
print(elections.mine("x"), flush=True)
sys.stdin.read()
"""


def test_one_holds_and_gives_back(tmp_path: Path) -> None:
    a, b = Elections(tmp_path, DIGEST), Elections(tmp_path, OTHER_NAMESPACE)
    assert [a.mine("x"), a.mine("x"), b.mine("x"), b.mine("y")] == [True, True, False, True]
    assert [a.others("x"), b.others("x"), a.others("y"), a.others("z")] == [False, True, True, False]
    a.give_back("x")
    a.give_back("never held")
    assert [b.others("x"), b.mine("x"), a.mine("x")] == [False, True, False]
    b.close()
    assert [a.mine("x"), a.mine("y")] == [True, True]
    a.close()
    assert list(tmp_path.iterdir()) == []


def test_those_with_other_settings_do_not_meet_but_in_files(tmp_path: Path) -> None:
    a, b = Elections(tmp_path, DIGEST), Elections(tmp_path, OTHER_SETTINGS)
    assert [a.mine("x"), b.mine("x")] == [True, True]
    assert [a.mine("files /runs/1"), b.mine("files /runs/1"), b.mine("files /runs/2")] == [True, False, True]


def test_another_takes_over_when_the_holder_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path), DIGEST]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        mine = Elections(tmp_path, DIGEST)
        assert [mine.mine("x"), mine.others("x")] == [False, True]
        holder.kill()
        holder.wait()
        assert [mine.others("x"), mine.mine("x")] == [False, True]


def test_a_forked_child_holds_nothing_and_keeps_nothing_from_others(tmp_path: Path) -> None:
    mine, other = Elections(tmp_path, DIGEST), Elections(tmp_path, DIGEST)
    assert mine.mine("x")
    out, into = os.pipe()
    go, free = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(free)
            os.write(into, b"yes" if mine.mine("x") else b"no")
            os.read(go, 1)
        finally:
            os._exit(0)
    os.close(go)
    try:
        assert os.read(out, 10) == b"no"
        assert mine.mine("x"), "the child has let go of its copy, not of the lock"
        mine.close()
        assert other.mine("x"), "the child lives, and is no reason to wait"
    finally:
        os.close(free)
        os.waitpid(pid, 0)


def test_a_lock_whose_file_was_deleted_is_taken_anew(tmp_path: Path) -> None:
    mine, other = Elections(tmp_path, DIGEST), Elections(tmp_path, DIGEST)
    assert mine.mine("x")
    (lock,) = tmp_path.iterdir()
    lock.unlink()
    assert [other.mine("x"), mine.mine("x")] == [True, False]


def test_where_nobody_can_be_asked_everybody_does_it(tmp_path: Path) -> None:
    mine = Elections(tmp_path / "missing", DIGEST)
    assert [mine.mine("x"), mine.others("x")] == [True, False]
