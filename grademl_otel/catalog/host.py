# SPDX-License-Identifier: Apache-2.0
"""Metrics of the host, of the control group that the job runs in, and of its processes.

Names of the OpenTelemetry semantic conventions where there are any. Several rows share a name where only some
series of a metric have a column in resource tables.
"""

from __future__ import annotations

from typing import Final

from grademl_otel.catalog.metric import COUNTER, GAUGE, UPDOWN, Metric

RESOURCE: Final = "grademl.host.pressure.resource"
"""cpu, memory, io, irq"""
KIND: Final = "grademl.host.pressure.kind"
"""some (at least one task stood still), full (all did)"""
EVENT: Final = "grademl.host.cgroup.memory.event"
"""high, max, oom, oom_kill"""

# --- CPU ---------------------------------------------------------------------------------------------------

CPU_TIME: Final = Metric(
    "system.cpu.time",
    "s",
    COUNTER,
    "Time that all CPUs of the host together spent in each mode; time of virtual machines is part of user.",
    "/proc/stat",
    ("cpu.mode",),
)
CPU_BUSY: Final = Metric(
    "grademl.host.cpu.busy",
    "s",
    COUNTER,
    "CPU time used of what the job may use: that of the control group whose quota binds, else of all CPUs "
    "that it may run on, in modes other than idle and iowait.",
    "/proc/stat; cpu.stat or cpuacct.usage where a quota binds",
    column="cpu.busy",
    scale=1000,
)
CPU_CAPACITY: Final = Metric(
    "grademl.host.cpu.capacity",
    "{cpu}",
    UPDOWN,
    "CPUs that the job may use: those online and in its cpuset, or the smallest quota of its control groups.",
    "/proc/stat, /proc/self/status, control groups",
)
LOGICAL_BUSY: Final = Metric(
    "grademl.host.cpu.logical.busy",
    "s",
    COUNTER,
    "Time that a CPU which the job may run on spent in modes other than idle and iowait.",
    "/proc/stat",
    ("cpu.logical_number",),
)
BUSIEST: Final = Metric(
    "grademl.host.cpu.busiest",
    "1",
    GAUGE,
    "How busy the busiest of these CPUs was since the last sample: 1 where a thread has one for itself.",
    "/proc/stat, from the second sample on",
)
LOGICAL_COUNT: Final = Metric(
    "system.cpu.logical.count",
    "{cpu}",
    UPDOWN,
    "CPUs that are online.",
    "/proc/stat",
)
FREQUENCY: Final = Metric(
    "system.cpu.frequency",
    "Hz",
    GAUGE,
    "Frequency of a CPU, of up to 8 that are spread evenly over those of the host.",
    "cpufreq in /sys/devices/system/cpu; absent in most virtual machines",
    ("cpu.logical_number",),
)
RUN_QUEUE: Final = Metric(
    "grademl.host.run_queue",
    "{task}",
    GAUGE,
    "Threads that run or wait for a CPU, on the whole host.",
    "/proc/stat",
)
BLOCKED: Final = Metric(
    "grademl.host.blocked",
    "{task}",
    GAUGE,
    "Threads that wait for a disk, on the whole host.",
    "/proc/stat",
)
LOAD: Final = Metric(
    "grademl.host.load_average.1m",
    "{task}",
    GAUGE,
    "Load average of the last minute.",
    "/proc/loadavg",
)
CONTEXT_SWITCHES: Final = Metric(
    "grademl.host.context_switches",
    "{context_switch}",
    COUNTER,
    "Context switches of the whole host.",
    "/proc/stat",
)
CREATED: Final = Metric(
    "system.process.created",
    "{process}",
    COUNTER,
    "Processes and threads that were started on the host.",
    "/proc/stat",
)
CGROUP_CPU_TIME: Final = Metric(
    "grademl.host.cgroup.cpu.time",
    "s",
    COUNTER,
    "CPU time of the job's control group: of the one whose quota binds, else of the innermost.",
    "cpu.stat (version 2), cpuacct.usage (version 1)",
)
CGROUP_QUOTA: Final = Metric(
    "grademl.host.cgroup.cpu.quota",
    "{cpu}",
    UPDOWN,
    "The smallest quota of the control groups that the job is in.",
    "cpu.max (version 2), cpu.cfs_quota_us (version 1); absent without a quota",
)
CGROUP_PERIODS: Final = Metric(
    "grademl.host.cgroup.cpu.periods",
    "{period}",
    COUNTER,
    "Periods of the quota in which the control group had something to run.",
    "cpu.stat, where there is a quota",
)
CGROUP_THROTTLED_PERIODS: Final = Metric(
    "grademl.host.cgroup.cpu.throttled_periods",
    "{period}",
    COUNTER,
    "Periods in which the control group had used up its quota, and stood still.",
    "cpu.stat, where there is a quota",
)
CGROUP_THROTTLED: Final = Metric(
    "grademl.host.cgroup.cpu.throttled",
    "s",
    COUNTER,
    "Time that the control group stood still because its quota was used up, added up over CPUs.",
    "cpu.stat, where there is a quota",
    column="cpu.throttled",
    scale=1000,
)

# --- Memory ------------------------------------------------------------------------------------------------

MEMORY_USAGE: Final = Metric(
    "system.memory.usage",
    "By",
    UPDOWN,
    "Memory of the host by state; used is what is neither free nor in buffers and caches.",
    "/proc/meminfo",
    ("system.memory.state",),
)
MEMORY_LIMIT: Final = Metric("system.memory.limit", "By", UPDOWN, "Memory of the host.", "/proc/meminfo")
MEMORY_AVAILABLE: Final = Metric(
    "system.memory.linux.available",
    "By",
    UPDOWN,
    "Memory that programs can have without swapping, as the kernel estimates it.",
    "/proc/meminfo",
)
MEMORY_SHARED: Final = Metric(
    "system.memory.linux.shared",
    "By",
    UPDOWN,
    "Shared memory and tmpfs, where loader workers hand over batches.",
    "/proc/meminfo",
)
MEMORY_DIRTY: Final = Metric(
    "grademl.host.memory.dirty",
    "By",
    UPDOWN,
    "Memory that is still to be written to disks, or being written.",
    "/proc/meminfo",
)
MEMORY_USED: Final = Metric(
    "grademl.host.memory.used",
    "By",
    UPDOWN,
    "Memory used of what the job may use: that of the control group whose limit binds without the cache that "
    "can be dropped, else that of the host which is not available.",
    "/proc/meminfo; memory.current and memory.stat where a limit binds",
    column="memory.used",
)
PAGING_USAGE: Final = Metric(
    "system.paging.usage",
    "By",
    UPDOWN,
    "Swap space by state.",
    "/proc/meminfo, where there is swap space",
    ("system.paging.state",),
)
PAGING_OPERATIONS: Final = Metric(
    "system.paging.operations",
    "{operation}",
    COUNTER,
    "Pages that were swapped in and out.",
    "/proc/vmstat",
    ("system.paging.direction", "system.paging.fault.type"),
)
PAGING_FAULTS: Final = Metric(
    "system.paging.faults",
    "{fault}",
    COUNTER,
    "Page faults of the whole host; a major one waits for a disk.",
    "/proc/vmstat",
    ("system.paging.fault.type",),
)
OOM_KILLS: Final = Metric(
    "grademl.host.oom_kills",
    "{process}",
    COUNTER,
    "Processes that the kernel killed for want of memory, on the whole host.",
    "/proc/vmstat, Linux 4.13",
)
CGROUP_MEMORY_USAGE: Final = Metric(
    "grademl.host.cgroup.memory.usage",
    "By",
    UPDOWN,
    "Memory of the job's control group, with page cache: of the one whose limit binds, else the innermost.",
    "memory.current (version 2), memory.usage_in_bytes (version 1)",
)
CGROUP_WORKING_SET: Final = Metric(
    "grademl.host.cgroup.memory.working_set",
    "By",
    UPDOWN,
    "The same without the part of the page cache that was not used for a while.",
    "memory.current and memory.stat, and what version 1 has for them",
)
CGROUP_MEMORY_LIMIT: Final = Metric(
    "grademl.host.cgroup.memory.limit",
    "By",
    UPDOWN,
    "The smallest memory limit of the control groups that the job is in.",
    "memory.max (version 2), memory.limit_in_bytes (version 1); absent without a limit",
)
CGROUP_MEMORY_EVENTS: Final = Metric(
    "grademl.host.cgroup.memory.events",
    "{event}",
    COUNTER,
    "How often the control group came to its limits (high, max), and ran out of memory (oom, oom_kill).",
    "memory.events (version 2); memory.failcnt and memory.oom_control (version 1)",
    (EVENT,),
)

# --- Pressure ----------------------------------------------------------------------------------------------


def _stall(name: str, whose: str, needs: str, column: str = "") -> Metric:
    return Metric(
        name,
        "s",
        COUNTER,
        f"Time in which tasks {whose} stood still for want of a resource: some of them, or all (full).",
        needs,
        (RESOURCE, KIND),
        column,
        1000 if column else 1,
    )


def _stalls(name: str, whose: str, needs: str) -> tuple[Metric, dict[str, Metric]]:
    """Return the metric, and beside it the rows that have columns, by resource."""
    columns = {each: _stall(name, whose, needs, f"pressure.{each}") for each in ("cpu", "memory", "io")}
    return _stall(name, whose, needs), columns


PRESSURE, PRESSURE_SOME = _stalls(
    "grademl.host.pressure.time",
    "of the host",
    "/proc/pressure, Linux 4.20; some distributions need psi=1 at boot",
)
CGROUP_PRESSURE, CGROUP_PRESSURE_SOME = _stalls(
    "grademl.host.cgroup.pressure.time",
    "of the job's innermost control group",
    "cpu.pressure, memory.pressure, io.pressure of version 2",
)

# --- Disks -------------------------------------------------------------------------------------------------

_DISKS: Final = "/proc/diskstats; disks that consist of others, partitions, loop and RAM devices are left out"


def _disk(name: str, unit: str, description: str, column: str = "", scale: float = 1) -> Metric:
    attributes = () if name == "system.disk.io_time" else ("disk.io.direction",)
    return Metric(name, unit, COUNTER, description, _DISKS, attributes, column, scale)


_IO: Final = "Bytes that were read from and written to the disk `system.device`."
DISK_READ: Final = _disk("system.disk.io", "By", _IO, "disk.read")
DISK_WRITE: Final = _disk("system.disk.io", "By", _IO, "disk.write")
DISK_OPERATIONS: Final = _disk("system.disk.operations", "{operation}", "Operations that were completed.")
DISK_OPERATION_TIME: Final = _disk(
    "system.disk.operation_time", "s", "Time of all operations, added up; several at once count each."
)
DISK_IO_TIME: Final = _disk(
    "system.disk.io_time", "s", "Time in which the disk had anything to do.", "disk.busy", 1000
)
CGROUP_DISK_IO: Final = Metric(
    "grademl.host.cgroup.disk.io",
    "By",
    COUNTER,
    "Bytes that the job's innermost control group read from and wrote to all these disks.",
    "io.stat (version 2), blkio.throttle.io_service_bytes (version 1)",
    ("disk.io.direction",),
)

# --- Processes of the job ----------------------------------------------------------------------------------

_STAT: Final = "/proc/PID/stat"
PROCESS_CPU_TIME: Final = Metric(
    "process.cpu.time", "s", COUNTER, "CPU time of all threads of a rank's process.", _STAT, ("cpu.mode",)
)
PROCESS_MEMORY: Final = Metric(
    "process.memory.usage",
    "By",
    UPDOWN,
    "Resident memory of a rank's process.",
    _STAT,
    column="process.memory",
)
PROCESS_THREADS: Final = Metric(
    "process.thread.count", "{thread}", UPDOWN, "Threads of a rank's process.", _STAT
)
PROCESS_FAULTS: Final = Metric(
    "process.paging.faults",
    "{fault}",
    COUNTER,
    "Page faults of a rank's process; a major one waits for a disk.",
    _STAT,
    ("system.paging.fault.type",),
)
MAIN_THREAD_DELAY: Final = Metric(
    "grademl.process.main_thread.delay",
    "s",
    COUNTER,
    "Time that the main thread was ready to run, and waited for a CPU.",
    "/proc/PID/schedstat, a kernel with CONFIG_SCHED_INFO",
)
TREE_CPU_TIME: Final = Metric(
    "grademl.process.tree.cpu.time",
    "s",
    COUNTER,
    "CPU time of a rank's process and all its descendants, also of those that have ended.",
    _STAT,
    column="process.cpu",
    scale=1000,
)
TREE_COUNT: Final = Metric(
    "grademl.process.tree.count", "{process}", UPDOWN, "The process and its living descendants.", _STAT
)
TREE_THREADS: Final = Metric(
    "grademl.process.tree.thread.count", "{thread}", UPDOWN, "Threads of all these processes.", _STAT
)
TREE_MEMORY: Final = Metric(
    "grademl.process.tree.memory",
    "By",
    UPDOWN,
    "Resident memory of all these processes, added up: what several share counts in each of them.",
    _STAT,
)
TREE_DISK_IO: Final = Metric(
    "grademl.process.tree.disk.io",
    "By",
    COUNTER,
    "Bytes that these processes had fetched from and sent to storage.",
    "/proc/PID/io, which is readable for the same user",
    ("disk.io.direction",),
)
TREE_IO: Final = Metric(
    "grademl.process.tree.io",
    "By",
    COUNTER,
    "Bytes that these processes read and wrote by system calls, whatever they came from: disks, the page "
    "cache, network file systems, pipes.",
    "/proc/PID/io, which is readable for the same user",
    ("disk.io.direction",),
)

METRICS: Final[tuple[Metric, ...]] = (
    CPU_TIME,
    CPU_BUSY,
    CPU_CAPACITY,
    LOGICAL_BUSY,
    BUSIEST,
    LOGICAL_COUNT,
    FREQUENCY,
    RUN_QUEUE,
    BLOCKED,
    LOAD,
    CONTEXT_SWITCHES,
    CREATED,
    CGROUP_CPU_TIME,
    CGROUP_QUOTA,
    CGROUP_PERIODS,
    CGROUP_THROTTLED_PERIODS,
    CGROUP_THROTTLED,
    MEMORY_USAGE,
    MEMORY_LIMIT,
    MEMORY_AVAILABLE,
    MEMORY_SHARED,
    MEMORY_DIRTY,
    MEMORY_USED,
    PAGING_USAGE,
    PAGING_OPERATIONS,
    PAGING_FAULTS,
    OOM_KILLS,
    CGROUP_MEMORY_USAGE,
    CGROUP_WORKING_SET,
    CGROUP_MEMORY_LIMIT,
    CGROUP_MEMORY_EVENTS,
    PRESSURE,
    *PRESSURE_SOME.values(),
    CGROUP_PRESSURE,
    *CGROUP_PRESSURE_SOME.values(),
    DISK_READ,
    DISK_WRITE,
    DISK_OPERATIONS,
    DISK_OPERATION_TIME,
    DISK_IO_TIME,
    CGROUP_DISK_IO,
    PROCESS_CPU_TIME,
    PROCESS_MEMORY,
    PROCESS_THREADS,
    PROCESS_FAULTS,
    MAIN_THREAD_DELAY,
    TREE_CPU_TIME,
    TREE_COUNT,
    TREE_THREADS,
    TREE_MEMORY,
    TREE_DISK_IO,
    TREE_IO,
)
