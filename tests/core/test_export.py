# SPDX-License-Identifier: Apache-2.0
"""OTLP export against collectors that answer, refuse, come back, or hang; and the spool behind it."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path

import pytest

from grademl_otel.config import Settings
from grademl_otel.convert.spans import Resource, Span
from grademl_otel.export import destination as destination_module
from grademl_otel.export import pipeline as pipeline_module
from grademl_otel.export import spool as spool_module
from grademl_otel.export.ledger import Ledger
from grademl_otel.export.otlp import Request, trace_requests
from grademl_otel.export.pipeline import Pipeline, open_pipeline
from grademl_otel.export.senders import OK, Verdict, _retry_after, open_sender
from grademl_otel.export.settings import GRPC, HTTP, METRICS, TRACES, OtlpSettings, OtlpSettingsError
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
