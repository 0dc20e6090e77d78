# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the module amdsmi: the functions that are used of it, as version 7.0 has them.

Their parameters, their exceptions, what they refuse, and the shape of what they return are those of amdsmi;
"N/A" is its word for what a GPU does not tell.
"""

from __future__ import annotations

from copy import deepcopy
from enum import IntEnum
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

NOT_SUPPORTED: Final = 2
NO_PERMISSION: Final = 10
NOT_INIT: Final = 32
DRIVER_NOT_LOADED: Final = 34
UNKNOWN: Final = 0xFFFFFFFF

INSTINCT: Final[dict[str, Any]] = {
    # An Instinct MI300X.
    "uuid": "a3ff74a1-0000-1000-80d3-76c4f1a2{index:04x}",
    "bdf": "0000:{bus:02x}:00.0",
    "asic": {
        "market_name": "AMD Instinct MI300X",
        "vendor_id": "0x1002",
        "vendor_name": "Advanced Micro Devices",
    },
    "driver": {"driver_name": "amdgpu", "driver_version": "6.10.5", "driver_date": "N/A"},
    "activity": {"gfx_activity": 96, "umc_activity": 41, "mm_activity": "N/A"},
    "memory": {"VRAM": (206141652992, 103070826496)},
    "power": {
        "socket_power": 702,
        "current_socket_power": 702,
        "average_socket_power": "N/A",
        "gfx_voltage": "N/A",
        "soc_voltage": "N/A",
        "mem_voltage": "N/A",
        "power_limit": 750,
    },
    "power_cap": {
        "power_cap": 750_000_000,
        "default_power_cap": 750_000_000,
        "dpm_cap": 2100,
        "min_power_cap": 0,
        "max_power_cap": 750_000_000,
    },
    "temperature": {
        ("HOTSPOT", "CURRENT"): 71,
        ("HOTSPOT", "CRITICAL"): 100,
        ("HOTSPOT", "EMERGENCY"): 105,
        ("VRAM", "CURRENT"): 58,
    },
    "clock": {
        "GFX": {"clk": 2061, "min_clk": 132, "max_clk": 2100, "clk_locked": False, "clk_deep_sleep": "N/A"},
        "MEM": {"clk": 1300, "min_clk": 900, "max_clk": 1300, "clk_locked": "N/A", "clk_deep_sleep": "N/A"},
    },
    "energy": {
        "energy_accumulator": 1_000_000_000,
        "counter_resolution": 15.25,
        "timestamp": 1,
    },
    "ecc": {"correctable_count": 4, "uncorrectable_count": 0, "deferred_count": 0},
    "pcie": {
        "pcie_static": {
            "max_pcie_width": 16,
            "max_pcie_speed": 32000,
            "pcie_interface_version": 5,
            "slot_type": "OAM",
        },
        "pcie_metric": {
            "pcie_width": 16,
            "pcie_speed": 32000,
            "pcie_bandwidth": 120,
            "pcie_replay_count": 3,
            "pcie_l0_to_recovery_count": 1,
            "pcie_replay_roll_over_count": 0,
            "pcie_nak_sent_count": 0,
            "pcie_nak_received_count": 0,
            "pcie_lc_perf_other_end_recovery_count": 0,
        },
    },
    "processes": [
        {
            "name": "python3",
            "pid": 6001,
            "mem": 102005473280,
            "engine_usage": {"gfx": 0, "enc": 0},
            "memory_usage": {"gtt_mem": 0, "cpu_mem": 0, "vram_mem": 102005473280},
            "cu_occupancy": "N/A",
        }
    ],
    "fan": None,
    "metrics": {
        "throttle_status": "N/A",
        "indep_throttle_status": True,
        "xgmi_read_data_acc": [1000, 2000, "N/A", "N/A", "N/A", "N/A", "N/A", "N/A"],
        "xgmi_write_data_acc": [500, 700, "N/A", "N/A", "N/A", "N/A", "N/A", "N/A"],
    },
}

RADEON: Final[dict[str, Any]] = {
    # A card: no XGMI, no ECC, a fan of its own; told as version 6.1 does.
    **INSTINCT,
    "asic": {"market_name": "N/A"},
    "memory": {"VRAM": (25753026560, 1000)},
    "power": {"current_socket_power": "N/A", "average_socket_power": 98, "power_limit": 303},
    "power_cap": {"power_cap": 303, "default_power_cap": 303, "dpm_cap": 0, "min_power_cap": 0},
    "temperature": {("HOTSPOT", "CURRENT"): 52},
    "clock": {"GFX": {"cur_clk": 1500, "min_clk": 500, "max_clk": 2500, "sleep_clk": 0}},
    "energy": {"power": 1_000_000_000, "counter_resolution": 15.25, "timestamp": 1},
    "ecc": NOT_SUPPORTED,
    "pcie": {
        "pcie_static": {
            "max_pcie_width": 16,
            "max_pcie_speed": 16,
            "pcie_interface_version": 4,
            "slot_type": "PCIE",
        },
        "pcie_metric": {
            "pcie_width": 16,
            "pcie_speed": 2.5,
            "pcie_bandwidth": "N/A",
            "pcie_replay_count": "N/A",
        },
    },
    "processes": [object()],  # handles, in that version
    "fan": (51, 255),
    "metrics": {"throttle_status": False, "xgmi_read_data_acc": "N/A"},
}


class AmdSmiException(Exception):
    pass


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, err_code: int) -> None:
        super().__init__(abs(err_code))
        self.err_code = abs(err_code)

    def get_error_code(self) -> int:
        return self.err_code


class AmdSmiParameterException(AmdSmiException):
    def __init__(self, receivedValue: object, expectedType: object) -> None:
        super().__init__(None)
        self.err_code = None


class AmdSmiInitFlags(IntEnum):
    INIT_AMD_CPUS = 1
    INIT_AMD_GPUS = 2


class AmdSmiMemoryType(IntEnum):
    VRAM = 0
    VIS_VRAM = 1
    GTT = 2


class AmdSmiClkType(IntEnum):
    SYS = 0
    GFX = 0
    DF = 1
    DCEF = 2
    SOC = 3
    MEM = 4


class AmdSmiTemperatureType(IntEnum):
    EDGE = 0
    HOTSPOT = 1
    JUNCTION = 1
    VRAM = 2


class AmdSmiTemperatureMetric(IntEnum):
    CURRENT = 0
    MAX = 1
    CRITICAL = 5
    EMERGENCY = 7


class Handle:
    """``amdsmi_processor_handle``."""

    def __init__(self, index: int) -> None:
        self.index = index


class FakeAmdSmi(ModuleType):
    """The module, with the GPUs ``gpus``: each a copy of what is told of one. An int in place of what it
    tells is the error that a function ends with.
    """

    def __init__(self, *kinds: dict[str, Any]) -> None:
        super().__init__("amdsmi")
        self.__spec__ = ModuleSpec("amdsmi", None)
        self.gpus: list[dict[str, Any]] = []
        for index, kind in enumerate(kinds):
            gpu = deepcopy(kind)
            gpu["uuid"] = gpu["uuid"].format(index=index)
            gpu["bdf"] = gpu["bdf"].format(bus=5 + index)
            self.gpus.append(gpu)
        self.failing: int = 0
        """The error of amdsmi_init."""
        self.initialized = False
        self._handles = [Handle(index) for index in range(len(kinds))]
        for each in (
            *(AmdSmiException, AmdSmiLibraryException, AmdSmiParameterException, AmdSmiInitFlags),
            *(AmdSmiMemoryType, AmdSmiClkType, AmdSmiTemperatureType, AmdSmiTemperatureMetric),
        ):
            setattr(self, each.__name__, each)

    def _told(self, handle: object, name: str) -> Any:
        if not isinstance(handle, Handle):
            raise AmdSmiParameterException(handle, Handle)
        if not self.initialized:
            raise AmdSmiLibraryException(NOT_INIT)
        told = self.gpus[handle.index][name]
        if type(told) is int:
            raise AmdSmiLibraryException(told)
        return deepcopy(told) if name != "processes" else list(told)

    def _chosen(self, handle: object, name: str, key: object) -> Any:
        told = self._told(handle, name)
        if key not in told:
            raise AmdSmiLibraryException(NOT_SUPPORTED)
        return told[key]

    def amdsmi_init(self, flag: AmdSmiInitFlags = AmdSmiInitFlags.INIT_AMD_GPUS) -> None:
        if not isinstance(flag, AmdSmiInitFlags):
            raise AmdSmiParameterException(flag, AmdSmiInitFlags)
        if self.failing:
            raise AmdSmiLibraryException(self.failing)
        self.initialized = True

    def amdsmi_shut_down(self) -> None:
        if not self.initialized:
            raise AmdSmiLibraryException(NOT_INIT)
        self.initialized = False

    def amdsmi_get_processor_handles(self) -> list[Handle]:
        if not self.initialized:
            raise AmdSmiLibraryException(NOT_INIT)
        return self._handles[: len(self.gpus)]

    def amdsmi_get_gpu_device_uuid(self, processor_handle: Handle) -> str:
        return str(self._told(processor_handle, "uuid"))

    def amdsmi_get_gpu_device_bdf(self, processor_handle: Handle) -> str:
        return str(self._told(processor_handle, "bdf"))

    def amdsmi_get_gpu_asic_info(self, processor_handle: Handle) -> dict[str, Any]:
        return dict(self._told(processor_handle, "asic"))

    def amdsmi_get_gpu_driver_info(self, processor_handle: Handle) -> dict[str, Any]:
        return dict(self._told(processor_handle, "driver"))

    def amdsmi_get_gpu_activity(self, processor_handle: Handle) -> dict[str, Any]:
        return dict(self._told(processor_handle, "activity"))

    def amdsmi_get_gpu_memory_total(self, processor_handle: Handle, mem_type: AmdSmiMemoryType) -> int:
        if not isinstance(mem_type, AmdSmiMemoryType):
            raise AmdSmiParameterException(mem_type, AmdSmiMemoryType)
        return int(self._chosen(processor_handle, "memory", mem_type.name)[0])

    def amdsmi_get_gpu_memory_usage(self, processor_handle: Handle, mem_type: AmdSmiMemoryType) -> int:
        if not isinstance(mem_type, AmdSmiMemoryType):
            raise AmdSmiParameterException(mem_type, AmdSmiMemoryType)
        return int(self._chosen(processor_handle, "memory", mem_type.name)[1])

    def amdsmi_get_power_info(self, processor_handle: Handle) -> dict[str, Any]:
        return dict(self._told(processor_handle, "power"))

    def amdsmi_get_power_cap_info(self, processor_handle: Handle) -> dict[str, Any]:
        return dict(self._told(processor_handle, "power_cap"))

    def amdsmi_get_temp_metric(
        self, processor_handle: Handle, sensor_type: AmdSmiTemperatureType, metric: AmdSmiTemperatureMetric
    ) -> int:
        if not isinstance(sensor_type, AmdSmiTemperatureType):
            raise AmdSmiParameterException(sensor_type, AmdSmiTemperatureType)
        if not isinstance(metric, AmdSmiTemperatureMetric):
            raise AmdSmiParameterException(metric, AmdSmiTemperatureMetric)
        return int(self._chosen(processor_handle, "temperature", (sensor_type.name, metric.name)))

    def amdsmi_get_clock_info(self, processor_handle: Handle, clock_type: AmdSmiClkType) -> dict[str, Any]:
        if not isinstance(clock_type, AmdSmiClkType):
            raise AmdSmiParameterException(clock_type, AmdSmiClkType)
        name = "GFX" if clock_type is AmdSmiClkType.GFX else clock_type.name
        return dict(self._chosen(processor_handle, "clock", name))

    def amdsmi_get_energy_count(self, processor_handle: Handle) -> dict[str, Any]:
        return dict(self._told(processor_handle, "energy"))

    def amdsmi_get_gpu_total_ecc_count(self, processor_handle: Handle) -> dict[str, Any]:
        return dict(self._told(processor_handle, "ecc"))

    def amdsmi_get_pcie_info(self, processor_handle: Handle) -> dict[str, Any]:
        return dict(self._told(processor_handle, "pcie"))

    def amdsmi_get_gpu_process_list(self, processor_handle: Handle) -> list[Any]:
        return list(self._told(processor_handle, "processes"))

    def amdsmi_get_gpu_fan_speed(self, processor_handle: Handle, sensor_idx: int) -> int:
        return int(self._fan(processor_handle)[0])

    def amdsmi_get_gpu_fan_speed_max(self, processor_handle: Handle, sensor_idx: int) -> int:
        return int(self._fan(processor_handle)[1])

    def _fan(self, handle: Handle) -> tuple[int, int]:
        told = self._told(handle, "fan")
        if told is None:
            raise AmdSmiLibraryException(NOT_SUPPORTED)
        return (int(told[0]), int(told[1]))

    def amdsmi_get_gpu_metrics_info(self, processor_handle: Handle) -> dict[str, Any]:
        return dict(self._told(processor_handle, "metrics"))
