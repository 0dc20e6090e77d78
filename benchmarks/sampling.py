# SPDX-License-Identifier: Apache-2.0
"""What it costs to sample a host of 8 GPUs and 128 CPU cores every second, beside others that do it.

    python -m benchmarks --only sampling

Each way is a process of its own when its turn comes, in turning order: all wake up at whole seconds, where
they would be in each other's way. A figure is the CPU time of all threads of the process, user and system,
after some seconds that warm it up. What they read changes every second: a tree of files for /proc and /sys,
and a library that answers for NVML. So what it costs kernel and driver to find the values is not in it, on
either side.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.interleaved import Compared, Spread
from benchmarks.tables import Table, duration, ratio
from benchmarks.ways import ROOT

OURS: Final = "everything: GPUs, host, network, resource tables, metrics"
AGAIN: Final = "everything, again"
SAMPLER: Final = "everything but making metrics and tables: the sampler"
BOTH: Final = "GPUs and host"
ONLY_GPUS: Final = "GPUs alone"
ONLY_HOST: Final = "host alone"
ONLY_NETWORK: Final = "ports and interfaces alone"
ASLEEP: Final = "Python that sleeps"
NVML_LOOP: Final = "a loop of nvidia-ml-py, 20 values of each GPU, kept nowhere"
PSUTIL_LOOP: Final = "psutil: CPUs, memory, disks, interfaces; and that loop"
HOSTMETRICS: Final = "the Collector's hostmetrics (no GPUs, no InfiniBand), to nowhere"

GPUS, PORTS, NICS, DISKS = 8, 8, 16, 8
_WARM_S: Final = 4
"""Readings that find out what there is."""

Job = tuple[Callable[[], int], float]
"""What is made of the samples, and returns how many values there are; and the s between two times, one of
which is measured after the turn."""


# --- The processes ----------------------------------------------------------------------------------------


def _sample(kinds: Sequence[str], tree: Path, seconds: float) -> list[Job]:
    """Start to sample as a relay does; return what else it does with that, the table being of ``seconds``."""
    from grademl_otel import semconv
    from grademl_otel.convert.bounds import table_bytes_per_part
    from grademl_otel.convert.spans import Resource, Span
    from grademl_otel.export.interval import DEFAULT_METRICS_EVERY_NS
    from grademl_otel.export.otlp import metric_request, trace_requests
    from grademl_otel.instrumentations import gpu, host, interconnect
    from grademl_otel.sampling.bins import SECOND, Bins
    from grademl_otel.sampling.export import metrics_of_samples
    from grademl_otel.sampling.resource_table import fitting
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
    resource = Resource({"host.name": "benchmark"})
    offset = time.time_ns() - time.perf_counter_ns()

    def export() -> int:
        samples = sampler.latest()
        metric_request(resource, metrics_of_samples(samples, offset))
        return len(samples)

    def table() -> int:
        end = bins.ready(time.perf_counter_ns())
        first = end - round(seconds)
        fitted = fitting(bins.rows(first, end), first, end, table_bytes_per_part(1), 2, False)
        if fitted is None:
            raise RuntimeError("nothing was sampled")
        list(trace_requests(resource, [Span(semconv.WINDOW, 1, 1, 0, 0, 1, fitted.attributes(0))]))
        return 0

    return [(export, DEFAULT_METRICS_EVERY_NS / 1e9), (table, seconds)]


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


def work(way: str, tree: Path, seconds: float) -> None:
    """Do it in this process; print what it took of a core, and how many values there were."""
    ours = {
        OURS: (ONLY_GPUS, ONLY_HOST, ONLY_NETWORK),
        AGAIN: (ONLY_GPUS, ONLY_HOST, ONLY_NETWORK),
        SAMPLER: (ONLY_GPUS, ONLY_HOST, ONLY_NETWORK),
        BOTH: (ONLY_GPUS, ONLY_HOST),
        ONLY_GPUS: (ONLY_GPUS,),
        ONLY_HOST: (ONLY_HOST,),
        ONLY_NETWORK: (ONLY_NETWORK,),
    }
    read: Callable[[], int] | None = None
    jobs: list[Job] = []
    if way in ours:
        jobs = _sample(ours[way], tree, seconds)
    elif way == NVML_LOOP:
        read = _nvml_values()
    elif way == PSUTIL_LOOP:
        read = _psutil_values(tree)
    values = 0
    cpu = began = 0.0
    for length in (_WARM_S, seconds):
        began, cpu = time.perf_counter(), time.process_time()
        until = began + length
        if read is not None:
            values = _every_second(read, until)
        time.sleep(max(0.0, until - time.perf_counter()))
    share = (time.process_time() - cpu) / (time.perf_counter() - began)
    for make, every in jobs:
        make()  # what is done once only
        cpu = time.process_time()
        values += make()
        if way in (OURS, AGAIN):  # the others are the sampler alone
            share += (time.process_time() - cpu) / every
    print(json.dumps({"share": share, "values": values}), flush=True)
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

    def advance_between_seconds(self) -> None:
        """Wait for the middle of a second, in which nobody reads, and go on."""
        time.sleep((1.5 - time.perf_counter() % 1) % 1 or 1)
        self.advance()

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


def measure(folder: Path, rounds: int, seconds: float, collector: Path | None) -> Iterator[Table]:
    """Return the cost of each way, from ``rounds`` turns of so many seconds.

    Raises OSError, subprocess.CalledProcessError.
    """
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
    ways = [OURS, AGAIN, SAMPLER, BOTH, ONLY_GPUS, ONLY_HOST, ONLY_NETWORK, ASLEEP, NVML_LOOP]
    if find_spec("psutil") is not None:
        ways.append(PSUTIL_LOOP)
    if collector is not None:
        ways.append(HOSTMETRICS)
    values: dict[str, int] = {}

    def turn(way: str) -> list[float]:
        if way == HOSTMETRICS and collector is not None:
            return [1e9 * _of_collector(collector, folder, host, environ, seconds)]
        answer = _turn(way, folder, host, environ, seconds)
        values[way] = answer["values"]
        return [1e9 * answer["share"]]

    times: dict[str, list[list[float]]] = {way: [] for way in ways}
    for number in range(rounds):
        shift = number % len(ways)
        for way in ways[shift:] + ways[:shift]:
            times[way].append(turn(way))
    results = {way: Compared(way, each) for way, each in times.items()}
    ours = results[OURS]
    rows = []
    for way, each in results.items():
        low, middle, high = (ns / 1e7 for ns in Spread.of(each.means))
        share = f"{middle:.3f} % [{low:.3f}, {high:.3f}]"
        told = str(values.get(way) or "")
        rows.append([way, share, duration(each.typical_ns), ratio(each.ratio_to(ours)), told])
    yield Table(
        f"(m) Sampling every second: {GPUS} GPUs, 128 cores, {PORTS} ports, {NICS} NICs, {DISKS} disks",
        ("", "of one core", "CPU time a second", "ratio to everything", "values"),
        rows,
        f"{rounds} turns of {seconds:g} s each. Parts are the sampler alone. Values: what there is each "
        "second; some of ours are read less often and stand meanwhile.",
    )


def _turn(way: str, folder: Path, host: _Host, environ: Mapping[str, str], seconds: float) -> dict[str, Any]:
    with open(folder / "stderr", "a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.sampling", way, str(host.tree.root), str(seconds)],
            env=dict(environ), cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    try:
        while process.poll() is None:
            host.advance_between_seconds()
        output, _ = process.communicate()
    finally:
        process.kill()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, way)
    answer: dict[str, Any] = json.loads(output)
    return answer


def _of_collector(
    binary: Path, folder: Path, host: _Host, environ: Mapping[str, str], seconds: float
) -> float:
    """Return the share of a core that a Collector takes."""
    collector = _Collector(binary, folder, host.tree.root, environ)
    try:
        for _ in range(_WARM_S):
            host.advance_between_seconds()
        began, cpu = time.perf_counter(), collector.cpu_s()
        while time.perf_counter() < began + seconds:
            host.advance_between_seconds()
        return (collector.cpu_s() - cpu) / (time.perf_counter() - began)
    finally:
        collector.close()


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
    work(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
