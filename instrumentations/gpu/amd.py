# SPDX-License-Identifier: Apache-2.0
"""GPUs of AMD, through amdsmi, which ROCm brings; the names are those of GPUs of NVIDIA.

Never run on such a GPU: it is written after amdsmi 6.1 to 7.0 and tested with a stand-in of its functions.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, Final

from grademl_otel.catalog import gpu as catalog
from grademl_otel.catalog.metric import Metric
from grademl_otel.convert.spans import Attributes
from grademl_otel.instrumentations.gpu import plausible
from grademl_otel.instrumentations.gpu.device import Device, pci_id, pcie_rate
from grademl_otel.instrumentations.gpu.finding import Finder
from grademl_otel.instrumentations.gpu.plausible import Total, within
from grademl_otel.instrumentations.gpu.probes import Probe, Probes, Verdict, tell
from grademl_otel.sampling.source import Reading, Source, SourceGone

_SOON: Final = 5
_SELDOM: Final = 10
_RARELY: Final = 60
"""Readings from one call to the next."""

_DRIVER: Final = "/sys/module/amdgpu"
"""Where it is not, amdsmi is not imported: it complains itself where it finds no library."""

_INVALID: Final = 1
_NOT_FOUND: Final = 31
_NOT_INIT: Final = 32
_DRIVER_NOT_LOADED: Final = 34
_UNSUPPORTED: Final = frozenset((_INVALID, 2, 3, 5))
"""Invalid argument, not supported, not yet implemented, no such function in the library."""
_DEVICE: Final = frozenset((_NOT_FOUND, _NOT_INIT, _DRIVER_NOT_LOADED))

_MICROWATT: Final = 100_000
"""Power limits above are in uW, as on bare metal; those of some hosts are in W."""
_MICROJOULE_RATE: Final = 20_000_000_000
_GENERATIONS: Final = {2_500: 1, 5_000: 2, 8_000: 3, 16_000: 4, 32_000: 5, 64_000: 6}
"""By MT/s."""
_MOST_PROCESSES: Final = 256


def code(error: BaseException) -> int | None:
    """Return the number of an error of amdsmi's library; None for other errors."""
    number = getattr(error, "err_code", None)
    return number if isinstance(number, int) else None


def verdict(error: Exception) -> Verdict:
    """Return what an error of a call means."""
    number = code(error)
    if number in _UNSUPPORTED or isinstance(error, (AttributeError, LookupError, TypeError)):
        return Verdict.UNSUPPORTED  # the others: this version of amdsmi has it otherwise
    if type(error).__name__ in ("AmdSmiParameterException", "AmdSmiKeyException"):
        return Verdict.UNSUPPORTED
    return Verdict.DEVICE if number in _DEVICE else Verdict.CALL


class Library:
    """amdsmi in this process; handles are of one generation, as in `nvml.Library`."""

    def __init__(self) -> None:
        self.generation = 0
        self.api: Any = None
        self._ready = False
        self._lock = threading.Lock()

    def open(self) -> None:
        """Initialize it if it is not. Raises ImportError, or what amdsmi raises."""
        with self._lock:
            if self._ready:
                return
            if self.api is None:
                self.api = _imported()
            self.api.amdsmi_init()
            self.generation += 1
            self._ready = True

    def failed(self, generation: int, error: Exception) -> None:
        """Initialize it anew, at the next `open`, after an error that says that it would help."""
        if code(error) in (_NOT_INIT, _DRIVER_NOT_LOADED) and generation == self.generation:
            self.close()

    def close(self) -> None:
        """Let go of it, if it is initialized."""
        with self._lock:
            if self._ready:
                self._ready = False
                try:
                    self.api.amdsmi_shut_down()
                except Exception:
                    pass  # it is not initialized any more

    def handles(self) -> Sequence[object]:
        """Return the handles of all GPUs."""
        found: Sequence[object] = self.api.amdsmi_get_processor_handles()
        return found

    def id(self, handle: object) -> str:
        """Return the UUID of a GPU."""
        return str(self.api.amdsmi_get_gpu_device_uuid(handle))


class AmdGpu:
    """Reads the GPU called ``device``."""

    def __init__(self, library: Library, device: Device, index: int) -> None:
        self.name = f"gpu {device.id}"
        self.device = device
        self.gone = False
        """It was taken out."""
        self._library = library
        self._index = index
        """Among all; that of the last time."""
        self._probes = Probes(self.name, verdict)
        self._generation = 0
        self._handle: object = None
        self._totals: dict[str, Total] = {}
        self._resolution = 1.0

    def read(self) -> Sequence[Reading]:
        """Return what it says now; see `Source.read`."""
        if self.gone:
            raise SourceGone(self.name)
        library = self._library
        library.open()
        generation = library.generation
        try:
            if self._generation != generation:
                self._handle = self._find()
                self._plan()
                self._generation = generation
            return self._probes.read()
        except Exception as error:
            library.failed(generation, error)
            raise

    def close(self) -> None:
        """Nothing is held of a GPU."""
        self._generation = 0

    def _find(self) -> object:
        """Return its handle of this generation. Asks others only when it has another number: one may hang."""
        handles = self._library.handles()
        indices = sorted(range(len(handles)), key=lambda index: index != self._index)
        for index in indices:
            if self._library.id(handles[index]) == self.device.id:
                self._index = index
                return handles[index]
        raise SourceGone(self.name)

    def _plan(self) -> None:
        plan: tuple[tuple[str, Callable[[], Sequence[Reading]], int], ...] = (
            ("power limit", self._power_limit, _RARELY),
            ("pcie", self._pcie, _SELDOM),
            ("temperature limit", lambda: self._limit("EMERGENCY", "critical"), _RARELY),
            ("throttling temperature", lambda: self._limit("CRITICAL", "throttled"), _RARELY),
            ("utilization", self._utilization, 1),
            ("memory", self._memory, 1),
            ("power", self._power, 1),
            ("temperature", lambda: self._temperature("HOTSPOT", "gpu"), 1),
            ("memory temperature", lambda: self._temperature("VRAM", "memory"), 1),
            ("sm clock", lambda: self._clock(catalog.SM_CLOCK, "GFX", "sm"), 1),
            ("memory clock", lambda: self._clock(catalog.MEMORY_CLOCK, "MEM", "memory"), 1),
            ("energy", self._energy, 1),
            ("ecc", self._ecc, 1),
            ("processes", self._processes, _SOON),
            ("fan", self._fan, _SOON),
            ("throttling and links", self._metrics, _SOON),
        )
        self._probes.clear()
        for name, read, every in plan:
            self._probes.add(Probe(name, read, every))

    # Calls; each may raise what amdsmi raises, or Implausible

    def _utilization(self) -> list[Reading]:
        activity = self._library.api.amdsmi_get_gpu_activity(self._handle)
        readings: list[Reading] = []
        general, busy = _number(activity, "gfx_activity"), _number(activity, "umc_activity")
        if general is not None:
            within(general, plausible.PERCENT, "a utilization")
            readings.append((self.device.series(catalog.UTILIZATION, "general", capacity=1), general / 100))
        if busy is not None:
            within(busy, plausible.PERCENT, "a utilization of memory")
            readings.append((self.device.series(catalog.MEMORY_BUSY), busy / 100))
        return readings

    def _memory(self) -> list[Reading]:
        api, device = self._library.api, self.device
        kind = api.AmdSmiMemoryType.VRAM
        total = api.amdsmi_get_gpu_memory_total(self._handle, kind)
        used = api.amdsmi_get_gpu_memory_usage(self._handle, kind)
        within(total, plausible.MEMORY_BYTES, "a memory", 1)
        within(used, total, "memory in use")
        return [
            (device.series(catalog.MEMORY_USAGE, capacity=total), used),
            (device.series(catalog.MEMORY_LIMIT), total),
            (device.series(catalog.MEMORY_UTILIZATION), used / total),
        ]

    def _power(self) -> list[Reading]:
        power = self._library.api.amdsmi_get_power_info(self._handle)
        watt = _number(power, "current_socket_power", "average_socket_power", "socket_power")
        if not watt:  # which of them there is depends on the GPU; the others are 0 or N/A
            return []
        within(watt, plausible.MILLIWATT / 1000, "a power")
        return [(self.device.series(catalog.POWER), watt)]

    def _power_limit(self) -> list[Reading]:
        limit = _number(self._library.api.amdsmi_get_power_cap_info(self._handle), "power_cap")
        if not limit:
            return []
        watt = limit / 1e6 if limit > _MICROWATT else limit
        within(watt, plausible.MILLIWATT / 1000, "a power limit")
        self.device.series(catalog.POWER, capacity=watt)
        return [(self.device.series(catalog.POWER_LIMIT), watt)]

    def _celsius(self, sensor: str, metric: str) -> int:
        api = self._library.api
        celsius: int = api.amdsmi_get_temp_metric(
            self._handle, api.AmdSmiTemperatureType[sensor], api.AmdSmiTemperatureMetric[metric]
        )
        within(celsius, plausible.CELSIUS, "a temperature", 1)
        return celsius

    def _temperature(self, sensor: str, location: str) -> list[Reading]:
        return [(self.device.series(catalog.TEMPERATURE, location), self._celsius(sensor, "CURRENT"))]

    def _limit(self, metric: str, limit_type: str) -> list[Reading]:
        series = self.device.series(catalog.TEMPERATURE_LIMIT, "gpu", limit_type)
        return [(series, self._celsius("HOTSPOT", metric))]

    def _clock(self, metric: Metric, kind: str, domain: str) -> list[Reading]:
        api = self._library.api
        clocks = api.amdsmi_get_clock_info(self._handle, api.AmdSmiClkType[kind])
        readings: list[Reading] = []
        most = _number(clocks, "max_clk")
        if most:
            hertz = int(within(most, plausible.MEGAHERTZ, "a limit of a clock")) * 1_000_000
            self.device.series(metric, domain, capacity=hertz)
            readings.append((self.device.series(catalog.CLOCK_LIMIT, domain), hertz))
        clock = _number(clocks, "clk", "cur_clk")
        if clock is not None:
            within(clock, plausible.MEGAHERTZ, "a clock")
            readings.append((self.device.series(metric, domain), int(clock) * 1_000_000))
        return readings

    def _energy(self) -> list[Reading]:
        energy = self._library.api.amdsmi_get_energy_count(self._handle)
        raw, resolution = (
            _number(energy, "energy_accumulator", "power"),
            _number(energy, "counter_resolution"),
        )
        if raw is None or not resolution:
            return []
        within(resolution, 1e6, "a resolution")
        total = self._total("energy", _MICROJOULE_RATE / resolution).add(int(raw), time.perf_counter())
        return [(self.device.series(catalog.ENERGY), total * resolution / 1e6)]

    def _ecc(self) -> list[Reading]:
        counts = self._library.api.amdsmi_get_gpu_total_ecc_count(self._handle)
        return self._errors(
            ("ecc.corrected", _number(counts, "correctable_count")),
            ("ecc.uncorrected", _number(counts, "uncorrectable_count")),
        )

    def _pcie(self) -> list[Reading]:
        info = self._library.api.amdsmi_get_pcie_info(self._handle)
        now, most, device = info["pcie_metric"], info["pcie_static"], self.device
        readings = self._errors(("pcie.replay", _number(now, "pcie_replay_count")))
        generation, width = _generation(_number(now, "pcie_speed")), _number(now, "pcie_width")
        if generation:
            readings.append((device.series(catalog.PCIE_GENERATION), generation))
        if width:
            within(width, plausible.PCIE_LANES, "a width of PCIe")
            readings.append((device.series(catalog.PCIE_WIDTH), width))
        generation, width = _generation(_number(most, "max_pcie_speed")), _number(most, "max_pcie_width")
        if generation:
            readings.append((device.series(catalog.PCIE_GENERATION_LIMIT), generation))
        if width:
            within(width, plausible.PCIE_LANES, "a width of PCIe")
            readings.append((device.series(catalog.PCIE_WIDTH_LIMIT), width))
        if generation and width:
            rate = pcie_rate(generation, int(width))
            if rate is not None:
                readings.append((device.series(catalog.LINK_LIMIT, "pcie"), rate))
        return readings

    def _processes(self) -> list[Reading]:
        used: dict[int, int] = {}
        for process in self._library.api.amdsmi_get_gpu_process_list(self._handle)[:_MOST_PROCESSES]:
            pid, memory = _number(process, "pid"), _number(process["memory_usage"], "vram_mem")
            if pid and memory is not None and memory <= plausible.MEMORY_BYTES:
                used[int(pid)] = max(int(memory), used.get(int(pid), 0))
        self.device.keep(catalog.PROCESS_MEMORY, {(pid,) for pid in used})
        return [(self.device.series(catalog.PROCESS_MEMORY, pid), memory) for pid, memory in used.items()]

    def _fan(self) -> list[Reading]:
        api = self._library.api
        most = api.amdsmi_get_gpu_fan_speed_max(self._handle, 0)
        if not most:
            return []
        ratio = api.amdsmi_get_gpu_fan_speed(self._handle, 0) / most
        within(ratio, plausible.FAN_PERCENT / 100, "a speed of a fan")
        return [(self.device.series(catalog.FAN_SPEED, 0), ratio)]

    def _metrics(self) -> list[Reading]:
        metrics = self._library.api.amdsmi_get_gpu_metrics_info(self._handle)
        readings: list[Reading] = []
        held = [metrics.get(name) for name in ("throttle_status", "indep_throttle_status")]
        told = [each for each in held if isinstance(each, int)]  # or "N/A"; bool is an int
        if told:
            readings.append((self.device.series(catalog.THROTTLED, capacity=1), int(any(told))))
        for name, direction in (("xgmi_read_data_acc", "receive"), ("xgmi_write_data_acc", "transmit")):
            links = metrics.get(name)
            counts = [each for each in links if type(each) is int] if isinstance(links, (list, tuple)) else []
            if counts:
                raw = sum(counts) * 1024
                total = self._total(name, plausible.BYTE_RATE).add(raw, time.perf_counter())
                readings.append((self.device.series(catalog.XGMI_IO, direction, "xgmi"), total))
        return readings

    def _errors(self, *counts: tuple[str, int | float | None]) -> list[Reading]:
        readings: list[Reading] = []
        for kind, count in counts:
            if count is not None:
                total = self._total(kind, plausible.ERROR_RATE).add(int(count), time.perf_counter())
                readings.append((self.device.series(catalog.ERRORS, kind), total))
        return readings

    def _total(self, name: str, rate: float) -> Total:
        total = self._totals.get(name)
        if total is None:
            total = self._totals[name] = Total(rate)
        return total


class AmdProvider:
    """The GPUs that amdsmi shows to this process."""

    name = "amd"

    def __init__(self, library: Library | None = None, driver: str = _DRIVER) -> None:
        self._library = library or Library()
        self._driver = driver
        self._finder = Finder(self._ask, partial(AmdGpu, self._library))

    def sources(self) -> Sequence[Source]:
        """Return the GPUs that there are; none where there is no driver or no amdsmi."""
        if not os.path.exists(self._driver):
            return self._finder.known
        library = self._library
        try:
            library.open()
        except (ImportError, OSError) as error:
            tell(f"GPUs of AMD are not read: amdsmi cannot be used: {error}")
            return []
        generation = library.generation
        try:
            count = len(library.handles())
        except Exception as error:
            library.failed(generation, error)
            raise
        return self._finder.find(count)

    def close(self) -> None:
        """Let go of the library."""
        self._library.close()

    def _ask(self, index: int) -> tuple[Device, int]:
        """Return a GPU, and its number."""
        api = self._library.api
        handle = self._library.handles()[index]
        id = self._library.id(handle)
        attributes: Attributes = {
            "hw.name": f"GPU {index}",
            "hw.vendor": "AMD",
            "grademl.gpu.index": index,
        }
        facts: tuple[tuple[str, Callable[[], str]], ...] = (
            ("hw.model", lambda: str(api.amdsmi_get_gpu_asic_info(handle)["market_name"])),
            ("hw.driver_version", lambda: str(api.amdsmi_get_gpu_driver_info(handle)["driver_version"])),
            ("grademl.gpu.pci.id", lambda: pci_id(str(api.amdsmi_get_gpu_device_bdf(handle)))),
        )
        for key, call in facts:
            try:
                text = call()
            except Exception as error:  # one that does not say its model is read all the same
                if verdict(error) is Verdict.DEVICE:
                    raise
                continue
            if text and text != "N/A":
                attributes[key] = text
        return Device(id, attributes), index


def _number(info: Mapping[str, object], *names: str) -> int | float | None:
    """Return the first of these that is a number and not 0, else 0 if one is; amdsmi says "N/A" for none."""
    numbers = [each for name in names if type(each := info.get(name)) in (int, float)]
    found = next((each for each in numbers if each), numbers[0] if numbers else None)
    return found if isinstance(found, (int, float)) else None


def _generation(speed: int | float | None) -> int | None:
    """Return the generation of PCIe of a speed in MT/s, or in GT/s as old versions say it."""
    if speed is None:
        return None
    return _GENERATIONS.get(round(speed if speed >= 100 else speed * 1000))


def _imported() -> ModuleType:
    if importlib.util.find_spec("amdsmi") is None:
        raise ImportError("it is not installed (ROCm brings it)")
    return importlib.import_module("amdsmi")
