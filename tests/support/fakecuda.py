# SPDX-License-Identifier: Apache-2.0
"""A simulated CUDA: what of `torch.cuda` is used, with streams that work at their own pace.

Times are ns of one host clock, by default that of the test, which only moves when told. A device's own clock
has another origin and may run faster or slower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from types import SimpleNamespace
from typing import Any

_FLOAT = Struct("<f")
LATENCY = 5_000
"""From a call of the host to its being seen by an idle device."""
CALL = 1_000
"""What a call takes on the host."""
US = 1_000
MS = 1_000_000


class CudaError(RuntimeError):
    pass


@dataclass
class FakeStream:
    device_index: int
    stream_id: int
    free_at: int = 0
    """Host time at which all that it was given is done."""
    held: bool = False
    """It stands still: nothing that is recorded is ever reached."""


class FakeEvent:
    """`torch.cuda.Event`."""

    def __init__(self, cuda: FakeCuda, enable_timing: bool) -> None:
        assert enable_timing
        self.cuda = cuda
        self.stream: FakeStream | None = None
        self.at: int | None = None
        self.records = 0

    def record(self, stream: FakeStream) -> None:
        self.cuda.called("record")
        if self.stream is not None and self.stream.device_index != stream.device_index:
            raise CudaError("event of another device")
        self.stream = stream
        self.at = max(self.cuda.now() + LATENCY, stream.free_at)
        self.records += 1

    def query(self) -> bool:
        self.cuda.called("query")
        return self.over

    @property
    def over(self) -> bool:
        assert self.stream is not None, "an event that was never recorded is over at once, in CUDA"
        return not self.stream.held and self.at is not None and self.at <= self.cuda.now()

    def elapsed_time(self, end: FakeEvent) -> float:
        self.cuda.called("elapsed_time")
        if not (self.over and end.over):
            raise CudaError("device not ready")
        assert self.stream is not None
        assert end.stream is not None
        assert self.at is not None
        assert end.at is not None
        if self.stream.device_index != end.stream.device_index:
            raise CudaError("events of two devices")
        # What CUDA gives: a 32-bit float, in ms, at half a microsecond's resolution.
        ticks = round((end.at - self.at) * self.cuda.rate / 500)
        milliseconds: float = _FLOAT.unpack(_FLOAT.pack(ticks * 0.0005))[0]
        return milliseconds

    def synchronize(self) -> None:
        raise AssertionError("nothing of ours waits for a device")


@dataclass
class FakeCuda:
    """`torch.cuda`."""

    clock: Callable[[], int] | None = None
    rate: float = 1.0
    """Of the device's clock against the host's."""
    devices: int = 1
    initialized: bool = True
    time: int = 10_000 * MS
    calls: list[str] = field(default_factory=list)
    failing: str = ""
    """Name of the call that raises."""
    capturing: bool = False
    current: tuple[int, int] = (0, 0)
    """Device and stream."""
    streams: dict[tuple[int, int], FakeStream] = field(default_factory=dict)
    events: list[FakeEvent] = field(default_factory=list)
    uuids: dict[int, str] = field(default_factory=dict)
    """By device; as `torch._C._CUuuid` is written."""
    allocated: dict[int, tuple[int, int, int]] = field(default_factory=lambda: {0: (1, 2, 3)})
    """By device that is in use: bytes allocated, reserved, allocated at most."""

    def __post_init__(self) -> None:
        self.CUDAGraph = graph_class(self)

    # --- What a test does --------------------------------------------------------------------------------

    def now(self) -> int:
        return self.time if self.clock is None else self.clock()

    def host(self, ns: int) -> None:
        """The host is busy, or sleeps."""
        self.time += ns

    def pause(self, seconds: float) -> None:
        self.time += round(seconds * 1e9)

    def enqueue(self, ns: int) -> None:
        """Give the current stream work for some time."""
        stream = self.current_stream()
        stream.free_at = max(stream.free_at, self.now() + LATENCY) + ns

    def synchronize(self) -> None:
        """The program waits for all streams."""
        self.time = max([self.time, *(stream.free_at for stream in self.streams.values())])

    # --- What is called ----------------------------------------------------------------------------------

    def called(self, name: str) -> None:
        self.calls.append(name)
        self.time += CALL
        if name != "memory_stats":
            assert self.current[0] in self.allocated, "a context would be made"
        if self.failing == name:
            raise CudaError(f"CUDA error: {name} failed\nDevice-side assertions: off")
        if self.capturing and name in ("record", "query", "elapsed_time"):
            raise CudaError("operation not permitted when a stream is capturing")

    def is_initialized(self) -> bool:
        return self.initialized

    def is_current_stream_capturing(self) -> bool:
        return False  # it is a stream of its own, see `capturing`

    def current_device(self) -> int:
        assert self.initialized, "CUDA would be initialized"
        return self.current[0]

    def current_stream(self) -> FakeStream:
        assert self.initialized, "CUDA would be initialized"
        return self.streams.setdefault(self.current, FakeStream(*self.current))

    def Event(self, enable_timing: bool = False) -> FakeEvent:
        self.events.append(FakeEvent(self, enable_timing))
        return self.events[-1]

    def device_count(self) -> int:
        return self.devices

    def get_device_properties(self, device: int) -> SimpleNamespace:
        assert self.initialized, "CUDA would be initialized"
        uuid = {"uuid": self.uuids[device]} if device in self.uuids else {}
        return SimpleNamespace(name="Simulated GPU", **uuid)

    def memory_stats_as_nested_dict(self, device: int) -> dict[str, Any]:
        self.called("memory_stats")
        allocated, reserved, peak = self.allocated.get(device, (0, 0, 0))
        return {
            "allocated_bytes": {"all": {"current": allocated, "peak": peak}},
            "reserved_bytes": {"all": {"current": reserved, "peak": reserved}},
        }


def graph_class(cuda: FakeCuda) -> type:
    """The class `CUDAGraph` of ``cuda``."""

    class CUDAGraph:
        def capture_begin(self) -> None:
            cuda.capturing = True

        def capture_end(self) -> None:
            cuda.capturing = False

    return CUDAGraph
