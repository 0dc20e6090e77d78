# SPDX-License-Identifier: Apache-2.0
"""Completion as a shell asks for it: a real bash sources the script and completes what is typed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from grademl_otel.analyzers.cli import completion
from grademl_otel.analyzers.cli.app import run
from grademl_otel.analyzers.cli.commands import BY, grademl
from tests.support.synthetic import Training, simulate

BIN = Path(sys.executable).parent
RUNS = ("3f2a" + "0" * 28, "91bc" + "0" * 28)

ASK = """
source <(grademl completion bash)
complete -p grademl >&2
while IFS= read -r line; do
    COMP_WORDS=()
    IFS='|' read -ra COMP_WORDS <<< "$line"
    [[ $line == *'|' ]] && COMP_WORDS+=("")
    COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )) COMPREPLY=()
    compopt() { COMPREPLY+=("<$2>"); }
    _grademl_completion grademl
    echo "${COMPREPLY[*]}"
done
"""
Ask = Callable[..., list[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, run_id in enumerate(RUNS):
        training = Training(
            run_id=run_id, epochs=1, steps_per_epoch=2, start=Training.start + number * 10**12
        )
        simulate(training).write_store(tmp_path / "grademl-runs")
    (first,) = (tmp_path / "grademl-runs").glob(f"*{RUNS[0]}")
    shutil.copytree(first, tmp_path / "elsewhere" / first.name)
    return tmp_path


@pytest.fixture
def ask(folder: Path) -> Ask:
    """Ask a bash in the folder what completes each line, whose words are separated by ``|``."""

    def answers(*lines: str) -> list[str]:
        env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
        env.pop("GRADEML_SOURCE", None)
        done = subprocess.run(
            ["bash", "--norc", "-c", ASK],
            input="".join(f"{line}\n" for line in lines),
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.stderr == "complete -o nosort -F _grademl_completion grademl\n"
        return done.stdout.splitlines()

    return answers


def test_bash_completes_commands_options_choices_and_runs(ask: Ask) -> None:
    answers = ask(
        "grademl|", "grademl|pa", "grademl|--st", "grademl|path|--by|", "grademl|report|-f|m",
        "grademl|path|--run|", "grademl|elsewhere|--run|", "grademl|path|--attempt|", "grademl|help|re",
        "grademl|completion|",
    )  # fmt: skip
    assert set(answers[0].split()) == set(grademl.names)
    assert answers[1] == "path"
    assert set(answers[2].split()) == {"--steps", "--strict"}
    assert answers[3].split() == [*BY]
    assert answers[4] == "markdown"
    assert answers[5].split() == ["latest", RUNS[1][:12], RUNS[0][:12]]  # the latest first
    assert answers[6].split() == ["latest", RUNS[0][:12]]
    assert answers[7].split() == ["last", "all"]
    assert answers[8].split() == ["report", "resources"]
    assert answers[9].split() == ["bash", "zsh", "fish"]


def test_bash_completes_files_itself_and_begins_servers(ask: Ask) -> None:
    answers = ask("grademl|report|grademl-r", "grademl|report|jae", "grademl|grade", "grademl|pull|-o|")
    assert answers[0] == answers[2] == "<default>"
    assert set(answers[1].split()) == {"jaeger://", "jaeger+grpc://"}
    assert answers[3] == "<dirnames>"


def test_a_line_that_is_wrong_prints_nothing(ask: Ask) -> None:
    answers = ask("grademl|reprot|--ste", "grademl|path|--nothing|x|", "grademl|a|b|c|--run|")
    assert answers[0] == "--steps"  # it may yet be a file
    assert answers[1] in ("", "<default>")
    assert answers[2] == "latest"


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_every_shell_has_a_script_that_it_understands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_GRADEML_COMPLETE" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=60)


def test_zsh_and_fish_are_told_what_a_run_is(folder: Path) -> None:
    for shell, words in (("zsh", "grademl path --run 9"), ("fish", "grademl path --run ")):
        env = {"COMP_WORDS": words, "COMP_CWORD": "9" if shell == "fish" else "3"}
        done = subprocess.run(
            [BIN / "grademl"],
            cwd=folder,
            env={**os.environ, **env, "_GRADEML_COMPLETE": f"{shell}_complete"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stderr == ""
        assert f"{RUNS[1][:12]}" in done.stdout
        assert "2026-12-01 08:" in done.stdout


def test_completing_loads_nothing_of_the_analysis_and_opens_no_file(folder: Path) -> None:
    program = (
        "import os, sys\n"
        "from grademl_otel.analyzers.cli.app import run\n"
        "opened = []\n"
        "sys.addaudithook(lambda event, args: opened.append(args[0]) if event == 'open' else None)\n"
        "os.environ.update(_GRADEML_COMPLETE='bash_complete', COMP_WORDS='grademl path --run ')\n"
        "os.environ.update(COMP_CWORD='3')\n"
        "try:\n    run([])\nexcept SystemExit:\n    pass\n"
        "assert not [one for one in opened if 'traces' in str(one)], opened\n"
        "heavy = {'numpy', 'pyarrow', 'duckdb', 'msgspec', 'rich', 'urllib3'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert RUNS[0][:12] in done.stdout


def test_of_very_many_runs_the_latest_are_offered(tmp_path: Path) -> None:
    for number in range(150):
        (tmp_path / f"20261201T0{number // 60}{number % 60:02}00Z-{number:032x}").mkdir()
    (tmp_path / "20261201T090000Z-\x1b[31m").mkdir()
    (tmp_path / "notes.txt").write_text("")
    found = list(completion._local_runs(tmp_path))
    assert [run_id for run_id, _ in found] == [f"{number:032x}"[:12] for number in range(149, 49, -1)]
    assert list(completion._local_runs(tmp_path / "nowhere")) == []
