# SPDX-License-Identifier: Apache-2.0
"""Copies: the same as their source, whatever interrupts them; and one line for what is none."""

from __future__ import annotations

import fcntl
import json
import pkgutil
import random
import sqlite3
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from grademl_otel.analyzers.cli.app import run
from grademl_otel.analyzers.copy import layout, writer
from grademl_otel.analyzers.copy.manifest import Manifest
from grademl_otel.analyzers.copy.pull import Pulled, origin_of, pull
from grademl_otel.analyzers.copy.source import CopySource
from grademl_otel.analyzers.errors import GrademlError, Interrupted, NothingFound, SourceError, UsageError
from grademl_otel.analyzers.model.columns import Ledger, Telemetry
from grademl_otel.analyzers.sources import Selection, SourceOptions, formats, open_source
from grademl_otel.analyzers.sources.formats.forms import form_named
from tests.support.copied import InPieces, run_in_pieces, same, told
from tests.support.every_format import FORMATS, otlp_lines
from tests.support.truth import SPANS

EVERYTHING = Selection()


def copied(source: InPieces, folder: Path, address: str = "pieces", **options: Any) -> Pulled:
    return pull(source, folder, origin_of(address, source.uri, EVERYTHING, None), **options)


def read(folder: Path, max_spans: int = 1_000_000) -> Telemetry:
    return open_source(str(folder), SourceOptions(max_spans=max_spans)).read(EVERYTHING)


def visible(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))


@pytest.fixture(scope="module")
def pieces() -> dict[str, bytes]:
    return run_in_pieces(12)


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file for every hundred spans."""
    monkeypatch.setattr(writer, "_SPANS_A_FILE", 100)


# --- The same as the source -------------------------------------------------------------------------------


def test_a_copy_says_what_its_source_says(
    tmp_path: Path, pieces: dict[str, bytes], small_files: None
) -> None:
    source = InPieces(pieces)
    done = copied(source, tmp_path / "copy")
    assert (done.pieces, done.copied, done.failed, done.error) == (12, 12, 0, None)
    assert done.files > 2
    same(source.read(EVERYTHING), read(tmp_path / "copy"))


def test_everything_that_a_span_can_have(tmp_path: Path) -> None:
    source = InPieces({"all": otlp_lines(SPANS)})
    copied(source, tmp_path / "copy")
    same(source.read(EVERYTHING), read(tmp_path / "copy"))


@pytest.mark.parametrize("name", FORMATS)
def test_a_copy_of_every_format(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spans"
    path.write_bytes(FORMATS[name](SPANS))
    assert run(["pull", str(path), "-o", str(tmp_path / "copy")]) == 0, capsys.readouterr().err
    same(open_source(str(path)).read(EVERYTHING), read(tmp_path / "copy"))


def test_every_form_has_a_name_that_copies_know() -> None:
    named = set()
    for module in pkgutil.iter_modules(formats.__path__):
        for value in vars(import_module(f"{formats.__name__}.{module.name}")).values():
            if hasattr(value, "events") and isinstance(getattr(value, "name", None), str):
                assert form_named(value.name).name == value.name
                named.add(value.name)
    assert {"otlp-json", "otlp-proto", "jaeger-json", "zipkin", "kineto"} <= named
    with pytest.raises(SourceError, match="upgrade"):
        form_named("of the future")


@pytest.mark.parametrize("command", ["report", "critical-path", "runs", "ranks"])
def test_an_answer_from_the_copy_is_that_from_the_source(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.jsonl").write_bytes(b"".join(run_in_pieces(3, None).values()))
    assert run(["pull", "run.jsonl", "-o", "copy"]) == 0
    answers = []
    for source in ("run.jsonl", "copy"):
        capsys.readouterr()
        code = run([command, source, "--json"])
        out, err = capsys.readouterr()
        answers.append((code, (out + err).replace(f'"{source}"', '""').replace(source, "")))
    assert answers[0] == answers[1]


def test_repeats_and_losses_of_the_source_are_those_of_the_copy(
    tmp_path: Path, pieces: dict[str, bytes]
) -> None:
    def lose(ledger: Ledger) -> None:
        ledger.unreadable_lines += 2
        ledger.partial_traces.append("00" * 16)
        ledger.warnings.append("pieces: the last line is cut")

    twice = {**pieces, "again": pieces["piece-003"]}
    source = InPieces(twice, losses={"piece-001": lose, "again": lose})
    copied(source, tmp_path / "copy")
    there = read(tmp_path / "copy").ledger
    assert there.duplicates == source.read(EVERYTHING).ledger.duplicates > 0
    assert there.unreadable_lines == 4
    assert there.partial_traces == ["00" * 16]
    assert there.warnings == ["pieces: the last line is cut"]


def test_what_spans_lack_is_told_of_the_copy_too(tmp_path: Path) -> None:
    span = {"traceId": "1", "spanId": "1", "name": "x", "startTimeUnixNano": 5, "endTimeUnixNano": 6}
    spans = [{**span, "droppedEventsCount": 3}, {**span, "spanId": "no id"}, {**span, "spanId": "2"}]
    raw = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
    source = InPieces({"a": raw, "b": raw.replace(b'"1"', b'"3"')})
    copied(source, tmp_path / "copy")
    for ledger in (source.read(EVERYTHING).ledger, read(tmp_path / "copy").ledger):
        assert (ledger.sdk_dropped, ledger.unidentified) == (6, 2)


def test_one_file_of_a_copy_is_a_source_too(
    tmp_path: Path, pieces: dict[str, bytes], small_files: None
) -> None:
    copied(InPieces(pieces), tmp_path / "copy")
    files = sorted((tmp_path / "copy").glob("*.parquet"))
    assert sum(len(read(file).spans) for file in files) == len(read(tmp_path / "copy").spans)
    table = pq.read_table(files[0])
    assert table.num_rows == len(read(files[0]).spans)


def test_the_bound_on_spans_holds_for_copies(tmp_path: Path, pieces: dict[str, bytes]) -> None:
    copied(InPieces(pieces), tmp_path / "copy")
    bounded = read(tmp_path / "copy", max_spans=50)
    assert len(bounded.spans) == 50
    assert bounded.ledger.capped
    there = len(read(tmp_path / "copy").spans)
    assert not read(tmp_path / "copy", max_spans=there).ledger.capped


def test_a_selection_copied_is_that_selection_when_it_is_read(tmp_path: Path) -> None:
    source = InPieces({"all": otlp_lines(SPANS)})
    trace = SPANS[0].trace
    chosen = Selection(trace_ids=(trace,))
    pull(source, tmp_path / "copy", origin_of("x", "x", chosen, None))
    spans = read(tmp_path / "copy").spans
    assert {spans.trace_id_hex(ix) for ix in range(len(spans))} == {f"{trace:032x}"}


# --- Going on ---------------------------------------------------------------------------------------------


def test_what_is_done_is_not_read_again(tmp_path: Path, pieces: dict[str, bytes]) -> None:
    source = InPieces(dict(list(pieces.items())[:7]))
    copied(source, tmp_path / "copy")
    source.lines, source.read_keys = pieces, []
    done = copied(source, tmp_path / "copy")
    assert source.read_keys == list(pieces)[7:]
    assert (done.pieces, done.copied) == (12, 5)
    same(InPieces(pieces).read(EVERYTHING), read(tmp_path / "copy"))


def test_a_grown_piece_takes_the_place_of_what_was_copied_of_it(
    tmp_path: Path, pieces: dict[str, bytes], small_files: None
) -> None:
    first, last = "piece-000", "piece-011"
    source = InPieces({**pieces, last: pieces[last][: pieces[last].index(b"\n") + 1]}, growing={last})
    source.lines[last] = b""
    copied(source, tmp_path / "copy")
    files = visible(tmp_path / "copy")
    for _ in range(3):
        source.lines, source.read_keys = pieces, []
        copied(source, tmp_path / "copy")
        assert source.read_keys == [last]
    telemetry = read(tmp_path / "copy")
    same(InPieces(pieces).read(EVERYTHING), telemetry)
    assert telemetry.ledger.duplicates == 0
    assert len(visible(tmp_path / "copy")) <= len(files) + 1, "files that nothing needs are removed"
    assert first in pieces


def test_what_a_server_has_forgotten_stays_copied(tmp_path: Path, pieces: dict[str, bytes]) -> None:
    last = "piece-011"
    source = InPieces(dict(pieces), growing={last})
    whole = source.read(EVERYTHING)
    copied(source, tmp_path / "copy")
    source.lines = {last: b""}
    done = copied(source, tmp_path / "copy")
    assert "fewer spans" in done.warnings[0]
    assert told(read(tmp_path / "copy").spans) == told(whole.spans)


def test_small_pieces_do_not_fill_the_memory(
    tmp_path: Path, pieces: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch has a size of its own, whatever few spans are in it."""
    monkeypatch.setattr(writer, "_BATCHES_A_FILE", 5)
    source = InPieces(pieces)
    assert copied(source, tmp_path / "copy").files > 2
    same(source.read(EVERYTHING), read(tmp_path / "copy"))


def test_a_kill_costs_no_more_than_half_a_minute(tmp_path: Path, pieces: dict[str, bytes]) -> None:
    """Also of the pieces that may grow, whatever goes on beside them."""
    now = [0.0]
    source = InPieces(pieces, growing=set(list(pieces)[1::2]))
    with closing(Manifest(tmp_path)) as manifest:
        copying = writer.CopyWriter(tmp_path, manifest, lambda: now[0])
        for number, piece in enumerate(source.pieces(EVERYTHING, Ledger()), start=1):
            now[0] += 20.0
            copying.keep(copying.copy(piece))
            assert manifest.counts()[0] >= number - 1


def test_an_interrupt_right_after_a_transaction_began(tmp_path: Path) -> None:
    class Interrupted:
        def __init__(self, database: sqlite3.Connection) -> None:
            self.database = database

        def execute(self, query: str, *values: Any) -> None:
            self.database.execute(query, *values)
            raise KeyboardInterrupt

        @property
        def in_transaction(self) -> bool:
            return self.database.in_transaction

    with closing(Manifest(tmp_path)) as manifest:
        database = manifest._database
        manifest._database = Interrupted(database)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            manifest.finish(complete=True, ledger=Ledger())
        manifest._database = database
        manifest.finish(complete=False, ledger=Ledger())


def test_an_interrupt_keeps_what_is_whole_and_says_so(
    tmp_path: Path, pieces: dict[str, bytes], small_files: None
) -> None:
    def stop(key: str) -> None:
        if key == "piece-005":
            raise KeyboardInterrupt

    source = InPieces(pieces, before_piece=stop)
    with pytest.raises(Interrupted, match=r"copied 5 of 12 pieces, \d+ spans; run the same command again"):
        copied(source, tmp_path / "copy")
    partly = read(tmp_path / "copy")
    assert partly.ledger.broken is not None
    assert "unfinished copy" in partly.ledger.broken
    source.before_piece, source.read_keys = lambda key: None, []
    copied(source, tmp_path / "copy")
    assert source.read_keys == list(pieces)[5:]
    same(InPieces(pieces).read(EVERYTHING), read(tmp_path / "copy"))


def test_a_source_that_fails_for_a_part(tmp_path: Path, pieces: dict[str, bytes], small_files: None) -> None:
    source = InPieces(pieces, failing={"piece-004": "pieces: 503 no"})
    done = copied(source, tmp_path / "copy")
    assert (done.pieces, done.failed) == (11, 1)
    assert "pieces: 503 no; copied 11 of 12 pieces" in str(done.error)
    source.failing = {}
    assert copied(source, tmp_path / "copy").error is None
    same(InPieces(pieces).read(EVERYTHING), read(tmp_path / "copy"), ordered=False)


def test_a_source_that_is_gone_is_not_asked_for_ever(tmp_path: Path, pieces: dict[str, bytes]) -> None:
    gone = dict.fromkeys(list(pieces)[2:], "pieces: connection refused")
    source = InPieces(pieces, failing=gone)
    assert copied(source, tmp_path / "copy").failed == 5


def test_a_source_that_gives_nothing_leaves_nothing(tmp_path: Path, pieces: dict[str, bytes]) -> None:
    with pytest.raises(SourceError, match="refused"):
        copied(InPieces(pieces, failing=dict.fromkeys(pieces, "pieces: refused")), tmp_path / "copy")
    with pytest.raises(NothingFound):
        copied(InPieces({}), tmp_path / "copy2")
    assert not (tmp_path / "copy2").exists()


def test_a_file_that_was_lost_or_cut_is_copied_again(
    tmp_path: Path, pieces: dict[str, bytes], small_files: None
) -> None:
    folder = tmp_path / "copy"
    source = InPieces(pieces)
    copied(source, folder)
    files = sorted(folder.glob("*.parquet"))
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:1000])
    (folder / ".spans-0099.parquet.part").write_bytes(b"half")
    (folder / "spans-0098.parquet").write_bytes(b"nobody names it")
    copied(source, folder)
    same(source.read(EVERYTHING), read(folder), ordered=False)
    assert not (folder / ".spans-0099.parquet.part").exists()
    assert not (folder / "spans-0098.parquet").exists()


# --- One folder, one copy ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "selection"),
    [("jaeger://other", EVERYTHING), ("pieces", Selection(run="ab")), ("pieces", Selection(service="x"))],
)
def test_another_source_or_selection_needs_another_folder(
    address: str, selection: Selection, tmp_path: Path, pieces: dict[str, bytes]
) -> None:
    source, folder = InPieces(pieces), tmp_path / "copy"
    copied(source, folder)
    before = visible(folder)
    with pytest.raises(UsageError, match="--refresh"):
        pull(source, folder, origin_of(address, address, selection, None))
    assert visible(folder) == before
    source.lines = {"new": pieces["piece-000"]}
    pull(source, folder, origin_of(address, address, selection, None), refresh=True)
    with sqlite3.connect(folder / "manifest.sqlite") as manifest:
        assert manifest.execute("SELECT key FROM pieces").fetchall() == [("new",)]
    manifest.close()


def test_a_copy_is_not_given_up_for_nothing(tmp_path: Path, pieces: dict[str, bytes]) -> None:
    folder = tmp_path / "copy"
    copied(InPieces(pieces), folder)
    for source, code in (
        (str(folder), 2),
        (str(folder / "spans-0001.parquet"), 2),
        ("jaeger://127.0.0.1:9", 3),
    ):
        assert run(["pull", source, "-o", str(folder), "--refresh"]) == code, source
    same(InPieces(pieces).read(EVERYTHING), read(folder))


def test_standard_input_is_read_at_each_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (2, 4):
        lines = b"".join(list(run_in_pieces(4).values())[:count])
        (tmp_path / "lines").write_bytes(lines)
        with (tmp_path / "lines").open() as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            assert run(["pull", "-", "-o", str(tmp_path / "copy")]) == 0
    assert len(read(tmp_path / "copy").spans) == len(InPieces(run_in_pieces(4)).read(EVERYTHING).spans)


def test_since_is_the_same_question_an_hour_later(tmp_path: Path, pieces: dict[str, bytes]) -> None:
    hour = 3_600_000_000_000
    first, later = (origin_of("x", "x", Selection(start=now - hour), hour) for now in (10 * hour, 11 * hour))
    assert first.asked == later.asked
    assert first.selection != later.selection


def test_two_pulls_into_one_folder(tmp_path: Path, pieces: dict[str, bytes]) -> None:
    folder = tmp_path / "copy"
    copied(InPieces(pieces), folder)
    with (folder / ".pull.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="another `grademl pull`"):
            copied(InPieces(pieces), folder)
    copied(InPieces(pieces), folder)


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path, pieces: dict[str, bytes]) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    for refresh in (False, True):
        with pytest.raises(UsageError, match=r"thesis\.tex"):
            copied(InPieces(pieces), tmp_path, refresh=refresh)
    assert visible(tmp_path) == ["thesis.tex"]


@pytest.mark.parametrize("refresh", [False, True])
def test_a_manifest_of_another_program_is_left_alone(
    refresh: bool, tmp_path: Path, pieces: dict[str, bytes]
) -> None:
    path = tmp_path / "manifest.sqlite"
    with closing(sqlite3.connect(path)) as theirs:
        theirs.execute("CREATE TABLE things (name)")
    before = path.read_bytes()
    with pytest.raises(UsageError, match="of another program"):
        copied(InPieces(pieces), tmp_path, refresh=refresh)
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_written(tmp_path: Path, pieces: dict[str, bytes]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="a file; a copy is a folder"):
        copied(InPieces(pieces), tmp_path / "file")
    with pytest.raises(UsageError, match="cannot write"):
        copied(InPieces(pieces), tmp_path / "file" / "copy")


def test_a_disk_that_fills_up(
    tmp_path: Path, pieces: dict[str, bytes], small_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = layout.write_table
    written: list[Path] = []

    def full(path: Path, *rest: Any) -> None:
        written.append(path)
        if len(written) == 3:
            path.write_bytes(b"as much as there was room for")
            raise OSError(28, "No space left on device")
        real(path, *rest)

    monkeypatch.setattr(writer, "write_table", full)
    with pytest.raises(UsageError, match="no space left on device"):
        copied(InPieces(pieces), tmp_path / "copy")
    assert not list((tmp_path / "copy").glob(".*.part"))
    copied(InPieces(pieces), tmp_path / "copy")
    same(InPieces(pieces).read(EVERYTHING), read(tmp_path / "copy"))


# --- What is no copy --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("schema", "says"), [("2", "newer"), ("0", "older"), ("x", "damaged")])
def test_copies_of_other_versions(schema: str, says: str, tmp_path: Path, pieces: dict[str, bytes]) -> None:
    folder = tmp_path / "copy"
    copied(InPieces(pieces), folder)
    with sqlite3.connect(folder / "manifest.sqlite") as manifest:
        manifest.execute("UPDATE copy SET value = ? WHERE key = 'schema'", (schema,))
    manifest.close()
    for attempt in (read, lambda folder: copied(InPieces(pieces), folder)):
        with pytest.raises(SourceError, match=says):
            attempt(folder)
    copied(InPieces(pieces), folder, refresh=True)
    assert len(read(folder).spans)


def test_damaged_copies_are_one_line(tmp_path: Path, pieces: dict[str, bytes]) -> None:
    folder, rng = tmp_path / "copy", random.Random(7)
    copied(InPieces(pieces), folder)
    spans = folder / "spans-0001.parquet"
    for path, sources in ((folder / "manifest.sqlite", [folder]), (spans, [folder, spans])):
        whole = path.read_bytes()
        for _ in range(60):
            data = bytearray(whole)
            for _ in range(rng.choice((1, 8, 200))):
                data[rng.randrange(len(data))] = rng.randrange(256)
            path.write_bytes(data[: rng.choice((len(data), rng.randrange(len(data))))])
            for source in sources:
                with suppress(GrademlError):  # whose message is one line
                    told(read(source).spans)
        path.write_bytes(whole)
    assert len(read(folder).spans)


def test_a_damaged_file_is_named_and_the_others_are_read(
    tmp_path: Path, pieces: dict[str, bytes], small_files: None
) -> None:
    folder = tmp_path / "copy"
    copied(InPieces(pieces), folder)
    whole = len(read(folder).spans)
    (folder / "spans-0002.parquet").write_bytes(b"PAR1 not quite PAR1")
    partly = read(folder)
    assert 0 < len(partly.spans) < whole
    assert "spans-0002.parquet" in str(partly.ledger.broken)


def test_parquet_of_others(tmp_path: Path) -> None:
    import pyarrow as pa

    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(SourceError, match="no spans file of `grademl pull`"):
        read(tmp_path / "other.parquet")


def test_no_secret_reaches_the_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pieces: dict[str, bytes]
) -> None:
    secret = "hunter2-hunter2"
    origin = origin_of(
        f"https://user:{secret}@jaeger.example/search?token={secret}",
        "https://jaeger.example",
        EVERYTHING,
        None,
    )
    pull(InPieces(pieces), tmp_path / "copy", origin)
    for path in (tmp_path / "copy").iterdir():
        assert secret.encode() not in path.read_bytes()
    assert secret not in json.dumps(repr(origin))


def test_probe_tells_what_is_there(tmp_path: Path, pieces: dict[str, bytes]) -> None:
    copied(InPieces(pieces, growing={"piece-011"}), tmp_path / "copy")
    probe = CopySource(str(tmp_path / "copy")).probe()
    assert probe.kind == "copy"
    assert not probe.problems
    assert any("12 pieces" in note for note in probe.notes)
    assert any("1 piece may have grown" in note for note in probe.notes)
    (tmp_path / "copy" / "manifest.sqlite").write_bytes(b"nothing of the kind")
    assert CopySource(str(tmp_path / "copy")).probe().problems


def test_a_copy_can_be_read_where_nothing_can_be_written(tmp_path: Path, pieces: dict[str, bytes]) -> None:
    folder = tmp_path / "copy"
    copied(InPieces(pieces), folder)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    read(folder)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_copy_can_be_read_while_it_is_written(
    tmp_path: Path, pieces: dict[str, bytes], small_files: None
) -> None:
    folder, seen = tmp_path / "copy", []

    def look(key: str) -> None:
        if key == "piece-009":
            seen.append(read(folder))

    copied(InPieces(pieces, before_piece=look), folder)
    assert 0 < len(seen[0].spans) < len(read(folder).spans)
    assert "unfinished" in str(seen[0].ledger.broken)


def test_files_of_a_copy_by_a_glob(tmp_path: Path, pieces: dict[str, bytes], small_files: None) -> None:
    copied(InPieces(pieces), tmp_path / "copy")
    assert len(read(tmp_path / "copy" / "*.parquet").spans) == len(read(tmp_path / "copy").spans)


def test_what_is_no_telemetry_in_a_folder_is_noted(
    tmp_path: Path, pieces: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "exports"
    folder.mkdir()
    (folder / "run.jsonl").write_bytes(b"".join(pieces.values()))
    (folder / "settings.json").write_text('{"theme": "dark"}')
    assert run(["pull", str(folder), "-o", str(tmp_path / "copy"), "--json"]) == 0
    assert "settings.json" in json.loads(capsys.readouterr().out)["warnings"][0]
    same(open_source(str(folder)).read(EVERYTHING), read(tmp_path / "copy"))


@pytest.mark.parametrize("content", [b"", b'{"theme": "dark"}\n', b"\n\n"])
def test_nothing_to_copy_leaves_nothing(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "some.json").write_bytes(content)
    assert run(["pull", str(tmp_path / "some.json"), "-o", str(tmp_path / "copy")]) in (3, 5)
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "copy").exists()


def test_a_file_that_is_replaced_while_it_is_read(tmp_path: Path, pieces: dict[str, bytes]) -> None:
    folder = tmp_path / "copy"
    copied(InPieces(pieces), folder)
    spans = read(folder).spans
    copied(InPieces(pieces), folder, refresh=True)
    with pytest.raises(SourceError, match="replaced while it was read; try again"):
        spans.attributes(0)
    (folder / "spans-0001.parquet").unlink()
    with pytest.raises(SourceError, match=r"spans-0001\.parquet"):
        spans.attributes(0)


def test_somebody_who_reads_the_manifest_meanwhile(tmp_path: Path, pieces: dict[str, bytes]) -> None:
    folder = tmp_path / "copy"
    copied(InPieces(dict(list(pieces.items())[:3])), folder)
    with closing(sqlite3.connect(folder / "manifest.sqlite", isolation_level=None)) as other:

        def start_reading(key: str) -> None:
            if key == "piece-005":
                other.execute("BEGIN")
                assert other.execute("SELECT count(*) FROM pieces").fetchone()[0] >= 3

        copied(InPieces(pieces, before_piece=start_reading), folder)
        same(InPieces(pieces).read(EVERYTHING), read(folder))
        copied(InPieces(pieces), folder)


def test_a_file_that_grows_is_topped_up(
    tmp_path: Path, pieces: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = tmp_path / "run.jsonl", tmp_path / "copy"
    data = b"".join(pieces.values())
    for end in (len(data) // 3, len(data) * 2 // 3, len(data)):  # in the middle of a line, too
        path.write_bytes(data[:end])
        assert run(["pull", str(path), "-o", str(folder)]) == 0, capsys.readouterr().err
        same(open_source(str(path)).read(EVERYTHING), read(folder))
    assert f"{len(read(folder).spans):,} spans in {folder}: 1 piece, 1 file, " in capsys.readouterr().out
