# SPDX-License-Identifier: Apache-2.0
"""Metrics of GPUs, the same for NVIDIA and AMD. What the values mean in more words: docs/gpu.md.

Each point says which GPU (or instance of one) it is of: hw.id, hw.type, hw.name, hw.vendor, hw.model,
hw.driver_version, grademl.gpu.index, grademl.gpu.pci.id; of an instance hw.parent, too.
"""

from __future__ import annotations

from typing import Final

from grademl_otel.catalog.metric import COUNTER, GAUGE, UPDOWN, Metric

TASK: Final = "hw.gpu.task"
LOCATION: Final = "hw.sensor_location"
LIMIT_TYPE: Final = "hw.limit_type"
ERROR_TYPE: Final = "error.type"
DIRECTION: Final = "network.io.direction"
LINK: Final = "grademl.gpu.link.type"
ESTIMATED: Final = "grademl.gpu.link.estimated"
"""True: how much passed between two readings is known by a rate that was looked at once, for 20 ms."""
DOMAIN: Final = "grademl.gpu.clock.domain"
REASON: Final = "grademl.gpu.throttle.reason"
FAN_NUMBER: Final = "grademl.gpu.fan"
PID: Final = "process.pid"

UTILIZATION: Final = Metric(
    "hw.gpu.utilization",
    "1",
    GAUGE,
    "Part of the driver's last sampling period in which a kernel ran; not how much of the GPU it filled.",
    "NVIDIA, AMD; not of MIG instances, nor of a GPU that is divided into them",
    (TASK,),
    "gpu.utilization",
    1000,
)
MEDIA_UTILIZATION: Final = Metric(
    "hw.gpu.utilization",
    "1",
    GAUGE,
    "Part of the last sampling period of the driver in which a video encoder or decoder ran.",
    "NVIDIA; GPUs with such units; every fifth reading",
    (TASK,),
)
MEMORY_BUSY: Final = Metric(
    "grademl.gpu.memory.busy",
    "1",
    GAUGE,
    "Part of the last sampling period of the driver in which device memory was read or written.",
    "NVIDIA, AMD",
)
MEMORY_USAGE: Final = Metric(
    "hw.gpu.memory.usage",
    "By",
    UPDOWN,
    "GPU memory used, by all processes; without what the driver keeps for itself where it tells that apart.",
    "NVIDIA (and each MIG instance), AMD",
    (),
    "gpu.memory",
)
MEMORY_LIMIT: Final = Metric(
    "hw.gpu.memory.limit",
    "By",
    UPDOWN,
    "Size of the GPU memory.",
    "NVIDIA (and each MIG instance), AMD",
)
MEMORY_UTILIZATION: Final = Metric(
    "hw.gpu.memory.utilization",
    "1",
    GAUGE,
    "Fraction of GPU memory used.",
    "NVIDIA (and each MIG instance), AMD",
)
PROCESS_MEMORY: Final = Metric(
    "grademl.gpu.process.memory",
    "By",
    UPDOWN,
    "GPU memory used by a process, under the pid that the driver has for it.",
    "NVIDIA (and each MIG instance); permission to see other processes; every fifth reading",
    (PID,),
)
POWER: Final = Metric(
    "hw.power",
    "W",
    GAUGE,
    "Power drawn by the GPU and its memory; by the newer ones the mean of the last second.",
    "NVIDIA, AMD; not virtual GPUs",
    (),
    "gpu.power",
    1000,
)
POWER_LIMIT: Final = Metric(
    "grademl.gpu.power.limit",
    "W",
    GAUGE,
    "Power limit that is enforced.",
    "NVIDIA, AMD; not virtual GPUs",
)
ENERGY: Final = Metric(
    "hw.energy",
    "J",
    COUNTER,
    "Energy consumed by the GPU.",
    "NVIDIA since Volta, AMD; not virtual GPUs",
)
TEMPERATURE: Final = Metric(
    "hw.temperature",
    "Cel",
    GAUGE,
    "Temperature of the GPU or of its memory.",
    "NVIDIA, AMD; memory: those with HBM",
    (LOCATION,),
)
TEMPERATURE_LIMIT: Final = Metric(
    "hw.temperature.limit",
    "Cel",
    GAUGE,
    "Temperature at which clocks are lowered (throttled) or the GPU is shut down (critical).",
    "NVIDIA, AMD",
    (LOCATION, LIMIT_TYPE),
)
FAN_SPEED: Final = Metric(
    "hw.fan.speed_ratio",
    "1",
    GAUGE,
    "Speed that a fan is meant to have, as a fraction of its greatest.",
    "GPUs that have fans of their own; every fifth reading",
    (FAN_NUMBER,),
)
ERRORS: Final = Metric(
    "hw.errors",
    "{error}",
    COUNTER,
    "Errors since sampling began: ecc.corrected, ecc.uncorrected, pcie.replay, nvlink.crc, nvlink.replay, "
    "nvlink.recovery, xid.",
    "NVIDIA, AMD (ecc, pcie.replay); ECC memory, NVLink; every tenth reading, xid and ecc every one",
    (ERROR_TYPE,),
)
XID: Final = Metric(
    "grademl.gpu.xid",
    "{xid}",
    GAUGE,
    "Number of the last Xid error since sampling began.",
    "NVIDIA, Linux; after the first one",
)
REMAPPED_ROWS: Final = Metric(
    "grademl.gpu.memory.remapped_rows",
    "{row}",
    UPDOWN,
    "Rows of memory that were replaced by spare ones in the life of the GPU, by what made it so.",
    "NVIDIA since Ampere, ECC memory; every sixtieth reading",
    (ERROR_TYPE,),
)
SM_CLOCK: Final = Metric(
    "grademl.gpu.clock",
    "Hz",
    GAUGE,
    "Clock of the multiprocessors (sm).",
    "NVIDIA, AMD",
    (DOMAIN,),
    "gpu.sm_clock",
    1e-6,
)
MEMORY_CLOCK: Final = Metric(
    "grademl.gpu.clock",
    "Hz",
    GAUGE,
    "Clock of the memory (memory).",
    "NVIDIA, AMD",
    (DOMAIN,),
    "gpu.memory_clock",
    1e-6,
)
CLOCK_LIMIT: Final = Metric(
    "grademl.gpu.clock.limit",
    "Hz",
    GAUGE,
    "The highest clock that the GPU can have.",
    "NVIDIA, AMD; not virtual GPUs",
    (DOMAIN,),
)
THROTTLED: Final = Metric(
    "grademl.gpu.throttled",
    "1",
    GAUGE,
    "1 when clocks are held down by a power limit, by heat or by another GPU, else 0.",
    "NVIDIA, AMD; not virtual GPUs",
    (),
    "gpu.throttled",
    1000,
)
THROTTLE_ACTIVE: Final = Metric(
    "grademl.gpu.throttle.active",
    "1",
    GAUGE,
    "1 when this reason holds clocks down, else 0.",
    "NVIDIA; not virtual GPUs",
    (REASON,),
)
THROTTLE_TIME: Final = Metric(
    "grademl.gpu.throttle.time",
    "s",
    COUNTER,
    "Time for which this reason held clocks down.",
    "NVIDIA; some reasons need driver 560",
    (REASON,),
)
PCIE_GENERATION: Final = Metric(
    "grademl.gpu.pcie.generation",
    "{generation}",
    GAUGE,
    "Generation of PCIe at which the link runs now; idle GPUs lower it.",
    "NVIDIA, AMD; every tenth reading",
)
PCIE_GENERATION_LIMIT: Final = Metric(
    "grademl.gpu.pcie.generation.limit",
    "{generation}",
    GAUGE,
    "The highest generation of PCIe that GPU and slot have together.",
    "NVIDIA, AMD",
)
PCIE_WIDTH: Final = Metric(
    "grademl.gpu.pcie.width",
    "{lane}",
    GAUGE,
    "Lanes of the PCIe link now.",
    "NVIDIA, AMD; every tenth reading",
)
PCIE_WIDTH_LIMIT: Final = Metric(
    "grademl.gpu.pcie.width.limit",
    "{lane}",
    GAUGE,
    "The most lanes that GPU and slot have together.",
    "NVIDIA, AMD",
)
NVLINK_LINKS: Final = Metric(
    "grademl.gpu.nvlink.links",
    "{link}",
    UPDOWN,
    "NVLinks that are active.",
    "NVIDIA; GPUs with NVLink; every sixtieth reading",
)
LINK_LIMIT: Final = Metric(
    "grademl.gpu.link.limit",
    "By/s",
    UPDOWN,
    "What the link can carry in one direction: of PCIe at its greatest generation and width, of NVLink that "
    "of all active links.",
    "NVIDIA, AMD (PCIe)",
    (LINK,),
)
_IO_PCIE: Final = (
    "Bytes over PCIe. With grademl.gpu.link.estimated made of a rate that each reading looks at for 20 ms, "
    "and of a counter of 32 bits where there is one; otherwise a counter."
)
_IO_PCIE_NEEDS: Final = "NVIDIA; with a counter since driver 555 on some GPUs"
_IO_NVLINK: Final = "Bytes of data over all NVLinks."
_IO_NVLINK_NEEDS: Final = "NVIDIA; GPUs with NVLink, driver 450"
PCIE_RECEIVE: Final = Metric(
    "hw.gpu.io", "By", COUNTER, _IO_PCIE, _IO_PCIE_NEEDS, (DIRECTION, LINK, ESTIMATED), "gpu.pcie_rx"
)
PCIE_TRANSMIT: Final = Metric(
    "hw.gpu.io", "By", COUNTER, _IO_PCIE, _IO_PCIE_NEEDS, (DIRECTION, LINK, ESTIMATED), "gpu.pcie_tx"
)
NVLINK_RECEIVE: Final = Metric(
    "hw.gpu.io", "By", COUNTER, _IO_NVLINK, _IO_NVLINK_NEEDS, (DIRECTION, LINK), "gpu.nvlink_rx"
)
NVLINK_TRANSMIT: Final = Metric(
    "hw.gpu.io", "By", COUNTER, _IO_NVLINK, _IO_NVLINK_NEEDS, (DIRECTION, LINK), "gpu.nvlink_tx"
)
_IO_XGMI: Final = "Bytes over all XGMI links."
_IO_XGMI_NEEDS: Final = "AMD; GPUs with XGMI; every fifth reading"
XGMI_IO: Final = Metric("hw.gpu.io", "By", COUNTER, _IO_XGMI, _IO_XGMI_NEEDS, (DIRECTION, LINK))

METRICS: Final[tuple[Metric, ...]] = (
    UTILIZATION,
    MEDIA_UTILIZATION,
    MEMORY_BUSY,
    MEMORY_USAGE,
    MEMORY_LIMIT,
    MEMORY_UTILIZATION,
    PROCESS_MEMORY,
    POWER,
    POWER_LIMIT,
    ENERGY,
    TEMPERATURE,
    TEMPERATURE_LIMIT,
    FAN_SPEED,
    SM_CLOCK,
    MEMORY_CLOCK,
    CLOCK_LIMIT,
    THROTTLED,
    THROTTLE_ACTIVE,
    THROTTLE_TIME,
    PCIE_RECEIVE,
    PCIE_TRANSMIT,
    NVLINK_RECEIVE,
    NVLINK_TRANSMIT,
    XGMI_IO,
    LINK_LIMIT,
    PCIE_GENERATION,
    PCIE_GENERATION_LIMIT,
    PCIE_WIDTH,
    PCIE_WIDTH_LIMIT,
    NVLINK_LINKS,
    ERRORS,
    XID,
    REMAPPED_ROWS,
)
