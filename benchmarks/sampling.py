# SPDX-License-Identifier: Apache-2.0
"""What it costs to sample a host of 8 GPUs and 128 CPU cores every second, beside others that do it.

    python -m benchmarks --only sampling

All ways run at the same time, each in a process of its own, for the whole measurement: they sleep nearly all
of it. A figure is the CPU time of all threads of the process, user and system, of each block of seconds.
What they read changes every second: a tree of files for /proc and /sys, and a library that answers for NVML.
So what it costs kernel and driver to find the values is not in it, on either side.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.interleaved import Spread
from benchmarks.tables import Table, duration
from benchmarks.ways import ROOT

OURS: Final = "everything: GPUs, host, network, resource tables, metrics"
AGAIN: Final = "everything, again"
ONLY_GPUS: Final = "GPUs alone"
ONLY_HOST: Final = "host alone"
ONLY_NETWORK: Final = "ports and interfaces alone"
ASLEEP: Final = "Python that sleeps"
NVML_LOOP: Final = "a loop of nvidia-ml-py, 20 values of each GPU, kept nowhere"
PSUTIL_LOOP: Final = "psutil: CPUs, memory, disks, interfaces; and that loop"
HOSTMETRICS: Final = "the Collector's hostmetrics (no GPUs, no InfiniBand), to nowhere"

GPUS, PORTS, NICS, DISKS = 8, 8, 16, 8
_TICKS_S: Final = 10
"""Metrics are made and encoded this often; a relay does it every minute unless told otherwise."""


# --- The processes ----------------------------------------------------------------------------------------


def _sample(kinds: Sequence[str], tree: Path) -> Callable[[], int]:
    """Start to sample as a relay does; return what makes the metrics and tells how many series there are."""
    from grademl_otel.convert.spans import Resource
    from grademl_otel.export.otlpjson import metric_line
    from grademl_otel.instrumentations import gpu, host, interconnect
    from grademl_otel.sampling.bins import SECOND, Bins
    from grademl_otel.sampling.export import metrics_of_samples
    from grademl_otel.sampling.roots import Roots
    from grademl_otel.sampling.sampler import Sampler
    from grademl_otel.sampling.source import Provider

    roots = Roots(tree / "proc", tree / "sys")
    providers: dict[str, Callable[[], Sequence[Provider]]] = {
        ONLY_GPUS: gpu.providers,
        ONLY_HOST: lambda: host.providers(roots),
        ONLY_NETWORK: lambda: interconnect.providers(roots),
    }
    bins = Bins()
    sampler = Sampler([each for kind in kinds for each in providers[kind]()], 1.0, _tell)
    sampler.listen(lambda source, at, readings: bins.add(SECOND, at, readings))
    sampler.start()
    offset = time.time_ns() - time.perf_counter_ns()

    def flush() -> int:
        samples = sampler.latest()
        metric_line(Resource({"host.name": "benchmark"}), metrics_of_samples(samples, offset))
        now = time.perf_counter_ns()
        bins.forget(now // SECOND - 120, now)
        return len(samples)

    return flush


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


def _nvml_values() -> Callable[[], int]:
    """Return what asks for the values of all GPUs, one call after the other."""
    nvml: Any = import_module("pynvml")
    nvml.nvmlInit()
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    corrected, uncorrected = nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    fields = [nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX]
    asked: tuple[Callable[[Any], Any], ...] = (
        nvml.nvmlDeviceGetUtilizationRates,  # of the GPU and of its memory
        nvml.nvmlDeviceGetMemoryInfo,  # used and total
        nvml.nvmlDeviceGetPowerUsage,
        nvml.nvmlDeviceGetEnforcedPowerLimit,
        nvml.nvmlDeviceGetTotalEnergyConsumption,
        lambda gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
        lambda gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
        lambda gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
        nvml.nvmlDeviceGetCurrentClocksThrottleReasons,
        lambda gpu: nvml.nvmlDeviceGetTotalEccErrors(gpu, corrected, nvml.NVML_VOLATILE_ECC),
        lambda gpu: nvml.nvmlDeviceGetTotalEccErrors(gpu, uncorrected, nvml.NVML_VOLATILE_ECC),
        nvml.nvmlDeviceGetPcieReplayCounter,
        nvml.nvmlDeviceGetCurrPcieLinkGeneration,
        nvml.nvmlDeviceGetCurrPcieLinkWidth,
        nvml.nvmlDeviceGetPerformanceState,
        nvml.nvmlDeviceGetComputeRunningProcesses,
        lambda gpu: nvml.nvmlDeviceGetFieldValues(gpu, fields),  # NVLink, both ways
    )

    def read() -> int:
        values = 0
        for handle in handles:
            for ask in asked:
                try:
                    ask(handle)
                    values += 1
                except nvml.NVMLError:
                    pass
        return values

    return read


def _psutil_values(tree: Path) -> Callable[[], int]:
    psutil: Any = import_module("psutil")
    psutil.PROCFS_PATH = str(tree / "proc")
    gpus = _nvml_values()

    def read() -> int:
        cpus = psutil.cpu_times(percpu=True)
        psutil.cpu_stats()
        memory = psutil.virtual_memory()
        disks = psutil.disk_io_counters(perdisk=True)
        nics = psutil.net_io_counters(pernic=True)
        return gpus() + sum(map(len, (*cpus, memory, *disks.values(), *nics.values())))

    return read


def _every_second(read: Callable[[], int], until: float) -> int:
    """Call ``read`` at each whole second before ``until``; return what it said last."""
    values = 0
    while (due := time.perf_counter() // 1 + 1) < until:
        time.sleep(due - time.perf_counter())
        values = read()
    return values


def work(way: str, tree: Path, blocks: int, block_s: float) -> None:
    """Do it in this process; print what each block took of a core, and how many values there were."""
    ours = {
        OURS: (ONLY_GPUS, ONLY_HOST, ONLY_NETWORK),
        AGAIN: (ONLY_GPUS, ONLY_HOST, ONLY_NETWORK),
        ONLY_GPUS: (ONLY_GPUS,),
        ONLY_HOST: (ONLY_HOST,),
        ONLY_NETWORK: (ONLY_NETWORK,),
    }
    flush: Callable[[], int] | None = None
    read: Callable[[], int] | None = None
    if way in ours:
        flush = _sample(ours[way], tree)
    elif way == NVML_LOOP:
        read = _nvml_values()
    elif way == PSUTIL_LOOP:
        read = _psutil_values(tree)
    shares, values = [], 0
    for block in range(blocks + 1):  # the first one warms up
        until = time.perf_counter() + (block_s if block else 4.0)
        began, cpu = time.perf_counter(), time.process_time()
        if read is not None:
            values = _every_second(read, until)
        while (left := until - time.perf_counter()) > 0:
            time.sleep(min(left, _TICKS_S))
            if flush is not None:
                values = flush()
        shares.append((time.process_time() - cpu) / (time.perf_counter() - began))
    print(json.dumps({"shares": shares[1:], "values": values}), flush=True)
    os._exit(0)  # whatever still runs is of no interest


# --- What they read ---------------------------------------------------------------------------------------


class _Host:
    """A tree of files of a large host, whose counters go on."""

    def __init__(self, folder: Path) -> None:
        from tests.support.fabrics import Interfaces, add_devices, port_folder
        from tests.support.hosttrees import HostTree, unpack

        self.tree: HostTree = unpack("bare_metal", folder)
        names = add_devices(self.tree, "hdr", PORTS)
        self._ports = [port_folder(name) for name in names]
        self._interfaces = Interfaces(self.tree)
        self._interfaces.add("lo", kind=772, state="unknown")
        for number in range(NICS):
            self._interfaces.add(f"eth{number}", device=f"0000:{number:02x}:00.0", speed="100000")
        for number in range(DISKS):
            device = f"devices/pci0000:00/0000:01:{number:02x}.0/nvme/nvme{number + 20}/nvme{number + 20}n1"
            self.tree.write(f"sys/{device}/size", "4000000000\n")
            for folder_of in ("class/block", "block"):
                link = self.tree.root / f"sys/{folder_of}/nvme{number + 20}n1"
                link.parent.mkdir(exist_ok=True)
                link.symlink_to(self.tree.root / f"sys/{device}")
        self._interfaces.show()
        for name in ("tcp", "tcp6", "udp", "udp6", "unix"):  # the Collector counts connections
            self.tree.write(f"proc/net/{name}", "  sl  local_address rem_address   st\n")
        self._stat = self.tree.read("proc/stat").splitlines()
        self._seconds = 0
        self.advance()

    def advance(self) -> None:
        """Go on by a second. Files are overwritten in place, so that none is ever seen empty."""
        self._seconds += 1
        seconds = self._seconds
        lines = []
        for line in self._stat:
            name, *numbers = line.split(" ")
            if name.startswith("cpu"):
                numbers = [str(int(number or 0) + 40 * seconds) for number in numbers]
            lines.append(" ".join([name, *numbers]))
        self._put("proc/stat", "\n".join(lines) + "\n")
        disks = [
            f" 259 {20 + number} nvme{20 + number}n1 {1000 + 9 * seconds} 1 {80000 + 99 * seconds} 5 "
            f"{2000 + seconds} 2 {160000 + 7 * seconds} 9 0 {1200 + 500 * seconds} {1400 + 600 * seconds}"
            " 0 0 0 0 0 0"
            for number in range(DISKS)
        ]
        self._put("proc/diskstats", "\n".join(disks) + "\n")
        for number in range(NICS):
            self._interfaces.count(f"eth{number}", 1_000_003, 2_000_003, packets=1000)
        self._put("proc/net/dev", self._interfaces.text())
        for folder in self._ports:
            for name, each in (("xmit_data", 5_000_000), ("rcv_data", 4_000_000), ("xmit_packets", 9000)):
                self._put(f"{folder}/counters/port_{name}", f"{9 * 10**12 + each * seconds}\n")

    def _put(self, path: str, content: str) -> None:
        file = os.open(self.tree.root / path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            data = content.encode()
            os.pwrite(file, data, 0)
            if os.fstat(file).st_size > len(data):
                os.ftruncate(file, len(data))
        finally:
            os.close(file)


# --- The measurement --------------------------------------------------------------------------------------


def measure(folder: Path, blocks: int, block_s: float, collector: Path | None) -> Iterator[Table]:
    """Return the cost of each way; raises OSError, subprocess.CalledProcessError."""
    from tests.support.nvml import Control

    folder.mkdir(parents=True, exist_ok=True)
    control = Control(folder, "h100", count=GPUS)
    control.run()
    host = _Host(folder / "host")
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "GRADEML_"))},
        **control.environment(),
        "PYTHONPATH": str(ROOT),
    }
    ways = [OURS, AGAIN, ONLY_GPUS, ONLY_HOST, ONLY_NETWORK, ASLEEP, NVML_LOOP]
    if find_spec("psutil") is not None:
        ways.append(PSUTIL_LOOP)
    with ExitStack() as stack:
        processes = {way: _start(way, folder, host.tree.root, environ, blocks, block_s) for way in ways}
        for process in processes.values():
            stack.callback(process.kill)
        peer = _Collector(collector, folder, host.tree.root, environ) if collector is not None else None
        if peer is not None:
            stack.callback(peer.close)
        answers = _until_done(processes, host, peer, blocks, block_s)
    own = Spread.of(answers[OURS]["shares"])
    rows = []
    for way, answer in answers.items():
        share = Spread.of(answer["shares"])
        rows.append(
            [
                way,
                f"{100 * share.middle:.3f} % [{100 * share.low:.3f}, {100 * share.high:.3f}]",
                duration(1e9 * share.middle),
                f"{share.middle / own.middle:.2f}",
                str(answer["values"] or ""),
            ]
        )
    yield Table(
        f"(m) Sampling every second: {GPUS} GPUs, 128 cores, {PORTS} ports, {NICS} NICs, {DISKS} disks",
        ("", "of one core", "CPU time a second", "ratio to everything", "values"),
        rows,
        f"All ways at the same time; {blocks} blocks of {block_s:g} s. Values: what there is each second; "
        "some of ours are read less often and stand meanwhile.",
    )


def _start(
    way: str, folder: Path, tree: Path, environ: Mapping[str, str], blocks: int, block_s: float
) -> subprocess.Popen[str]:
    with open(folder / "stderr", "a") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.sampling", way, str(tree), str(blocks), str(block_s)],
            env=dict(environ), cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip


def _until_done(
    processes: Mapping[str, subprocess.Popen[str]],
    host: _Host,
    peer: _Collector | None,
    blocks: int,
    block_s: float,
) -> dict[str, dict[str, Any]]:
    """Let the host go on, between whole seconds, until all have measured; return what they say."""
    shares: list[float] = []
    looked: tuple[float, float] | None = None
    at = time.perf_counter() + 4.0
    while any(process.poll() is None for process in processes.values()):
        time.sleep((1.5 - time.perf_counter() % 1) % 1)
        host.advance()
        if peer is not None and len(shares) < blocks and time.perf_counter() >= at:
            now, cpu = time.perf_counter(), peer.cpu_s()
            if looked is not None:
                shares.append((cpu - looked[1]) / (now - looked[0]))
            looked, at = (now, cpu), at + block_s
    answers: dict[str, dict[str, Any]] = {}
    for way, process in processes.items():
        output, _ = process.communicate()
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, way)
        answers[way] = json.loads(output)
    if peer is not None and shares:
        answers[HOSTMETRICS] = {"shares": shares, "values": 0}
    return answers


class _Collector:
    """A Collector that scrapes the host each second."""

    def __init__(self, binary: Path, folder: Path, tree: Path, environ: Mapping[str, str]) -> None:
        config = {
            "receivers": {
                "hostmetrics": {
                    "collection_interval": "1s",
                    "root_path": str(tree),
                    "scrapers": {name: {} for name in ("cpu", "memory", "load", "disk", "network", "paging")},
                }
            },
            "processors": {"filter": {"metrics": {"metric": ["true"]}}},  # encoding is not what is compared
            "exporters": {"file": {"path": os.devnull}},
            "service": {
                "pipelines": {
                    "metrics": {
                        "receivers": ["hostmetrics"],
                        "processors": ["filter"],
                        "exporters": ["file"],
                    }
                },
                "telemetry": {"metrics": {"level": "none"}, "logs": {"level": "error"}},
            },
        }
        path = folder / "collector.yaml"
        path.write_text(json.dumps(config))
        with open(folder / "collector.log", "w") as log:
            self._process = subprocess.Popen(
                [str(binary), "--config", str(path)], env=dict(environ), stdout=log, stderr=log
            )

    def cpu_s(self) -> float:
        """Return the CPU time that it has taken; raises OSError where it has ended."""
        if self._process.poll() is not None:
            raise OSError(f"the Collector has ended: {self._process.returncode}")
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
