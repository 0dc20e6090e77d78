# SPDX-License-Identifier: Apache-2.0
"""`grademl export`: which forms there are, what is written where, and that it is what was read."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from grademl_otel import analyzers
from grademl_otel.analyzers import errors
from grademl_otel.analyzers.cli.app import run as cli
from grademl_otel.analyzers.exports.forms import FORMS
from tests.support.every_format import otlp_lines
from tests.support.metric_points import POINTS, as_line, request
from tests.support.synthetic import Training, lines, simulate
from tests.support.truth import SPANS

TRAINING = Training(ranks=2, workers=2)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder, with metrics."""
    folder = tmp_path_factory.mktemp("runs")
    simulate(TRAINING).write_store(folder)
    run = next(folder.iterdir())
    metrics = [request(TRAINING.run_id, attempt=TRAINING.attempt), request("ab" * 16, 1)]
    (run / "metrics.jsonl").write_bytes(b"".join(map(as_line, metrics)))
    return run


@pytest.fixture
def incomplete(tmp_path: Path) -> Path:
    """A run of which the end is missing."""
    sim = simulate(TRAINING)
    path = tmp_path / "part.jsonl"
    path.write_bytes(lines(sim.training, [span for span in sim.spans if span[1]["name"] != "run"]))
    return path


def export(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli(["export", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def form_options(name: str, folder: Path) -> list[str]:
    """Options with which a form is one file."""
    more = ["--table", "spans"] if name == "parquet" else []
    return ["--to", name, *more, "-o", str(folder / f"out{FORMS[name].suffix}")]


# --- Forms and options ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMS)
def test_what_was_written_is_told(
    name: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = form_options(name, tmp_path)
    code, out, err = export(capsys, store, *options)
    path = tmp_path / f"out{FORMS[name].suffix}"
    assert (code, out) == (0, "")
    assert err.startswith(f"wrote {path}: ")
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    code, out, err = export(capsys, store, *options, "--json")
    done = json.loads(out)
    assert (code, err) == (0, "")
    assert done["schema"] == "grademl.export/1"
    assert (done["to"], done["path"], done["source"]) == (name, str(path), str(store))
    assert done["bytes"] == path.stat().st_size > 0
    assert done["written"]
    assert all(count > 0 for count in done["written"].values())
    assert (done["verdict"], done["incomplete_because"], done["broken"]) == ("complete", [], None)


@pytest.mark.parametrize("name", FORMS)
def test_equal_reads_are_equal_files(
    name: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = []
    for at in range(2):
        (tmp_path / str(at)).mkdir()
        assert export(capsys, store, *form_options(name, tmp_path / str(at)))[0] == 0
        written.append((tmp_path / str(at) / f"out{FORMS[name].suffix}").read_bytes())
    assert written[0] == written[1]


@pytest.mark.parametrize("name", FORMS)
def test_incomplete_data_are_told(
    name: str, incomplete: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = form_options(name, tmp_path)
    code, _, err = export(capsys, incomplete, *options)
    assert code == 0
    assert "grademl: incomplete: " in err
    code, out, err = export(capsys, incomplete, *options, "--json", "--strict")
    assert code == errors.EXIT_INCOMPLETE
    done = json.loads(out)
    assert done["verdict"] == "incomplete"
    assert done["incomplete_because"]
    assert err.count("\n") == 1
    assert done["incomplete_because"][0] in err


@pytest.mark.parametrize("name", FORMS)
def test_what_broke_off_is_written_and_told(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sim = simulate(TRAINING)
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(gzip.compress(lines(sim.training, sim.spans))[:-200])
    code, out, err = export(capsys, path, *form_options(name, tmp_path), "--json")
    assert code == errors.EXIT_SOURCE
    assert "gzip" in json.loads(out)["broken"]
    assert "the answer is about what was read" in err
    assert (tmp_path / f"out{FORMS[name].suffix}").stat().st_size


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ([], errors.EXIT_USAGE, "--to"),
        (["--to", "xml"], errors.EXIT_USAGE, "'graphml'"),
        (["--to", "graphml", "--of", "time"], errors.EXIT_USAGE, "--of is an option of --to folded"),
        (["--to", "folded", "--graph", "path"], errors.EXIT_USAGE, "--graph is an option of --to graphml"),
        (["--to", "otlp", "--table", "spans"], errors.EXIT_USAGE, "otlp has none of its own"),
        (["--to", "parquet"], errors.EXIT_USAGE, "name one with -o"),
        (["--to", "parquet", "-o", "-"], errors.EXIT_USAGE, "name one with -o"),
        (["--to", "parquet", "--table", "stepz", "-o", "x"], errors.EXIT_USAGE, "did you mean steps?"),
        (["--to", "graphml", "--json"], errors.EXIT_USAGE, "give one with -o"),
        (
            ["--to", "otlp", "--steps", "0:2"],
            errors.EXIT_USAGE,
            "--steps: --to otlp writes what was",
        ),
        (["--to", "otlp", "--ranks", "0"], errors.EXIT_USAGE, "--ranks: --to otlp"),
        (["--to", "otlp", "--clocks", "off"], errors.EXIT_USAGE, "--clocks: --to otlp"),
        (["--to", "otlp", "--no-inferred"], errors.EXIT_USAGE, "--no-inferred: --to otlp"),
        (["--to", "parquet", "--attempt", "all", "-o", "x"], errors.EXIT_USAGE, "--attempt N"),
        (["--to", "otlp", "--run", "ff"], errors.EXIT_NOTHING_FOUND, "no span in it matches"),
        (["--to", "otlp", "-o", "no/such/folder/x"], errors.EXIT_USAGE, "cannot write no/such/folder/x"),
        (["--to", "parquet", "-o", "no/such/folder"], errors.EXIT_USAGE, "cannot write no/such/folder"),
    ],
)
def test_what_cannot_be_exported_says_why(
    store: Path,
    options: list[str],
    code: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    found, out, err = export(capsys, store, *options)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert says in err
    assert not list(tmp_path.iterdir())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bytes_do_not_go_to_a_terminal_and_text_does_nothing_there(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Terminal()
    monkeypatch.setattr("sys.stdout", shown)
    assert cli(["export", str(store), "--to", "perfetto"]) == errors.EXIT_USAGE
    assert cli(["export", str(store), "--to", "parquet", "--table", "runs"]) == errors.EXIT_USAGE
    assert shown.getvalue() == ""
    told = capsys.readouterr().err.splitlines()
    assert [line.partition("; ")[2] for line in told] == [
        "give a file with -o, as run.perfetto-trace", "give a file with -o, as run.parquet",
    ]  # fmt: skip
    path = tmp_path / "odd.jsonl"
    path.write_bytes(otlp_lines(SPANS))
    assert cli(["export", str(path), "--to", "otlp"]) == 0
    assert "resourceSpans" in shown.getvalue()
    assert "\x1b" not in shown.getvalue()


@pytest.mark.parametrize("graph", ["phases", "types"])
def test_graphs_of_very_deep_trees_are_refused(
    graph: str,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("grademl_otel.analyzers.execution.drawn._MOST_PARTS", 20)
    code, _, err = export(capsys, store, "--to", "graphml", "--graph", graph, "-o", tmp_path / "deep.graphml")
    assert code == errors.EXIT_USAGE
    assert "deep on average, are too many" in err


def test_a_failure_in_the_middle_leaves_what_was_there(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    for name in ("otlp", "parquet"):
        path = tmp_path / f"out{FORMS[name].suffix}"
        path.write_text("before")
        with monkeypatch.context() as patched:
            patched.setattr("grademl_otel.analyzers.exports.otlp.Lines.of", fails)
            patched.setattr("pyarrow.parquet.write_table", fails)
            code, _, err = export(capsys, store, *form_options(name, tmp_path))
        assert code == errors.EXIT_USAGE
        assert "no space left on device" in err
        assert path.read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 2


def test_what_goes_on_is_the_file_and_the_rest_is_told_beside_it(
    store: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for name in ("otlp", "graphml", "folded", "perfetto"):
        assert cli(["export", str(store), *form_options(name, tmp_path)]) == 0
        capfdbinary.readouterr()
        assert cli(["export", str(store), "--to", name]) == 0
        out, err = capfdbinary.readouterr()
        assert out == (tmp_path / f"out{FORMS[name].suffix}").read_bytes()
        assert err == (b"note: not in it: schema URLs\n" if name == "otlp" else b"")


def test_help_names_every_form_and_an_example_of_most(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["export", "--help"]) == 0
    said = capsys.readouterr().out
    for name in FORMS:
        assert f"--to {name}" in said
    assert "--of" in said
    assert "--table" in said


# --- Parquet ----------------------------------------------------------------------------------------------


def plain(table: Any) -> list[str]:
    """Rows as text: a dictionary is written with the words that occur, and NaN is no equal of itself."""
    return [repr(row) for row in table.to_pylist()]


def test_tables_are_read_back_by_others(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import duckdb
    import pandas as pd
    import pyarrow.parquet as pq

    from grademl_otel.analyzers.queries import Query
    from grademl_otel.analyzers.subject import read_subject
    from grademl_otel.analyzers.tables import SCHEMA, TABLES, table

    folder = tmp_path / "tables"
    code, _, err = export(capsys, store, "--to", "parquet", "-o", folder)
    assert code == 0, err
    about = read_subject(Query.of(str(store)))
    assert {entry.name for entry in folder.iterdir()} == {f"{name}.parquet" for name in TABLES}
    total = 0
    for name, schema in TABLES.items():
        path = folder / f"{name}.parquet"
        whole = table(about, name)
        read = pq.read_table(path)
        assert read.schema.equals(whole.schema), name
        assert plain(read) == plain(whole), name
        assert tuple(read.column_names) == schema.column_names
        known = json.loads(read.schema.metadata[b"grademl.export"])
        assert (known["schema"], known["table"], known["verdict"]) == (SCHEMA, name, "complete")
        assert known["run"] == TRAINING.run_id
        with duckdb.connect() as own:
            (rows,) = own.execute("SELECT count(*) FROM read_parquet(?)", [str(path)]).fetchone() or ()
        assert rows == len(whole) == len(pd.read_parquet(path))
        total += rows
    assert f"{len(TABLES)} tables, {total:,} rows" in err
    assert pd.read_parquet(folder / "steps.parquet")["step"].max() > 0


def test_tables_of_an_earlier_export_are_replaced_and_others_are_not(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    assert export(capsys, store, "--to", "parquet", "-o", folder)[0] == 0
    (folder / "steps.parquet").unlink()
    assert export(capsys, store, "--to", "parquet", "-o", folder)[0] == 0
    assert (folder / "steps.parquet").is_file()
    (folder / "notes.txt").write_text("mine")
    before = sorted(entry.name for entry in folder.iterdir())
    code, _, err = export(capsys, store, "--to", "parquet", "-o", folder)
    assert (code, err.count("\n")) == (errors.EXIT_USAGE, 1)
    assert "holds notes.txt" in err
    (folder / "notes.txt").rename(folder / "runs.parquet")
    code, _, err = export(capsys, store, "--to", "parquet", "-o", folder)
    assert code == errors.EXIT_USAGE
    assert "holds runs.parquet" in err
    assert len(before) == len(list(folder.iterdir())) + 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["tables"]
    code, _, err = export(capsys, store, "--to", "parquet", "-o", folder / "runs.parquet")
    assert code == errors.EXIT_USAGE
    assert "name one with -o, or --table NAME" in err


def test_a_folder_that_cannot_be_put_in_place_leaves_what_was_there(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tables"
    assert export(capsys, store, "--to", "parquet", "-o", folder)[0] == 0
    before = {entry.name: entry.read_bytes() for entry in folder.iterdir()}
    rename = Path.rename

    def fails(path: Path, target: Path) -> Path:
        if path.name.endswith(".part"):
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails)
    code, _, err = export(capsys, store, "--to", "parquet", "-o", folder)
    assert code == errors.EXIT_USAGE
    assert "input/output error" in err
    assert {entry.name: entry.read_bytes() for entry in folder.iterdir()} == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["tables"]


def test_an_empty_table_says_why(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "others.jsonl"
    path.write_bytes(otlp_lines(SPANS))
    code, _, err = export(capsys, path, "--to", "parquet", "--table", "steps", "-o", tmp_path / "s.parquet")
    assert code == 0
    assert ": 0 rows, " in err
    assert "note: steps: of a run of ours only" in err


def test_a_part_of_a_run_is_exported_as_one(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow.parquet as pq

    path = tmp_path / "steps.parquet"
    options = ["--to", "parquet", "--table", "steps", "--ranks", "1", "--steps", "2:5", "-o", path]
    assert export(capsys, store, *options)[0] == 0
    found = pq.read_table(path, columns=["rank", "step", "kind"]).to_pylist()
    assert [(row["rank"], row["step"]) for row in found if row["kind"] == "train"] == [(1, 2), (1, 3), (1, 4)]


def test_metrics_of_the_run_are_counted(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--to", "otlp", "-o", tmp_path / "x.jsonl", "--json"]
    done = json.loads(export(capsys, store, *options)[1])
    assert done["written"]["metric points"] == POINTS


# --- From Python ------------------------------------------------------------------------------------------


def test_the_verb_of_python_is_that_of_the_command(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = tmp_path / "one.parquet", tmp_path / "other.parquet"
    done = analyzers.export(store, "parquet", one, table="steps", ranks=(0,))
    options = ["--to", "parquet", "--table", "steps", "--ranks", "0", "-o", other]
    assert export(capsys, store, *options)[0] == 0
    assert one.read_bytes() == other.read_bytes()
    assert (done.path, done.bytes, done.verdict) == (str(one), one.stat().st_size, "complete")
    with pytest.raises(errors.UsageError, match="--graph is an option of --to graphml"):
        analyzers.export(store, "parquet", one, graph="path")
    with pytest.raises(errors.UsageError, match="there is perfetto"):
        analyzers.export(store, "xml", one)


def test_a_broken_source_is_a_warning_in_python(tmp_path: Path) -> None:
    sim = simulate(TRAINING)
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(gzip.compress(lines(sim.training, sim.spans))[:-200])
    with pytest.warns(UserWarning, match="the answer is about what was read"):
        done = analyzers.export(path, "otlp", tmp_path / "out.jsonl")
    assert done.broken is not None
    assert done.written["spans"] > 0
