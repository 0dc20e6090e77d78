# SPDX-License-Identifier: Apache-2.0
"""GPUs through the meter provider in place: what is told, by whom, and when nothing is."""

from __future__ import annotations

# Before any provider: the SDK's fork handler uses an executor, and waits for ever when the executor's own
# handler, which frees a lock, was registered after it.
import concurrent.futures.thread  # noqa: F401
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import Counter, MeterProvider, ObservableCounter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    PeriodicExportingMetricReader,
)

from grademl_otel.catalog import gpu as catalog
from grademl_otel.digest import destination_digest
from grademl_otel.instrumentations import gpu
from grademl_otel.instrumentations.gpu import exporters
from grademl_otel.instrumentations.gpu import observer as observing
from grademl_otel.instrumentations.gpu.instrumentor import GpuInstrumentor
from grademl_otel.lifecycle import session
from grademl_otel.ring.place import private_folder
from grademl_otel.sampling.election import SENDS, SENDS_GPUS, SENDS_OF_ITS_OWN, Elections
from grademl_otel.sampling.source import Reading, Series, Source

WAIT_S = 60


class Card:
    """A GPU with a temperature, memory and energy."""

    def __init__(self, name: str) -> None:
        self.name = f"gpu {name}"
        of: Any = {"hw.id": name, "hw.type": "gpu"}
        self.heat = Series(catalog.TEMPERATURE, {**of, "hw.sensor_location": "gpu"}, name)
        self.memory = Series(catalog.MEMORY_USAGE, of, name)
        self.energy = Series(catalog.ENERGY, of, name)
        self.reads = 0
        self.closed = False

    def read(self) -> Sequence[Reading]:
        self.reads += 1
        return [(self.heat, 40), (self.memory, 1 << 33), (self.energy, 10.0 * (self.reads > 1))]

    def close(self) -> None:
        self.closed = True


class Rack:
    """A provider that notes all cards that it has made."""

    name = "rack"
    made: list[Card]

    def __init__(self, made: list[Card]) -> None:
        self._cards = [Card("GPU-a"), Card("GPU-b")]
        made += self._cards

    def sources(self) -> Sequence[Source]:
        return self._cards

    def close(self) -> None:
        pass


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Card]]:
    """All cards that were ever looked for, in order; GPUs are there, and nobody else reports them."""
    found: list[Card] = []
    for name in tuple(os.environ):
        if name.startswith(("OTEL_", "GRADEML_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GRADEML_GPU_INTERVAL", "0.1")
    monkeypatch.setenv("GRADEML_RING_DIR", str(tmp_path))
    monkeypatch.setattr(gpu, "providers", lambda: [Rack(found)], raising=False)
    monkeypatch.setattr(observing, "_libraries", lambda: True)
    instrumentor = GpuInstrumentor()
    monkeypatch.setattr(instrumentor, "_observer", None)
    yield found
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()


def provided() -> tuple[MeterProvider, InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    return MeterProvider([reader], shutdown_on_exit=False), reader


def collected(reader: InMemoryMetricReader) -> dict[str, dict[str, Any]]:
    """Collect; return the values by metric and by GPU."""
    data = reader.get_metrics_data()
    return {
        metric.name: {_device(point): point.value for point in metric.data.data_points}
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def _device(point: Any) -> str:
    return str((point.attributes or {}).get("hw.id"))


def until(true: Callable[[], Any]) -> Any:
    end = time.monotonic() + WAIT_S
    while not (found := true()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)
    return found


def until_both_are_told(reader: InMemoryMetricReader) -> None:
    until(lambda: collected(reader).get("hw.temperature") == {"GPU-a": 40, "GPU-b": 40})


def test_all_that_is_sampled_is_told_with_its_unit_and_kind(cards: list[Card]) -> None:
    provider, reader = provided()
    GpuInstrumentor().instrument(meter_provider=provider)
    assert reader.get_metrics_data() is None
    until(lambda: len(cards) == 2 and all(card.reads > 1 for card in cards))
    assert collected(reader)["hw.temperature"] == {"GPU-a": 40, "GPU-b": 40}
    data = reader.get_metrics_data()
    assert data is not None
    (scope,) = data.resource_metrics[0].scope_metrics
    assert scope.scope.name == "grademl_otel"
    found = {metric.name: metric for metric in scope.metrics}
    assert set(found) >= {"hw.temperature", "hw.gpu.memory.usage", "hw.energy", "grademl.sampler.cost"}
    for row in (catalog.TEMPERATURE, catalog.MEMORY_USAGE, catalog.ENERGY):
        metric = found[row.name]
        assert (metric.unit, metric.description) == (row.unit, row.description)
        is_sum = {"gauge": None, "updowncounter": False, "counter": True}[row.kind]
        assert getattr(metric.data, "is_monotonic", None) is is_sum
    point = found["hw.temperature"].data.data_points[0]
    assert point.attributes == {"hw.id": "GPU-a", "hw.type": "gpu", "hw.sensor_location": "gpu"}


def test_every_metric_of_gpus_has_an_instrument(cards: list[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    everything = {metric.name: Series(metric, {"hw.id": "x"}, "x") for metric in catalog.METRICS}
    monkeypatch.setattr(Card, "read", lambda card: [(each, 1) for each in everything.values()])
    monkeypatch.setattr(Rack, "sources", lambda rack: rack._cards[:1])
    provider, reader = provided()
    GpuInstrumentor().instrument(meter_provider=provider)
    collected(reader)
    assert set(until(lambda: collected(reader))) == {*everything, "grademl.sampler.cost"}


def test_nothing_is_looked_for_before_metrics_are_collected(cards: list[Card]) -> None:
    before = threading.active_count()
    provider, reader = provided()
    GpuInstrumentor().instrument(meter_provider=provider)
    assert (cards, threading.active_count()) == ([], before)
    collected(reader)
    until(lambda: cards)


@pytest.mark.parametrize(
    "settings",
    [
        {"GRADEML_RELAY": "1"},
        {"GRADEML_GPU_INTERVAL": "0"},
        {"GRADEML_EXPORTER": "none"},
        {"OTEL_SDK_DISABLED": "true"},
        {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "requests, grademl_gpu"},
        {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*"},
    ],
)
def test_settings_that_forbid_it(
    cards: list[Card], monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    provider, reader = (
        provided()
    )  # before OTEL_SDK_DISABLED, which would make the provider itself an empty one
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    GpuInstrumentor().instrument(meter_provider=provider)
    assert not provider._meters
    assert (collected(reader), collected(reader), cards) == ({}, {}, [])


def test_no_exporter_of_metrics_matters_only_to_the_global_provider(
    cards: list[Card], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    GpuInstrumentor().instrument()
    assert GpuInstrumentor()._observer is None
    GpuInstrumentor().uninstrument()
    provider, reader = provided()
    GpuInstrumentor().instrument(meter_provider=provider)
    collected(reader)
    assert until(lambda: collected(reader))


def test_without_a_library_nothing_is_started(cards: list[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "_libraries", lambda: False)
    provider, reader = provided()
    GpuInstrumentor().instrument(meter_provider=provider)
    assert (collected(reader), collected(reader), cards) == ({}, {}, [])


@pytest.mark.parametrize("state", ["has_relay", "in_worker"])
def test_silent_while_a_relay_samples_and_in_workers(
    cards: list[Card], monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    provider, reader = provided()
    GpuInstrumentor().instrument(meter_provider=provider)
    collected(reader)
    before = until(lambda: (values := collected(reader)).get("hw.energy", {}).get("GPU-a") == 10 and values)
    with monkeypatch.context() as patch:
        if state == "has_relay":
            patch.setattr(session, "_active", SimpleNamespace(has_relay=True))
        else:
            patch.setattr(session, "in_worker", True)
        assert (collected(reader), collected(reader)) == ({}, {})
        until(lambda: all(card.closed for card in cards))
        assert len(cards) == 2
    collected(reader)
    after = until(lambda: (values := collected(reader)).get("hw.energy", {}).get("GPU-a") == 20 and values)
    assert len(cards) == 4
    assert after["grademl.sampler.cost"]["None"] > before["grademl.sampler.cost"]["None"]


def test_silent_beside_a_relay_that_sends_to_the_same_place(cards: list[Card], tmp_path: Path) -> None:
    folder = private_folder(tmp_path / f"grademl-{os.getuid()}")
    relay = Elections(folder, destination_digest(os.environ))
    assert relay.mine(SENDS_GPUS)
    provider, reader = provided()
    GpuInstrumentor().instrument(meter_provider=provider)
    assert (collected(reader), collected(reader), cards) == ({}, {}, [])
    relay.close()
    assert relay.mine(SENDS), "one that has no GPUs to tell of"
    collected(reader)
    assert until(lambda: collected(reader).get("hw.temperature"))
    assert relay.mine(SENDS_GPUS)
    assert collected(reader) == {}
    until(lambda: all(card.closed for card in cards))


def test_one_process_tells_and_another_takes_over(cards: list[Card], tmp_path: Path) -> None:
    """The other one is another process as far as locks go, which belong to open files."""
    folder = private_folder(tmp_path / f"grademl-{os.getuid()}")
    other = Elections(folder, destination_digest(os.environ))
    elsewhere = Elections(folder, destination_digest({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://other:4317"}))
    assert other.mine(SENDS_OF_ITS_OWN)
    assert elsewhere.mine(SENDS_OF_ITS_OWN)
    provider, reader = provided()
    GpuInstrumentor().instrument(meter_provider=provider)
    assert (collected(reader), collected(reader), cards) == ({}, {}, [])
    other.close()
    collected(reader)
    assert until(lambda: collected(reader).get("hw.temperature"))
    assert not other.mine(SENDS_OF_ITS_OWN)
    GpuInstrumentor().uninstrument()
    assert other.mine(SENDS_OF_ITS_OWN)
    assert [path.suffix for path in folder.iterdir()] == [".lock", ".lock"]


def test_where_no_folder_can_be_had_it_is_told_all_the_same(
    cards: list[Card], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grademl_otel.ring.place.places", lambda *arguments: iter(()))
    monkeypatch.setattr("grademl_otel.ring.place.meeting_places", lambda: iter(()))
    provider, reader = provided()
    GpuInstrumentor().instrument(meter_provider=provider)
    collected(reader)
    assert until(lambda: collected(reader).get("hw.temperature"))


def test_uninstrumented_it_lets_go_and_can_be_taken_up_again(cards: list[Card]) -> None:
    provider, reader = provided()
    GpuInstrumentor().instrument(meter_provider=provider)
    collected(reader)
    until(lambda: collected(reader))
    GpuInstrumentor().uninstrument()
    until(lambda: all(card.closed for card in cards))
    assert collected(reader) == {}
    GpuInstrumentor().instrument(meter_provider=provider)
    collected(reader)
    until_both_are_told(reader)
    assert len(cards) == 4


def test_when_nobody_collects_any_more_sampling_ends(
    cards: list[Card], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observing, "_PATIENCE_NS", 1)
    provider, reader = provided()
    GpuInstrumentor().instrument(meter_provider=provider)
    observer = GpuInstrumentor()._observer
    assert observer is not None
    collected(reader)
    until(lambda: len(cards) == 2)
    assert not any(card.closed for card in cards), "collected last at the beginning, long ago on that clock"
    collected(reader)  # the gap between two collections is known now, and short
    until(lambda: all(card.closed for card in cards) and observer._sampler is None)
    collected(reader)
    until(lambda: len(cards) == 4)


def test_a_program_at_its_end_tells_nothing(cards: list[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    provider, reader = provided()
    GpuInstrumentor().instrument(meter_provider=provider)
    collected(reader)
    until(lambda: collected(reader))
    with monkeypatch.context() as patch:
        patch.setattr(threading.main_thread(), "is_alive", lambda: False)
        assert collected(reader) == {}
    assert collected(reader)
    observer = GpuInstrumentor()._observer
    assert observer is not None
    observer._end()
    assert collected(reader) == {}
    until(lambda: all(card.closed for card in cards))


class Waiting(MetricExporter):
    """Never gets through, and pauses between its tries as the SDK's exporters do."""

    def __init__(self, over_http: bool) -> None:
        super().__init__()
        self._endpoint = "collector:4317"
        self.pause = threading.Event()
        if over_http:
            self._client = SimpleNamespace(_shutdown_event=self.pause)
        else:
            self._shutdown_in_progress = self.pause

    def export(self, *_: Any, **__: Any) -> MetricExportResult:
        return MetricExportResult.FAILURE

    def force_flush(self, *_: Any, **__: Any) -> bool:
        return True

    def shutdown(self, *_: Any, **__: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("endpoint", "default"),
    [("localhost:4317", "localhost:4317"), ("http://localhost:4318/v1/metrics", "localhost:4318")],
)
def test_without_a_collector_nothing_is_sampled_until_there_is_one(
    cards: list[Card], monkeypatch: pytest.MonkeyPatch, endpoint: str, default: str
) -> None:
    exporter = Waiting(over_http=False)
    exporter._endpoint = endpoint
    reader = PeriodicExportingMetricReader(exporter, float("inf"))
    provider = MeterProvider([reader], shutdown_on_exit=False)
    with socket.create_server(("localhost", 0)) as collector:
        port = collector.getsockname()[1]
        monkeypatch.setattr(
            exporters, "_DEFAULTS", {endpoint.removeprefix("http://")[:14]: ("localhost", port)}
        )
        collector.close()
        GpuInstrumentor().instrument(meter_provider=provider)
        observer = GpuInstrumentor()._observer
        assert observer is not None
        reader.collect()
        until(lambda: not any(thread.name == "grademl gpu" for thread in threading.enumerate()))
        reader.collect()
        assert (cards, observer._found) == ([], {})
    with socket.create_server(("localhost", port)):
        reader.collect()
        until(lambda: (reader.collect(), observer._found)[1])
    reader.collect()
    assert observer._found == {}
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://localhost:4318/v1/metrics")
    until(lambda: (reader.collect(), observer._found)[1])


@pytest.mark.parametrize("over_http", [False, True])
@pytest.mark.parametrize("others", [False, True])
def test_an_export_under_way_keeps_no_program_that_has_nothing_else_to_tell(
    cards: list[Card], over_http: bool, others: bool
) -> None:
    exporter = Waiting(over_http)
    reader = PeriodicExportingMetricReader(exporter, float("inf"))
    provider = MeterProvider([reader], shutdown_on_exit=False)
    requests = provider.get_meter("http").create_counter("requests")
    GpuInstrumentor().instrument(meter_provider=provider)
    observer = GpuInstrumentor()._observer
    assert observer is not None

    def told() -> bool:
        reader.collect()
        return bool(observer._found)

    until(told)
    if others:
        requests.add(1)
    observer._end()
    assert exporter.pause.is_set() is not others


def test_a_forked_child_starts_with_nothing_and_samples_itself(cards: list[Card], tmp_path: Path) -> None:
    provider, reader = provided()
    GpuInstrumentor().instrument(meter_provider=provider)
    collected(reader)
    until_both_are_told(reader)
    out, into = os.pipe()
    go, free = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(free)
            told = [collected(reader) == {}, collected(reader) == {}, len(cards) == 2]
            os.write(into, b"." if all(told) else repr(told).encode())
            os.read(go, 1)  # the parent lets go
            collected(reader)
            until_both_are_told(reader)
            os.write(into, b"ok" if len(cards) == 4 else b"no")
        finally:
            os._exit(0)
    os.close(into)
    os.close(go)
    try:
        assert os.read(out, 100) == b"."
        assert collected(reader)["hw.temperature"] == {"GPU-a": 40, "GPU-b": 40}, "the parent has its lock"
        GpuInstrumentor().uninstrument()
        os.close(free)
        assert os.read(out, 100) == b"ok"
    finally:
        os.waitpid(pid, 0)
        os.close(out)


def test_deltas_never_fall_below_zero(cards: list[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    delta = AggregationTemporality.DELTA
    reader = InMemoryMetricReader(preferred_temporality={Counter: delta, ObservableCounter: delta})
    provider = MeterProvider([reader], shutdown_on_exit=False)
    GpuInstrumentor().instrument(meter_provider=provider)
    seen = []
    for _ in range(2):
        collected(reader)
        until(lambda: seen.append(collected(reader).get("hw.energy", {}).get("GPU-a")) or seen[-1] == 10)
        with monkeypatch.context() as patch:
            patch.setattr(session, "in_worker", True)
            collected(reader)
    assert {value for value in seen if value is not None} == {0, 10}


def test_a_fault_of_ours_costs_one_line(
    cards: list[Card], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> list[Any]:
        raise RuntimeError("boom")

    monkeypatch.setattr(gpu, "providers", broken, raising=False)
    provider, reader = provided()
    GpuInstrumentor().instrument(meter_provider=provider)
    assert collected(reader) == {}
    said: list[str] = []
    until(lambda: said.append(capsys.readouterr().err) or "".join(said))
    assert collected(reader) == {}
    assert "".join((*said, capsys.readouterr().err)) == "grademl: GPUs are not sampled: RuntimeError: boom\n"


def test_a_provider_that_makes_no_instruments_costs_one_line(
    cards: list[Card], capsys: pytest.CaptureFixture[str]
) -> None:
    GpuInstrumentor().instrument(meter_provider=SimpleNamespace())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("grademl: GPUs are not sampled: AttributeError: ")


def test_a_setting_that_makes_no_sense_is_told(
    cards: list[Card], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRADEML_GPU_INTERVAL", f"often {time.time_ns()}")
    provider, reader = provided()
    GpuInstrumentor().instrument(meter_provider=provider)
    collected(reader)
    until(lambda: cards)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("grademl: GRADEML_GPU_INTERVAL='often ")


def test_libraries_are_looked_for_and_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(observing, "_LIBRARIES", ("a_library_of_gpus",))
    assert not observing._libraries()
    (tmp_path / "a_library_of_gpus.py").write_text("raise SystemExit('loaded')")
    monkeypatch.syspath_prepend(tmp_path)
    assert observing._libraries()
    monkeypatch.setitem(sys.modules, "a_library_of_gpus", ModuleType("a_library_of_gpus"))
    assert observing._libraries()
