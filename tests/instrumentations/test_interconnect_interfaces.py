# SPDX-License-Identifier: Apache-2.0
"""Network interfaces: which are told of, what they count, and thousands of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.instrumentations.interconnect import interfaces as module
from grademl_otel.instrumentations.interconnect import providers
from grademl_otel.instrumentations.interconnect.interfaces import Interfaces as Provider
from grademl_otel.sampling.roots import Roots
from grademl_otel.sampling.source import Reading, Source

from ..support.fabrics import Interfaces
from ..support.hosttrees import HostTree

PCI = "0000:3b:00.0"


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path)


@pytest.fixture
def host(tree: HostTree) -> Interfaces:
    """With ``lo`` and ``eth0``."""
    interfaces = Interfaces(tree)
    interfaces.add("lo", kind=772, state="unknown")
    interfaces.add("eth0", device=PCI, speed="25000")
    interfaces.show()
    return interfaces


def sources(tree: HostTree) -> tuple[Source, Source]:
    traffic, links = Provider(tree.roots).sources()
    return traffic, links


def io(readings: Sequence[Reading]) -> dict[str, tuple[int | float, int | float]]:
    """Bytes received and transmitted, by interface."""
    columns: dict[str, dict[str, int | float]] = {}
    for series, value in readings:
        if series.metric.name == "system.network.io":
            assert series.device == series.attributes["network.interface.name"]
            columns.setdefault(series.device, {})[series.metric.column] = value
    return {name: (each["network.rx"], each["network.tx"]) for name, each in columns.items()}


def devices(readings: Sequence[Reading]) -> dict[object, int | float]:
    return {
        series.attributes["grademl.network.reporting"]: value
        for series, value in readings
        if series.metric.name == "grademl.network.devices"
    }


def survey(source: Source) -> Sequence[Reading]:
    """Let it read until it has looked again at what there is."""
    for _ in range(60):
        source.read()
    return source.read()


def route(tree: HostTree, *names: str) -> None:
    """Make these the interfaces of default routes."""
    tree.write(
        "proc/net/route",
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
        + "".join(f"{name}\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n" for name in names)
        + "eth7\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n",
    )


def test_what_passes(tree: HostTree, host: Interfaces) -> None:
    host.count("eth0", 5_000_000_000, 7)
    host.show()
    traffic, _ = sources(tree)
    assert io(traffic.read()) == {"lo": (0, 0), "eth0": (0, 0)}
    host.count("eth0", 1000, 300, packets=4)
    host.set("eth0", 2, 5)
    host.set("eth0", 11, 6)
    host.show()
    assert io(traffic.read()) == {"lo": (0, 0), "eth0": (1000, 300)}
    readings = survey(traffic)  # all else is not read every time
    assert io(readings) == {"lo": (0, 0), "eth0": (1000, 300)}
    told = {
        (series.metric.name, series.attributes["network.io.direction"]): value
        for series, value in readings
        if series.device == "eth0"
    }
    assert told == {
        ("system.network.io", "receive"): 1000,
        ("system.network.io", "transmit"): 300,
        ("system.network.packet.count", "receive"): 4,
        ("system.network.packet.count", "transmit"): 4,
        ("system.network.errors", "receive"): 5,
        ("system.network.errors", "transmit"): 0,
        ("system.network.packet.dropped", "receive"): 0,
        ("system.network.packet.dropped", "transmit"): 6,
    }
    assert devices(readings) == {"single": 2, "summed": 0, "omitted": 0}
    assert io(traffic.read()) == io(readings)


def test_old_kernels_write_no_space_after_the_name(tree: HostTree, host: Interfaces) -> None:
    traffic, _ = sources(tree)
    traffic.read()
    host.count("eth0", 12345678, 1)
    host.show()
    tree.replace("proc/net/dev", "eth0: ", "eth0:")
    assert io(traffic.read())["eth0"] == (12345678, 1)


def test_links_and_limits(tree: HostTree, host: Interfaces) -> None:
    host.add("eth1", device=PCI, speed="-1", state="down")
    host.add("eth2", device=PCI, speed="4294967295")
    host.add("eth3", device=PCI, state="unknown")
    host.show()
    traffic, links = sources(tree)
    first = traffic.read()
    told = {(series.attributes["hw.id"], series.metric.name): value for series, value in links.read()}
    assert told == {
        ("eth0", "hw.network.up"): 1,
        ("eth0", "hw.network.bandwidth.limit"): 3.125e9,
        ("eth1", "hw.network.up"): 0,
        ("eth2", "hw.network.up"): 1,
    }
    capacities = {
        series.device: series.capacity for series, _ in first if series.metric.column == "network.rx"
    }
    assert capacities == {"lo": None, "eth0": 3.125e9, "eth1": None, "eth2": None, "eth3": None}
    tree.write("sys/class/net/eth0/speed", "100000\n")
    survey(links)
    assert {series.capacity for series, _ in traffic.read() if series.device == "eth0"} == {12.5e9, None}


def test_what_stands_on_others_is_left_out(tree: HostTree, host: Interfaces) -> None:
    host.add("eth1", device=PCI)
    host.add("bond0", lower="eth0")
    host.add("bond0.7", lower="bond0")
    host.add("br0", lower="bond0")
    host.add("docker0")
    host.add("veth1a2b3c")
    host.add("wg0", kind=65534)
    host.add("ib0", device=PCI, kind=32)
    host.show()
    route(tree, "br0", "wg0")
    traffic, _ = sources(tree)
    readings = traffic.read()
    assert io(readings).keys() == {"lo", "eth0", "eth1", "ib0"}
    assert devices(readings) == {"single": 4, "summed": 0, "omitted": 6}


def test_in_a_container_the_virtual_interface_is_its_own(tree: HostTree) -> None:
    """And the speed that the kernel made up for it is none."""
    container = Interfaces(tree)
    container.add("lo", kind=772)
    container.add("tunl0", kind=768)
    container.add("eth0", speed="10000")
    container.show()
    traffic, links = sources(tree)
    readings = traffic.read()
    assert io(readings).keys() == {"lo", "eth0"}
    assert [(series.metric.name, value) for series, value in links.read()] == [("hw.network.up", 1)]
    assert {series.capacity for series, _ in readings} == {None}


def test_in_a_container_what_has_a_route_is_its_own(tree: HostTree) -> None:
    """A second network, and containers within."""
    container = Interfaces(tree)
    for name in ("eth0", "eth7", "veth1a2b3c"):
        container.add(name)
    container.add("docker0", lower="veth1a2b3c")
    container.show()
    route(tree, "eth0", "docker0")  # and eth7 has one to its own network
    assert io(sources(tree)[0].read()).keys() == {"eth0", "eth7"}


def test_a_bridge_gets_what_it_stands_on(tree: HostTree) -> None:
    container = Interfaces(tree)
    container.add("eth0")
    container.add("br0")
    container.show()
    route(tree, "eth0", "br0")
    traffic, _ = sources(tree)
    assert io(traffic.read()).keys() == {"eth0", "br0"}
    container.add("br0", lower="eth0")
    container.show()
    assert io(survey(traffic)).keys() == {"eth0"}


def test_in_a_container_with_a_card_of_its_own_both_are_told_of(tree: HostTree) -> None:
    container = Interfaces(tree)
    container.add("lo", kind=772)
    container.add("eth0")
    container.add("dummy0")
    container.add("net1", device=PCI)
    container.show()
    route(tree, "eth0")
    assert io(sources(tree)[0].read()).keys() == {"lo", "eth0", "net1"}


def test_without_sys_everything_is_told_of(tree: HostTree) -> None:
    tree.write("proc/net/dev", "x\ny\n  eth0: 1 0 0 0 0 0 0 0 2 0 0 0 0 0 0 0\n    lo: " + "0 " * 16 + "\n")
    traffic, links = sources(tree)
    assert io(traffic.read()).keys() == {"lo", "eth0"}
    assert links.read() == []


def test_the_host_is_seen_through_its_first_process(tree: HostTree, host: Interfaces) -> None:
    """Of a host's /proc in a container, ``net`` is the container's own."""
    there = tree.read("proc/net/dev")
    tree.write("proc/1/net/dev", there + "  eth9: " + "0 " * 16 + "\n")
    (tree.root / "sys/class/net/eth9").mkdir()
    (tree.root / "sys/class/net/eth9/device").symlink_to("x")
    assert io(sources(tree)[0].read()).keys() == {"lo", "eth0", "eth9"}


def test_a_reset_and_a_return(tree: HostTree, host: Interfaces) -> None:
    traffic, _ = sources(tree)
    host.count("eth0", 10_000, 10_000)
    host.show()
    traffic.read()
    host.set("eth0", 0, 50)  # the driver starts anew
    host.show()
    assert io(traffic.read())["eth0"] == (50, 0)
    before = [series for series, _ in traffic.read() if series.device == "eth0"]
    host.remove("eth0")
    host.show()
    assert "eth0" not in io(traffic.read())
    host.line("eth0", 700)
    host.show()
    after = survey(traffic)
    assert io(after)["eth0"] == (0, 0)  # nobody knows since when it has counted
    assert not [series for series, _ in after if any(series is each for each in before)]


def test_an_interface_that_comes_is_found(tree: HostTree, host: Interfaces) -> None:
    traffic, links = sources(tree)
    traffic.read()
    links.read()
    host.add("eth1", device=PCI, speed="1000")
    host.show()
    assert io(survey(traffic)).keys() == {"lo", "eth0", "eth1"}
    assert {series.attributes["hw.id"] for series, _ in links.read()} == {"eth0", "eth1"}


def test_thousands_of_interfaces_of_containers(tree: HostTree, host: Interfaces) -> None:
    for number in range(5000):
        host.line(f"veth{number:x}", number)
    host.show()
    for name in ("lo", "eth0"):
        for _, file, _, _ in module._COLUMNS:
            tree.write(f"sys/class/net/{name}/statistics/{file}", "0\n")
    traffic, _ = sources(tree)
    readings = traffic.read()
    assert io(readings) == {"lo": (0, 0), "eth0": (0, 0)}
    assert devices(readings) == {"single": 2, "summed": 0, "omitted": 5000}
    tree.write("proc/net/dev", "")  # it is not looked at, but now and then
    tree.write("sys/class/net/eth0/statistics/rx_bytes", "123\n")
    assert io(traffic.read())["eth0"] == (123, 0)
    host.count("eth0", 200, 9)
    host.show()
    tree.write("sys/class/net/eth0/statistics/rx_bytes", "200\n")
    tree.write("sys/class/net/eth0/statistics/tx_bytes", "9\n")
    assert io(survey(traffic))["eth0"] == (200, 9)
    tree.remove("sys/class/net/eth0/statistics/tx_bytes")
    assert io(traffic.read()).keys() == {"lo"}
    (tree.root / "sys/class/net/eth0/statistics").rename(tree.root / "sys/class/net/eth0/gone")
    host.count("eth0", 1, 1)
    host.show()
    assert io(traffic.read())["eth0"] == (201, 10)


def test_of_very_many_the_busiest_are_told_of_one_by_one(tree: HostTree) -> None:
    host = Interfaces(tree)
    host.add("lo", kind=772)
    for number in range(100):
        host.add(f"eth{number}", device=PCI)
        host.count(f"eth{number}", 1000 * number, 0)
    host.show()
    traffic, _ = sources(tree)
    readings = traffic.read()
    assert io(readings).keys() == {"lo", "others"} | {f"eth{number}" for number in range(36, 100)}
    assert devices(readings) == {"single": 65, "summed": 36, "omitted": 0}
    for number in range(100):
        host.count(f"eth{number}", 10, 1)
    host.show()
    told = io(traffic.read())
    assert told["others"] == (360, 36)
    assert sum(rx for rx, _ in told.values()) == 1000
    host.count("eth35", -20, 0)  # of 35,010: no reset
    host.show()
    assert io(traffic.read())["others"] == (360, 36)
    host.count("eth35", 20, 0)
    host.remove("eth99")
    host.set("eth0", 0, 5)  # was 10: it starts anew
    for number in range(99):
        host.count(f"eth{number}", 10, 1)
    host.show()
    told = io(survey(traffic))
    assert "eth35" in told  # has its place
    assert told["eth35"] == (0, 0)
    assert told["others"] == (360 + 35 * 10 + 5, 36 + 36)


@pytest.mark.parametrize("line", ["", "  eth0:", "eth0: 1 2", "eth0: " + "x " * 16, "  eth0: " + "-1 " * 16])
def test_a_line_that_is_illegible_costs_only_itself(tree: HostTree, host: Interfaces, line: str) -> None:
    traffic, _ = sources(tree)
    traffic.read()
    good = tree.read("proc/net/dev")
    kept = [each for each in good.splitlines() if "eth0" not in each]
    tree.write("proc/net/dev", "\n".join([*kept, line, ""]))
    assert io(traffic.read()).keys() == {"lo"}
    host.count("eth0", 5, 6)
    host.show()
    assert io(survey(traffic)).keys() == {"lo", "eth0"}


def test_a_name_that_is_no_text(tree: HostTree, host: Interfaces) -> None:
    tree.write("proc/net/dev", tree.read("proc/net/dev").encode() + b"  \xff\xfe0: " + b"7 " * 16 + b"\n")
    (tree.root / "sys/class/net").joinpath("x").mkdir()
    os.makedirs(os.fsencode(tree.root / "sys/class/net") + b"/\xff\xfe0/device")
    assert io(sources(tree)[0].read()).keys() == {"lo", "eth0", "\\xff\\xfe0"}


def test_without_the_file_there_are_no_sources_and_without_its_rows_an_error(tree: HostTree) -> None:
    assert Provider(tree.roots).sources() == ()
    interfaces = Interfaces(tree)
    interfaces.add("eth0", device=PCI)
    interfaces.show()
    traffic, _ = sources(tree)
    traffic.read()
    tree.write("proc/net/dev", "a\nb\n  eth0: nothing\n")
    with pytest.raises(ValueError, match="numbers"):
        traffic.read()
    tree.remove("proc/net/dev")
    with pytest.raises(FileNotFoundError):
        traffic.read()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 1 << 40)), max_size=20))
def test_nothing_that_passes_is_lost(
    tmp_path_factory: pytest.TempPathFactory, passed: list[tuple[int, int]]
) -> None:
    tree = HostTree(tmp_path_factory.mktemp("host"))
    host = Interfaces(tree)
    for number in range(3):
        host.add(f"eth{number}", device=PCI)
    host.show()
    traffic, _ = sources(tree)
    readings = traffic.read()
    expected = [0, 0, 0]
    for number, count in passed:
        host.count(f"eth{number}", count, 2 * count)
        expected[number] += count
        host.show()
        readings = traffic.read()
    assert io(readings) == {f"eth{number}": (count, 2 * count) for number, count in enumerate(expected)}


def test_on_this_host() -> None:
    """The kernel's own numbers, which grow while nobody looks."""
    dev = Path("/proc/net/dev")
    if not dev.exists():
        pytest.skip("no /proc/net/dev: no Linux")
    there = {line.split(":")[0].strip() for line in dev.read_text().splitlines()[2:]}
    for provider in providers(Roots()):
        for source in provider.sources():
            for _ in range(2):
                for series, value in source.read():
                    assert value >= 0
                    if series.metric.name == "system.network.io":
                        assert series.device in there | {"others"}
