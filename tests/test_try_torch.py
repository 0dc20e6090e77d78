# SPDX-License-Identifier: Apache-2.0
"""`tools/try_torch.py`, but for the installing: versions that work, that fail, that are not there."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "try_torch.py"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("try_torch", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "try_torch", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.Environment, "make", lambda self, version: None)
    monkeypatch.setattr(module.Environment, "torch", lambda self: f"{self.folder.name}+cpu")
    return module


def answering(tests: str, err: str = "", verdict: str = "VERDICT  All is well.", code: int = 0) -> Any:
    """Stands for `Environment.run`."""

    def run(self: Any, *arguments: str, **_: Any) -> subprocess.CompletedProcess[str]:
        if "pytest" in arguments:
            return subprocess.CompletedProcess(arguments, code, tests, "")
        return subprocess.CompletedProcess(arguments, 0, verdict if "report" in arguments else "", err)

    return run


def test_a_version_that_works(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool.Environment, "run", answering("....\n4 passed, 1 skipped in 2.0s\n"))
    assert tool.main(["2.6.0", "--folder", str(tmp_path), "--log", str(tmp_path / "log")]) == 0
    begin = f"| 2.6.0+cpu | {sys.version.split()[0]} |"
    assert capsys.readouterr().out == f"{begin} 4 passed, 1 skipped | All is well | works |\n"
    assert "4 passed" in (tmp_path / "log" / "2.6.0.log").read_text()


def test_a_version_that_fails(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = answering(
        "FAILED tests/a.py::test_b - why\n1 failed, 3 passed in 2.0s\n",
        "grademl: torch: forward is not recorded: ImportError: no such name\n", code=1,
    )  # fmt: skip
    monkeypatch.setattr(tool.Environment, "run", failed)
    assert tool.main(["2.1.0", "--folder", str(tmp_path), "--log", str(tmp_path)]) == 1
    row = capsys.readouterr().out
    assert "| 1 failed, 3 passed |" in row
    assert f"1 failed, see {tmp_path / '2.1.0.log'}: tests/a.py::test_b" in row
    assert "torch: forward is not recorded" in row


def test_a_row_says_which_tests_were_chosen(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool.Environment, "run", answering("....\n4 passed in 2.0s\n"))
    options = ["--folder", str(tmp_path), "--log", str(tmp_path), "--only", "phases or compile"]
    assert tool.main(["2.8.0", *options]) == 0
    assert "| 4 passed of `phases or compile` |" in capsys.readouterr().out


def test_tests_that_do_not_end(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = answering("")

    def run(self: Any, *arguments: str, timeout: int, **rest: Any) -> subprocess.CompletedProcess[str]:
        if "pytest" in arguments:
            program = "print('..F', flush=True); import time; time.sleep(600)"
            return subprocess.run(
                [sys.executable, "-c", program], capture_output=True, text=True, timeout=timeout
            )
        return answers(self, *arguments)  # type: ignore[no-any-return]

    monkeypatch.setattr(tool.Environment, "run", run)
    monkeypatch.setattr(tool, "TEST_TIMEOUT_S", 2)
    assert tool.main(["2.8.0", "--folder", str(tmp_path), "--log", str(tmp_path)]) == 1
    row = capsys.readouterr().out
    assert f"the tests had not ended after 2 s, see {tmp_path / '2.8.0.log'}" in row
    assert "| not to the end | All is well |" in row  # the example is tried all the same


def test_a_version_that_cannot_be_had(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def make(self: Any, version: str) -> None:
        raise subprocess.CalledProcessError(1, ["pip", "install"], stderr="ERROR: No matching distribution")

    monkeypatch.setattr(tool.Environment, "make", make)
    assert tool.main(["99.0", "--folder", str(tmp_path)]) == 1
    assert "| pip failed: ERROR: No matching distribution |" in capsys.readouterr().out


def test_what_is_no_version(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        tool.main(["newest"])
    assert end.value.code == 2
    assert "'newest' is no version of PyTorch; give one as 2.6.0" in capsys.readouterr().err
