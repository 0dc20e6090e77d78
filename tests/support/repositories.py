# SPDX-License-Identifier: Apache-2.0
"""Repositories that the real git makes, and what it says of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ENVIRON = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_AUTHOR_DATE": "1700000000 +0000",
    "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_COMMITTER_DATE": "1700000000 +0000",
    "GIT_OPTIONAL_LOCKS": "0",  # asking must not refresh the index: it is to be read as it was left
}  # fmt: skip


def git(folder: Path, *arguments: str, check: bool = True) -> str:
    return _git(folder, *arguments, check=check)


def _git(folder: Path, *arguments: str, check: bool = True, index: str = "") -> str:
    environ = {**ENVIRON, "GIT_INDEX_FILE": index} if index else ENVIRON
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 or not check, f"git {arguments}: {done.stderr}"
    return done.stdout


def _index(folder: Path) -> Path:
    return folder / git(folder, "rev-parse", "--git-path", "index").strip()


def new(folder: Path, *arguments: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main", *arguments)
    return folder


def committed(folder: Path, **files: str) -> Path:
    """A repository with one commit; names have __ for / and _ for a dot."""
    if not (folder / ".git").exists():
        new(folder)
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "c")
    return folder


def aged(folder: Path) -> None:
    """Make the index younger than all files, as after a second of rest."""
    index = _index(folder)
    status = index.stat()
    os.utime(index, ns=(status.st_atime_ns, status.st_mtime_ns + 5_000_000_000))


def says(folder: Path) -> bool:
    """Whether git finds a tracked file, or the index, changed.

    Asked with a copy of the index that is older than all files: else git believes times of full seconds, and
    does not see what was changed within the second in which it had looked.
    """
    copy = folder.parent / f"{folder.name}-index"
    shutil.copyfile(_index(folder), copy)
    os.utime(copy, (1, 1))
    try:
        return bool(_git(folder, "status", "--porcelain", "--untracked-files=no", index=str(copy)))
    finally:
        copy.unlink()
