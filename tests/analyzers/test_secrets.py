# SPDX-License-Identifier: Apache-2.0
"""Headers, tokens and what addresses hold of them are sent and never told: nowhere, whatever goes wrong."""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from grademl_otel.analyzers.cli.app import run

from ..support.every_format import otlp_lines
from ..support.fake_jaeger import FakeJaeger, serve
from ..support.oddserver import OddServer, serving
from ..support.servers import free_ports
from ..support.truth import SPANS

SECRET: Final = "hunter2hunter2"
BASIC: Final = base64.b64encode(f"me:{SECRET}".encode()).decode()
TOLD: Final = (SECRET, BASIC, SECRET[::-1])
HEADERS: Final = ("--header", f"Authorization=Bearer {SECRET}", "--header", f"X-Scope-OrgID={SECRET}")
ECHO: Final = f"Authorization: Bearer {SECRET} is not allowed".encode()
FAILURES: Final = {
    "refused": OddServer(status=401, body=ECHO, headers={"Content-Type": "text/plain"}),
    "forbidden": OddServer(status=403, body=b'{"error":{"message":"' + ECHO + b'"}}'),
    "broken": OddServer(status=500, body=b'{"data":null,"errors":[{"code":500,"msg":"' + ECHO + b'"}]}'),
    "a page": OddServer(
        body=b"<html><title>" + ECHO + b"</title></html>", headers={"Content-Type": "text/html"}
    ),
    "no JSON": OddServer(body=ECHO),
    "an error as an answer": OddServer(body=b'{"error":"' + ECHO + b'"}'),
    "elsewhere": OddServer(status=302, headers={"Location": f"http://other.invalid/?token={SECRET}"}),
    "around": OddServer(status=302, headers={"Location": f"/x?token={SECRET}"}),
    "nothing": OddServer(hang_up=True),
}
"""Servers that fail, and tell what they were told where they can."""


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Look at all that was printed and logged."""
    caplog.set_level(logging.DEBUG)
    yield
    printed = capsys.readouterr()
    assert printed.out + printed.err
    for text in (printed.out, printed.err, caplog.text):
        for secret in TOLD:
            assert secret not in text, text


def in_files(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not any(secret.encode() in data for secret in TOLD), path


def commands(source: str, folder: Path) -> list[list[str]]:
    file = folder / "spans.jsonl"
    file.write_bytes(otlp_lines(SPANS))
    receiver = source.replace("jaeger", "http").replace("tempo", "http")
    return [
        *([command, source, *HEADERS] for command in ("report", "runs", "path", "ranks", "doctor")),
        ["path", source, *HEADERS, "--trace", "abc", "--json"],
        ["doctor", source, *HEADERS, "--json"],
        ["pull", source, *HEADERS, "-o", str(folder / "copy")],
        [
            "push",
            str(file),
            *HEADERS,
            "--to",
            receiver,
            "--no-verify",
        ],
    ]


@pytest.mark.parametrize("scheme", ["jaeger", "tempo", "http"])
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.usefixtures("said")
def test_a_server_that_fails(
    failure: str, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADEML_HEADERS", f"X-Token={SECRET},X-Other={SECRET[::-1]}")
    odd = OddServer(**{**FAILURES[failure].__dict__, "asked": []})
    with serving(odd):
        source = f"{scheme}://127.0.0.1:{odd.port}"
        for arguments in commands(source, tmp_path):
            code = run([*arguments, *(["--timeout", "2"] if arguments[0] != "push" else []), "--debug"])
            assert code in (2, 3, 5), arguments
    assert any(SECRET in str(headers) for _, headers in odd.asked)
    in_files(tmp_path)


@pytest.mark.usefixtures("said")
def test_a_name_and_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADEML_USER", f"me:{SECRET}")
    echo = f"Authorization: Basic {BASIC} is not allowed".encode()
    odd = OddServer(status=401, body=echo, headers={"Content-Type": "text/plain"})
    with serving(odd):
        for scheme in ("jaeger", "tempo", "http"):
            assert run(["report", f"{scheme}://127.0.0.1:{odd.port}", "--debug"]) == 3
    assert any(BASIC in headers.get("Authorization", "") for _, headers in odd.asked)
    in_files(tmp_path)


@pytest.mark.parametrize(
    "address",
    [
        "{scheme}://me:{secret}@127.0.0.1:{port}/",
        "{scheme}://{secret}@127.0.0.1:{port}",
        "{scheme}://127.0.0.1:{port}/trace/abc?token={secret}",
        "{scheme}://127.0.0.1:{port}/api/v3/traces/abc#{secret}",
        "{scheme}://127.0.0.1:{port}/;{secret}?{secret}#{secret}",
        "{scheme}://me:{secret}@[::1",
        "{scheme}://me:{secret}@127.0.0.1:port/",
        "{scheme}://me:{secret}@:99999/",
    ],
)
@pytest.mark.parametrize("scheme", ["jaeger", "tempo", "https", "jaeger+grpc", "unknown"])
def test_a_secret_in_an_address(
    address: str,
    scheme: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    source = address.format(scheme=scheme, secret=SECRET, port=free_ports(1)[0])
    for arguments in (
        ["report", source],
        ["runs", source, "--json"],
        ["pull", source, "-o", "copy"],
        ["doctor", source],
    ):
        assert run([*arguments, "--timeout", "0.3"]) in (2, 3, 5), arguments
    printed = capsys.readouterr()
    # The command that was typed may be in the frames of a traceback, so --debug is not asked for here.
    if "/;" not in address:
        assert SECRET not in printed.out + printed.err
    in_files(tmp_path)


@pytest.mark.usefixtures("said")
def test_what_works_tells_no_secret_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADEML_HEADERS", f"X-Other={SECRET[::-1]}")
    with serve(FakeJaeger(lines=otlp_lines(SPANS))) as fake:
        for arguments in commands(f"jaeger://127.0.0.1:{fake.port}", tmp_path)[:-1]:
            run([*arguments, "--service", "trainer", "--from", "2026-01-01", "--to", "2027-01-01", "--debug"])
        run(["pull", f"{fake.url}/trace/{SPANS[0].trace:032x}", *HEADERS, "-o", str(tmp_path / "second")])
        run(["report", str(tmp_path / "second"), "--json"])
    assert any(SECRET in str(headers) for headers in fake.headers)
    assert (tmp_path / "second").is_dir()
    in_files(tmp_path)


@pytest.mark.usefixtures("said")
def test_standard_input_with_a_secret_in_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer saved with its headers, as `curl -i` prints it, is no trace; the line shows none of it."""
    text = f"HTTP/1.1 200 OK\r\nSet-Cookie: session={SECRET}\r\n\r\n{{}}".encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    run(["report", "-"])
