# SPDX-License-Identifier: Apache-2.0
"""Ports of InfiniBand, RoCE, Omni-Path, EFA and iWARP devices, as the kernel's RDMA subsystem shows them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Final

from grademl_otel.catalog import interconnect as catalog
from grademl_otel.catalog.metric import Metric
from grademl_otel.convert.spans import Attributes
from grademl_otel.instrumentations.interconnect.files import (
    names_in,
    number,
    read_bytes,
    read_text,
    shown,
)
from grademl_otel.instrumentations.interconnect.link import port_limit
from grademl_otel.sampling.counters import Running
from grademl_otel.sampling.roots import Roots
from grademl_otel.sampling.source import Reading, Series, Source, SourceGone

_WORD: Final = 4
"""Bytes: the InfiniBand Architecture counts data in these units."""
_FLIT: Final = 8
"""Bytes: Omni-Path's driver counts in these where the kernel shows InfiniBand's counters."""
_SATURATED: Final = (1 << 32) - 1
"""A counter of 32 bits stands at this: the InfiniBand Architecture lets none wrap."""
_RARELY: Final = 10
"""Each so many readings state, rate and packets are read; between only bytes: on real devices each file is a
command to the firmware.
"""
_SELDOM: Final = 30
"""Each so many readings errors and congestion are read as well, and it is looked what there is to read."""
_MOST_PORTS: Final = 64

_Ways = tuple[tuple[tuple[str, ...], int], ...]
"""Files whose numbers are added up, and bytes of a unit (0: that of the device); the first that is there."""

_TRAFFIC: Final[tuple[tuple[Metric, str, _Ways], ...]] = (
    (
        catalog.PORT_RECEIVED,
        catalog.RECEIVE,
        (
            (("counters/port_rcv_data",), 0),
            (("hw_counters/rx_bytes",), 1),
            (("hw_counters/ip4InOctets", "hw_counters/ip6InOctets"), 1),
        ),
    ),
    (
        catalog.PORT_TRANSMITTED,
        catalog.TRANSMIT,
        (
            (("counters/port_xmit_data",), 0),
            (("hw_counters/tx_bytes",), 1),
            (("hw_counters/ip4OutOctets", "hw_counters/ip6OutOctets"), 1),
        ),
    ),
    (
        catalog.PORT_PACKETS,
        catalog.RECEIVE,
        (
            (("counters/port_rcv_packets",), 1),
            (("hw_counters/rx_pkts",), 1),
            (("hw_counters/ip4InPkts", "hw_counters/ip6InPkts"), 1),
        ),
    ),
    (
        catalog.PORT_PACKETS,
        catalog.TRANSMIT,
        (
            (("counters/port_xmit_packets",), 1),
            (("hw_counters/tx_pkts",), 1),
            (("hw_counters/ip4OutPkts", "hw_counters/ip6OutPkts"), 1),
        ),
    ),
)

_ERRORS: Final = frozenset(
    {
        # counters
        "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors",
        "port_rcv_remote_physical_errors", "port_rcv_switch_relay_errors", "port_xmit_discards",
        "port_xmit_constraint_errors", "port_rcv_constraint_errors", "local_link_integrity_errors",
        "excessive_buffer_overrun_errors", "VL15_dropped",
        # hw_counters: mlx4, mlx5
        "out_of_buffer", "out_of_sequence", "duplicate_request", "rnr_nak_retry_err", "packet_seq_err",
        "implied_nak_seq_err", "local_ack_timeout_err", "resp_local_length_error", "resp_cqe_error",
        "req_cqe_error", "req_remote_invalid_request", "req_remote_access_errors",
        "resp_remote_access_errors", "req_rnr_retries_exceeded", "req_transport_retries_exceeded",
        "roce_adp_retrans", "roce_adp_retrans_to", "rx_icrc_encapsulated",
        # EFA
        "rx_drops", "retrans_pkts", "retrans_timeout_events", "impaired_remote_conn_events",
        "unresponsive_remote_events", "recv_wr_err", "send_wr_err", "rdma_read_wr_err", "rdma_write_wr_err",
        # bnxt_re
        "recoverable_errors", "to_retransmits", "seq_err_naks_rcvd", "max_retry_exceeded", "rnr_naks_rcvd",
        "unrecoverable_err", "local_qp_op_err", "local_protection_err", "remote_invalid_req_err",
        "remote_access_err", "remote_op_err", "rx_roce_errors", "rx_roce_discards", "tx_roce_errors",
        "tx_roce_discards", "res_oos_drop_count",
        # irdma
        "ip4InDiscards", "ip6InDiscards", "tcpRetransSegs", "tcpInProtoErrors", "rxVlanErrors",
    }
)  # fmt: skip
_CONGESTION: Final = frozenset(
    {
        # mlx5
        "np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled", "rp_cnp_ignored",
        "roce_slow_restart_cnps",
        # irdma
        "cnpSent", "cnpHandled", "cnpIgnored", "RxECNMrkd",
        # bnxt_re
        "tx_cnp_pkts", "rx_cnp_pkts", "rx_ecn_marked_pkts",
    }
)  # fmt: skip


class _Counter:
    """A raw counter of one or two files, as a series."""

    __slots__ = ("_paths", "_running", "_saturated", "_unit", "_wide", "series")

    def __init__(self, series: Series, paths: Sequence[str], unit: int, wide: bool):
        self.series = series
        self._paths = paths
        self._unit = unit
        self._wide = wide
        self._running = Running(64 if wide else 32)
        self._saturated = False

    def read(self) -> Reading | None:
        """Return what it has counted; None where it says nothing, or can count no further.

        Raises OSError.
        """
        raw = 0
        for path in self._paths:
            value = number(read_bytes(path))
            if value is None:
                return None
            raw += value
        if not self._wide and raw >= _SATURATED:
            if raw == _SATURATED:
                self._saturated = True
                return None
            self._wide = True
            self._running.widen(64)
        if self._saturated:
            # Somebody has reset it; what passed while it stood still is lost.
            self._saturated = False
            if not self._wide:
                self._running.restart()
        try:
            return self.series, self._running.add(raw) * self._unit
        except ValueError:
            return None


class Port:
    """The source of one port of one device."""

    def __init__(self, folder: str, device: str, port: str):
        """``folder`` is the port's, ``device`` and ``port`` are its names: ``mlx5_0``, ``1``."""
        self.name = f"port {shown(device)}/{shown(port)}"
        self.gone = False
        self._id = f"{shown(device)}/{shown(port)}"
        self._folder = folder
        self._device_folder = os.path.dirname(os.path.dirname(folder))
        self._common: Attributes = {"hw.id": self._id, "hw.type": "network", "hw.name": shown(device)}
        self._layer = ""
        self._bytes: dict[int, _Counter] = {}
        self._packets: dict[int, _Counter] = {}
        """Both by their place in `_TRAFFIC`."""
        self._events: dict[str, _Counter] = {}
        """By the path of the file."""
        self._rare: list[Reading] = []
        self._events_read: list[Reading] = []
        self._failed = False
        """Bytes could not be read last time."""
        self._limit = Series(catalog.LIMIT, self._common, self._id)
        self._up: Series | None = None
        self._readings = 0

    def read(self) -> list[Reading]:
        """Return its traffic, and what else there was when all was read.

        Raises `SourceGone`, and OSError where nothing at all could be read.
        """
        first: OSError | None = None
        if self._readings % _SELDOM == 0:
            first = self._look_for_counters()
        if self._readings % _RARELY == 0:
            first = self._read_state() or first
            packets, problem = _read(self._packets.values())
            self._rare += packets
            first = first or problem
        self._readings += 1
        found, problem = _read(self._bytes.values())
        first = first or problem
        if problem is not None and not self._failed:
            self._readings = 0  # look at everything again, once
        self._failed = problem is not None
        found += self._rare
        found += self._events_read
        if first is not None:
            if not os.path.isdir(self._folder):
                self.gone = True
                raise SourceGone(self._id) from first
            if not found:
                self._readings = 0
                raise first
        return found

    def close(self) -> None:
        """It holds nothing."""

    def _read_state(self) -> OSError | None:
        """Read whether the link is up and what it carries; return why that is not to be had."""
        self._rare = []
        self._layer = read_text(f"{self._folder}/link_layer")
        problem: OSError | None = None
        limit: float | None = None
        try:
            state = read_bytes(f"{self._folder}/state")
        except OSError as error:
            problem = error
        else:
            is_up = state.partition(b":")[0] == b"4"
            limit = self._read_limit() if is_up else None
            if limit is not None:
                self._rare.append((self._limit, limit))
            if state[:1].isdigit():
                self._rare.append((self._describe(), int(is_up)))
        for counter in self._bytes.values():
            counter.series.capacity = limit
        return problem

    def _look_for_counters(self) -> OSError | None:
        """Find what there is to read, and read what tells of errors; return why that cannot be told."""
        self._events_read = []
        try:
            there = {
                f"{part}/{name}"
                for part in ("counters", "hw_counters")
                for name in names_in(f"{self._folder}/{part}")
            }
        except OSError as error:
            return error
        self._find_traffic(there)
        self._find_events(there)
        self._events_read, _ = _read(self._events.values())  # a device may refuse what it does not count
        return None

    def _read_limit(self) -> float | None:
        try:
            return port_limit(read_bytes(f"{self._folder}/rate"), self._layer)
        except OSError:
            return None

    def _describe(self) -> Series:
        """Return the series of the link's state, which alone has all that there is to say of the device."""
        if self._up is None or self._up.attributes.get(catalog.LINK_LAYER, "") != self._layer:
            device = self._device_folder
            told = {
                catalog.LINK_LAYER: self._layer,
                "hw.model": read_text(f"{device}/board_id") or read_text(f"{device}/hca_type"),
                "hw.firmware_version": read_text(f"{device}/fw_ver"),
                catalog.PCI_ADDRESS: _pci_address(device),
            }
            attributes = self._common | {key: value for key, value in told.items() if value}
            self._up = Series(catalog.UP, attributes, self._id)
        return self._up

    def _find_traffic(self, there: set[str]) -> None:
        wide = "counters/unicast_xmit_packets" in there  # comes with counters of 64 bits only
        unit = _FLIT if _driver(self._device_folder) == "hfi1" else _WORD
        for index, (metric, direction, ways) in enumerate(_TRAFFIC):
            of_kind = self._bytes if metric.column else self._packets
            if index in of_kind:
                continue
            for names, bytes_each in ways:
                paths = [f"{self._folder}/{name}" for name in names]
                if there.issuperset(names) and _numbers(paths):
                    series = Series(metric, self._common | {catalog.DIRECTION: direction}, self._id)
                    is_pma = names[0].startswith("counters/")
                    of_kind[index] = _Counter(series, paths, bytes_each or unit, wide or not is_pma)
                    break

    def _find_events(self, there: set[str]) -> None:
        for path in sorted(there):
            part, _, name = path.partition("/")
            if path in self._events:
                continue
            if path == "counters/port_xmit_wait":
                series = Series(catalog.WAIT, self._common, self._id)
            elif name in _ERRORS:
                # Some devices have one of their own of the same name in the other folder: the first counts.
                if f"counters/{name}" in there and part != "counters":
                    continue
                series = Series(catalog.ERRORS, self._common | {catalog.ERROR: name}, self._id)
            elif part == "hw_counters" and name in _CONGESTION:
                series = Series(catalog.CONGESTION, self._common | {catalog.CONGESTION_EVENT: name}, self._id)
            else:
                continue
            self._events[path] = _Counter(series, [f"{self._folder}/{path}"], 1, part != "counters")


def _read(counters: Iterable[_Counter]) -> tuple[list[Reading], OSError | None]:
    """Return what they say, and why the first that cannot be read cannot."""
    found: list[Reading] = []
    problem: OSError | None = None
    for counter in counters:
        try:
            reading = counter.read()
        except OSError as error:
            problem = problem or error
        else:
            if reading is not None:
                found.append(reading)
    return found, problem


def _numbers(paths: Sequence[str]) -> bool:
    """Whether all these files can be read and say numbers."""
    try:
        return all(number(read_bytes(path)) is not None for path in paths)
    except OSError:
        return False


def _driver(folder: str) -> str:
    try:
        return os.path.basename(os.readlink(f"{folder}/device/driver"))
    except OSError:
        # In a container the link may lead nowhere; the kernel's own name begins with that of the driver.
        return os.path.basename(folder).partition("_")[0]


def _pci_address(folder: str) -> str:
    try:
        name = os.path.basename(os.readlink(f"{folder}/device"))
    except OSError:
        return ""
    return name if name.count(":") == 2 else ""


class Omitted:
    """Says how many ports there are that no source reads."""

    def __init__(self) -> None:
        self.name = "ports"
        self.number = 0
        attributes: Attributes = {catalog.DEVICE_KIND: "port", catalog.REPORTING: "omitted"}
        self._series = Series(catalog.DEVICES, attributes, "ports")

    def read(self) -> list[Reading]:
        return [(self._series, self.number)]

    def close(self) -> None:
        """It holds nothing."""


class Ports:
    """Finds the ports of this host."""

    name = "interconnect"

    def __init__(self, roots: Roots):
        self._folder = f"{roots.sys}/class/infiniband"
        self._ports: dict[str, Port] = {}
        self._omitted = Omitted()

    def sources(self) -> list[Source]:
        """Return one source a port, those of virtual functions last; 64 at most. Raises OSError."""
        found: dict[str, tuple[str, str]] = {}
        virtual: dict[str, tuple[str, str]] = {}
        for device in names_in(self._folder):
            is_virtual = os.path.lexists(f"{self._folder}/{device}/device/physfn")
            for port in names_in(f"{self._folder}/{device}/ports"):
                folder = f"{self._folder}/{device}/ports/{port}"
                (virtual if is_virtual else found)[folder] = (device, port)
        found |= virtual
        self._omitted.number = max(0, len(found) - _MOST_PORTS)
        ports: dict[str, Port] = {}
        for folder, (device, name) in list(found.items())[:_MOST_PORTS]:
            known = self._ports.get(folder)
            ports[folder] = known if known is not None and not known.gone else Port(folder, device, name)
        self._ports = ports
        sources: list[Source] = list(ports.values())
        if self._omitted.number:
            sources.append(self._omitted)
        return sources

    def close(self) -> None:
        """It holds nothing."""
