# SPDX-License-Identifier: Apache-2.0
"""Ports of InfiniBand and the like, of recorded devices and in every trouble."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grademl_otel.catalog.interconnect import METRICS
from grademl_otel.catalog.metric import COUNTER
from grademl_otel.instrumentations.interconnect import providers
from grademl_otel.instrumentations.interconnect.link import port_limit
from grademl_otel.instrumentations.interconnect.ports import Ports
from grademl_otel.sampling.sampler import Sampler
from grademl_otel.sampling.source import Reading, Source, SourceGone

from ..support.fabrics import SHAPES, add_devices, port_folder
from ..support.hosttrees import HostTree

DATA = {"receive": "port_rcv_data", "transmit": "port_xmit_data"}


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path)


def only_port(tree: HostTree) -> Source:
    (port,) = Ports(tree.roots).sources()
    return port


def told(readings: Sequence[Reading]) -> dict[str, int | float]:
    """Readings by name and, where there are several, by direction or the counter's name."""
    result: dict[str, int | float] = {}
    for series, value in readings:
        key = series.metric.name
        for attribute in ("network.io.direction", "error.type", "grademl.network.congestion.event"):
            if attribute in series.attributes:
                key += f" {series.attributes[attribute]}"
        assert key not in result
        result[key] = value
    return result


def read_all(port: Source) -> dict[str, int | float]:
    """Let it read as often as it takes for everything to be read once more."""
    for _ in range(30):
        port.read()
    return told(port.read())


def test_eight_ports_each_by_itself(tree: HostTree) -> None:
    names = add_devices(tree, "hdr", 8)
    ports = Ports(tree.roots)
    sources = ports.sources()
    assert [source.name for source in sources] == [f"port {name}/1" for name in names]
    assert [id(source) for source in ports.sources()] == [id(source) for source in sources]
    for name, source in zip(names, sources, strict=True):
        assert {series.device for series, _ in source.read()} == {f"{name}/1"}


def test_what_an_infiniband_port_says(tree: HostTree) -> None:
    add_devices(tree, "hdr")
    port = only_port(tree)
    first = port.read()
    at = port_folder("mlx5_0")
    tree.write(f"{at}/counters/port_rcv_data", "9000000000011\n")
    tree.write(f"{at}/counters/port_xmit_data", "8000000000302\n")
    tree.write(f"{at}/counters/port_xmit_packets", "8025\n")
    between = told(port.read())
    assert between["hw.network.io receive"] == 10 * 4
    assert between["hw.network.io transmit"] == 300 * 4
    assert between["hw.network.packets transmit"] == 0
    later = read_all(port)
    assert later["hw.network.packets receive"] == 0
    assert later["hw.network.packets transmit"] == 2
    assert between["hw.network.up"] == 1
    assert between["hw.network.bandwidth.limit"] == 25e9
    tree.write(f"{at}/counters/port_xmit_wait", "123556\n")
    tree.write(f"{at}/counters/symbol_error", "7\n")
    tree.write(f"{at}/hw_counters/np_cnp_sent", "5\n")
    later = read_all(port)
    assert later["grademl.network.congestion.wait"] == 100
    assert later["hw.errors symbol_error"] == 7
    assert later["hw.errors link_downed"] == 0
    assert later["grademl.network.congestion.packets np_cnp_sent"] == 5 - 3
    kinds = {series.metric for series, _ in first}
    assert {metric.name for metric in kinds} == {
        metric.name for metric in METRICS if metric.name.startswith(("hw.", "grademl.network.congestion"))
    }
    by_column = {series.metric.column: series for series, _ in first if series.metric.column}
    assert {column: series.capacity for column, series in by_column.items()} == {
        "port.rx": 25e9,
        "port.tx": 25e9,
    }
    (up,) = (series for series, _ in first if series.metric.name == "hw.network.up")
    assert up.attributes == {
        "hw.id": "mlx5_0/1",
        "hw.type": "network",
        "hw.name": "mlx5_0",
        "hw.model": "MT_0000000223",
        "hw.firmware_version": "20.35.2000",
        "grademl.network.link.layer": "InfiniBand",
        "grademl.pci.address": "0000:1a:00.0",
    }


def test_nothing_tells_who_the_hardware_is(tree: HostTree) -> None:
    add_devices(tree, "hdr")
    for series, _ in only_port(tree).read():
        assert "0c42" not in repr(series.attributes)


@pytest.mark.parametrize(
    ("shape", "unit", "limit", "layer"),
    [
        ("hdr", 4, 25e9, "InfiniBand"),
        ("roce", 4, 12.5e9, "Ethernet"),
        ("qdr", 4, 4e9, "InfiniBand"),
        ("opa", 8, 12.5e9, "InfiniBand"),
    ],
)
def test_units_and_limits_of_devices(tree: HostTree, shape: str, unit: int, limit: float, layer: str) -> None:
    add_devices(tree, shape)
    port = only_port(tree)
    first = port.read()
    at = f"{port_folder(SHAPES[shape])}/counters/port_xmit_data"
    tree.write(at, f"{int(tree.read(at)) + 1000}\n")
    readings = told(port.read())
    assert readings["hw.network.io transmit"] == 1000 * unit
    assert readings["hw.network.bandwidth.limit"] == pytest.approx(limit)
    (up,) = (series for series, _ in first if series.metric.name == "hw.network.up")
    assert up.attributes["grademl.network.link.layer"] == layer


def test_in_a_container_the_driver_shows_in_the_name(tree: HostTree) -> None:
    add_devices(tree, "opa")
    (tree.root / "sys/class/infiniband/hfi1_0/device").unlink()
    port = only_port(tree)
    port.read()
    tree.write(f"{port_folder('hfi1_0')}/counters/port_rcv_data", "10000000100\n")
    assert told(port.read())["hw.network.io receive"] == 800


def test_devices_that_count_bytes_themselves(tree: HostTree) -> None:
    add_devices(tree, "efa")
    port = only_port(tree)
    port.read()
    at = port_folder("rdmap16s27")
    tree.write(f"{at}/hw_counters/rx_bytes", "2003\n")
    tree.write(f"{at}/hw_counters/tx_pkts", "1003\n")
    tree.write(f"{at}/hw_counters/rx_drops", "1006\n")
    readings = read_all(port)
    assert readings["hw.network.io receive"] == 1000
    assert readings["hw.network.packets transmit"] == 1
    assert readings["hw.errors rx_drops"] == 1
    assert "grademl.network.congestion.wait" not in readings


def test_a_port_that_is_down_has_no_limit(tree: HostTree) -> None:
    """And this one counts its bytes by version of IP."""
    add_devices(tree, "irdma")
    port = only_port(tree)
    first = port.read()
    assert told(first)["hw.network.up"] == 0
    assert "hw.network.bandwidth.limit" not in told(first)
    assert {series.capacity for series, _ in first} == {None}
    at = port_folder("rocep24s0f0")
    tree.write(f"{at}/hw_counters/ip4InOctets", "1102\n")
    tree.write(f"{at}/hw_counters/ip6InOctets", "2103\n")
    assert told(port.read())["hw.network.io receive"] == 3000
    tree.write(f"{at}/state", "4: ACTIVE\n")
    assert read_all(port)["hw.network.bandwidth.limit"] == 12.5e9
    assert {series.capacity for series, _ in port.read() if series.metric.column} == {12.5e9}


def test_counters_of_32_bits_wrap_where_they_do(tree: HostTree) -> None:
    add_devices(tree, "qdr")
    port = only_port(tree)
    port.read()
    at = f"{port_folder('mlx4_0')}/counters/port_rcv_data"
    tree.write(at, "704\n")
    assert told(port.read())["hw.network.io receive"] == 1000 * 4


def test_counters_of_32_bits_that_stand_still_are_absent_until_they_are_reset(tree: HostTree) -> None:
    add_devices(tree, "qdr")
    port = only_port(tree)
    port.read()
    at = f"{port_folder('mlx4_0')}/counters/port_rcv_data"
    tree.write(at, "4294967100\n")
    assert told(port.read())["hw.network.io receive"] == 400
    tree.write(at, "4294967295\n")
    for _ in range(3):
        readings = told(port.read())
        assert "hw.network.io receive" not in readings
        assert readings["hw.network.io transmit"] == 0
    tree.write(at, "50\n")
    assert told(port.read())["hw.network.io receive"] == 400 + 200
    tree.write(at, "60\n")
    assert told(port.read())["hw.network.io receive"] == 400 + 240


def test_a_counter_turns_out_to_have_64_bits(tree: HostTree) -> None:
    add_devices(tree, "qdr")
    port = only_port(tree)
    port.read()
    at = f"{port_folder('mlx4_0')}/counters/port_rcv_data"
    for raw, words in [(4294968000, 1000), (9_000_000_000, 4_705_033_000), (5, 4_705_033_005)]:
        tree.write(at, f"{raw}\n")
        assert told(port.read())["hw.network.io receive"] == words * 4


def test_counters_of_64_bits_wrap_and_are_reset(tree: HostTree) -> None:
    add_devices(tree, "hdr")
    at = f"{port_folder('mlx5_0')}/counters/port_xmit_data"
    tree.write(at, f"{2**64 - 10}\n")
    port = only_port(tree)
    port.read()
    total = 0
    for raw, words in [(5, 15), (1000, 995), (7, 7), (4_294_967_290, 4_294_967_283), (3, 3)]:
        tree.write(at, f"{raw}\n")
        total += words
        assert told(port.read())["hw.network.io transmit"] == total * 4


@pytest.mark.parametrize("content", ["", "N/A (no PMA)\n", "-1\n", "1e9\n", "12 34\n", "\xff\xfe", "9" * 30])
def test_what_is_no_number_is_absent_and_the_rest_is_there(tree: HostTree, content: str) -> None:
    add_devices(tree, "hdr")
    port = only_port(tree)
    port.read()
    tree.write(f"{port_folder('mlx5_0')}/counters/port_xmit_data", content.encode("latin-1"))
    readings = told(port.read())
    assert "hw.network.io transmit" not in readings
    assert readings["hw.network.io receive"] == 0


def test_files_of_a_port_may_each_be_missing(tree: HostTree) -> None:
    add_devices(tree, "hdr")
    everything = told(only_port(tree).read())
    for path in tree.files():
        content = tree.read(path)
        tree.remove(path)
        fewer = told(only_port(tree).read())
        assert fewer.items() <= everything.items(), path
        assert len(everything) - len(fewer) <= 3, path  # without a state there is no rate either
        tree.write(path, content)


def test_files_may_vanish_between_two_readings(tree: HostTree) -> None:
    add_devices(tree, "hdr")
    port = only_port(tree)
    everything = told(port.read())
    for path in tree.files():
        content = tree.read(path)
        tree.remove(path)
        readings = told(port.read())
        assert readings.keys() <= everything.keys()
        tree.write(path, content)
        assert read_all(port).keys() == everything.keys()


def test_a_file_that_cannot_be_read_costs_nothing_else(tree: HostTree) -> None:
    """As the kernel answers EINVAL for what a device does not count."""
    add_devices(tree, "hdr")
    at = tree.root / port_folder("mlx5_0") / "counters/port_xmit_wait"
    at.unlink()
    at.mkdir()
    readings = told(only_port(tree).read())
    assert "grademl.network.congestion.wait" not in readings
    assert readings["hw.errors VL15_dropped"] == 0


def test_a_device_goes_and_comes_back(tree: HostTree) -> None:
    add_devices(tree, "hdr", 2)
    ports = Ports(tree.roots)
    gone, stays = ports.sources()
    gone.read()
    away = tree.root / "away"
    (tree.root / "sys/class/infiniband/mlx5_0").rename(away)
    with pytest.raises(SourceGone):
        gone.read()
    assert ports.sources() == [stays]
    away.rename(tree.root / "sys/class/infiniband/mlx5_0")
    back, same = ports.sources()
    assert same is stays
    assert back is not gone
    assert told(back.read())["hw.network.io receive"] == 0


def test_a_device_that_went_and_came_back_unseen_is_another(tree: HostTree) -> None:
    add_devices(tree, "hdr")
    ports = Ports(tree.roots)
    (before,) = ports.sources()
    folder, away = tree.root / "sys/class/infiniband/mlx5_0", tree.root / "away"
    folder.rename(away)
    with pytest.raises(SourceGone):
        before.read()
    away.rename(folder)
    (after,) = ports.sources()
    assert after is not before
    assert after.name == before.name


def test_trouble_with_all_of_a_port_is_raised_and_over_when_it_is(tree: HostTree) -> None:
    add_devices(tree, "hdr")
    port = only_port(tree)
    port.read()
    folder = tree.root / port_folder("mlx5_0")
    (folder / "counters").rename(tree.root / "counters")
    (folder / "hw_counters").rename(tree.root / "hw_counters")
    (folder / "state").rename(tree.root / "state")
    port.read()  # what was read before still stands
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            port.read()
    (tree.root / "counters").rename(folder / "counters")
    (tree.root / "state").rename(folder / "state")
    assert told(port.read())["hw.network.up"] == 1


@pytest.mark.parametrize(
    "make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_text("")]
)
def test_a_host_without_such_devices_has_no_sources(tree: HostTree, make: Callable[[Path], None]) -> None:
    folder = tree.root / "sys/class/infiniband"
    folder.parent.mkdir(parents=True)
    make(folder)
    assert Ports(tree.roots).sources() == []


def test_of_very_many_ports_the_first_are_read_and_the_others_counted(tree: HostTree) -> None:
    for number in range(100):
        tree.write(f"sys/class/infiniband/mlx5_{number}/ports/1/state", "4: ACTIVE\n")
        if number < 50:  # virtual functions
            (tree.root / f"sys/class/infiniband/mlx5_{number}/device").mkdir()
            (tree.root / f"sys/class/infiniband/mlx5_{number}/device/physfn").mkdir()
    *ports, rest = Ports(tree.roots).sources()
    names = [f"port mlx5_{number}/1" for number in [*range(50, 100), *range(14)]]
    assert [port.name for port in ports] == names
    ((series, value),) = rest.read()
    assert (series.metric.name, series.attributes["grademl.network.reporting"], value) == (
        "grademl.network.devices",
        "omitted",
        36,
    )


def test_a_file_that_blocks_stops_only_its_port(tree: HostTree) -> None:
    names = add_devices(tree, "hdr", 2)
    stuck = tree.root / port_folder(names[0]) / "counters/port_rcv_data"
    stuck.unlink()
    os.mkfifo(stuck)
    seen = threading.Event()

    def listen(source: str, at: int, readings: Sequence[Reading]) -> None:
        if source == "port mlx5_1/1" and any(series.metric.column == "port.rx" for series, _ in readings):
            seen.set()

    sampler = Sampler([Ports(tree.roots)], 0.05)
    sampler.listen(listen)
    sampler.start()
    try:
        assert seen.wait(30)
        assert {sample.series.device for sample in sampler.latest()} <= {"mlx5_1/1", "sampler"}
    finally:
        with open(stuck, "wb") as free:  # whoever reads it goes on, and next time finds a file
            stuck.unlink()
            stuck.write_bytes(b"1\n")
            free.write(b"1\n")
        assert sampler.stop(10)


@pytest.mark.parametrize(
    ("rate", "layer", "limit"),
    [
        (b"10 Gb/sec (4X SDR)\n", "InfiniBand", 1e9),
        (b"2.5 Gb/sec (1X SDR)\n", "InfiniBand", 0.25e9),
        (b"20 Gb/sec (4X DDR)\n", "InfiniBand", 2e9),
        (b"40 Gb/sec (4X FDR10)\n", "InfiniBand", 5e9),
        (b"56 Gb/sec (4X FDR)\n", "InfiniBand", 4 * 14.0625e9 * 64 / 66 / 8),
        (b"100 Gb/sec (4X EDR)\n", "InfiniBand", 12.5e9),
        (b"400 Gb/sec (4X NDR)\n", "InfiniBand", 50e9),
        (b"800 Gb/sec (4X XDR)\n", "InfiniBand", 100e9),
        (b"10 Gb/sec (1X QDR)\n", "Ethernet", 1.25e9),
        (b"0 Gb/sec\n", "Ethernet", None),
        (b"", "InfiniBand", None),
        (b"fast\n", "InfiniBand", None),
        (b"-1 Gb/sec\n", "InfiniBand", None),
        (b"9999999 Gb/sec (4X HDR)\n", "InfiniBand", None),
    ],
)
def test_limits(rate: bytes, layer: str, limit: float | None) -> None:
    assert port_limit(rate, layer) == (pytest.approx(limit) if limit is not None else None)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 1 << 30), st.binary(max_size=40)), max_size=6))
def test_whatever_files_say_nothing_impossible_comes_of_it(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]]
) -> None:
    tree = HostTree(tmp_path_factory.mktemp("host"))
    add_devices(tree, "hdr")
    port = only_port(tree)
    last: dict[int, int | float] = {}
    files = tree.files()
    for index, content in changes:
        tree.write(files[index % len(files)], content)
        for _ in range(31):
            for series, value in port.read():
                if series.metric.kind == COUNTER:
                    assert value >= last.get(id(series), 0)
                    last[id(series)] = value
                else:
                    assert value >= 0


def test_all_there_is_is_of_the_catalog(tree: HostTree) -> None:
    for shape in ("hdr", "qdr", "opa", "efa", "irdma"):
        add_devices(tree, shape)
    tree.write("proc/net/dev", "a\nb\n  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n")
    identity = {"hw.id", "hw.type", "hw.name"}
    for provider in providers(tree.roots):
        for source in provider.sources():
            for series, _ in source.read():
                assert series.metric in METRICS
                assert set(series.attributes) - identity <= set(series.metric.attributes)
