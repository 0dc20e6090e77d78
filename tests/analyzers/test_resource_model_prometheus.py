# SPDX-License-Identifier: Apache-2.0
"""A server that speaks Prometheus's API, or does not: what it is asked, and what goes wrong."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from grademl_otel.analyzers.errors import SourceError, UsageError
from grademl_otel.analyzers.resource_model import prometheus_api
from grademl_otel.analyzers.resource_model.assemble import resources_of
from grademl_otel.analyzers.resource_model.prometheus_api import Prometheus, as_arrays
from grademl_otel.analyzers.resource_model.settings import ResourceSettings
from grademl_otel.analyzers.sources.base import SourceOptions
from tests.support.httpserver import EndingServer
from tests.support.monitored import BEGIN, NODE, SLOW, S, subject

Asked = dict[str, list[str]]
Answer = Callable[[str, Asked], tuple[int, object]]
POWER = {"__name__": "hw_power_watts", "hw_id": "GPU-a", "hw_type": "gpu", "host_name": NODE}


class Fake:
    """A server; what it was asked: (path, parameters, headers)."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Asked, dict[str, str]]] = []
        self.url = ""


@contextmanager
def serving(answer: Answer) -> Iterator[Fake]:
    fake = Fake(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            asked = parse_qs(parts.query)
            fake.asked.append((parts.path, asked, dict(self.headers)))
            status, body = fake.answer(parts.path, asked)
            sent = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: object) -> None:
            """Tests say what they need to say."""

    server = EndingServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def success(data: object) -> tuple[int, object]:
    return 200, {"status": "success", "data": data}


def has(labels: list[dict[str, str]], most: float = float("inf")) -> Answer:
    """A server with these series, a sample each second; of more than ``most`` seconds it refuses to tell."""

    def answer(path: str, asked: Asked) -> tuple[int, object]:
        if path.endswith("/values"):
            return success(sorted({one["__name__"] for one in labels}))
        if path.endswith("/series"):
            return success(labels)
        until = round(float(asked["time"][0]))
        length = int(asked["query"][0].rpartition("[")[2].removesuffix("ms]")) // 1000
        if length > most:
            error = {"status": "error", "errorType": "execution", "error": "query processing would load too"}
            return 422, error
        values = [[at, str(at - BEGIN // S)] for at in range(until - length, until + 1)]
        return success(
            {"resultType": "matrix", "result": [{"metric": one, "values": values} for one in labels]}
        )

    return answer


def read(tmp_path: Path, fake: Fake, **settings: object) -> list[tuple[str, list[float]]]:
    model = resources_of(subject(tmp_path), ResourceSettings(prometheus=(fake.url,), **settings))  # type: ignore[arg-type]
    return [
        (model.metric_path(ix), metric.observed.value.tolist()) for ix, metric in enumerate(model.metrics)
    ]


@pytest.mark.parametrize("most", [float("inf"), 60, 11])
def test_windows_are_halved_until_the_server_answers(tmp_path: Path, most: float) -> None:
    with serving(has([POWER], most)) as fake:
        ((path, values),) = read(tmp_path, fake)
    assert path == "/host[name=node-0]/gpu[id=GPU-a]:power"
    assert values == [float(at) for at in range(1, len(values) + 1)]
    assert len(values) in (10, 11)


@pytest.mark.parametrize(
    "labels",
    [
        {"__name__": "hw_power", "hw_id": "GPU-a", "hw_type": "gpu", "host_name": NODE},
        {"__name__": "hw.power", "hw.id": "GPU-a", "hw.type": "gpu", "host.name": NODE},
    ],
)
def test_names_of_servers_that_translate_less(tmp_path: Path, labels: dict[str, str]) -> None:
    with serving(has([labels])) as fake:
        ((path, values),) = read(tmp_path, fake)
        query = next(asked["query"][0] for path, asked, _ in fake.asked if path.endswith("/query"))
    assert (path, values[:2]) == ("/host[name=node-0]/gpu[id=GPU-a]:power", [1, 2])
    assert ("host_name=~" in query) != ('"host.name"=~' in query)


def test_processes_of_other_runs_are_nobodys_here(tmp_path: Path) -> None:
    labels = {"__name__": "process_memory_usage_bytes", "host_name": NODE, "grademl_rank": "0"}
    runs = [{**labels, "grademl_run_id": run} for run in (SLOW.run_id, "f" * 32)]
    with serving(has(runs)) as fake:
        assert [path for path, _ in read(tmp_path, fake)] == ["/host[name=node-0]/process[id=rank 0]:memory"]


def test_instances_of_gpus_and_their_processes(tmp_path: Path) -> None:
    """As dcgm-exporter tells of them, and two pods one after the other: no sum over who uses a GPU."""
    part = {"__name__": "DCGM_FI_PROF_SM_ACTIVE", "UUID": "GPU-a", "GPU_I_ID": "3", "Hostname": NODE}
    pods = [
        {"__name__": "DCGM_FI_DEV_POWER_USAGE", "UUID": "GPU-a", "Hostname": NODE, "pod": pod} for pod in "ab"
    ]
    with serving(has([part, *pods])) as fake:
        model = resources_of(subject(tmp_path), ResourceSettings(prometheus=(fake.url,)))
    found = {model.metric_path(ix): metric for ix, metric in enumerate(model.metrics)}
    assert set(found) == {
        "/host[name=node-0]/gpu[id=GPU-a]:power", "/host[name=node-0]/gpu[id=GPU-a\\/3]:sm_active"
    }  # fmt: skip
    assert found["/host[name=node-0]/gpu[id=GPU-a]:power"].observed.value[:3].tolist() == [1, 2, 3]
    assert [dict(one.tags) for one in model.resources if one.id == "GPU-a/3"] == [{"parent": "GPU-a"}]


def test_a_server_that_never_tells_is_one_line(tmp_path: Path) -> None:
    with (
        serving(has([POWER], 1)) as fake,
        pytest.raises(SourceError, match=r"^prometheus http.*: 422 .*would load too"),
    ):
        read(tmp_path, fake)


def test_only_the_hosts_of_the_phases_are_asked_for(tmp_path: Path) -> None:
    labels = [POWER, *({**POWER, "host_name": f"other.{number}"} for number in range(300))]
    with serving(has(labels)) as fake:
        read(tmp_path, fake)
        queries = [asked["query"][0] for path, asked, _ in fake.asked if path.endswith("/query")]
    assert queries
    assert all(',host_name=~"node-0"}' in query for query in queries)


def test_names_are_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(prometheus_api._selectors(["a", "b"], {"instance": ['x.y"z\\', "n"]}))
    assert found == ['{__name__=~"a|b",instance=~"x\\\\.y\\"z\\\\\\\\|n"}']
    monkeypatch.setattr(prometheus_api, "_NAMES_AT_ONCE", 1)
    assert list(prometheus_api._selectors(["a", "b"], {})) == ['{__name__=~"a"}', '{__name__=~"b"}']


def test_credentials_of_the_source_are_not_shown_to_prometheus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADEML_HEADERS", "Authorization=secret-of-jaeger")
    monkeypatch.setenv("GRADEML_USER", "me:secret-of-jaeger")
    monkeypatch.setenv("GRADEML_PROMETHEUS_HEADERS", "X-Scope-OrgID=team")
    monkeypatch.setenv("GRADEML_PROMETHEUS_USER", "me:secret-of-prometheus")
    with serving(has([POWER])) as fake:
        read(tmp_path / "a", fake)
        headers = [headers for _, _, headers in fake.asked]
        assert all("secret-of-jaeger" not in str(one) for one in headers)
        assert {one["Authorization"] for one in headers} == {"Basic bWU6c2VjcmV0LW9mLXByb21ldGhldXM="}
        assert {one["X-Scope-OrgID"] for one in headers} == {"team"}
        fake.asked.clear()
        read(tmp_path / "b", fake, headers={"authorization": "Bearer x", "X-Scope-OrgID": "other"})
        headers = [headers for _, _, headers in fake.asked]
        assert {(one["authorization"], one["X-Scope-OrgID"]) for one in headers} == {("Bearer x", "other")}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((401, {"error": "who?"}), r"401 who\?; pass .*X-Scope-OrgID"),
        ((200, b"<html>"), r"answered with an HTML page, not with JSON; is a Prometheus there\?"),
        ((200, {"data": {"x": 1}}), r"not Prometheus's"),
        ((200, {"status": "error", "data": []}), r": error; is a Prometheus there\?"),
        ((404, b""), r"404 Not Found; is a Prometheus there\? write http://HOST:9090"),
    ],
)
def test_what_is_no_prometheus_is_one_line(tmp_path: Path, answer: tuple[int, object], words: str) -> None:
    with (
        serving(lambda path, asked: answer) as fake,
        pytest.raises(SourceError, match=f"^prometheus http://.*{words}"),
    ):
        read(tmp_path, fake)


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="connection refused; is a Prometheus there"):
        resources_of(subject(tmp_path), ResourceSettings(prometheus=("http://127.0.0.1:9",)))


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        (
            "http://me:pass@host:9090",
            r"^http://host:9090: no secrets in addresses; put .*GRADEML_PROMETHEUS_USER",
        ),
        ("ftp://host", r"no address of a Prometheus"),
        ("http://", r"no address of a Prometheus"),
        ("http://host:x", r"no host and port in it"),
    ],
)
def test_what_is_no_address(uri: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Prometheus(uri, {}, SourceOptions())


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("prometheus://host", "prometheus http://host:9090"),
        ("prometheuss://host:1", "prometheus https://host:1"),
        ("host:9090", "prometheus http://host:9090"),
        ("https://host/prom/", "prometheus https://host/prom"),
        ("http://[::1]:9090/api/v1/query?query=up", "prometheus http://[::1]:9090"),
        ("http://host:9090/graph?g0.expr=up", "prometheus http://host:9090"),
    ],
)
def test_addresses(uri: str, name: str) -> None:
    server = Prometheus(uri, {}, SourceOptions())
    assert server.name == name
    server.close()


def test_a_server_without_known_metrics_is_told(tmp_path: Path) -> None:
    with serving(has([{"__name__": "up", "instance": "x"}])) as fake:
        model = resources_of(subject(tmp_path), ResourceSettings(prometheus=(fake.url,)))
    assert not model.metrics
    assert model.problems == [
        f"prometheus {fake.url}: none of its 1 metrics of that time is known of hosts or GPUs"
        " (docs/resources.md lists them)"
    ]


def test_a_sample_of_no_time_is_left_out() -> None:
    time, value = as_arrays([(1e300, "1"), (2.5, "2"), (-1e18, "3"), (3.0, "x")])
    assert time.tolist() == [2_500_000_000, 3_000_000_000]
    assert value.tolist() == pytest.approx([2, math.nan], nan_ok=True)


@pytest.mark.parametrize("body", [b"[" * 5000 + b"]" * 5000, b'{"status":' + b"1" * 5000 + b"}", b'{"\xff"}'])
def test_an_answer_that_no_number_and_no_stack_can_hold_is_one_line(body: bytes) -> None:
    with serving(lambda path, asked: (200, body)) as fake:
        server = Prometheus(fake.url, {}, SourceOptions(timeout_s=5))
        with pytest.raises(SourceError, match="an answer that is not Prometheus's") as caught:
            server.names(0, 10 * S)
        server.close()
    assert "\n" not in str(caught.value)
