# SPDX-License-Identifier: Apache-2.0
"""Metrics of InfiniBand, RoCE and similar ports, and of network interfaces."""

from __future__ import annotations

from typing import Final

from grademl_otel.catalog.metric import COUNTER, UPDOWN, Metric

DIRECTION: Final = "network.io.direction"
RECEIVE: Final = "receive"
TRANSMIT: Final = "transmit"
INTERFACE: Final = "network.interface.name"
ERROR: Final = "error.type"
LINK_LAYER: Final = "grademl.network.link.layer"
"""As the kernel says it: InfiniBand, Ethernet, Unspecified."""
PCI_ADDRESS: Final = "grademl.pci.address"
CONGESTION_EVENT: Final = "grademl.network.congestion.event"
DEVICE_KIND: Final = "grademl.network.device.kind"
REPORTING: Final = "grademl.network.reporting"

_PORT: Final = "a port under `/sys/class/infiniband`"
_IO: Final = "Bytes through the port."
_IO_NEEDS: Final = (
    f"{_PORT} with `counters/port_{{rcv,xmit}}_data`, or with `hw_counters` of bytes (EFA, bnxt_re, irdma)"
)
PORT_RECEIVED: Final = Metric("hw.network.io", "By", COUNTER, _IO, _IO_NEEDS, (DIRECTION,), "port.rx")
PORT_TRANSMITTED: Final = Metric("hw.network.io", "By", COUNTER, _IO, _IO_NEEDS, (DIRECTION,), "port.tx")
PORT_PACKETS: Final = Metric(
    "hw.network.packets",
    "{packet}",
    COUNTER,
    "Packets through the port.",
    f"{_PORT} that counts packets",
    (DIRECTION,),
)
LIMIT: Final = Metric(
    "hw.network.bandwidth.limit",
    "By/s",
    UPDOWN,
    "What the link carries at most, without the code of its line; while it is up.",
    f"{_PORT}, or an interface that says its `speed`",
)
UP: Final = Metric(
    "hw.network.up",
    "1",
    UPDOWN,
    "1 while the link is up, else 0.",
    f"{_PORT}, or an interface that says its `operstate`",
    (LINK_LAYER, "hw.model", "hw.firmware_version", PCI_ADDRESS),
)
ERRORS: Final = Metric(
    "hw.errors",
    "{error}",
    COUNTER,
    "Errors of the port, by the name of the kernel's counter.",
    f"{_PORT}; which ones depends on the driver",
    (ERROR,),
)
WAIT: Final = Metric(
    "grademl.network.congestion.wait",
    "{tick}",
    COUNTER,
    "Ticks in which the port had data to send and could not: nobody took it. How long a tick is depends on "
    "the device.",
    f"{_PORT} with `counters/port_xmit_wait`",
)
CONGESTION: Final = Metric(
    "grademl.network.congestion.packets",
    "{packet}",
    COUNTER,
    "Packets by which RoCE tells of congestion, by the name of the kernel's counter.",
    f"{_PORT} with such `hw_counters`",
    (CONGESTION_EVENT,),
)

_INTERFACE: Final = "`/proc/net/dev`"
_BYTES: Final = "Bytes through the interface."
_WAYS: Final = (INTERFACE, DIRECTION)
RECEIVED: Final = Metric("system.network.io", "By", COUNTER, _BYTES, _INTERFACE, _WAYS, "network.rx")
TRANSMITTED: Final = Metric("system.network.io", "By", COUNTER, _BYTES, _INTERFACE, _WAYS, "network.tx")
PACKETS: Final = Metric(
    "system.network.packet.count",
    "{packet}",
    COUNTER,
    "Packets through the interface.",
    _INTERFACE,
    _WAYS,
)
DROPPED: Final = Metric(
    "system.network.packet.dropped",
    "{packet}",
    COUNTER,
    "Packets that were dropped although they had no error.",
    _INTERFACE,
    _WAYS,
)
INTERFACE_ERRORS: Final = Metric(
    "system.network.errors",
    "{error}",
    COUNTER,
    "Packets that had errors.",
    _INTERFACE,
    _WAYS,
)
DEVICES: Final = Metric(
    "grademl.network.devices",
    "{device}",
    UPDOWN,
    "Network interfaces or ports that are there: reported one by one (single), as one sum (summed), or not "
    "(omitted).",
    "interfaces: always; ports: where some are omitted",
    (DEVICE_KIND, REPORTING),
)

METRICS: Final[tuple[Metric, ...]] = (
    PORT_RECEIVED,
    PORT_TRANSMITTED,
    PORT_PACKETS,
    LIMIT,
    UP,
    ERRORS,
    WAIT,
    CONGESTION,
    RECEIVED,
    TRANSMITTED,
    PACKETS,
    DROPPED,
    INTERFACE_ERRORS,
    DEVICES,
)
