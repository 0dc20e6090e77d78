# SPDX-License-Identifier: Apache-2.0
"""Commit, branch, repository and changes, beside what the real git says of the same folder."""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grademl_otel import semconv
from grademl_otel.resource_detectors.budget import Budget, OverBudget
from grademl_otel.resource_detectors.git import changes, index, refs, repository
from grademl_otel.resource_detectors.git import objects as objects_of
from grademl_otel.resource_detectors.git.objects import Missing, Objects
from grademl_otel.resource_detectors.git.settings import parse
from grademl_otel.resource_detectors.git.urls import public, repository_url
from grademl_otel.resource_detectors.source import source_facts

from ..support.repositories import ENVIRON, aged, committed, git, new, says

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="the twin is git itself")
_LONG = 60.0


def found(folder: Path) -> repository.Repository:
    there = repository.find(str(folder))
    assert there is not None
    return there


def dirty(folder: Path) -> bool | None:
    return changes.dirty(found(folder), Budget(_LONG))


def revision(folder: Path) -> str:
    return refs.head(found(folder)).revision.decode()


# --- One state each -----------------------------------------------------------------------------------------


def _write(name: str, content: str = "changed\n") -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    return change


def _run(*arguments: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        git(folder, *arguments)

    return change


def _same_size_and_time(folder: Path) -> None:
    status = (folder / "a.py").stat()
    (folder / "a.py").write_text("ONE\n")
    os.utime(folder / "a.py", ns=(status.st_atime_ns, status.st_mtime_ns))


def _run_or_fail(*arguments: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        git(folder, *arguments, check=False)

    return change


def _gone(folder: Path) -> None:
    (folder / "a.py").unlink()


def _folder_by_link(folder: Path) -> None:
    shutil.move(folder / "pkg", folder / "elsewhere")
    (folder / "pkg").symlink_to("elsewhere")


def _both(*parts: Callable[[Path], None]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for part in parts:
            part(folder)

    return change


STATES: dict[str, Callable[[Path], object]] = {
    "clean": lambda folder: None,
    "touched": lambda folder: os.utime(folder / "a.py", (1, 1)),
    "other size": _write("a.py"),
    "same size": _write("a.py", "ONE\n"),
    "same size and time": _same_size_and_time,
    "rewritten as it was": _write("a.py", "one\n"),
    "empty": _write("a.py", ""),
    "deleted": _gone,
    "executable": lambda folder: (folder / "a.py").chmod(0o755),
    "other permissions": lambda folder: (folder / "a.py").chmod(0o600),
    "untracked": _write("new.py"),
    "staged": _both(_write("a.py"), _run("add", "a.py")),
    "staged and undone in the tree": _both(_write("a.py"), _run("add", "a.py"), _write("a.py", "one\n")),
    "new and staged": _both(_write("pkg/new.py"), _run("add", "pkg/new.py")),
    "intended": _both(_write("new.py"), _run("add", "-N", "new.py")),
    "removed from the index": _run("rm", "-q", "--cached", "a.py"),
    "moved": _run("mv", "a.py", "c.py"),
    "staged, then unstaged": _both(
        _write("a.py"), _run("add", "a.py"), _write("a.py", "one\n"), _run("add", "a.py")
    ),
    "soft reset": _both(_write("a.py"), _run("commit", "-qam", "2"), _run("reset", "-q", "--soft", "HEAD~")),
    "hard reset": _both(_write("a.py"), _run("reset", "-q", "--hard")),
    "detached": _run("checkout", "-q", "--detach"),
    "packed": _run("gc", "-q"),
    "packed, then staged": _both(_run("gc", "-q"), _write("pkg/b.py"), _run("add", "-A")),
    "index of version 4": _run("update-index", "--index-version", "4"),
    "index of version 4, changed": _both(_run("update-index", "--index-version", "4"), _write("pkg/b.py")),
    "skipped by wish": _both(_run("update-index", "--skip-worktree", "a.py"), _gone),
    "outside of a sparse tree": _run("sparse-checkout", "set", "--cone", "pkg/deep"),
    "changed in a sparse tree": _both(
        _run("sparse-checkout", "set", "--cone", "pkg/deep"), _write("pkg/b.py")
    ),
    "there again outside of a sparse tree": _both(
        _run("sparse-checkout", "set", "--cone", "pkg/deep"), _write("other/d.py", "four\n")
    ),
    "changed outside of a sparse tree": _both(
        _run("sparse-checkout", "set", "--cone", "pkg/deep"), _write("other/d.py")
    ),
    "expected outside of a sparse tree": _both(
        _run("sparse-checkout", "set", "--cone", "pkg/deep"), _write("other/d.py"),
        _run("config", "sparse.expectFilesOutsideOfPatterns", "true"),
    ),
    "assumed unchanged": _both(_run("update-index", "--assume-unchanged", "a.py"), _write("a.py")),
    "mode not looked at": _both(
        _run("config", "core.filemode", "false"), lambda f: (f / "a.py").chmod(0o755)
    ),
    "a link in place of a file": _both(_gone, lambda f: (f / "a.py").symlink_to("x")),
    "a link in place of a folder": _folder_by_link,
    "a folder in place of a file": _both(_gone, _write("a.py/x.py")),
    "a pipe in place of a file": _both(_gone, lambda f: os.mkfifo(f / "a.py")),
    "another target": _both(lambda f: (f / "link").unlink(), lambda f: (f / "link").symlink_to("a.px")),
    "a conflict": _both(
        _run("checkout", "-q", "-b", "other"), _write("a.py", "x\n"), _run("commit", "-qam", "2"),
        _run("checkout", "-q", "main"), _write("a.py", "y\n"), _run("commit", "-qam", "3"),
        _run_or_fail("merge", "-q", "other"),
    ),
    "stashed": _both(_write("a.py"), _run("stash", "-q")),
    "the index without what it knows of trees": _both(_write("pkg/b.py"), _run("commit", "-qam", "2"),
        _run("read-tree", "HEAD")),
    "an emptied index": _run("read-tree", "--empty"),
    "another folder empty": _both(lambda f: (f / "void").mkdir()),
}  # fmt: skip


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template") / "t"
    new(folder)
    (folder / "link").mkdir(parents=True)
    (folder / "link").rmdir()
    (folder / "link").symlink_to("a.py")
    return committed(
        folder,
        a_py="one\n",
        pkg__b_py="two\n",
        pkg__deep__c_py="three\n",
        other__d_py="four\n",
        run_sh="#!/bin/sh\n",
    )


@pytest.fixture
def work(template: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    shutil.copytree(template, folder, symlinks=True)
    git(folder, "status")  # copies are other files: have the index know them
    return folder


@pytest.mark.parametrize("racy", [False, True], ids=["aged", "racy"])
@pytest.mark.parametrize("state", STATES)
def test_a_state(state: str, racy: bool, work: Path) -> None:
    git(work, "update-index", "-q", "--refresh")
    if not racy:
        aged(work)
    STATES[state](work)
    told = dirty(work)
    assert told is says(work)
    assert revision(work) == git(work, "rev-parse", "HEAD").strip()


def test_before_the_first_commit(tmp_path: Path) -> None:
    folder = new(tmp_path / "r")
    (folder / "a.py").write_text("a")
    assert refs.head(found(folder)) == refs.Head(b"", b"main")
    assert source_facts(_LONG, str(folder / "a.py")) == {semconv.SOURCE_BRANCH: "main"}
    git(folder, "add", "a.py")
    assert dirty(folder) is None


def test_the_object_format_of_the_future(tmp_path: Path) -> None:
    try:
        folder = new(tmp_path / "r", "--object-format=sha256")
    except AssertionError:
        pytest.skip("this git makes none")
    committed(folder, a_py="one\n", pkg__b_py="two\n")
    assert len(revision(folder)) == 64
    assert dirty(folder) is False
    git(folder, "gc", "-q")
    (folder / "a.py").write_text("TWO\n")
    assert dirty(folder) is says(folder) is True
    git(folder, "add", "-A")
    assert dirty(folder) is says(folder) is True


def test_another_working_tree_of_the_same_repository(work: Path, tmp_path: Path) -> None:
    git(work, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    side = tmp_path / "side"
    assert refs.head(found(side)).branch == b"side"
    assert dirty(side) is says(side) is False
    (side / "a.py").write_text("changed\n")
    git(side, "commit", "-qam", "2")
    assert revision(side) == git(side, "rev-parse", "HEAD").strip() != revision(work)
    (side / "a.py").write_text("again\n")
    assert (dirty(side), dirty(work)) == (True, False)


def test_submodules(work: Path, tmp_path: Path) -> None:
    inner = committed(tmp_path / "inner", x_py="x\n")
    git(work, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "sub")
    git(work, "commit", "-qm", "2")
    assert dirty(work) is says(work) is False
    assert revision(work / "sub") == revision(inner)
    (work / "sub/x.py").write_text("changed\n")
    assert dirty(work) is says(work) is True
    git(work / "sub", "commit", "-qam", "2")
    assert dirty(work) is says(work) is True
    git(work, "commit", "-qam", "3")
    assert dirty(work) is says(work) is False
    git(work, "submodule", "deinit", "-q", "-f", "sub")
    assert dirty(work) is says(work) is False


def test_what_only_git_could_tell_is_not_told(work: Path, tmp_path: Path) -> None:
    aged(work)
    assert dirty(work) is False
    (work / ".gitattributes").write_text("*.py filter=x\n*.sh text\n")
    (work / "run.sh").write_text("#!/bin/SH\n")
    assert dirty(work) is True  # only line ends are converted there, and it has none that could be
    (work / "run.sh").write_text("#!/bin/s\r\n")
    assert dirty(work) is None
    git(work, "checkout", "-q", "run.sh")
    (work / "a.py").write_text("ONE\n")
    assert dirty(work) is None  # the filter may make of it what it was
    (work / "a.py").write_text("other size\n")
    assert dirty(work) is True


def test_settings_from_anywhere_may_convert(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "a.py").write_bytes(b"x\r\n")
    git(work, "config", "core.autocrlf", "true")
    git(work, "commit", "-qam", "2")
    os.utime(work / "a.py", (1, 1))
    assert (says(work), dirty(work)) == (False, None)
    git(work, "config", "--unset", "core.autocrlf")
    assert (says(work), dirty(work)) == (True, True)
    git(work, "config", "extensions.worktreeConfig", "true")
    git(work, "config", "--worktree", "core.autocrlf", "true")
    assert (says(work), dirty(work)) == (False, None)
    git(work, "config", "--worktree", "--unset", "core.autocrlf")
    assert dirty(work) is True
    for name in ("GIT_CONFIG_COUNT", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_PARAMETERS", "GIT_ATTR_SOURCE"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            assert dirty(work) is None
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    assert dirty(work) is True


@pytest.mark.parametrize("packed", [False, True])
def test_objects_that_are_replaced(packed: bool, work: Path) -> None:
    (work / "a.py").write_text("changed\n")
    git(work, "add", "a.py")
    tree = git(work, "write-tree").strip()
    git(work, "replace", "HEAD", git(work, "commit-tree", "-m", "other", tree).strip())
    if packed:
        git(work, "pack-refs", "--all")
    assert (says(work), dirty(work)) == (False, None)


@pytest.mark.parametrize("how", ["split", "sparse", "extension", "format", "truncated", "huge", "pipe"])
def test_what_is_not_known_here_is_not_told(how: str, work: Path) -> None:
    path = work / ".git/index"
    content = path.read_bytes()
    if how == "split":
        git(work, "update-index", "--split-index")
    elif how == "sparse":
        git(work, "sparse-checkout", "set", "--cone", "--sparse-index", "pkg")
    elif how == "extension":
        path.write_bytes(content[:-20] + b"newx\0\0\0\0" + content[-20:])
    elif how == "format":
        git(work, "config", "core.repositoryformatversion", "7")
    elif how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "huge":
        with path.open("r+b") as file:
            file.truncate(1 << 30)
    else:
        path.unlink()
        os.mkfifo(path)
    assert dirty(work) is None


def test_damaged_indexes_and_objects_only_make_it_unknown(work: Path) -> None:
    git(work, "gc", "-q")
    (work / "a.py").write_text("staged\n")
    git(work, "add", "a.py")
    pack = next((work / ".git/objects/pack").glob("*.pack"))
    files = [work / ".git/index", pack, pack.with_suffix(".idx"), work / ".git/HEAD"]
    contents = [file.read_bytes() for file in files]
    chance = random.Random(7)
    for _ in range(150):
        number = chance.randrange(len(files))
        damaged = bytearray(contents[number])
        for _ in range(chance.randrange(1, 6)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        files[number].chmod(0o644)
        files[number].write_bytes(bytes(damaged[: chance.randrange(len(damaged) + 1)] or damaged))
        there = repository.find(str(work))
        if there is not None:
            refs.head(there)
            assert changes.dirty(there, Budget(_LONG)) in (True, False, None)
        files[number].write_bytes(contents[number])


def test_too_much_for_the_time_is_not_told(work: Path) -> None:
    with pytest.raises(OverBudget):
        changes.dirty(found(work), Budget(-1))
    facts = source_facts(-1, str(work / "a.py"))
    assert facts[semconv.SOURCE_REVISION] == revision(work)
    assert semconv.SOURCE_DIRTY not in facts


def test_a_big_file_is_read_for_no_longer_than_the_time(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (work / "big").open("wb") as file:
        file.truncate(16 << 20)
    git(work, "add", "big")
    git(work, "commit", "-qm", "2")
    os.utime(work / "big", (1, 1))
    assert dirty(work) is False
    sizes: list[int] = []

    def read(descriptor: int, most: int, read: Callable[[int, int], bytes] = os.read) -> bytes:
        sizes.append(len(part := read(descriptor, most)))
        return part

    class Short(Budget):
        def check(self) -> None:
            if sum(sizes) > 1 << 21:
                raise OverBudget

    monkeypatch.setattr(os, "read", read)
    with pytest.raises(OverBudget):
        changes.dirty(found(work), Short(_LONG))
    assert sum(sizes) < 1 << 22


def test_an_object_that_never_comes_to_its_end_takes_no_longer_than_the_time(work: Path) -> None:
    """A pack may unpack to nothing for as long as it is."""
    store = work / ".git/objects/pack"
    oid = b"\x11" * 20
    fanout = b"".join(int(first >= oid[0]).to_bytes(4, "big") for first in range(256))
    names = b"\377tOc" + (2).to_bytes(4, "big") + fanout + oid + bytes(4)
    (store / "pack-endless.idx").write_bytes(names + (12).to_bytes(4, "big") + bytes(40))
    empty = b"\0\0\0\xff\xff"  # a block of deflate that holds no bytes
    header = bytes([1 << 4 | 9 | 128, 1]) + b"\x78\x01"
    (store / "pack-endless.pack").write_bytes(b"PACK" + bytes(8) + header + empty * (4 << 20))
    objects = Objects(found(work), Budget(_LONG))
    with pytest.raises(Missing):
        objects.read(oid, b"commit")
    objects.close()
    objects = Objects(found(work), Budget(0.01))
    with pytest.raises(OverBudget):
        objects.read(oid, b"commit")
    objects.close()


def test_what_has_no_chance_is_not_begun(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = git(work, "rev-parse", "HEAD:a.py").strip()
    listed = "".join(f"100644 {blob}\tbig/{n // 100}/{n}.py\n" for n in range(20_000))
    command = ["git", "update-index", "--index-info"]
    subprocess.run(command, cwd=work, env=ENVIRON, input=listed, text=True, check=True)
    assert len(index.read(found(work).folder, 20, Budget(_LONG)).entries) == 20_006
    assert source_facts(_LONG, str(work / "a.py"))[semconv.SOURCE_DIRTY] is True
    monkeypatch.setattr(index, "read", None)
    facts = source_facts(0.04, str(work / "a.py"))
    assert facts[semconv.SOURCE_REVISION] == revision(work)
    assert semconv.SOURCE_DIRTY not in facts


def test_objects_are_read_as_git_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = new(tmp_path / "r")
    for number in range(12):  # each tree is like the one before, so that packs have deltas of deltas
        for name in range(40):
            (folder / f"f{name}").write_text(f"{name} {name < number}\n" * 20)
        committed(folder)
    git(folder, "repack", "-q", "-adf", "--depth=40", "--window=40")
    listed = git(folder, "cat-file", "--batch-check", "--batch-all-objects").splitlines()
    deltas = git(folder, "verify-pack", "-v", *map(str, (folder / ".git/objects/pack").glob("*.idx")))
    assert "chain length = 3" in deltas
    objects = Objects(found(folder), Budget(_LONG))
    checked = 0
    for line in listed:
        oid, kind, _ = line.split()
        if kind != "blob":
            expected = subprocess.run(
                ["git", "cat-file", kind, oid], cwd=folder, env=ENVIRON, capture_output=True, check=True
            ).stdout
            assert objects.read(bytes.fromhex(oid), kind.encode()) == expected
            checked += 1
    assert checked == 24
    with pytest.raises(Missing):
        objects.read(b"\1" * 20, b"tree")
    objects.close()

    patched = 0

    def patch(
        base: bytes, delta: bytes, patch: Callable[[bytes, bytes], bytes] = objects_of._patched
    ) -> bytes:
        nonlocal patched
        patched += 1
        return patch(base, delta)

    class Short(Budget):
        def check(self) -> None:
            if patched:
                raise OverBudget

    monkeypatch.setattr(objects_of, "_patched", patch)
    chains = [words for line in deltas.splitlines() if len(words := line.split()) == 7 and words[1] == "tree"]
    longest = max(chains, key=lambda words: int(words[5]))
    with pytest.raises(OverBudget):
        Objects(found(folder), Short(_LONG)).read(bytes.fromhex(longest[0]), b"tree")
    assert patched == 1


# --- Many states --------------------------------------------------------------------------------------------

ACTIONS = (
    "write", "write same size", "delete", "chmod", "touch", "add", "add all", "commit", "reset",
    "checkout file", "new file", "rename", "gc", "branch", "switch", "refresh", "age", "stash", "version 4",
    "soft", "rm cached",
)  # fmt: skip


def _act(folder: Path, action: str, chance: random.Random) -> None:
    tracked = [path for path in folder.rglob("*") if ".git" not in path.parts and path.is_file()]
    path = chance.choice(tracked) if tracked else None
    if action == "write" and path:
        path.write_text("x\n" * chance.randrange(5))
    elif action == "write same size" and path:
        path.write_bytes(bytes(chance.choice(b"ab\n") for _ in path.read_bytes()))
    elif action == "delete" and path:
        path.unlink()
    elif action == "chmod" and path:
        path.chmod(chance.choice((0o644, 0o755)))
    elif action == "touch" and path:
        os.utime(path)
    elif action == "new file":
        target = folder / chance.choice(("", "d", "d/e", "f")) / f"n{chance.randrange(4)}"
        if not target.is_dir() and not any(above.is_file() for above in target.parents):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("n\n")
    elif action == "rename" and path:
        git(folder, "mv", "-f", str(path), str(path) + "r", check=False)
    else:
        _command(folder, action, path, chance)


def _command(folder: Path, action: str, path: Path | None, chance: random.Random) -> None:
    name = str(path or folder / "none")
    commands = {
        "add": ("add", name),
        "add all": ("add", "-A"),
        "commit": ("commit", "-q", "-m", f"{chance.random()}"),
        "reset": ("reset", "-q", "--hard"),
        "checkout file": ("checkout", "-q", "--", name),
        "gc": ("gc", "-q"),
        "branch": ("checkout", "-q", "-B", f"b{chance.randrange(3)}"),
        "switch": ("checkout", "-q", "main"),
        "refresh": ("update-index", "-q", "--refresh"),
        "stash": ("stash", "-q"),
        "version 4": ("update-index", "--index-version", chance.choice("24")),
        "soft": ("reset", "-q", "--soft", "HEAD~1"),
        "rm cached": ("rm", "-q", "--cached", name),
    }
    if action == "age":
        aged(folder)
    elif action in commands:
        git(folder, *commands[action], check=False)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32), actions=st.lists(st.sampled_from(ACTIONS), min_size=3, max_size=12))
def test_any_history(template: Path, tmp_path: Path, seed: int, actions: list[str]) -> None:
    folder = tmp_path / f"{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder, symlinks=True)
    chance = random.Random(seed)
    for action in actions:
        _act(folder, action, chance)
    told = dirty(folder)
    assert told is says(folder)
    assert revision(folder) == git(folder, "rev-parse", "HEAD").strip()
    branch = git(folder, "symbolic-ref", "--short", "HEAD", check=False).strip()
    assert refs.head(found(folder)).branch.decode() == branch


# --- Where it is looked for ---------------------------------------------------------------------------------


def test_the_search_stops_at_what_another_owner_has_put_there(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "pkg/deep").mkdir(exist_ok=True)
    assert repository.find(str(work / "pkg/deep")) is not None
    real = os.lstat
    other = 65000

    def lstat(path: bytes | str) -> os.stat_result:
        status = real(path)
        if os.fsencode(path).endswith(b"/.git"):
            return os.stat_result((*status[:4], other, *status[5:]))
        return status

    monkeypatch.setattr(os, "lstat", lstat)
    assert repository.find(str(work / "pkg/deep")) is None


@pytest.mark.parametrize(
    "content", [b"", b"gitdir: /nowhere", b"gitdir: .git", b"gitdir: \0", b"x" * 5000, b"\xff"]
)
def test_a_git_file_that_leads_nowhere(content: bytes, tmp_path: Path) -> None:
    (tmp_path / ".git").write_bytes(content)
    assert repository.find(str(tmp_path)) is None
    assert source_facts(_LONG, str(tmp_path / "a.py")) == {}


def test_links_that_go_round(work: Path) -> None:
    (work / ".git/HEAD").unlink()
    (work / ".git/HEAD").symlink_to("HEAD")
    assert repository.find(str(work)) is None
    (work / ".git/HEAD").unlink()
    (work / ".git/HEAD").write_text("ref: refs/heads/a\n")
    (work / ".git/refs/heads/a").write_text("ref: refs/heads/b\n")
    (work / ".git/refs/heads/b").write_text("ref: refs/heads/a\n")
    assert refs.head(found(work)) == refs.Head(b"", b"a")
    (work / ".git/HEAD").write_text("ref: ../../../../etc/passwd\n")
    assert refs.head(found(work)).revision == b""


def test_a_program_that_the_commit_does_not_have(work: Path) -> None:
    aged(work)
    (work / "new.py").write_text("print()\n")
    assert source_facts(_LONG, str(work / "a.py"))[semconv.SOURCE_DIRTY] is False
    assert source_facts(_LONG, str(work / "new.py"))[semconv.SOURCE_DIRTY] is True


def test_which_program_runs(work: Path, tmp_path: Path) -> None:
    """A script's own folder counts, wherever it was started; of what has no file the working folder."""
    code = (
        "from grademl_otel.resource_detectors.source import source_facts\n"
        "print(source_facts(60).get('vcs.ref.head.revision', '-'))\n"
    )
    (work / "pkg/b.py").write_text(code)
    (tmp_path / "linked.py").symlink_to(work / "pkg/b.py")

    def said(folder: Path, *arguments: str) -> str:
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    at = revision(work)
    assert said(tmp_path, str(work / "pkg/b.py")) == at
    assert said(tmp_path, "work/pkg/b.py") == at
    assert said(tmp_path, "linked.py") == at
    assert said(tmp_path, "-c", code) == "-"
    assert said(work, "-c", code) == at
    assert said(work, "-m", "pkg.b") == at


def test_nothing_is_run_and_nothing_is_written(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    for key in ("core.fsmonitor", "filter.x.clean", "core.sshCommand", "diff.external", "core.hooksPath"):
        git(work, "config", key, str(trap))
    (work / ".gitattributes").write_text("* filter=x\n")
    (work / "a.py").write_text("ONE\n")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(subprocess, "Popen", None)
    before = {path: path.lstat().st_mtime_ns for path in sorted(work.rglob("*"))}
    assert source_facts(_LONG, str(work / "a.py"))[semconv.SOURCE_REVISION]
    assert before == {path: path.lstat().st_mtime_ns for path in sorted(work.rglob("*"))}
    assert not (tmp_path / "sprung").exists()


# --- Where it comes from ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://github.com/org/repo.git", "https://github.com/org/repo"),
        ("https://user:secret@github.com/org/repo", "https://github.com/org/repo"),
        ("https://oauth2:glpat-abcdefghijklmnop@gitlab.example.org/g/sub/repo.git", "https://gitlab.example.org/g/sub/repo"),
        ("http://host.example:8080/r", "http://host.example:8080/r"),
        ("https://host/r?private_token=secret", "https://host/r"),
        ("https://host/r#secret", "https://host/r"),
        ("git@github.com:org/repo.git", "https://github.com/org/repo"),
        ("ssh://git@host.example:2222/org/repo.git", "ssh://host.example:2222/org/repo"),
        ("deploy@host.example:srv/repo.git", "ssh://host.example/srv/repo"),
        ("https://user:se/cret@host/org/repo", ""),
        ("https://user:12/cr?et@host/org/repo", ""),
        ("https://user:12/cr#et@host/org/repo", ""),
        ("https://user:se@cret@host/org/repo", "https://host/org/repo"),
        ("https://host/ghp_0123456789abcdefghij/repo", ""),
        ("https://host/" + "a1" * 30 + "/repo", ""),
        ("https://host/npm_" + "xZ1" * 12 + "/repo", ""),
        ("https://host/dckr_pat_" + "xZ1" * 9 + "/repo", ""),
        ("https://host/AIza" + "xZ1" * 11 + "/repo", ""),
        ("https://host/eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl/repo", ""),
        ("https://host/npm_tools/AIzawa/eyJig", "https://host/npm_tools/AIzawa/eyJig"),
        ("https://host/flask-application/global-something-long", "https://host/flask-application/global-something-long"),
        ("ssh://me@host/~me/repo", ""),
        ("me@host:~/repo", ""),
        ("me@host:/home/me/repo", ""),
        ("/home/me/repo.git", ""),
        ("file:///home/me/repo.git", ""),
        ("../repo", ""),
        ("C:/Users/me/repo", ""),
        ("ext::sh -c secret% %S foo", ""),
        ("https://host", ""),
        ("https://host/a b", ""),
        ("https://host/\x1b[31m", ""),
        ("https://" + "a" * 300 + "/r", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_what_is_told_of_a_url(url: str, told: str) -> None:
    assert public(url) == told


@given(
    st.text(alphabet="abc:/@?#%.\\ \n-", max_size=30), st.text(alphabet="abcxyz0189", min_size=6, max_size=12)
)
def test_a_password_never_gets_through(noise: str, password: str) -> None:
    secret = f"S{password}S"
    for url in (
        f"https://user:{secret}@host/{noise}",
        f"https://{secret}@host/r{noise}",
        f"https://user:{noise}{secret}@host/r",
        f"https://u:{secret}{noise}@host/r",
        f"ssh://u:{secret}@host/{noise}",
        f"{secret}@host:r{noise}",
    ):
        assert secret not in public(url), url


def test_which_remote(work: Path) -> None:
    def told() -> str:
        there = found(work)
        return repository_url(there.settings, refs.head(there).branch.decode())

    assert told() == ""
    git(work, "remote", "add", "fork", "https://u:p@host/fork")
    assert told() == "https://host/fork"
    git(work, "remote", "add", "origin", "https://host/origin.git")
    assert told() == "https://host/origin"
    git(work, "config", "branch.main.remote", "fork")
    assert told() == "https://host/fork"
    git(work, "remote", "rename", "origin", "upstream")
    git(work, "config", "branch.main.remote", "gone")
    assert told() == ""  # which of the two is meant?


def test_settings_as_git_reads_them(tmp_path: Path) -> None:
    content = (
        '[core]\n\tbare = false ; no\n FileMode\n[remote "a \\"b\\""]\nurl = "https://h/x#y" # c\n'
        '[branch "x"] remote = o\n\nmerge=refs/heads/x\\\n/y\n[broken\nlost = 1\n'
    )
    parsed = parse(content.encode())
    assert parsed == {
        "core.bare": "false",
        "core.filemode": "true",
        'remote.a "b".url': "https://h/x#y",
        "branch.x.remote": "o",
        "branch.x.merge": "refs/heads/x/y",
    }


def test_a_tree_of_another_owner_is_no_stat_away(work: Path) -> None:
    """An index may name anything: only paths in the working tree are looked at."""
    content = (work / ".git/index").read_bytes()
    for name in (b"a.py", b"pkg/b.py"):
        for bad in (b"/etc", b"../x", b"p/../../x"):
            at = content.index(name)
            evil = content[:at] + bad[: len(name)].ljust(len(name), b"x") + content[at + len(name) :]
            (work / ".git/index").write_bytes(evil)
            if bad[: len(name)].startswith(b"/") or b".." in bad[: len(name)].split(b"/"):
                with pytest.raises(index.Unreadable):
                    index.read(found(work).folder, 20, Budget(_LONG))
    assert stat.S_ISREG((work / ".git/index").stat().st_mode)
