# SPDX-License-Identifier: Apache-2.0
"""Device times and memory of CUDA (and of ROCm, which PyTorch calls the same); see `devicetime`.

CUDA is never initialized from here: once a second it is looked whether the program has done so. Captures of
graphs are counted, because a look at an event in any thread would spoil them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch

from grademl_otel import semconv
from grademl_otel.devicememory import Memory, MemorySamples
from grademl_otel.devicetime import EVERY_NS, DeviceTimes, Stream
from grademl_otel.guard import Guard
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch.gpuids import gpu_ids
from grademl_otel.lifecycle import session
from grademl_otel.recorder import Recorder
from grademl_otel.tracebacks import leave_out_this_frame, pass_over


def install(patches: Patches) -> None:
    """Follow runs, unless this torch was built without CUDA."""
    if hasattr(torch._C, "_cuda_getDeviceCount"):
        follow(patches, torch.cuda)


def follow(patches: Patches, cuda: Any, every: int = EVERY_NS) -> None:
    """Have each run time the devices of ``cuda``: the module of that name, or one like it.

    One row in ``every`` ns is timed.
    """
    captures = Captures()
    captures.watch(patches, cuda.CUDAGraph)
    follower = _Follower(Cuda(cuda, captures), every)
    former, session.look_at_device = session.look_at_device, follower.look
    patches.on_restore(lambda: setattr(session, "look_at_device", former))


class _Follower:
    """Follows runs: each has times and samples of its own, a device that failed is left alone in all."""

    def __init__(self, cuda: Cuda, every: int) -> None:
        self._cuda = cuda
        self._every = every
        self._times, self._memory = Guard("torch: device time"), Guard("torch: device memory")
        self._names = Guard("torch: names of GPUs")
        self._run: tuple[Recorder, MemorySamples] | None = None
        self._told: list[int] = []
        """Devices whose names the run has."""

    def look(self, recorder: Recorder) -> None:
        """Called about once a second in a thread that trains."""
        try:
            if not self._cuda.in_use():
                return
            if self._run is None or self._run[0] is not recorder:
                self._run = recorder, MemorySamples(self._cuda, recorder, self._memory)
                self._told = []
                recorder.time_device(DeviceTimes(self._cuda, recorder, self._times, every=self._every))
            self._run[1].measure()
            self._tell_names(recorder, self._run[1].in_use)
        except Exception as error:
            self._times.failed(error)

    def _tell_names(self, recorder: Recorder, devices: list[int]) -> None:
        """Say which GPUs these are, where that is known; once, and again when there are others."""
        if not devices or devices == self._told:
            return
        self._told = list(devices)
        try:
            if ids := self._cuda.ids(devices):
                recorder.say_of_run(semconv.GPU_ID, ",".join(ids))
        except Exception as error:  # times and memory are another thing
            self._names.failed(error)


class Captures:
    """Counts the graphs that are being captured in this process."""

    def __init__(self) -> None:
        self.open = 0

    def watch(self, patches: Patches, graph: Any) -> None:
        """Wrap the methods of the class ``graph`` between which a capture goes on."""
        patches.replace(graph, "capture_begin", self._begins(graph.capture_begin))
        # Where there is one, `capture_end` calls it; so does `torch.cuda.graph`.
        end = "capture_end_pre" if "capture_end_pre" in vars(graph) else "capture_end"
        patches.replace(graph, end, self._ends(getattr(graph, end)))

    def _begins(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @pass_over
        @wraps(original)
        def capture_begin(*args: Any, **kwargs: Any) -> Any:
            self.open += 1
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                self.open -= 1
                leave_out_this_frame(error)
                raise

        return capture_begin

    def _ends(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @pass_over
        @wraps(original)
        def capture_end(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                leave_out_this_frame(error)
                raise
            finally:
                self.open = max(0, self.open - 1)  # it may have begun before it was watched

        return capture_end


class Cuda:
    """The devices of ``torch.cuda``; see `devicetime.Device` and `devicememory.Allocators`."""

    def __init__(self, cuda: Any, captures: Captures) -> None:
        self._cuda = cuda
        self._captures = captures
        self._used: set[int] = set()
        """Devices on which the program has memory, as far as is known."""

    def in_use(self) -> bool:
        """Whether the program uses CUDA by now; further devices are seen where they are the current one."""
        if not self._cuda.is_initialized():
            return False
        device = self._cuda.current_device()
        if device not in self._used and self._memory_of(device).reserved:
            self._used.add(device)
        return bool(self._used)

    def hands_off(self) -> bool:
        # A device that the program does not use has no context: most calls would make one, of some 500 MB.
        return (
            self._captures.open > 0
            or self._cuda.current_device() not in self._used
            or bool(self._cuda.is_current_stream_capturing())  # in C++, where nobody counts
        )

    def stream(self) -> Stream:
        stream = self._cuda.current_stream()
        return Stream(stream.device_index, stream.stream_id, stream)

    def event(self) -> Any:
        return self._cuda.Event(enable_timing=True)

    def record(self, event: Any, stream: Stream, /) -> None:
        event.record(stream.handle)

    def memory(self, devices: Sequence[int] | None, /) -> list[Memory]:
        every = range(self._cuda.device_count()) if devices is None else devices
        found = [self._memory_of(device) for device in every]
        return [memory for memory in found if memory.reserved or devices is not None]

    def ids(self, devices: Sequence[int]) -> list[str]:
        """The names of those of ``devices`` that can be told; no GPU of AMD's has its name from here."""
        if getattr(torch.version, "hip", None):
            return []
        return gpu_ids(self._cuda, devices, os.environ)

    def _memory_of(self, device: int) -> Memory:
        stats = self._cuda.memory_stats_as_nested_dict(device)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        return Memory(device, allocated["current"], reserved["current"], allocated["peak"])
