# SPDX-License-Identifier: Apache-2.0
"""Input that means harm: bounded time and memory, one line, only text on the terminal, no secret told."""

from __future__ import annotations

import gzip
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import zstandard

from grademl_otel.analyzers.cli.app import run
from grademl_otel.analyzers.errors import EXIT_NOTHING_FOUND, EXIT_SOURCE, GrademlError
from grademl_otel.analyzers.model.columns import Telemetry
from grademl_otel.analyzers.sources import open_source
from grademl_otel.analyzers.sources.base import Selection, SourceOptions

from ..support import every_format as formats
from ..support.confined import GRADEML, READ, Ended, confined
from ..support.foreign_formats import jaeger_v1, zipkin
from ..support.truth import SPANS, T0, WIDE, Happening, Resource, Scope, Span

GIB: Final = 1 << 30
MIB: Final = 1 << 20


def refused(ended: Ended, code: int = EXIT_SOURCE) -> str:
    """The one line that a command ended with."""
    (line,) = ended.err.splitlines()
    assert (ended.code, ended.out) == (code, ""), ended
    assert line.startswith("grademl: ")
    assert len(line) < 600
    return line


# --- Bombs ------------------------------------------------------------------------------------------------


def test_a_gzip_bomb(tmp_path: Path) -> None:
    """Four GiB of blanks in 4 MB."""
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * (32 * MIB), 9) * 128)
    ended = confined(GRADEML, ["report", str(path)], tmp_path, 2 * GIB)
    assert "bomb.json.gz" in refused(ended)
    assert ended.peak < 400 * MIB


def test_a_zstd_bomb(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.zst"
    path.write_bytes(zstandard.ZstdCompressor(3).compress(b" " * (256 * MIB)) * 64)
    ended = confined(GRADEML, ["report", str(path)], tmp_path, 2 * GIB)
    assert "bomb.json.zst" in refused(ended)
    assert ended.peak < 400 * MIB


def stream(before: bytes, filling: bytes, number: int, after: bytes) -> Iterator[bytes]:
    yield before
    for _ in range(number):
        yield filling
    yield after


LONG: Final[dict[str, tuple[bytes, bytes]]] = {
    "OTLP JSON line": (
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"0000000000000000000000000000000a","spanId":'
        b'"000000000000000b","attributes":[{"key":"k","value":{"stringValue":"',
        b'"}}]}]}]}]}\n',
    ),
    "Jaeger JSON": (
        b'{"data":[{"traceID":"a","processes":{},"spans":[{"traceID":"a","spanID":"b","tags":[{"key":"k","type":'
        b'"string","value":"',
        b'"}]}]}]}',
    ),
    "Kineto": (b'{"traceEvents":[{"ph":"X","name":"n","ts":1,"dur":1,"args":{"k":"', b'"}}]}'),
    "protobuf": (
        # Lengths of what holds the attribute: 2 GiB, give or take.
        b"\x0a" + formats.varint(2 * GIB + 64) + b"\x12" + formats.varint(2 * GIB + 50),
        b"",
    ),
    "a frame": (b"\x80\x00\x00\x00\x0a", b""),
}


@pytest.mark.parametrize("name", LONG)
def test_an_attribute_of_two_gigabytes(name: str, tmp_path: Path) -> None:
    before, after = LONG[name]
    ended = confined(
        READ, ["-", str(32 * MIB)], tmp_path, 2 * GIB, stream(before, b"x" * MIB, 2048, after), timeout_s=120
    )
    refused(ended)
    assert ended.peak < 500 * MIB


def test_a_stream_without_end(tmp_path: Path) -> None:
    def always() -> Iterator[bytes]:
        while True:
            yield b" \n" * 500_000

    refused(confined(READ, ["-", str(32 * MIB)], tmp_path, 2 * GIB, always()))


# --- Nesting ----------------------------------------------------------------------------------------------

DEEP: Final = 1_000_000


def _otlp(value: bytes) -> bytes:
    return (
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"0000000000000000000000000000000a","spanId":'
        b'"000000000000000b","name":"n","startTimeUnixNano":"1","endTimeUnixNano":"2","attributes":[{"key":"k",'
        b'"value":' + value + b"}]}]}]}]}"
    )


NESTED: Final[dict[str, Callable[[], bytes]]] = {
    "lists": lambda: b"[" * DEEP + b"]" * DEEP,
    "lists without end": lambda: b"[" * DEEP,
    "objects": lambda: b'{"data":' * DEEP + b"1" + b"}" * DEEP,
    "an OTLP array": lambda: _otlp(b'{"arrayValue":{"values":[' * DEEP + b"]}}" * DEEP),
    "an OTLP map": lambda: _otlp(
        b'{"kvlistValue":{"values":[{"key":"k","value":' * DEEP + b"{}" + b"}]}}" * DEEP
    ),
    "an unknown field": lambda: _otlp(b"{}").replace(
        b'"name"', b'"x":' + b"[" * DEEP + b"]" * DEEP + b',"name"'
    ),
    "a Jaeger tag": lambda: (
        b'{"data":[{"traceID":"a","processes":{},"spans":[{"traceID":"a","spanID":"b","startTime":1,'
        b'"duration":1,"tags":[{"key":"k","type":"string","value":' + b"[" * DEEP + b"]" * DEEP + b"}]}]}]}"
    ),
    "a profile's argument": lambda: (
        b'{"traceEvents":[{"ph":"X","name":"n","ts":1,"dur":1,"pid":1,"tid":1,"args":{"k":'
        + b'{"k":' * DEEP
        + b"1"
        + b"}" * DEEP
        + b"}}]}"
    ),
    "protobuf": lambda: formats.otlp_protobuf(SPANS[:1])[:-2] + b"\x4a\x80\x80\x40" * 250_000,
}


def read_or_refused(path: Path) -> Telemetry | None:
    """What is in the file, or None where the line that refuses it is one."""
    try:
        return open_source(str(path)).read(Selection())
    except GrademlError as error:
        line = str(error)
    assert line.isprintable()
    assert len(line) < 600
    return None


@pytest.mark.parametrize("name", NESTED)
def test_a_million_levels(name: str, tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_bytes(NESTED[name]())
    telemetry = read_or_refused(path)
    if telemetry is None:
        return
    spans = telemetry.spans
    # Where the spans can be told without it, the value may be kept as it was written; reading it ends, too.
    for ix in range(len(spans)):
        assert isinstance(spans.attributes(ix), dict)
        assert list(spans.events(ix)) == []


# --- Files that are none ----------------------------------------------------------------------------------


def one_line(path: str) -> str:
    with pytest.raises(GrademlError) as raised:
        open_source(path, SourceOptions(max_bytes=MIB)).read(Selection())
    line = str(raised.value)
    assert line.isprintable()
    assert raised.value.exit_code in (EXIT_SOURCE, EXIT_NOTHING_FOUND)
    return line


def test_devices(tmp_path: Path) -> None:
    assert "/dev/zero" in one_line("/dev/zero")
    assert "/dev/null" in one_line("/dev/null")


def test_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("s.json")
        assert "s.json" in one_line("s.json")
        assert one_line(str(tmp_path))


def test_a_pipe_is_read_and_one_in_a_folder_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    os.mkfifo(path)
    (tmp_path / "file.jsonl").write_bytes(formats.otlp_lines(SPANS))
    assert len(open_source(str(tmp_path)).read(Selection()).spans) == len(SPANS)
    writer = threading.Thread(target=lambda: path.write_bytes(formats.otlp_lines(SPANS)))
    writer.start()
    assert len(open_source(str(path)).read(Selection()).spans) == len(SPANS)
    writer.join()


def test_links_that_lead_in_circles(tmp_path: Path) -> None:
    (tmp_path / "a.json").symlink_to("b.json")
    (tmp_path / "b.json").symlink_to("a.json")
    assert "a.json" in one_line(str(tmp_path / "a.json"))
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "up").symlink_to(tmp_path)
    (tmp_path / "deeper" / "t.jsonl").write_bytes(formats.otlp_lines(SPANS))
    spans = open_source(str(tmp_path / "**" / "*.jsonl")).read(Selection()).spans
    assert len(spans) == len(SPANS)


ODD_FILES: Final = ("new\nline.json", "esc\x1b[31m.json", "\u202egnp.json", "tab\t.json", "c1\x9b2J.json")


@pytest.mark.parametrize("name", ODD_FILES)
def test_names_of_files_do_not_reach_the_terminal_as_they_are(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(b"nonsense")
    assert run(["report", str(path)]) == EXIT_SOURCE
    assert run(["report", str(tmp_path / f"no {name}")]) in (EXIT_SOURCE, EXIT_NOTHING_FOUND)  # of a glob
    path.write_bytes(formats.otlp_lines(SPANS))
    for command in ("report", "path", "runs", "ranks"):
        run([command, str(path)])
        run([command, str(tmp_path)])
    only_text(capsys)


# --- Content that is no text ------------------------------------------------------------------------------

EVIL: Final = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\x00\x08\r\n=cmd|' /C calc'!A0"


def only_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Assert that nothing but text, ends of lines and spaces was printed."""
    printed = capsys.readouterr()
    for text in (printed.out, printed.err):
        odd = {character for character in text if not character.isprintable() and character != "\n"}
        assert not odd, text


def evil_spans() -> list[Span]:
    resource = Resource(EVIL, {"host.name": EVIL, "ml.rank": EVIL})
    scope = Scope(EVIL, EVIL)
    attributes = {EVIL: EVIL, "grademl.lane": EVIL, "grademl.phase": EVIL}
    return [
        Span(
            WIDE,
            number + 1,
            1 if number else 0,
            f"{EVIL}{number}",
            T0 + number * 1_000,
            T0 + 9_000_000,
            resource,
            scope,
            status=2,
            message=EVIL,
            attributes=attributes,
            events=[Happening(T0, EVIL)],
        )
        for number in range(4)
    ]


@pytest.mark.parametrize("write", [formats.otlp_lines, formats.otlp_protobuf, jaeger_v1, zipkin])
def test_names_in_traces_do_not_reach_the_terminal_as_they_are(
    write: Callable[[list[Span]], bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "evil"
    path.write_bytes(write(evil_spans()))
    for command in ("report", "runs", "path", "ranks", "doctor"):
        for form in ("text", "json", "jsonl", "csv", "markdown"):
            run([command, str(path), "-f", form])
    for key in ("phase", "rank", "lane", "operation", "section"):
        run(["path", str(path), "--by", key])
    run(["path", str(path), "--per-trace"])
    run(["path", str(path), "--operation", EVIL, "--debug"])
    only_text(capsys)


def test_the_same_of_a_run_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ..support.synthetic import Training, simulate

    store = simulate(Training()).write_store(tmp_path / "store")
    (file,) = store.rglob("traces.jsonl") if store.is_dir() else (store,)
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]

    def spoiled(value: object, key: str = "") -> object:
        if isinstance(value, dict):
            known = str(value.get("key", "")).startswith("grademl.")
            return {k: v if known and k == "value" else spoiled(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [spoiled(item) for item in value]
        return f"{value}{EVIL}" if key in ("stringValue",) else value

    file.write_bytes(b"".join(json.dumps(spoiled(line)).encode() + b"\n" for line in lines))
    for command in ("report", "runs", "path", "ranks"):
        for form in ("text", "markdown", "csv"):
            run([command, str(file), "-f", form])
    only_text(capsys)


def test_values_that_are_no_numbers_are_no_times(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    for value in ('"NaN"', '"Infinity"', "1e999", "-1", '"-5"', "1e19", "9223372036854775808", "true", "[]"):
        path.write_text(
            _otlp(b"{}").decode().replace('"startTimeUnixNano":"1"', f'"startTimeUnixNano":{value}')
        )
        telemetry = read_or_refused(path)
        if telemetry is not None:
            assert int(telemetry.spans.start[0]) == 0
            assert telemetry.ledger.impossible_times == 1


def test_python_is_not_asked_for_long_integers(tmp_path: Path) -> None:
    """Converting decimal text takes quadratic time, and Python refuses more than 4,300 digits."""
    path = tmp_path / "t.json"
    path.write_bytes(_otlp(b'{"intValue":"' + b"9" * MIB + b'"}'))
    assert open_source(str(path)).read(Selection()).spans.attributes(0) in ({}, {"k": None})
    assert sys.get_int_max_str_digits() > 0
