# SPDX-License-Identifier: Apache-2.0
"""A profile of a training on one GPU, of any number of events: threads, streams, launches, waits.

Each step runs forward in the main thread, which launches kernels; backward in a thread of autograd, whose
gradients are reduced in a stream of their own that waits for them; and ends with the host waiting for the
device. Kernels take longer than their launches, so that the device is behind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, TextIO

_LAYERS: Final = 60
_OP_US: Final = 12
_KERNEL_US: Final = 14
_COLLECTIVE_US: Final = 90
_BUCKET: Final = 12
"""Layers of a bucket, whose gradients are reduced together."""

_X: Final = '{"ph":"X","cat":"%s","name":"%s","pid":%d,"tid":%d,"ts":%d.%03d,"dur":%d.%03d,"args":{%s}},\n'
_FLOW: Final = '{"ph":"%s","id":%d,"pid":%d,"tid":%d,"ts":%d.%03d,"cat":"ac2g","name":"ac2g","bp":"e"},\n'
_PID: Final = 4100
_MAIN, _AUTOGRAD = 4100, 4177
_COMPUTE, _REDUCE = 7, 20
_FIRST_NS: Final = 5_301_302_795_000_000


class _Writer:
    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.count = 0
        self.correlation = 500
        self.free = {_COMPUTE: _FIRST_NS, _REDUCE: _FIRST_NS}
        """When each stream will be done with all that it was given."""

    def event(
        self, category: str, name: str, pid: int, tid: int, start: int, length: int, args: str = ""
    ) -> None:
        self._out.write(
            _X % (category, name, pid, tid, start // 1000, start % 1000, length // 1000, length % 1000, args)
        )
        self.count += 1

    def call(self, name: str, thread: int, start: int, length: int) -> None:
        self.correlation += 1
        args = f'"cbid":211,"correlation":{self.correlation}'
        self.event("cuda_runtime", name, _PID, thread, start, length, args)

    def launch(self, name: str, thread: int, start: int, stream: int, length: int, after: int = 0) -> None:
        """Launch a kernel, which begins once its stream is free and what it waits ``after`` is over."""
        self.call("cudaLaunchKernel", thread, start, 4_000)
        begin = max(start + 5_000, self.free[stream] + 1_100, after)
        self.free[stream] = begin + length
        args = f'"device":0,"context":1,"stream":{stream},"correlation":{self.correlation},"grid":[8,1,1]'
        self.event("kernel", name, 0, stream, begin, length, args)
        for ph, pid, tid, time in (("s", _PID, thread, start), ("f", 0, stream, begin)):
            self._out.write(_FLOW % (ph, self.correlation, pid, tid, time // 1000, time % 1000))

    def op(self, name: str, thread: int, start: int, kernel_ns: int) -> None:
        """An operator around another one, which launches a kernel."""
        self.event("cpu_op", f"aten::{name}", _PID, thread, start, 11_000, '"External id":7,"Ev Idx":3')
        self.event("cpu_op", f"aten::{name}_out", _PID, thread, start + 1_000, 9_000, '"External id":8')
        self.launch(f"{name}_kernel<float>", thread, start + 3_000, _COMPUTE, kernel_ns)

    def step(self, number: int, start: int) -> int:
        """Write a step that begins at ``start``, and return when it ends."""
        at = start + 2_000
        for layer in range(_LAYERS):
            self.op("addmm" if layer % 2 else "relu", _MAIN, at, _KERNEL_US * 1000 + 37 * (layer % 5))
            at += _OP_US * 1000 + (layer * 7919 + number * 104729) % 2_500
        at += 8_000
        engine = "autograd::engine::evaluate_function: AddmmBackward0"
        for layer in range(_LAYERS):
            self.event("cpu_op", engine, _PID, _AUTOGRAD, at, 13_000, '"Sequence number":9')
            self.op("mm", _AUTOGRAD, at + 1_000, 2 * _KERNEL_US * 1000)
            at += 14_000
            if layer % _BUCKET == _BUCKET - 1:
                ready = self.free[_COMPUTE]
                self.call("cudaStreamWaitEvent", _AUTOGRAD, at, 1_000)
                reduce = "ncclDevKernel_AllReduce_Sum"
                self.launch(reduce, _AUTOGRAD, at + 2_000, _REDUCE, _COLLECTIVE_US * 1000, ready + 1_500)
                at += 8_000
        at += 10_000
        self.call("cudaStreamWaitEvent", _MAIN, at, 1_000)
        for _ in range(6):
            self.launch("adam_kernel", _MAIN, at + 2_000, _COMPUTE, 9_000, self.free[_REDUCE] + 1_500)
            at += 7_000
        end = max(at + 6_000, max(self.free.values()) + 3_000)
        self.call("cudaDeviceSynchronize", _MAIN, at, end - at)
        end += 5_000
        self.event("user_annotation", f"ProfilerStep#{number}", _PID, _MAIN, start, end - start)
        return end + 20_000


def write_profile(path: Path, events: int) -> int:
    """Write a profile of about ``events`` events that take time, and return how many there are."""
    with path.open("w", encoding="ascii") as out:
        out.write('{"schemaVersion":1,"distributedInfo":{"backend":"nccl","rank":0,"world_size":1},')
        out.write('"baseTimeNanoseconds":1790857026000000000,"traceEvents":[\n')
        writer, at, number = _Writer(out), _FIRST_NS, 0
        while writer.count < events:
            number += 1
            at = writer.step(number, at)
        meta = '{"ph":"M","name":"process_labels","ts":0,"pid":%d,"tid":0,"args":{"labels":"%s"}},\n'
        out.write(meta % (_PID, "CPU") + (meta % (0, "GPU 0")).rstrip(",\n") + "]}\n")
    return writer.count
