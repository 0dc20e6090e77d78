# SPDX-License-Identifier: Apache-2.0
"""Help, its examples, near words, and what is printed as JSON: of every command that there is."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import jsonschema
import pytest

from grademl_otel import analyzers
from grademl_otel.analyzers import errors
from grademl_otel.analyzers.cli.app import run
from grademl_otel.analyzers.cli.commands import BY, grademl
from grademl_otel.analyzers.reporting import sections
from grademl_otel.analyzers.shown import Shown
from tests.support.jaeger_cases import many_traces
from tests.support.monitored import BEGIN, with_table
from tests.support.synthetic import MS, Training, simulate

ROOT = Path(__file__).parents[2]
NO_DOCUMENT = {"completion", "help"}
"""Commands that print no answer."""
ELSEWHERE = re.compile(r"jaeger://|tempo://|https?://|grpc://|~|\$\(")
"""Examples that need a server, or a home."""
RUNS = ("3f2a" + "0" * 28, "91bc" + "0" * 28)


def tool(name: str) -> ModuleType:
    """Return a program of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def examples(command: click.Command) -> list[str]:
    """Return the examples in the help of ``command``, without what is said of them."""
    blocks = [one for one in inspect.cleandoc(command.help or "").split("\n\n") if one.startswith("\b")]
    return [re.split(r" {2,}|\t", line)[0] for block in blocks for line in block.splitlines()[1:]]


EVERY = [(None, grademl), *sorted(grademl.commands.items())]
LOCAL = [
    example
    for _, command in EVERY
    for example in examples(command)
    if example.startswith("grademl") and not ELSEWHERE.search(example)
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the examples name: runs of 950 steps and two ranks, as files and as a copy."""
    folder = tmp_path_factory.mktemp("recorded")
    for number, run_id in enumerate(RUNS):
        training = Training(
            run_id=run_id,
            ranks=2,
            epochs=1,
            steps_per_epoch=950,
            eval_batches=0,
            detail_level=2,
            fetch_ns=(1 + number) * MS,
            start=Training.start + number * 10**12,
        )
        sim = simulate(training)
        # A second of its life, from its start on, was monitored.
        at = (training.start - BEGIN) // 10**9 + 1
        with_table(sim, [("gpu", "utilization", "GPU-a", [930], 1000), ("cpu", "busy", "", [2000], 8000)], at)
        lines = sim.otlp_lines()
        for store in ("grademl-runs", "runs/nightly", ("old-runs", "new-runs")[number]):
            place = folder / store / f"20261201T08220{number}Z-{run_id}"
            place.mkdir(parents=True)
            (place / "traces.jsonl").write_bytes(lines)
        (folder / "run.jsonl").write_bytes(lines)
    (folder / "rules.toml").write_text("builtin = true\n")
    (folder / "samples.csv").write_text(
        "time,host,resource,id,metric,value,unit\n"
        + "".join(f"{Training.start + at},node-0,disk,sda,read,1e8,By/s\n" for at in (10**9, 2 * 10**9))
    )
    assert run(["pull", str(folder / "grademl-runs"), "--run", "3f2a", "-o", str(folder / "run-3f2a")]) == 0
    return folder


@pytest.fixture
def here(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder for one test alone, as the current one."""
    folder = tmp_path / "here"
    shutil.copytree(recorded, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(("name", "command"), EVERY, ids=lambda one: one if isinstance(one, str) else "")
def test_every_command_has_examples(name: str | None, command: click.Command) -> None:
    found = examples(command)
    assert found
    own = [name, *grademl.aliases_of(name)] if name is not None else []
    for example in found:
        assert re.match(rf"grademl( ({'|'.join(own)}))?\b|eval ", example), example
        assert "[" not in example


@pytest.mark.parametrize("example", LOCAL)
def test_every_example_works(example: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = shlex.split(example.partition(" | ")[0].partition(" > ")[0])[1:]
    code = run(arguments)
    captured = capsys.readouterr()
    failed_check = arguments[:1] in (["check"], ["diff"]) and code == 1
    assert code == 0 or failed_check, captured.err
    if "-o" in arguments:
        assert (here / arguments[arguments.index("-o") + 1]).exists()


@pytest.mark.parametrize("name", [None, *grademl.commands])
def test_help_is_the_same_either_way(name: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    named = [] if name is None else [name]
    assert run([*named, "--help"]) == 0
    wanted = capsys.readouterr().out
    assert run(["help", *named]) == 0
    assert capsys.readouterr().out == wanted
    assert wanted.startswith(f"Usage: {' '.join(['grademl', *named])} ")
    assert max(map(len, wanted.splitlines())) <= 110


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["reprot"], "did you mean `grademl report`?"),
        (["pth"], "did you mean `grademl path`?"),
        (["list"], "did you mean `grademl runs`?"),
        (["help", "pul"], "did you mean pull?"),
        (["help", "xyzzy"], "there are "),
        (["path", "--hlep"], "--help"),
        (["path", "--setps", "3:5"], "--steps"),
        (["path", "--by", "fase"], "did you mean phase?"),
        (["runs", "-f", "jsn"], "did you mean json?"),
        (["completion", "bsh"], "'bash'"),
    ],
)
def test_what_is_mistyped_is_told_what_is_near(
    arguments: list[str],
    meant: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == errors.EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert meant in line


def test_words_that_help_needs_are_those_of_the_analysis() -> None:
    assert BY == sections.BY


def test_help_loads_nothing_of_the_analysis() -> None:
    program = (
        "import sys\n"
        "from grademl_otel.analyzers.cli.app import run\n"
        "assert run(['export', '--help']) == 0\n"
        "heavy = {'numpy', 'pyarrow', 'duckdb', 'pandas', 'networkx', 'jinja2', 'perfetto', 'prompt_toolkit',"
        " 'pygments', 'rich', 'msgspec', 'urllib3'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL, timeout=60)


# --- JSON --------------------------------------------------------------------------------------------------


def schemas() -> dict[str, dict[str, Any]]:
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in (ROOT / "docs" / "schemas").glob("*.json")
    }


def test_every_command_has_json_of_a_named_schema() -> None:
    for name, command in grademl.commands.items():
        flags = {option for one in command.params for option in one.opts}
        assert ("--json" in flags) == (name not in NO_DOCUMENT), name
        if name not in NO_DOCUMENT:
            schema = schemas()[name.replace("-", "_")]
            assert schema["title"] == f"grademl.{name.replace('-', '_')}/1"
            assert schema["properties"]["schema"] == {"const": schema["title"]}
            jsonschema.Draft202012Validator.check_schema(schema)


def documents(here: Path) -> Iterator[list[str]]:
    yield ["report", "--top", "30"]
    yield ["runs"]
    yield ["path", "--steps", "10:20"]
    yield ["path", "many.json"]
    yield ["ranks"]
    yield ["resources"]
    yield ["doctor", "grademl-runs"]
    yield ["diff", "--steps", "10:60"]
    yield ["check", "steps>1"]
    yield ["query", "-c", "SELECT step, phase FROM path LIMIT 5"]
    yield ["pull", "grademl-runs", "-o", "copied"]
    yield ["export", "--to", "graphml", "--steps", "10:12", "-o", "graph.graphml"]


def test_what_is_printed_keeps_to_its_schema(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "many.json").write_text(json.dumps(many_traces(["A[0,10) B<A[1,9)"] * 3)))
    seen = set()
    for arguments in documents(here):
        assert run([*arguments, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        name = document["schema"].removeprefix("grademl.").removesuffix("/1")
        schema = schemas()[name]
        jsonschema.validate(document, schema)
        assert list(document) == schema["required"]  # nothing that is not told there
        seen.add(name)
    model = analyzers.execution_model(here / "run.jsonl").to_dict()
    jsonschema.validate(model, schemas()["execution_model"])
    assert {one.replace("_", "-") for one in seen} >= set(grademl.commands) - NO_DOCUMENT - {"push"}


def test_every_answer_has_a_schema_that_is_current() -> None:
    made = tool("json_schemas")
    wanted = {name: made.written(name) for name in made.DOCUMENTS}
    there = {path.stem: path.read_text("utf-8") for path in (ROOT / "docs" / "schemas").glob("*.json")}
    assert there == wanted, "run tools/json_schemas.py"
    named = {one.partition(":")[2] for one in made.DOCUMENTS.values()}
    told_otherwise = {"ExecutionModel", "QueryResult"}  # by ModelDocument; row by row
    assert {cls.__name__ for cls in every_answer(Shown)} <= named | told_otherwise, "add it there"


def every_answer(cls: type) -> Iterator[type]:
    for one in cls.__subclasses__():
        if one.__module__.startswith("grademl_otel."):
            yield one
        yield from every_answer(one)


def test_the_pages_of_commands_are_current() -> None:
    made = tool("command_pages").pages()
    there = {path.name: path.read_text("utf-8") for path in (ROOT / "docs" / "commands").glob("*.md")}
    different = sorted(name for name in {*there, *made} if there.get(name) != made.get(name))
    assert not different, "run tools/command_pages.py"
