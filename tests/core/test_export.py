# SPDX-License-Identifier: Apache-2.0
"""OTLP export against collectors that answer, refuse, come back, or hang; and the spool behind it."""

from __future__ import annotations

import dataclasses
import errno
import os
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path

import pytest
import trustme
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from grademl_otel.config import Settings
from grademl_otel.convert.spans import Resource, Span
from grademl_otel.export import destination as destination_module
from grademl_otel.export import pipeline as pipeline_module
from grademl_otel.export import spool as spool_module
from grademl_otel.export.interval import metrics_every_ns
from grademl_otel.export.ledger import Ledger
from grademl_otel.export.otlp import Request, rejected, trace_requests
from grademl_otel.export.pipeline import Pipeline, open_pipeline
from grademl_otel.export.senders import OK, Verdict, _retry_after, _short, open_sender
from grademl_otel.export.settings import (
    GRPC,
    HTTP,
    METRICS,
    TRACES,
    OtlpSettings,
    OtlpSettingsError,
    destination_name,
)
from grademl_otel.export.spool import Entry, Spool

from ..support.otlp_server import Answer, Receiver, grpc_receiver, http_receiver

RESOURCE = Resource({"service.name": "trainer"})
LEDGER = Ledger()
"""Of tests that do not look into it."""


def span_request(name: str = "step", span_id: int = 2) -> Request:
    (request,) = trace_requests(RESOURCE, [Span(name, 1, span_id, 0, 10, 20)])
    return request


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


# --- Settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "protocol", "endpoint", "insecure"),
    [
        ({}, GRPC, "localhost:4317", True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1/"}, GRPC, "c:1", True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c:1"}, GRPC, "c:1", False),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c:1", "OTEL_EXPORTER_OTLP_INSECURE": "true"},
            GRPC, "c:1", False,
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://user:word@c:1"}, GRPC, "c:1", False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "c:1"}, GRPC, "c:1", False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "c:1", "OTEL_EXPORTER_OTLP_INSECURE": "True"}, GRPC, "c:1", True),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t:2"},
            GRPC, "t:2", True,
        ),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, HTTP, "http://localhost:4318/v1/traces", True),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_ENDPOINT": "https://c:1/base/"},
            HTTP, "https://c:1/base/v1/traces", False,
        ),
        (
            {
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:1/mine",
            },
            HTTP, "http://c:1/mine", True,
        ),
        ({"OTEL_TRACES_EXPORTER": "otlp_proto_http"}, HTTP, "http://localhost:4318/v1/traces", True),
    ],
)  # fmt: skip
def test_endpoints(environ: dict[str, str], protocol: str, endpoint: str, insecure: bool) -> None:
    settings = OtlpSettings.from_env(TRACES, environ)

    assert (settings.protocol, settings.endpoint, settings.insecure) == (protocol, endpoint, insecure)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("", 10_000), ("60000", 60_000), ("1", 250), ("often", 10_000), ("-5", 10_000), ("nan", 10_000)],
)
def test_interval_of_metrics(text: str, milliseconds: int) -> None:
    assert metrics_every_ns({"OTEL_METRIC_EXPORT_INTERVAL": text}) == milliseconds * 1_000_000


def test_other_settings_and_their_order() -> None:
    settings = OtlpSettings.from_env(
        METRICS,
        {
            "OTEL_EXPORTER_OTLP_HEADERS": "X-Tenant=base",
            "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "X-Tenant=a%20b,authorization=Bearer abc=",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "3",
            "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "99",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_EXPORTER_OTLP_CERTIFICATE": "/ca.pem",
            "OTEL_EXPORTER_OTLP_CLIENT_KEY": "/key.pem",
            "OTEL_EXPORTER_OTLP_METRICS_CLIENT_CERTIFICATE": "/cert.pem",
        },
    )

    assert settings.headers == {"x-tenant": "a b", "authorization": "Bearer abc="}
    assert settings.timeout_s == 3
    assert settings.gzip
    assert (settings.certificate, settings.client_key, settings.client_certificate) == (
        "/ca.pem", "/key.pem", "/cert.pem",
    )  # fmt: skip
    assert "Bearer" not in repr(settings)


@pytest.mark.parametrize("timeout", ["", "soon", "-1", "0"])
def test_nonsense_timeout_is_the_default(timeout: str) -> None:
    assert OtlpSettings.from_env(TRACES, {"OTEL_EXPORTER_OTLP_TIMEOUT": timeout}).timeout_s == 10


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "smoke"},
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_ENDPOINT": "c:4318"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://"},
    ],
)
def test_impossible_settings_are_one_line(environ: dict[str, str]) -> None:
    with pytest.raises(OtlpSettingsError, match=r"OTEL_EXPORTER_OTLP_\w+='.*': expected"):
        OtlpSettings.from_env(TRACES, environ)


def test_impossible_settings_are_told_without_credentials() -> None:
    environ = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_ENDPOINT": "ftp://me:pw@c"}
    with pytest.raises(OtlpSettingsError, match="ftp://c/v1/traces"):
        OtlpSettings.from_env(TRACES, environ)


def name_of(**more: str) -> str:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:pw@c:1", **more}
    return destination_name(OtlpSettings.from_env(signal, environ) for signal in (TRACES, METRICS))


def headers(text: str) -> str:
    return name_of(OTEL_EXPORTER_OTLP_HEADERS=text)


def test_spool_is_found_again_when_a_secret_or_the_connection_was_put_right() -> None:
    assert headers("authorization=Bearer%20old,x-tenant=a") == headers(
        "authorization=Bearer%20new,x-tenant=a"
    )
    assert headers("authorization=Basic%20bWU6b2xk") == headers("authorization=Basic%20bWU6bmV3")
    assert name_of(OTEL_EXPORTER_OTLP_CERTIFICATE="/ca", OTEL_EXPORTER_OTLP_TIMEOUT="1") == name_of()
    assert name_of(OTEL_EXPORTER_OTLP_ENDPOINT="http://me:other@c:1") == name_of()


def test_spool_of_another_place_or_tenant_is_another() -> None:
    names = [
        name_of(),
        headers("x-tenant=a"),
        headers("x-tenant=b"),
        headers("authorization=Bearer%20x"),
        headers("authorization=Basic%20bWU6b2xk"),
        headers("authorization=Basic%20eW91Om9sZA=="),
        headers("authorization=Basic%20no-base64"),
        name_of(OTEL_EXPORTER_OTLP_ENDPOINT="http://c:2"),
        name_of(OTEL_EXPORTER_OTLP_METRICS_ENDPOINT="http://m:1"),
        name_of(OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf"),
    ]
    assert len(set(names)) == len(names)


# --- Senders ----------------------------------------------------------------------------------------------


def http_environ(port: int, **more: str) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        **more,
    }


def grpc_environ(port: int, **more: str) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", **more}


def send(environ: dict[str, str], signal: str = TRACES) -> Verdict:
    sender = open_sender(OtlpSettings.from_env(signal, environ))
    try:
        return sender.send(span_request().body)
    finally:
        sender.close()


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_http_request(compression: str) -> None:
    with http_receiver() as receiver:
        environ = http_environ(
            receiver.port,
            OTEL_EXPORTER_OTLP_HEADERS="x-tenant=team%20a",
            OTEL_EXPORTER_OTLP_COMPRESSION=compression,
        )
        assert send(environ) == OK
        path, headers = receiver.attempts[0]

    assert receiver.span_names == ["step"]
    assert path == "/v1/traces"
    assert headers["x-tenant"] == "team a"
    assert headers["content-type"] == "application/x-protobuf"
    assert headers["user-agent"].startswith("grademl-otel/")


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_grpc_request(compression: str) -> None:
    with grpc_receiver() as receiver:
        environ = grpc_environ(
            receiver.port, OTEL_EXPORTER_OTLP_HEADERS="x-tenant=a", OTEL_EXPORTER_OTLP_COMPRESSION=compression
        )
        assert send(environ) == OK

    assert receiver.span_names == ["step"]
    assert receiver.attempts[0][1]["x-tenant"] == "a"


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (400, "refused"), (401, "retry"), (403, "retry"), (404, "unsupported"), (413, "too large"),
        (429, "retry"), (500, "refused"), (502, "retry"), (503, "retry"), (504, "retry"), (302, "refused"),
    ],
)  # fmt: skip
def test_http_verdicts(status: int, outcome: str) -> None:
    with http_receiver() as receiver:
        receiver.answer = lambda signal: Answer(http=status)
        assert send(http_environ(receiver.port)).outcome == outcome


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ("INVALID_ARGUMENT", "refused"), ("UNAUTHENTICATED", "retry"), ("PERMISSION_DENIED", "retry"),
        ("UNIMPLEMENTED", "unsupported"), ("UNAVAILABLE", "retry"), ("RESOURCE_EXHAUSTED", "retry"),
        ("DATA_LOSS", "retry"), ("INTERNAL", "refused"),
    ],
)  # fmt: skip
def test_grpc_verdicts(status: str, outcome: str) -> None:
    with grpc_receiver() as receiver:
        receiver.answer = lambda signal: Answer(grpc=status)
        assert send(grpc_environ(receiver.port)).outcome == outcome


@pytest.mark.parametrize("environ", [http_environ, grpc_environ])
def test_nobody_listens(environ: Callable[[int], dict[str, str]]) -> None:
    assert send(environ(free_port())).outcome == "retry"


@pytest.mark.parametrize(
    ("receive", "environ"), [(http_receiver, http_environ), (grpc_receiver, grpc_environ)]
)
def test_hanging_collector_is_given_up_after_the_timeout(
    receive: Callable[..., object], environ: Callable[..., dict[str, str]]
) -> None:
    with receive() as receiver:  # type: ignore[attr-defined]
        receiver.answer = lambda signal: Answer(delay_s=2.0)
        verdict = send(environ(receiver.port, OTEL_EXPORTER_OTLP_TIMEOUT="0.2"))

    assert verdict.outcome == "retry"


@pytest.mark.parametrize(
    ("receive", "environ"), [(http_receiver, http_environ), (grpc_receiver, grpc_environ)]
)
def test_partial_success_is_a_yes_with_a_number(
    receive: Callable[..., object], environ: Callable[..., dict[str, str]]
) -> None:
    with receive() as receiver:  # type: ignore[attr-defined]
        receiver.answer = lambda signal: Answer(rejected=1)
        assert send(environ(receiver.port)) == Verdict("ok", "no more room for those", rejected=1)


def test_grpc_retry_info() -> None:
    with grpc_receiver() as receiver:
        receiver.answer = lambda signal: Answer(grpc="RESOURCE_EXHAUSTED", retry_s=7)
        verdict = send(grpc_environ(receiver.port))

    assert (verdict.outcome, verdict.retry_after_s) == ("retry", 7)


def test_grpc_request_that_is_too_large() -> None:
    with grpc_receiver(max_bytes=20) as receiver:
        assert send(grpc_environ(receiver.port)).outcome == "too large"


@pytest.mark.parametrize(
    ("answer", "outcome", "reason"),
    [
        (Answer(http=302, headers={"Location": "http://127.0.0.1:1/"}), "refused", "a redirect"),
        (Answer(raw=b"SSH-2.0-OpenSSH_9.9\r\n"), "retry", "no connection"),
        (Answer(raw=b""), "retry", "no connection"),
        (Answer(reset=True), "retry", "no connection"),
        (Answer(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n\xff\xff"), "ok", ""),
        (Answer(raw=b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nxx"), "ok", ""),
        (Answer(raw=b"HTTP/1.1 200 OK\r\n\r\n" + b"<p>" * 100_000), "ok", ""),
    ],
)
def test_strange_answers(answer: Answer, outcome: str, reason: str) -> None:
    """The status decides: what was taken is not sent again, whatever the rest of the answer is."""
    with http_receiver() as receiver:
        receiver.answer = lambda signal: answer
        verdict = send(http_environ(receiver.port))

    assert (verdict.outcome, reason in verdict.reason) == (outcome, True)
    assert len(receiver.attempts) == 1


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "Text/HTML"])
def test_web_page_has_taken_nothing(kind: str) -> None:
    """A user interface says yes to any address: Jaeger's does, at 16686."""
    with http_receiver() as receiver:
        receiver.answer = lambda signal: Answer(headers={"Content-Type": kind})
        verdict = send(http_environ(receiver.port))

    assert verdict.outcome == "unsupported"
    assert "web page" in verdict.reason
    assert "4318" in verdict.advice


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_tls_that_fails_can_be_put_right(protocol: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(tls)
    trusted = tmp_path / "ca.pem"
    with http_receiver(tls=tls) as receiver:
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"https://localhost:{receiver.port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        }
        assert send(environ).outcome == "retry"
        environ["OTEL_EXPORTER_OTLP_CERTIFICATE"] = str(trusted)
        missing = send(environ)
        assert missing.outcome == "retry"
        assert str(trusted) in missing.reason
        assert missing.advice == "is OTEL_EXPORTER_OTLP_CERTIFICATE right?"
        authority.cert_pem.write_to_path(str(trusted))
        if protocol == HTTP:  # the receiver speaks no gRPC
            assert send(environ) == OK


def test_what_a_server_says_is_a_part_of_one_line() -> None:
    message = ExportTraceServiceResponse()
    message.partial_success.rejected_spans = 3
    message.partial_success.error_message = "a\x1b[31m\n\u2028b" + "c" * 1000
    number, text = rejected("traces", message.SerializeToString())
    assert number == 3
    assert _short(text).startswith("a [31m bccc")
    assert len(_short(text)) == 120
    assert rejected("traces", b"\xff\xffno protobuf") == (0, "")


def test_retry_after() -> None:
    assert _retry_after("7") == 7
    assert _retry_after("-3") == 0
    assert _retry_after("1e9") == 300
    assert _retry_after(None) is None
    assert _retry_after("tomorrow") is None
    assert 50 < (_retry_after(formatdate(time.time() + 60, usegmt=True)) or 0) <= 61


# --- Spool ------------------------------------------------------------------------------------------------


def request_of(size: int, signal: str = "traces", count: int = 1) -> Request:
    return Request(signal, bytes(size), count)


class Lost(list[tuple[int, str]]):
    """What a spool gave up: priority and reason."""

    def __call__(self, entry: Entry, why: str) -> None:
        self.append((entry.priority, why))


def written(folder: Path) -> list[Path]:
    return sorted(folder.glob("otlp-*/*.otlp"))


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_spool_gives_back_what_it_took(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", "d")
    assert spool.put(Request("traces", b"one", 7), 2)
    assert spool.put(Request("metrics", b"two", 1), 0)

    entries = Spool(tmp_path / "s", "d").entries()

    assert [(entry.priority, spool.read(entry)) for entry in entries] == [
        (2, Request("traces", b"one", 7)),
        (0, Request("metrics", b"two", 1)),
    ]
    assert all(entry.path.stat().st_mode & 0o777 == 0o600 for entry in entries)
    assert spool.folder.stat().st_mode & 0o777 == 0o700
    assert Spool(tmp_path / "s", "other").entries() == []
    spool.remove(entries[0])
    assert [entry.signal for entry in spool.entries()] == ["metrics"]


def test_full_spool_drops_detail_before_windows_before_the_run(tmp_path: Path) -> None:
    lost = Lost()
    spool = Spool(tmp_path, "d", 5 * 104, lost)
    for priority in (2, 0, 2, 1, 2):
        assert spool.put(request_of(100), priority)
    for priority in (1, 0, 0, 0):
        assert spool.put(request_of(100), priority)

    assert sorted(entry.priority for entry in spool.entries()) == [0, 0, 0, 0, 1]
    assert spool.put(request_of(100), 2) is None
    assert spool.problem == f"{tmp_path}: full, 520 bytes"
    assert spool.put(request_of(100), 0)
    assert [entry.priority for entry in spool.entries()] == [0] * 5
    assert [priority for priority, _ in lost] == [2, 2, 2, 1, 1]
    assert {why for _, why in lost} == {"the spool is full"}


def test_destinations_share_the_bound(tmp_path: Path) -> None:
    first, second = Spool(tmp_path, "a", 3 * 104), Spool(tmp_path, "b", 3 * 104)
    for _ in range(3):
        assert first.put(request_of(100), 2)
    assert second.put(request_of(100), 1)

    assert (len(first.entries()), len(second.entries())) == (2, 1)
    assert second.put(request_of(400), 0) is None
    assert len(written(tmp_path)) == 3


def test_damaged_and_foreign_files_in_the_spool(tmp_path: Path) -> None:
    lost = Lost()
    spool = Spool(tmp_path, "d", lost=lost)
    whole, cut = spool.put(request_of(9), 0), spool.put(request_of(9), 1)
    assert whole is not None
    assert cut is not None
    cut.path.write_bytes(cut.path.read_bytes()[:-1])
    now = f"{time.time_ns():020d}"
    for name in (
        "notes.txt",
        "a-b-c-d-e.otlp",
        f"{now}-aa-logs-0-1.otlp",
        f"{now}-aa-traces-0.otlp",
        "x.tmp",
    ):
        (spool.folder / name).write_bytes(b"x")
    (spool.folder / f"{now}-aa-traces-0-1.otlp").symlink_to("/dev/zero")

    assert [entry.path for entry in spool.entries()] == [whole.path, cut.path]
    assert spool.read(cut) is None
    assert lost == [(1, "damaged")]
    assert not cut.path.exists()
    spool.clean()
    assert len(list(spool.folder.iterdir())) == 7  # young yet


def test_spool_of_a_day_long_past_is_cleaned(tmp_path: Path) -> None:
    lost = Lost()
    spool = Spool(tmp_path, "d", lost=lost)
    long_ago = time.time_ns() - 8 * 24 * 3600 * 10**9
    for name in ("d", "other"):
        assert Spool(tmp_path, name).put(request_of(9), 0, long_ago)
        assert Spool(tmp_path, name).put(request_of(8), 0)
    mine = tmp_path / "mine"
    mine.mkdir()
    old = [spool.folder / "older-version.otlp", spool.folder / "half.tmp", spool.folder / "n", mine / "x.tmp"]
    for path in old:
        path.write_bytes(b"x")
        os.utime(path, ns=(long_ago, long_ago))

    spool.clean()

    assert [entry.size for entry in spool.entries()] == [12]
    assert lost == [(0, "too old")] * 2
    assert len(written(tmp_path)) == 2
    assert [path.name for path in old if path.exists()] == ["n", "x.tmp"]


@pytest.mark.parametrize("base", ["file/spool", "~/nobody"])
def test_spool_falls_back_to_the_temporary_folder(base: str, tmp_path: Path, temporary_folder: Path) -> None:
    (tmp_path / "file").write_text("")
    place = Path(base) if base.startswith("~") else tmp_path / base
    spool = Spool(place, "d")

    assert spool.put(request_of(9), 0)
    assert spool.folder.is_relative_to(temporary_folder)
    assert [entry.size for entry in Spool(place, "d").entries()] == [13]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_spool_that_no_disk_takes(
    tmp_path: Path, temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    # Somebody else's folder stands where ours would be.
    temporary_folder.joinpath(f"grademl-{os.getuid()}").mkdir(mode=0o755)
    spool = Spool(tmp_path / "file" / "spool", "d")

    assert spool.put(request_of(9), 0) is None
    assert spool.problem is not None
    assert "Not a directory" in spool.problem
    assert "not a folder of this user alone" in spool.problem
    assert spool.entries() == []


def test_full_disk_drops_what_matters_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Lost()
    spool = Spool(tmp_path, "d", lost=lost)
    for priority in (2, 1, 0):
        assert spool.put(request_of(100), priority)
    write = spool_module._write

    def full(path: Path, data: bytes) -> None:
        if len(written(tmp_path)) >= 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    monkeypatch.setattr(spool_module, "_write", full)
    monkeypatch.setattr(spool, "_places", spool._places[:1])
    assert spool.put(request_of(100), 1)
    assert [entry.priority for entry in spool.entries()] == [1, 0, 1]
    assert spool.put(request_of(100), 1) is None
    assert spool.problem == f"{tmp_path}: No space left on device"
    assert lost == [(2, "the spool is full")]


def test_one_process_resends_at_a_time(tmp_path: Path) -> None:
    first, second = Spool(tmp_path, "d"), Spool(tmp_path, "d")
    with first.resending() as mine:
        assert not mine  # there is nothing
    assert first.put(request_of(9), 0)
    with first.resending() as mine, second.resending() as theirs:
        assert (mine, theirs) == (True, False)
    with second.resending() as theirs:
        assert theirs


# --- Pipeline ---------------------------------------------------------------------------------------------


def settings_in(folder: Path) -> Settings:
    return Settings.from_env({"GRADEML_SPOOL_DIR": str(folder / "spool")})


def spooled(folder: Path) -> list[str]:
    return sorted(path.name.rsplit("-", 3)[1] for path in (folder / "spool").glob("*/*.otlp"))


def started(folder: Path, environ: dict[str, str]) -> Pipeline:
    return open_pipeline(settings_in(folder), environ)


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destination_module, "_FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(destination_module, "_LONGEST_PAUSE_S", 0.2)


@pytest.mark.parametrize(
    ("receive", "environ"), [(http_receiver, http_environ), (grpc_receiver, grpc_environ)]
)
def test_requests_are_delivered_in_order(
    receive: Callable[..., object], environ: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    with receive() as receiver:  # type: ignore[attr-defined]
        pipeline = started(tmp_path, environ(receiver.port))
        tickets = [pipeline.submit(span_request(f"s{number}"), 2, LEDGER) for number in range(20)]
        until(lambda: pipeline.delivered >= tickets[-1])
        pipeline.close(5)

    assert receiver.span_names == [f"s{number}" for number in range(20)]
    assert spooled(tmp_path) == []


def test_dead_collector_spools_at_once_and_the_next_process_resends(tmp_path: Path) -> None:
    port = free_port()
    first = started(tmp_path, http_environ(port))
    tickets = [first.submit(span_request(f"s{number}"), 2, LEDGER) for number in range(5)]
    until(lambda: first.delivered >= tickets[-1])
    first.close(5)
    assert spooled(tmp_path) == ["traces"] * 5

    with http_receiver(port) as receiver:
        second = started(tmp_path, http_environ(port))
        until(lambda: len(receiver.traces) == 5)
        until(lambda: spooled(tmp_path) == [])
        second.close(5)
    assert receiver.span_names == [f"s{number}" for number in range(5)]


def test_no_header_or_address_is_in_the_spool(tmp_path: Path) -> None:
    port = free_port()
    pipeline = started(tmp_path, http_environ(port, OTEL_EXPORTER_OTLP_HEADERS="authorization=verysecret"))
    ticket = pipeline.submit(span_request(), 0, LEDGER)
    until(lambda: pipeline.delivered >= ticket)
    pipeline.close(5)

    for path in (tmp_path / "spool").rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert b"verysecret" not in content
        assert str(port).encode() not in content
        assert "127.0.0.1" not in str(path.relative_to(tmp_path))


@pytest.mark.usefixtures("quick_retries")
def test_collector_that_comes_back_gets_everything_once(tmp_path: Path) -> None:
    with http_receiver() as receiver:
        answers = iter([503, 503, 429])
        receiver.answer = lambda signal: Answer(http=next(answers, 200))
        pipeline = started(tmp_path, http_environ(receiver.port))
        for number in range(50):
            pipeline.submit(span_request(f"s{number}", span_id=number + 1), 2, LEDGER)
            time.sleep(0.005)
        until(lambda: len(receiver.traces) == 50)
        until(lambda: spooled(tmp_path) == [])
        pipeline.close(5)

    assert len(set(receiver.span_ids)) == len(receiver.span_ids) == 50
    assert pipeline.problem is None


def test_collectors_wish_for_a_pause_is_kept(tmp_path: Path) -> None:
    with http_receiver() as receiver:
        receiver.answer = lambda signal: Answer(http=429, headers={"Retry-After": "120"})
        pipeline = started(tmp_path, http_environ(receiver.port))
        first = pipeline.submit(span_request(), 2, LEDGER)
        until(lambda: pipeline.delivered >= first)
        receiver.answer = lambda signal: Answer()
        last = [pipeline.submit(span_request(), 2, LEDGER) for _ in range(10)][-1]
        until(lambda: pipeline.delivered >= last)
        pipeline.close(5)

    assert len(receiver.attempts) == 1
    assert pipeline.problem is not None
    assert "traces are kept until it takes them: HTTP 429" in pipeline.problem
    assert len(spooled(tmp_path)) == 11


@pytest.mark.parametrize("status", [400, 404, 500])
def test_refused_requests_are_dropped_counted_and_said(status: int, tmp_path: Path) -> None:
    with http_receiver() as receiver:
        receiver.answer = lambda signal: Answer(http=status)
        pipeline, ledger = started(tmp_path, http_environ(receiver.port)), Ledger()
        last = [pipeline.submit(span_request(), 2, ledger) for _ in range(5)][-1]
        until(lambda: pipeline.delivered >= last)
        pipeline.close(5)

    assert ledger.counts == (0, 0, 5)
    assert spooled(tmp_path) == []
    assert pipeline.problem is not None
    assert f"traces are refused: HTTP {status}" in pipeline.problem
    assert "5 spans are lost" in pipeline.problem


@pytest.mark.parametrize("value", ["s3cr3t%0Aword", "s3cr3t%E2%82%ACword"])
@pytest.mark.parametrize(
    ("receive", "environ"), [(http_receiver, http_environ), (grpc_receiver, grpc_environ)]
)
def test_header_that_cannot_be_sent_is_not_shown(
    receive: Callable[..., object], environ: Callable[..., dict[str, str]], value: str, tmp_path: Path
) -> None:
    with receive() as receiver:  # type: ignore[attr-defined]
        headers = {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization={value}"}
        pipeline = started(tmp_path, environ(receiver.port) | headers)
        ticket = pipeline.submit(span_request(), 2, LEDGER)
        until(lambda: pipeline.delivered >= ticket)
        pipeline.close(5)

    assert pipeline.problem is not None
    assert "traces are kept until it takes them: the request cannot be sent" in pipeline.problem
    assert "s3cr3t" not in pipeline.problem
    assert "\u20ac" not in pipeline.problem


def test_problem_shows_no_credentials_of_the_endpoint(tmp_path: Path) -> None:
    with http_receiver() as receiver:
        receiver.answer = lambda signal: Answer(http=401)
        endpoint = f"http://user:s3cr3t@127.0.0.1:{receiver.port}/v1/traces?token=s3cr3t"
        environ = http_environ(receiver.port) | {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": endpoint}
        pipeline = started(tmp_path, environ)
        ticket = pipeline.submit(span_request(), 2, LEDGER)
        until(lambda: pipeline.delivered >= ticket)
        pipeline.close(5)

    assert pipeline.problem is not None
    assert f"http://127.0.0.1:{receiver.port}/v1/traces" in pipeline.problem
    assert "s3cr3t" not in pipeline.problem


def metrics_then_spans(pipeline: Pipeline, receiver: Receiver) -> None:
    for _ in range(3):
        pipeline.submit(Request("metrics", b"", 0), 0, LEDGER)
        last = pipeline.submit(span_request(), 2, LEDGER)
    until(lambda: pipeline.delivered >= last)
    pipeline.close(5)
    assert receiver.span_names == ["step"] * 3
    assert pipeline.problem is None


def test_metrics_that_jaeger_does_not_take_are_off_in_silence(tmp_path: Path) -> None:
    with grpc_receiver(with_metrics=False) as receiver:
        pipeline = started(tmp_path, grpc_environ(receiver.port))
        metrics_then_spans(pipeline, receiver)
    with http_receiver() as receiver:
        receiver.answer = lambda signal: Answer(http=404 if signal == "metrics" else 200)
        pipeline = started(tmp_path, http_environ(receiver.port))
        metrics_then_spans(pipeline, receiver)
        assert [path for path, _ in receiver.attempts].count("/v1/metrics") == 1

    assert spooled(tmp_path) == []


def test_hanging_collector_keeps_nothing_from_safety(tmp_path: Path) -> None:
    answered, ledger = threading.Event(), Ledger()

    def hang(signal: str) -> Answer:
        answered.wait(20)
        return Answer()

    with http_receiver() as receiver:
        receiver.answer = hang
        pipeline = started(tmp_path, http_environ(receiver.port))
        for number in range(6):
            last = pipeline.submit(span_request(f"s{number}", number + 1), 2, ledger)
        until(lambda: pipeline.relieve() is None and pipeline.delivered == last)
        # What is under way lies in the spool, too, until the verdict is heard.
        assert len(spooled(tmp_path)) == 6
        assert ledger.counts == (6, 0, 0)
        answered.set()
        until(lambda: spooled(tmp_path) == [])
        pipeline.close(5)

    assert receiver.span_names == [f"s{number}" for number in range(6)]
    assert ledger.lost == 0


def test_what_is_under_way_goes_on_where_there_is_no_spool(tmp_path: Path, temporary_folder: Path) -> None:
    temporary_folder.joinpath(f"grademl-{os.getuid()}").write_text("")
    answered, ledger = threading.Event(), Ledger()

    def hang(signal: str) -> Answer:
        answered.wait(20)
        return Answer()

    with http_receiver() as receiver:
        receiver.answer = hang
        pipeline = started(tmp_path, http_environ(receiver.port))
        (tmp_path / "spool").write_text("")
        first = pipeline.submit(span_request("under way", 1), 2, ledger)
        until(lambda: bool(receiver.attempts))
        pipeline.submit(span_request("behind", 2), 2, ledger)
        until(lambda: pipeline.relieve() is None and ledger.counts == (0, 1, 0))
        assert pipeline.delivered < first
        answered.set()
        until(lambda: pipeline.delivered > first)
        pipeline.close(5)

    assert receiver.span_names == ["under way"]
    assert pipeline.problem is not None
    assert "traces are dropped" in pipeline.problem
    assert "no room in the spool" in pipeline.problem
    assert "1 spans are lost" in pipeline.problem


def spans_request(number: int) -> Request:
    spans = [Span(f"s{each}", 1, each + 1, 0, 10, 20, {"x": "y" * 50}) for each in range(number)]
    (request,) = trace_requests(RESOURCE, spans)
    return request


@pytest.mark.parametrize(
    ("receive", "environ"), [(http_receiver, http_environ), (grpc_receiver, grpc_environ)]
)
def test_request_that_is_too_large_travels_in_parts(
    receive: Callable[..., object], environ: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    (lone,) = trace_requests(RESOURCE, [Span("lone", 1, 99, 0, 10, 20, {"x": "y" * 3000})])
    with grpc_receiver(max_bytes=600) if receive is grpc_receiver else http_receiver() as receiver:
        receiver.max_bytes = 600
        pipeline, ledger = started(tmp_path, environ(receiver.port)), Ledger()
        pipeline.submit(spans_request(25), 2, ledger)
        pipeline.submit(lone, 2, ledger)
        last = pipeline.submit(span_request("behind", 100), 2, ledger)
        until(lambda: pipeline.delivered >= last)
        pipeline.close(5)

    assert receiver.span_names == [*(f"s{number}" for number in range(25)), "behind"]
    assert ledger.counts == (0, 0, 1)
    assert spooled(tmp_path) == []
    assert pipeline.problem is not None
    assert "traces are refused" in pipeline.problem
    assert "a larger limit there would let it in; 1 spans are lost" in pipeline.problem


@pytest.mark.usefixtures("quick_retries")
def test_half_that_fails_for_now_is_resent_alone(tmp_path: Path) -> None:
    """Directly, and out of the spool: the halves that were taken are not sent again."""
    with http_receiver() as receiver:
        # Too large, first half taken, no; later: no, too large, its first half taken, no; and then yes.
        answers = iter([413, 200, 503, 503, 413, 200, 503])
        receiver.answer = lambda signal: Answer(http=next(answers, 200))
        pipeline, ledger = started(tmp_path, http_environ(receiver.port)), Ledger()
        last = pipeline.submit(spans_request(8), 2, ledger)
        until(lambda: pipeline.delivered >= last)
        until(lambda: len(receiver.spans) == 8 and spooled(tmp_path) == [])
        pipeline.close(5)

    assert receiver.span_names == [f"s{number}" for number in range(8)]
    assert [len(request.resource_spans[0].scope_spans[0].spans) for request in receiver.traces] == [4, 2, 2]
    assert ledger.counts == (4, 0, 0)
    assert pipeline.problem is None


@pytest.mark.parametrize(
    ("receive", "environ"), [(http_receiver, http_environ), (grpc_receiver, grpc_environ)]
)
def test_partial_success_is_counted_said_and_not_sent_again(
    receive: Callable[..., object], environ: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    with receive() as receiver:  # type: ignore[attr-defined]
        receiver.answer = lambda signal: Answer(rejected=3)
        pipeline, ledger = started(tmp_path, environ(receiver.port)), Ledger()
        last = pipeline.submit(spans_request(8), 2, ledger)
        until(lambda: pipeline.delivered >= last)
        pipeline.close(5)

    assert len(receiver.attempts) == 1
    assert len(receiver.spans) == 5
    assert ledger.counts == (0, 0, 3)
    assert pipeline.problem is not None
    assert "traces are rejected in part: no more room for those; 3 spans are lost" in pipeline.problem


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.usefixtures("quick_retries")
def test_wrong_credentials_cost_nothing_once_they_are_put_right(status: int, tmp_path: Path) -> None:
    with http_receiver() as receiver:
        receiver.answer = lambda signal: Answer(http=status)
        wrong = http_environ(receiver.port, OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20old")
        first = started(tmp_path, wrong)
        last = [first.submit(span_request(f"s{number}", number + 1), 2, LEDGER) for number in range(5)][-1]
        until(lambda: first.delivered >= last)
        assert first.problem is not None
        assert f"traces are kept until it takes them: HTTP {status}; they wait in {tmp_path}" in first.problem
        assert first.problem.endswith("are the credentials in OTEL_EXPORTER_OTLP_HEADERS right?")
        first.close(5)
        assert spooled(tmp_path) == ["traces"] * 5

        receiver.answer = lambda signal: Answer()
        right = http_environ(receiver.port, OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20new")
        second = started(tmp_path, right)
        until(lambda: len(receiver.traces) == 5 and spooled(tmp_path) == [])
        second.close(5)
    assert receiver.span_names == [f"s{number}" for number in range(5)]


@pytest.mark.usefixtures("quick_retries")
def test_request_that_a_collector_chokes_on_keeps_no_other(tmp_path: Path) -> None:
    with http_receiver() as receiver:
        receiver.answer = lambda signal: Answer(http=503)
        pipeline = started(tmp_path, http_environ(receiver.port))
        last = [pipeline.submit(spans_request(n), 2, LEDGER) for n in (9, 1, 2)][-1]
        until(lambda: pipeline.delivered >= last)
        receiver.answer = lambda signal: Answer(reset=int(receiver.attempts[-1][1]["content-length"]) > 500)
        until(lambda: len(receiver.traces) == 2)
        pipeline.close(5)
    assert [len(request.resource_spans[0].scope_spans[0].spans) for request in receiver.traces] == [1, 2]
    assert spooled(tmp_path) == ["traces"]


def test_two_processes_with_one_spool_send_each_request_once(tmp_path: Path) -> None:
    port = free_port()
    pipelines = [started(tmp_path, http_environ(port)) for _ in range(2)]
    for number in range(40):
        pipelines[number % 2].submit(span_request(f"s{number}", number + 1), 2, LEDGER)
    until(lambda: len(spooled(tmp_path)) == 40)
    for pipeline in pipelines:
        pipeline.close(5)
    with http_receiver(port) as receiver:
        pipelines = [started(tmp_path, http_environ(port)) for _ in range(2)]
        until(lambda: spooled(tmp_path) == [])
        for pipeline in pipelines:
            pipeline.close(5)
    assert sorted(receiver.span_names) == sorted(f"s{number}" for number in range(40))


def test_full_spool_is_counted_and_said(tmp_path: Path) -> None:
    settings = dataclasses.replace(settings_in(tmp_path), spool_bytes=900)
    pipeline, ledger = open_pipeline(settings, http_environ(free_port())), Ledger()
    for number in range(30):
        last = pipeline.submit(span_request(span_id=number + 1), 2, ledger)
    until(lambda: pipeline.delivered >= last)
    pipeline.close(5)

    kept = len(spooled(tmp_path))
    assert ledger.counts == (30, 30 - kept, 0)
    assert 0 < kept < 30
    assert pipeline.problem is not None
    assert "the spool is full; is it running" in pipeline.problem
    assert pipeline.problem.endswith(f"{30 - kept} spans are lost")


def test_what_is_under_way_makes_no_room_and_is_not_counted_twice(tmp_path: Path) -> None:
    answered, ledger = threading.Event(), Ledger()

    def hang(signal: str) -> Answer:
        answered.wait(20)
        return Answer()

    settings = dataclasses.replace(settings_in(tmp_path), spool_bytes=900)
    with http_receiver() as receiver:
        receiver.answer = hang
        pipeline = open_pipeline(settings, http_environ(receiver.port))
        pipeline.submit(span_request("under way", 1), 2, ledger)
        until(lambda: pipeline.relieve(urgent=bool(receiver.attempts)) is None and pipeline.delivered == 1)
        for number in range(29):
            pipeline.submit(span_request(f"s{number}", number + 2), 1, ledger)
        pipeline.relieve(urgent=True)
        assert ledger.lost > 0
        answered.set()
        until(lambda: spooled(tmp_path) == [])
        pipeline.close(5)

    assert "under way" in receiver.span_names
    assert len(receiver.spans) + ledger.lost == 30


def test_half_of_what_is_too_large_fits_where_the_whole_did(tmp_path: Path) -> None:
    copied, ledger, whole = threading.Event(), Ledger(), spans_request(20)
    answers = iter([Answer(http=413), Answer(), Answer(http=503)])

    def hang(signal: str) -> Answer:
        copied.wait(20)
        return next(answers, Answer())

    settings = dataclasses.replace(settings_in(tmp_path), spool_bytes=len(whole.body) + 4)
    with http_receiver() as receiver:
        receiver.answer = hang
        pipeline = open_pipeline(settings, http_environ(receiver.port))
        pipeline.submit(whole, 2, ledger)
        until(lambda: pipeline.relieve(urgent=bool(receiver.attempts)) is None and pipeline.delivered == 1)
        copied.set()
        until(lambda: spooled(tmp_path) == [])
        pipeline.close(5)

    assert len(receiver.spans) == 20
    assert ledger.lost == 0


def test_each_run_is_told_of_its_own_losses(tmp_path: Path) -> None:
    with http_receiver() as receiver:
        receiver.answer = lambda signal: Answer(http=400)
        pipeline, unlucky, lucky = started(tmp_path, http_environ(receiver.port)), Ledger(), Ledger()
        last = pipeline.submit(spans_request(3), 2, unlucky)
        until(lambda: pipeline.delivered >= last)
        receiver.answer = lambda signal: Answer()
        last = pipeline.submit(spans_request(4), 2, lucky)
        until(lambda: pipeline.delivered >= last)
        pipeline.close(5)
    assert (unlucky.lost, lucky.lost) == (3, 0)
    assert (pipeline.problem_of(unlucky) or "").endswith("3 spans are lost")
    assert pipeline.problem_of(lucky) is None


def test_loss_of_earlier_runs_is_said_as_theirs(tmp_path: Path) -> None:
    with http_receiver() as receiver:
        environ = http_environ(receiver.port)
        name = destination_name(OtlpSettings.from_env(signal, environ) for signal in (TRACES, METRICS))
        spool = Spool(tmp_path / "spool", name)
        assert spool.put(spans_request(5), 2, time.time_ns() - 8 * 24 * 3600 * 10**9)
        pipeline = started(tmp_path, environ)
        until(lambda: pipeline.problem is not None)
        pipeline.close(5)
    assert pipeline.problem == f"5 spans of earlier runs are lost: {spool.folder}: too old"
    assert receiver.attempts == []
    assert pipeline.books.total.counts == (0, 0, 0)


def test_own_requests_are_no_spans_of_the_users(tmp_path: Path) -> None:
    seen = []

    class Sender:
        def send(self, body: bytes) -> Verdict:
            seen.append(is_instrumentation_enabled())
            return OK

        def close(self) -> None: ...

    pipeline = open_pipeline(settings_in(tmp_path), {}, lambda settings: Sender())
    last = pipeline.submit(span_request(), 2, LEDGER)
    until(lambda: pipeline.delivered >= last)
    pipeline.close(5)
    assert seen == [False]


def test_queue_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = span_request().body
    monkeypatch.setattr(pipeline_module, "MAX_QUEUED_BYTES", 3 * len(body))
    with http_receiver() as receiver:
        receiver.answer = lambda signal: Answer(delay_s=1.0)
        pipeline = started(tmp_path, http_environ(receiver.port))
        for _ in range(10):
            pipeline.submit(span_request(), 2, LEDGER)
        assert len(spooled(tmp_path)) >= 6
        receiver.answer = lambda signal: Answer()
        pipeline.close(10)


def test_metrics_on_the_way_are_not_worth_the_spool(tmp_path: Path) -> None:
    pipeline = started(tmp_path, http_environ(free_port()))
    pipeline.submit(Request("metrics", b"one", 1), 0, LEDGER, durable=False)
    last = pipeline.submit(Request("metrics", b"last", 1), 0, LEDGER, durable=True)
    until(lambda: pipeline.delivered >= last)
    pipeline.close(5)

    (path,) = (tmp_path / "spool").glob("*/*.otlp")
    assert path.read_bytes()[4:] == b"last"
