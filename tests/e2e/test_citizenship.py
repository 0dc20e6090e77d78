# SPDX-License-Identifier: Apache-2.0
"""Recording beside other people's OpenTelemetry instrumentations: their spans nest in the steps and are else
the same, whoever comes first.
"""

from __future__ import annotations

import sysconfig
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from grademl_otel import semconv
from tests.support import neighbour_program, training
from tests.support.oddserver import OddServer, serving
from tests.support.otlp_server import Receiver, http_receiver
from tests.support.overlays import neighbours

pytest.importorskip("torch")

PROGRAM = Path(neighbour_program.__file__ or "")
INSTRUMENTATIONS = (
    "util-http",
    *(
        f"instrumentation-{name}"
        for name in ("requests", "threading", "asyncio", "logging", "system-metrics")
    ),
)
STEPS = neighbour_program.STEPS
VOLATILE = ("thread.id", "thread.name", "http.url", "url.full", "server.port", "net.peer.port")


@dataclass
class Seen:
    """What one run of the program printed and what arrived of it."""

    finished: training.Finished
    receiver: Receiver
    scopes: dict[bytes, str] = field(default_factory=dict)
    """Name of the instrumentation scope by span id."""

    def __post_init__(self) -> None:
        for request in self.receiver.traces:
            for resource_spans in request.resource_spans:
                for scope_spans in resource_spans.scope_spans:
                    for span in scope_spans.spans:
                        self.scopes[span.span_id] = scope_spans.scope.name
        self.by_id = {span.span_id: span for span in self.receiver.spans}

    def ours(self, name: str) -> list[Span]:
        return [span for span in self.by_id.values() if self.is_ours(span) and span.name == name]

    def others(self) -> list[Span]:
        return [span for span in self.by_id.values() if not self.is_ours(span)]

    def is_ours(self, span: Span) -> bool:
        return self.scopes[span.span_id] == semconv.SCOPE_NAME

    def named(self, name: str) -> list[Span]:
        """Spans of the program's own, in the order of their starts."""
        found = [span for span in self.others() if span.name == name]
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    def requests_of(self, path: str) -> list[Span]:
        """HTTP spans of requests for ``path``, in the order of their starts."""
        found = [span for span in self.others() if str(attribute(span, "http.url")).endswith(path)]
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    def parents(self, spans: list[Span]) -> list[Span | None]:
        return [self.by_id[span.parent_span_id] if span.parent_span_id else None for span in spans]


def attribute(span: Span, key: str) -> Any:
    for each in span.attributes:
        if each.key == key:
            return getattr(each.value, each.value.WhichOneof("value"))
    return None


def about(spans: list[Span | None]) -> list[tuple[str, Any, Any] | None]:
    """Name, kind and number of steps."""
    return [
        None
        if span is None
        else (span.name, attribute(span, semconv.STEP_KIND), attribute(span, semconv.STEP_NUMBER))
        for span in spans
    ]


@pytest.fixture(scope="module")
def site() -> Iterator[OddServer]:
    with serving(OddServer(body=b"{}")) as server:
        yield server


def run(site: OddServer, folder: Path, settings: Mapping[str, str]) -> Seen:
    with http_receiver() as receiver:
        finished = training.train(
            PROGRAM,
            [site.url],
            folder,
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_EXPORTER_OTLP_HEADERS": "x-team=red",
                "OTEL_LOGS_EXPORTER": "none",
                "PYTHONPATH": neighbours(*INSTRUMENTATIONS),
                **settings,
            },
        ).ok()
    return Seen(finished, receiver)


@pytest.fixture(scope="module")
def together(site: OddServer, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return run(site, tmp_path_factory.mktemp("together"), {})


@pytest.fixture(scope="module")
def alone(site: OddServer, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("alone")
    return run(site, folder, {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "grademl_torch"})


def test_all_that_is_sent_has_the_users_headers(together: Seen) -> None:
    assert {headers.get("x-team") for _, headers in together.receiver.attempts} == {"red"}


def test_no_span_of_a_step_is_an_orphan(together: Seen) -> None:
    missing = [
        span.name
        for span in together.by_id.values()
        if span.parent_span_id and span.parent_span_id not in together.by_id
    ]
    assert missing == []


def test_what_is_asked_in_a_step_nests_in_it(together: Seen) -> None:
    fetches = about(together.parents(together.requests_of("/fetch")))
    train = [("step", "train", n) for n in range(STEPS)]
    assert fetches[:STEPS] == train
    assert about(together.parents(together.requests_of("/log"))) == train
    assert about(together.parents(together.named("update"))) == train
    evaluated = [("step", "evaluate", STEPS)] * STEPS
    assert about(together.parents(together.requests_of("/evaluate"))) == evaluated
    assert fetches[STEPS : 2 * STEPS] == evaluated
    assert about(together.parents(together.requests_of("/break"))) == [("step", "train", 3 * STEPS)]
    assert about(together.parents(together.requests_of("/generator"))) == [("step", "train", 3 * STEPS + 2)]
    for path in ("/fetch", "/log", "/evaluate"):  # a step that a break leaves ends with its last event
        for span, parent in zip(
            together.requests_of(path), together.parents(together.requests_of(path)), strict=True
        ):
            if parent is not None and together.is_ours(parent):
                assert span.trace_id == parent.trace_id
                assert parent.start_time_unix_nano <= span.start_time_unix_nano
                assert span.end_time_unix_nano <= parent.end_time_unix_nano


def test_a_thread_that_was_started_in_a_step_belongs_to_it(together: Seen) -> None:
    uploads = about(together.parents(together.requests_of("/upload")))
    assert uploads == [("step", "train", n) for n in range(STEPS)]


def test_what_is_not_in_a_step_keeps_no_parent(together: Seen) -> None:
    for path in ("/before", "/after", "/caught", "/closed"):
        assert together.parents(together.requests_of(path)) == [None]
    assert together.parents(together.named("in-coroutine")) == [None] * STEPS
    assert together.finished.out.splitlines()[-1] == "current: False"


def test_spans_of_the_users_keep_their_parents_and_are_linked(together: Seen) -> None:
    (mine,) = together.named("mine")
    assert together.parents([mine]) == [None]
    assert together.parents(together.requests_of("/in-mine")) == [mine] * STEPS
    assert [parent and parent.name for parent in together.parents(together.requests_of("/inner"))] == [
        "update"
    ] * STEPS
    linked = [
        attribute(step, semconv.STEP_NUMBER)
        for step in together.ours("step")
        for link in step.links
        if link.span_id == mine.span_id and link.trace_id == mine.trace_id
    ]
    assert sorted(linked) == list(range(STEPS, 2 * STEPS))


def test_spans_of_others_say_which_run_they_belong_to(together: Seen) -> None:
    (run,) = together.ours("run")
    tagged = [span for span in together.others() if span.start_time_unix_nano > run.start_time_unix_nano]
    assert {attribute(span, semconv.RANK) for span in tagged} == {0}
    (run_id,) = {attribute(span, semconv.RUN_ID) for span in tagged}
    assert run.trace_id.hex() == f"{semconv.trace_id(run_id, 0, semconv.TRACE_RUN):032x}"


def counted(seen: Seen) -> Counter[tuple[Any, ...]]:
    """Spans of others without what differs from run to run, and without our tags."""
    ignored = (*VOLATILE, semconv.RUN_ID, semconv.RANK)
    return Counter(
        (
            seen.scopes[span.span_id],
            span.name,
            span.kind,
            span.status.code,
            tuple(sorted((a.key, str(a.value)) for a in span.attributes if a.key not in ignored)),
        )
        for span in seen.others()
    )


def test_others_see_the_same_with_us_and_without(together: Seen, alone: Seen) -> None:
    assert together.finished.out == alone.finished.out
    assert counted(together) == counted(alone)
    assert not [span for span in alone.by_id.values() if alone.is_ours(span)]

    def roots(seen: Seen) -> Counter[str]:
        """Spans that have no parent but maybe a step."""
        parents = zip(seen.others(), seen.parents(seen.others()), strict=True)
        return Counter(span.name for span, parent in parents if parent is None or seen.is_ours(parent))

    assert roots(together) == roots(alone)
    ours = [line for line in together.finished.err.splitlines() if line not in alone.finished.err]
    assert [line for line in ours if line.startswith("grademl: ")] == ours


def test_the_order_of_instrumentors_does_not_matter(site: OddServer, together: Seen, tmp_path: Path) -> None:
    first = sysconfig.get_path("purelib")
    ours_first = run(site, tmp_path, {"PYTHONPATH": f"{first}:{neighbours(*INSTRUMENTATIONS)}"})
    assert counted(ours_first) == counted(together)
    for path in ("/fetch", "/log", "/upload", "/evaluate", "/in-mine", "/after"):
        here, there = (about(seen.parents(seen.requests_of(path))) for seen in (ours_first, together))
        assert here == there


def broken_instrumentor(folder: Path) -> str:
    """A distribution whose instrumentor raises, as the first or the last of all in its folder."""
    (folder / "broken_instrumentor.py").write_text(
        "class Broken:\n    def instrument(self, **_):\n        raise RuntimeError('broken')\n"
    )
    info = folder / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[opentelemetry_instrumentor]\nbroken = broken_instrumentor:Broken\n"
    )
    return str(folder)


def test_an_instrumentor_that_raises_after_ours_costs_us_nothing(site: OddServer, tmp_path: Path) -> None:
    with ExitStack() as stack:
        receiver = stack.enter_context(http_receiver())
        broken = tmp_path / "broken"
        broken.mkdir()
        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_LOGS_EXPORTER": "none",
            "PYTHONPATH": f"{sysconfig.get_path('purelib')}:{broken_instrumentor(broken)}",
            "GRADEML_RELAY_LOG": str(tmp_path / "relay.log"),
        }
        done = training.train(PROGRAM, [site.url], tmp_path, settings).ok()
    assert "RuntimeError: broken" in done.err
    assert receiver.span_names.count("run") == 1
    assert (tmp_path / "relay.log").exists()  # the configurator's provider is not taken for the user's own
