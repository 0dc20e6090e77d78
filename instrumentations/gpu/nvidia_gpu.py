# SPDX-License-Identifier: Apache-2.0
"""A GPU of NVIDIA, with its MIG instances, as a source.

It is read with few calls, since each goes into the driver: what does not change is asked for every sixtieth
reading, what changes slowly every fifth or tenth, and its counters come in one call (`nvmlfields`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from grademl_otel.catalog import gpu as catalog
from grademl_otel.catalog.metric import Metric
from grademl_otel.convert.spans import Attributes
from grademl_otel.instrumentations.gpu import nvml, nvmlgroups, plausible
from grademl_otel.instrumentations.gpu.device import Device, pcie_rate
from grademl_otel.instrumentations.gpu.nvmlgroups import Counters
from grademl_otel.instrumentations.gpu.nvmlpcie import PcieBytes
from grademl_otel.instrumentations.gpu.plausible import Implausible, within
from grademl_otel.instrumentations.gpu.probes import Probe, Probes, Verdict
from grademl_otel.sampling.source import Reading, SourceGone

_SOON: Final = 5
_SELDOM: Final = 10
_RARELY: Final = 60
"""Readings from one call to the next."""
_MIG_EVERY: Final = 30

_GRAPHICS_CLOCK, _SM_CLOCK, _MEMORY_CLOCK = 0, 1, 2
_GPU_SENSOR: Final = 0
_SHUTDOWN, _SLOWDOWN = 0, 1
_XID_EVENT: Final = 8
_MOST_EVENTS: Final = 16
"""Of one reading; the others come with the next."""
_MOST_PROCESSES: Final = 256
_PCIE_BYTES: Final = "pcie bytes"

_REASONS: Final = (
    (0x04, "sw_power_cap"),
    (0x08, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal_slowdown"),
    (0x40, "hw_thermal_slowdown"),
    (0x80, "hw_power_brake"),
)
"""Bits of what holds clocks down against the will of whoever uses the GPU; the others are idleness, and
clocks that somebody set."""
_HELD_DOWN: Final = sum(bit for bit, _ in _REASONS)


class NvidiaGpu:
    """Reads the GPU called ``device``; ``uuid`` is its id as the driver spells it."""

    def __init__(self, library: nvml.Library, device: Device, uuid: bytes) -> None:
        self.name = f"gpu {device.id}"
        self.device = device
        self.gone = False
        """It was taken out."""
        self._library = library
        self._uuid = uuid
        self._probes = Probes(self.name, nvml.verdict)
        self._generation = 0
        self._handle: object = None
        self._events: object = None
        self._events_of = 0
        """The generation of the library that they are of."""
        self._xids = 0
        self._last_xid: int | None = None
        self._pcie = PcieBytes(device)
        self._counters = Counters(device)
        self._active_links: int | None = None
        self._reasons: tuple[int, list[Reading]] = (-1, [])
        """What held clocks down last, and its points."""
        self._instances: dict[str, Device] = {}
        self._mig: Probe | None = None
        self._mig_mode: int | None = None

    def read(self) -> Sequence[Reading]:
        """Return what it says now; see `Source.read`."""
        if self.gone:
            raise SourceGone(self.name)
        self._pcie.forget()
        self._library.open()
        generation = self._library.generation
        try:
            with self._library.call():
                if self._generation != generation:
                    self._open(generation)
                return self._probes.read()
        except Exception as error:
            if nvml.code(error) is not None:
                self._library.failed(generation, error)
            raise

    @property
    def rest_after_s(self) -> float:
        """See `InParts.rest_after_s`."""
        return self._pcie.rest_after_s

    def read_rest(self) -> Sequence[Reading]:
        """Return the bytes over PCIe, of which `read` could not tell at once; see `InParts.read_rest`."""
        self._library.open()  # another GPU that was lost may have closed it meanwhile
        generation = self._library.generation
        if self._generation != generation:
            self._pcie.forget()
            return ()
        try:
            with self._library.call():
                return self._pcie.read_rest(self._library.api)
        except Exception as error:
            if nvml.verdict(error) is not Verdict.DEVICE:
                self._probes.failed(_PCIE_BYTES, error)
                return ()
            self._library.failed(generation, error)
            raise

    def close(self) -> None:
        """Let go of its events."""
        self._free_events()
        self._generation = 0

    def _free_events(self) -> None:
        if self._events is not None and self._events_of == self._library.generation:
            try:
                self._library.api.nvmlEventSetFree(self._events)
            except Exception:
                pass  # the library was closed, and has freed them
        self._events = None

    # What is asked for

    def _open(self, generation: int) -> None:
        """Find out what this GPU supports: at first, when the library was initialized anew, when MIG was
        turned on or off.
        """
        api = self._library.api
        try:
            self._handle = api.nvmlDeviceGetHandleByUUID(self._uuid)
        except Exception as error:
            if nvml.code(error) in (nvml.NOT_FOUND, nvml.GPU_NOT_FOUND):
                raise SourceGone(self.name) from error
            raise
        self._free_events()
        self._instances.clear()
        self._probes.clear()
        self._mig_mode = None
        self._plan(api)
        self._generation = generation

    def _plan(self, api: Any) -> None:
        handle, device, probes = self._handle, self.device, self._probes

        def add(name: str, read: Callable[[], Sequence[Reading]], every: int = 1) -> Probe:
            probe = Probe(name, read, every)
            probes.add(probe)
            return probe

        # Limits first: they are the capacities of what follows.
        add("pcie limit", lambda: self._pcie_limit(handle), _RARELY)
        add("power limit", lambda: self._power_limit(handle), _RARELY)
        add("sm clock limit", lambda: self._clock_limit(handle, _SM_CLOCK, "sm"), _RARELY)
        add("memory clock limit", lambda: self._clock_limit(handle, _MEMORY_CLOCK, "memory"), _RARELY)
        add("shutdown temperature", lambda: self._limit(handle, _SHUTDOWN, "critical"), _RARELY)
        add("slowdown temperature", lambda: self._limit(handle, _SLOWDOWN, "throttled"), _RARELY)
        add("nvlink", lambda: self._links(handle), _RARELY)
        add("utilization", lambda: self._utilization(handle, device))
        add("memory", lambda: self._memory(handle, device))
        add("power", lambda: self._power(handle))
        add("temperature", lambda: self._temperature(handle))
        add("sm clock", lambda: self._clock(handle, catalog.SM_CLOCK, _SM_CLOCK, "sm"))
        add("memory clock", lambda: self._clock(handle, catalog.MEMORY_CLOCK, _MEMORY_CLOCK, "memory"))
        add("throttle reasons", lambda: self._throttled(handle))
        groups = nvmlgroups.supported(api, handle, self._probes.failed)
        self._counters.begin(groups)
        for every in sorted({group.every for group in groups}):
            chosen = [group for group in groups if group.every == every]
            reader = nvmlgroups.Reader(api, handle, chosen, self._counters, self._probes.failed)
            add("counters", reader.read, every)
        if not any(group.is_energy for group in groups):
            add("energy", lambda: self._counters.energy(api.nvmlDeviceGetTotalEnergyConsumption(handle)))
        add("xid", lambda: self._xid_errors(handle))
        add("encoder", lambda: self._media(api.nvmlDeviceGetEncoderUtilization, handle, "encoder"), _SOON)
        add("decoder", lambda: self._media(api.nvmlDeviceGetDecoderUtilization, handle, "decoder"), _SOON)
        add("processes", lambda: self._processes(handle, device), _SOON)
        add("fans", lambda: self._fans(handle), _SOON)
        add("pcie link", lambda: self._pcie_link(handle), _SELDOM)
        self._mig = add("mig", lambda: self._find_instances(handle), _MIG_EVERY)
        add(_PCIE_BYTES, self._pcie.open(api, handle))  # last, since there may be more of it (`read_rest`)
        try:  # now, so that the first reading has them
            self._find_instances(handle)
            self._mig.wait = _MIG_EVERY
        except Exception:
            pass  # the probe meets it again, and counts it

    # Calls; each may raise NVMLError or Implausible

    def _utilization(self, handle: object, device: Device) -> list[Reading]:
        rates = self._library.api.nvmlDeviceGetUtilizationRates(handle)
        general = within(rates.gpu, plausible.PERCENT, "a utilization")
        busy = within(rates.memory, plausible.PERCENT, "a utilization of memory")
        return [
            (device.series(catalog.UTILIZATION, "general", capacity=1), general / 100),
            (device.series(catalog.MEMORY_BUSY), busy / 100),
        ]

    def _media(self, call: Callable[[object], list[int]], handle: object, task: str) -> list[Reading]:
        used = within(call(handle)[0], plausible.PERCENT, f"a utilization of the {task}")
        return [(self.device.series(catalog.MEDIA_UTILIZATION, task), used / 100)]

    def _memory(self, handle: object, device: Device) -> list[Reading]:
        api = self._library.api
        try:
            memory = api.nvmlDeviceGetMemoryInfo(handle, api.nvmlMemory_v2)
        except Exception as error:
            if nvml.verdict(error) is not Verdict.UNSUPPORTED:
                raise
            memory = api.nvmlDeviceGetMemoryInfo(handle)  # counts what the driver keeps for itself as used
        total, used = memory.total, memory.used
        within(total, plausible.MEMORY_BYTES, "a memory", 1)
        within(used, total, "memory in use")
        return [
            (device.series(catalog.MEMORY_USAGE, capacity=total), used),
            (device.series(catalog.MEMORY_LIMIT), total),
            (device.series(catalog.MEMORY_UTILIZATION), used / total),
        ]

    def _power(self, handle: object) -> list[Reading]:
        power = within(self._library.api.nvmlDeviceGetPowerUsage(handle), plausible.MILLIWATT, "a power")
        return [(self.device.series(catalog.POWER), power / 1000)]

    def _power_limit(self, handle: object) -> list[Reading]:
        limit = self._library.api.nvmlDeviceGetEnforcedPowerLimit(handle)
        watt = within(limit, plausible.MILLIWATT, "a power limit", 1) / 1000
        self.device.series(catalog.POWER, capacity=watt)
        return [(self.device.series(catalog.POWER_LIMIT), watt)]

    def _temperature(self, handle: object) -> list[Reading]:
        celsius = self._library.api.nvmlDeviceGetTemperature(handle, _GPU_SENSOR)
        within(celsius, plausible.CELSIUS, "a temperature")
        return [(self.device.series(catalog.TEMPERATURE, "gpu"), celsius)]

    def _limit(self, handle: object, which: int, limit_type: str) -> list[Reading]:
        celsius = self._library.api.nvmlDeviceGetTemperatureThreshold(handle, which)
        within(celsius, plausible.CELSIUS, "a limit of temperature", 1)
        return [(self.device.series(catalog.TEMPERATURE_LIMIT, "gpu", limit_type), celsius)]

    def _clock(self, handle: object, metric: Metric, which: int, domain: str) -> list[Reading]:
        clock = within(
            self._library.api.nvmlDeviceGetClockInfo(handle, which), plausible.MEGAHERTZ, "a clock"
        )
        return [(self.device.series(metric, domain), clock * 1_000_000)]

    def _clock_limit(self, handle: object, which: int, domain: str) -> list[Reading]:
        clock = self._library.api.nvmlDeviceGetMaxClockInfo(handle, which)
        hertz = within(clock, plausible.MEGAHERTZ, "a limit of a clock", 1) * 1_000_000
        metric = catalog.SM_CLOCK if which == _SM_CLOCK else catalog.MEMORY_CLOCK
        self.device.series(metric, domain, capacity=hertz)
        return [(self.device.series(catalog.CLOCK_LIMIT, domain), hertz)]

    def _throttled(self, handle: object) -> list[Reading]:
        api = self._library.api
        reasons = api.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        if reasons == self._reasons[0]:
            return self._reasons[1]
        if reasons >= (1 << 32) - 1:  # as some drivers say for "nothing"
            raise Implausible(f"reasons {reasons:#x}")
        device = self.device
        readings: list[Reading] = [
            (device.series(catalog.THROTTLE_ACTIVE, name), int(bool(reasons & bit))) for bit, name in _REASONS
        ]
        readings.append((device.series(catalog.THROTTLED, capacity=1), int(bool(reasons & _HELD_DOWN))))
        self._reasons = (reasons, readings)
        return readings

    def _fans(self, handle: object) -> list[Reading]:
        api = self._library.api
        try:
            speeds = [
                api.nvmlDeviceGetFanSpeed_v2(handle, fan)
                for fan in range(within_count(api.nvmlDeviceGetNumFans(handle)))
            ]
        except Exception as error:
            if nvml.code(error) != 13 and not isinstance(error, AttributeError):
                raise
            speeds = [api.nvmlDeviceGetFanSpeed(handle)]  # an old driver
        return [
            (
                self.device.series(catalog.FAN_SPEED, fan),
                within(speed, plausible.FAN_PERCENT, "a speed of a fan") / 100,
            )
            for fan, speed in enumerate(speeds)
        ]

    def _pcie_link(self, handle: object) -> list[Reading]:
        api, device = self._library.api, self.device
        generation = api.nvmlDeviceGetCurrPcieLinkGeneration(handle)
        width = api.nvmlDeviceGetCurrPcieLinkWidth(handle)
        within(generation, plausible.PCIE_GENERATION, "a generation of PCIe", 1)
        within(width, plausible.PCIE_LANES, "a width of PCIe", 1)
        return [
            (device.series(catalog.PCIE_GENERATION), generation),
            (device.series(catalog.PCIE_WIDTH), width),
        ]

    def _pcie_limit(self, handle: object) -> list[Reading]:
        api, device = self._library.api, self.device
        generation = api.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        width = api.nvmlDeviceGetMaxPcieLinkWidth(handle)
        within(generation, plausible.PCIE_GENERATION, "a generation of PCIe", 1)
        within(width, plausible.PCIE_LANES, "a width of PCIe", 1)
        readings: list[Reading] = [
            (device.series(catalog.PCIE_GENERATION_LIMIT), generation),
            (device.series(catalog.PCIE_WIDTH_LIMIT), width),
        ]
        rate = pcie_rate(generation, width)
        if rate is not None:
            readings.append((device.series(catalog.LINK_LIMIT, "pcie"), rate))
            self._pcie.capacity = rate
        return readings

    def _links(self, handle: object) -> list[Reading]:
        active, rate = nvmlgroups.active_links(self._library.api, handle)
        if active is None:
            return []
        if self._active_links not in (None, active):
            self._generation = 0  # others are to be added up now
        self._active_links = active
        readings: list[Reading] = [(self.device.series(catalog.NVLINK_LINKS), active)]
        if rate:
            self._counters.nvlink_capacity = rate
            readings.append((self.device.series(catalog.LINK_LIMIT, "nvlink"), rate))
        return readings

    def _xid_errors(self, handle: object) -> list[Reading]:
        api = self._library.api
        if self._events is None:
            events = api.nvmlEventSetCreate()
            try:
                api.nvmlDeviceRegisterEvents(handle, _XID_EVENT, events)
            except Exception:
                api.nvmlEventSetFree(events)
                raise
            self._events, self._events_of = events, self._library.generation
        for _ in range(_MOST_EVENTS):
            try:
                event = api.nvmlEventSetWait_v2(self._events, 0)
            except Exception as error:
                if nvml.code(error) == nvml.TIMEOUT:
                    break
                raise
            if event.eventType & _XID_EVENT:
                self._xids += 1
                self._last_xid = event.eventData
        readings: list[Reading] = [(self.device.series(catalog.ERRORS, "xid"), self._xids)]
        if self._last_xid is not None and self._last_xid < 1 << 32:
            readings.append((self.device.series(catalog.XID), self._last_xid))
        return readings

    def _processes(self, handle: object, device: Device) -> list[Reading]:
        api = self._library.api
        used: dict[int, int] = {}
        errors = []
        for call in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            try:
                running = _running(api, call, handle)
            except Exception as error:
                if nvml.verdict(error) is Verdict.DEVICE:
                    raise
                errors.append(error)
                continue
            for process in running[:_MOST_PROCESSES]:
                memory = process.usedGpuMemory
                if process.pid and memory is not None and memory <= plausible.MEMORY_BYTES:
                    used[process.pid] = max(memory, used.get(process.pid, 0))
        if len(errors) == 2:
            raise errors[0]
        device.keep(catalog.PROCESS_MEMORY, {(pid,) for pid in used})
        return [(device.series(catalog.PROCESS_MEMORY, pid), memory) for pid, memory in used.items()]

    # MIG

    def _find_instances(self, handle: object) -> list[Reading]:
        """Read other instances from now on if they have changed; reads nothing itself."""
        api = self._library.api
        found: dict[str, tuple[Device, object]] = {}
        mode = api.nvmlDeviceGetMigMode(handle)[0]
        if mode != self._mig_mode and self._mig_mode is not None:
            self._generation = 0  # other things are supported now
        self._mig_mode = mode
        if mode == 1:
            for index in range(within_count(api.nvmlDeviceGetMaxMigDeviceCount(handle))):
                try:
                    instance = api.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
                    device = self._instance(instance)
                except Exception as error:
                    if nvml.verdict(error) is Verdict.DEVICE:
                        raise
                    continue  # no instance of that number
                found[device.id] = (device, instance)
        for id in [id for id in self._instances if id not in found]:
            self._forget(id)
        for id, (device, instance) in found.items():
            if id not in self._instances:
                self._instances[id] = device
                self._read_instance(device, instance)
        return []

    def _instance(self, handle: object) -> Device:
        api = self._library.api
        id = text(api.nvmlDeviceGetUUID, handle)
        known = self._instances.get(id)
        if known is not None:
            return known
        own = {key: value for key, value in self.device.attributes.items() if key not in ("hw.id", "hw.type")}
        attributes: Attributes = {**own, "hw.parent": self.device.id}
        try:
            attributes["hw.model"] = text(api.nvmlDeviceGetName, handle)
            numbers = f"{api.nvmlDeviceGetGpuInstanceId(handle)}/{api.nvmlDeviceGetComputeInstanceId(handle)}"
            attributes["hw.name"] = f"{own.get('hw.name', 'GPU')} instance {numbers}"
        except Exception as error:
            if nvml.verdict(error) is Verdict.DEVICE:
                raise
        return Device(id, attributes)

    def _read_instance(self, device: Device, handle: object) -> None:
        def add(name: str, read: Callable[[], Sequence[Reading]], every: int = 1) -> None:
            def guarded() -> Sequence[Reading]:
                try:
                    return read()
                except Exception as error:
                    if nvml.code(error) in (nvml.INVALID_ARGUMENT, nvml.NOT_FOUND, nvml.GPU_IS_LOST):
                        self._forget(device.id)  # it was destroyed
                        if self._mig is not None:
                            self._mig.wait = 0
                        return ()
                    raise

            self._probes.add(Probe(f"{name} of an instance", guarded, every, device.id))

        add("memory", lambda: self._memory(handle, device))
        add("utilization", lambda: self._utilization(handle, device))
        add("processes", lambda: self._processes(handle, device), _SOON)

    def _forget(self, id: str) -> None:
        self._instances.pop(id, None)
        self._probes.drop(id)


def within_count(count: int) -> int:
    """Return a count of parts of a GPU; raises `Implausible`."""
    return int(within(count, plausible.LINKS, "a count"))


def text(call: Callable[..., Any], *arguments: object) -> str:
    """Return what a function of nvidia-ml-py returns as text, even if it is no UTF-8."""
    return raw(call, *arguments).decode("utf-8", "replace")


def raw(call: Callable[..., Any], *arguments: object) -> bytes:
    """Return the bytes that a function of nvidia-ml-py decodes: what it decorates returns them."""
    answer = getattr(call, "__wrapped__", call)(*arguments)
    return answer if isinstance(answer, bytes) else str(answer).encode()


def _running(api: Any, name: str, handle: object) -> Sequence[Any]:
    """Return the processes that ``name`` tells of, by the newest version of it that the driver has."""
    for version in ("_v3", "_v2"):
        call = getattr(api, name + version, None)
        if call is None:
            continue
        try:
            found: Sequence[Any] = call(handle)
            return found
        except Exception as error:
            if nvml.code(error) != 13:
                raise
    raise NotImplementedError(name)
