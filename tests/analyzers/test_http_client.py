# SPDX-License-Identifier: Apache-2.0
"""HTTP to a server that fails in every way that servers fail: each ends in time, with one line."""

from __future__ import annotations

import base64
import errno
import gc
import gzip
import os
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme
import zstandard

from grademl_otel.analyzers.errors import GrademlError, SourceError, UsageError
from grademl_otel.analyzers.sources import Selection, SourceOptions, open_source
from grademl_otel.analyzers.sources.credentials import from_environment
from grademl_otel.analyzers.sources.servers import http_client
from grademl_otel.analyzers.sources.servers.answer import Answer
from grademl_otel.analyzers.sources.servers.fetching import fetched
from grademl_otel.analyzers.sources.servers.http_client import JSON, HttpClient
from grademl_otel.analyzers.sources.servers.refusals import TooLarge
from grademl_otel.analyzers.sources.servers.transport import proxy_for
from tests.analyzers.test_sources_jaeger import MS, foreign_traces
from tests.support.fake_jaeger import FakeJaeger, serve
from tests.support.fake_tempo import FakeTempo
from tests.support.fake_tempo import serve as serve_tempo
from tests.support.rawserver import RawServer, drip, serving_raw
from tests.support.servers import wait_until

BODY = b'{"services": ["shop"]}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def silent(server: RawServer, connection: socket.socket, head: bytes) -> None:
    server.over.wait(60)


@pytest.fixture
def fake() -> Iterator[FakeJaeger]:
    with serve(FakeJaeger(lines=foreign_traces(3, time.time_ns() - 10**9, MS))) as server:
        yield server


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(http_client, "_FIRST_PAUSE_S", 0.001)
    for name in ("HEADERS", "USER", "CA", "CLIENT_CERT", "CLIENT_KEY"):
        monkeypatch.delenv(f"GRADEML_{name}", raising=False)


def client(url: str, **options: Any) -> HttpClient:
    return HttpClient(f"server {url}", url, "is it there?", SourceOptions(**options))


def fails(ask: Callable[[], object]) -> str:
    began = time.monotonic()
    with pytest.raises(GrademlError) as caught:
        ask()
    assert time.monotonic() - began < 25
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- Answers that do not end ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "handle",
    [
        drip(b"HTTP/1.1 200 OK\r\n" + b"X-Header: " + b"y" * 60_000),
        drip(HEAD + b"\r\n" + b"[" * 1000),
        drip(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n[\r\n" * 1000),
    ],
    ids=["in the head", "in the body", "in chunks"],
)
def test_an_answer_that_drips_has_an_end(
    handle: Callable[[RawServer, socket.socket, bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "_WHOLE", 2)
    with serving_raw(handle) as server:
        said = fails(lambda: client(server.url, timeout_s=0.5).get_json("/"))
    assert "--timeout" in said


def test_a_server_that_says_nothing_has_the_time_out_s() -> None:
    with serving_raw(silent) as server:
        assert "no answer within 0.3 s" in fails(lambda: client(server.url, timeout_s=0.3).get_json("/"))


def test_an_answer_without_end_is_not_taken_beyond_the_bound() -> None:
    def endless(server: RawServer, connection: socket.socket, head: bytes) -> None:
        connection.sendall(HEAD + b"\r\n[")
        while not server.over.is_set():
            connection.sendall(b"1," * 50_000)

    with serving_raw(endless) as server:
        ask = client(server.url, max_bytes=1_000_000).get_json
        assert "an answer of more than 1,000,000 bytes" in fails(lambda: ask("/"))


def test_another_thread_can_break_off() -> None:
    with serving_raw(silent) as server:
        asking = client(server.url, timeout_s=60)
        threading.Timer(0.3, asking.abort).start()
        fails(lambda: asking.get_json("/"))


# --- Answers that break off -------------------------------------------------------------------------------


def cut_after(count: int, sent: int) -> Callable[[RawServer, socket.socket, bytes], None]:
    """The first ``count`` answers break off after ``sent`` bytes of the body."""

    def handle(server: RawServer, connection: socket.socket, head: bytes) -> None:
        whole = len(server.requests) > count
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY))
        connection.sendall(BODY if whole else BODY[:sent])

    return handle


def test_an_answer_that_breaks_off_once_is_asked_for_again() -> None:
    with serving_raw(cut_after(1, 5)) as server:
        assert client(server.url).get_json("/") == BODY
        assert len(server.requests) == 2


def test_of_an_answer_that_breaks_off_twice_the_beginning_is_there() -> None:
    with serving_raw(cut_after(9, 5)) as server:
        with client(server.url).get("/", accept=JSON, partial=True) as answer:
            assert answer.body == BODY[:5]
            assert "broke off after 5 bytes" in str(answer.broken)
        with pytest.raises(TooLarge, match="broke off after 5 bytes"):
            client(server.url).get("/", accept=JSON)
        assert len(server.requests) == 4


def test_no_room_for_an_answer_is_one_line(fake: FakeJaeger, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __init__(self, **_: Any) -> None: ...

        def write(self, chunk: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None: ...

    monkeypatch.setattr("grademl_otel.analyzers.sources.servers.answer.SpooledTemporaryFile", Full)
    said = fails(lambda: open_source(fake.url).list())
    assert "no space left on device; name another in $TMPDIR" in said


@pytest.mark.parametrize("scheme", ["jaeger", "http", "tempo", "probed tempo"])
def test_connections_are_let_go_of(scheme: str) -> None:
    lines = foreign_traces(3, time.time_ns() - 100 * 10**9, MS)
    tempo = "tempo" in scheme
    with serve_tempo(FakeTempo(lines)) if tempo else serve(FakeJaeger(lines)) as server:
        url = f"{scheme.replace('probed tempo', 'http')}://127.0.0.1:{server.port}"

        def use() -> None:
            source = open_source(url)
            assert len(source.read(Selection(service="shop")).spans) == 6
            assert source.list().services == ["shop"]
            assert source.probe().problems == ()

        use()
        gc.disable()  # which would close them some time
        try:
            before = len(os.listdir("/dev/fd"))
            use()
            wait_until(lambda: len(os.listdir("/dev/fd")) <= before, "closing of all connections", 10)
        finally:
            gc.enable()


def test_traces_that_break_off_are_read_as_far_as_they_came(fake: FakeJaeger) -> None:
    line = foreign_traces(1, time.time_ns() - 10**9, MS).replace(f"{1:032x}".encode(), f"{2:032x}".encode())
    large = b"".join(line.replace(b'"spanId": "0', b'"spanId": "%x' % n) for n in range(1, 16))
    fake.lines = foreign_traces(1, time.time_ns() - 10**9, MS) + large * 400
    fake.cut = lambda path: 3_000_000 if path.endswith("2") else None
    telemetry = open_source(fake.url).read(Selection(trace_ids=(1, 2)))
    assert telemetry.ledger.partial_traces == [f"{2:032x}"]
    assert "broke off after 3,000,000 bytes" in str(telemetry.ledger.broken)
    assert 20 < len(telemetry.spans) + telemetry.ledger.duplicates < 2 + 12_000


# --- Packed answers ---------------------------------------------------------------------------------------


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", lambda body: gzip.compress(body[:99]) + gzip.compress(body[99:])),
        ("deflate", zlib.compress),
        ("deflate", raw_deflate),
        ("zstd", zstandard.compress),
    ],
)
def test_packed_answers(encoding: str, pack: Callable[[bytes], bytes], fake: FakeJaeger) -> None:
    fake.pack = lambda body: (encoding, pack(body))
    assert len(open_source(fake.url).read(Selection(service="shop")).spans) == 6


def test_answers_that_cannot_be_unpacked(fake: FakeJaeger) -> None:
    fake.pack = lambda body: ("br", body)
    assert "packed by 'br', which was not asked for" in fails(lambda: open_source(fake.url).list())
    fake.pack = lambda body: ("deflate", b"\x78\x9c" + body)
    assert "deflate data are damaged" in fails(lambda: open_source(fake.url).list())


def test_a_bomb_is_not_unpacked(fake: FakeJaeger) -> None:
    bomb = gzip.compress(b"[" + b" " * 60_000_000)
    fake.pack = lambda body: ("gzip", bomb)
    options = SourceOptions(max_bytes=10_000_000)
    assert "more than 10,000,000 bytes" in fails(lambda: open_source(fake.url, options).list())


# --- Tries ------------------------------------------------------------------------------------------------


def test_a_pause_that_the_server_asks_for_is_kept_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    with serving_raw(cut_after(0, 0)) as server:
        asking = client(server.url)
        monkeypatch.setattr(asking._over, "wait", lambda pause: pauses.append(pause))
        for asked in ("3", "99999", "Wed, 21 Oct 2015 07:28:00 GMT", "soon", "-1", None):
            asking._pause(1, asked)
    assert pauses[0] == 3
    assert pauses[1] == http_client._LONGEST_PAUSE_S
    assert all(0 <= pause < 0.01 for pause in pauses[2:])


@pytest.mark.parametrize(
    ("here", "there", "followed"),
    [
        ("http://host/a", "/b", "http://host/b"),
        ("http://host/a", "https://host/a", "https://host/a"),
        ("http://host:80/a", "https://host:443/a", "https://host:443/a"),
        ("http://host/a", "http://HOST:80/b", "http://HOST:80/b"),
        ("http://host:16686/a", "https://host/a", None),
        ("https://host/a", "http://host/a", None),
        ("http://host/a", "http://host:81/a", None),
        ("http://host/a", "https://user:hunter2@evil/a?token=hunter2", None),
    ],
)
def test_redirects_lead_to_the_same_host_only(here: str, there: str, followed: str | None) -> None:
    asking = client(here.rpartition("/")[0], headers={"Authorization": "hunter2"})
    if followed is not None:
        assert asking._redirected(here, there) == followed
    else:
        said = fails(lambda: asking._redirected(here, there))
        assert "is not followed" in said
        assert "hunter2" not in said


@pytest.mark.parametrize("there", ["http://[::1", "https://host:99999999/"])
def test_a_redirect_to_no_address_is_one_line(there: str) -> None:
    assert "no address" in fails(lambda: client("http://host")._redirected("http://host/a", there))


# --- Proxies ----------------------------------------------------------------------------------------------


def test_a_proxy_is_asked_for_other_hosts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(server: RawServer, connection: socket.socket, head: bytes) -> None:
        connection.sendall(HEAD + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(BODY) + BODY)

    with serving_raw(answer) as proxy:
        monkeypatch.setenv("http_proxy", f"http://me:hunter2@127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "near.example,10.0.0.0/8")
        monkeypatch.setenv("NO_PROXY", "near.example,10.0.0.0/8")
        assert client("http://far.example/base").get_json("/x") == BODY
    login = base64.b64encode(b"me:hunter2").lower()
    head = proxy.requests[0].lower()
    assert head.startswith(b"get http://far.example/base/x http/1.1")
    assert b"proxy-authorization: basic " + login in head
    for url in ("http://near.example:1", "http://x.near.example", "http://10.1.2.3/"):
        assert proxy_for(url) is None
    assert proxy_for("http://11.1.2.3") is not None
    said = fails(lambda: client("http://far.example", timeout_s=2).get_json("/x"))  # it is gone now
    assert "the proxy of $HTTP(S)_PROXY failed" in said
    assert "hunter2" not in said
    monkeypatch.setenv("http_proxy", "socks5://me:hunter2@127.0.0.1:1")
    said = fails(lambda: client("http://far.example"))
    assert "socks5://" in said
    assert "hunter2" not in said


def test_tls_through_a_proxy_that_speaks_tls_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "far.example").configure_cert(context)
    heads = []

    def serve() -> None:
        connection, _ = proxy.accept()
        with context.wrap_socket(connection, server_side=True) as outer:
            heads.append(outer.recv(65536))
            outer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            # What goes through the tunnel: TLS again, with the server at its end.
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            inner = context.wrap_bio(incoming, outgoing, server_side=True)

            def until(done: Callable[[], Any]) -> Any:
                while True:
                    try:
                        return done()
                    except ssl.SSLWantReadError:
                        outer.sendall(outgoing.read())
                        incoming.write(outer.recv(65536))

            until(inner.do_handshake)
            heads.append(until(lambda: inner.read(65536)))
            inner.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
            outer.sendall(outgoing.read())
            outer.recv(1)  # until it hangs up

    with socket.create_server(("127.0.0.1", 0)) as proxy:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        monkeypatch.setenv("https_proxy", f"https://127.0.0.1:{proxy.getsockname()[1]}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        asking = client(
            "https://far.example", ca=str(tmp_path / "ca.pem"), headers={"Authorization": "hunter2"}
        )
        assert asking.get_json("/x") == BODY
        asking.abort()
        thread.join(20)
    assert not thread.is_alive()
    assert heads[0].startswith(b"CONNECT far.example:443")
    assert b"hunter2" not in heads[0]
    assert b"hunter2" in heads[1]


# --- Who asks ---------------------------------------------------------------------------------------------


def test_name_and_password_come_from_the_environment(
    fake: FakeJaeger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADEML_USER", "me:hunter2:x")
    open_source(fake.url).list()
    assert fake.headers[-1]["Authorization"] == "Basic " + base64.b64encode(b"me:hunter2:x").decode()
    open_source(fake.url, SourceOptions(headers={"authorization": "Bearer t"})).list()
    assert fake.headers[-1]["authorization"] == "Bearer t"
    monkeypatch.setenv("GRADEML_USER", "hunter2")
    with pytest.raises(UsageError, match=r"\$GRADEML_USER: expected NAME:PASSWORD") as refused:
        open_source(fake.url)
    assert "hunter2" not in str(refused.value)


def test_certificates_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADEML_CA", "/ca.pem")
    monkeypatch.setenv("GRADEML_CLIENT_CERT", "/me.pem")
    monkeypatch.setenv("GRADEML_CLIENT_KEY", "/me.key")
    options = from_environment(SourceOptions(client_key="/other.key"))
    assert (options.ca, options.client_cert, options.client_key) == ("/ca.pem", "/me.pem", "/other.key")


def test_files_that_hold_no_certificate(tmp_path: Path) -> None:
    empty, ca, binary = tmp_path / "empty.pem", tmp_path / "ca.pem", tmp_path / "binary.pem"
    empty.write_text("nothing")
    binary.write_bytes(b"\xff\xfe")
    trustme.CA().cert_pem.write_to_path(ca)
    for path, says in ((empty, "no certificate in it"), (tmp_path / "absent", "no such file"), (binary, "")):
        said = fails(partial(client, "https://host", ca=str(path)))
        assert says in said
        assert "name a PEM file" in said
        said = fails(partial(client, "https://host", ca=str(ca), client_cert=str(path)))
        assert "$GRADEML_CLIENT_KEY" in said


def test_a_plain_server_asked_for_tls_is_told(fake: FakeJaeger) -> None:
    said = fails(lambda: open_source(fake.url.replace("http", "https")).list())
    assert "TLS failed" in said
    assert "plain http://" in said


def test_the_clock_of_the_server_is_read() -> None:
    def answer(server: RawServer, connection: socket.socket, head: bytes) -> None:
        date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 7200))
        connection.sendall(HEAD + f"Date: {date}\r\nContent-Length: {len(BODY)}\r\n\r\n".encode() + BODY)

    with serving_raw(answer) as server:
        asking = client(server.url)
        asking.get_json("/")
    assert asking.clock is not None
    assert abs(asking.clock.offset_ns - 7200 * 10**9) <= asking.clock.error_ns + 10**9
    assert 500_000_000 <= asking.clock.error_ns < 30 * 10**9


# --- Several at once --------------------------------------------------------------------------------------


def test_answers_come_in_order_and_a_failure_in_its_turn() -> None:
    def fetch(trace: int) -> Answer | None:
        time.sleep(0.02 * (trace % 3))
        if trace == 30:
            raise SourceError("no more")
        return None if trace % 7 == 0 else Answer()

    came = []

    def take_all() -> None:
        for trace, answer in fetched(fetch, range(50)):
            came.append(trace)
            assert (answer is None) == (trace % 7 == 0)

    with pytest.raises(SourceError, match="no more"):
        take_all()
    assert came == list(range(30))
