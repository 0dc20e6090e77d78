# SPDX-License-Identifier: Apache-2.0
"""Profiles made by hand, as PyTorch writes them: threads, streams, launches, notes. Times in us."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grademl_otel.analyzers.model.columns import Ledger, SpanColumns
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.formats.documents import read_json

PID = 100
MAIN, AUTOGRAD = 100, 177
BASE_NS = 1_790_857_026_000_000_000


@dataclass
class Profile:
    """Events in the order in which they were added."""

    rank: int = 0
    world: int = 1
    device: int = 0
    host: str = "node-a"
    events: list[dict[str, Any]] = field(default_factory=list)
    correlation: int = 1000

    def event(self, category: str, name: str, start: float, end: float, tid: int = MAIN, **args: Any) -> None:
        """Add what a thread did."""
        self._add(category, name, PID, tid, start, end, args)

    def op(self, name: str, start: float, end: float, tid: int = MAIN) -> None:
        self.event("cpu_op", name, start, end, tid)

    def call(self, name: str, start: float, end: float, tid: int = MAIN) -> int:
        """Add a call to the library of the device, and return its correlation."""
        self.correlation += 1
        self.event("cuda_runtime", name, start, end, tid, correlation=self.correlation)
        return self.correlation

    def kernel(
        self,
        name: str,
        launch: tuple[float, float] | None,
        start: float,
        end: float,
        stream: int = 7,
        tid: int = MAIN,
        call: str = "cudaLaunchKernel",
        **args: Any,
    ) -> None:
        """Add a kernel, and its launch where one is given."""
        said = {"stream": stream, "device": self.device, **args}
        if launch is not None:
            said["correlation"] = self.call(call, *launch, tid)
        category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        self._add(category, name, self.device, stream, start, end, said)

    def note(self, name: str, correlation: int, stream: int, **args: Any) -> None:
        """Add a note on a call that waits."""
        said = {"correlation": correlation, "stream": stream, "device": self.device, **args}
        self._add("cuda_sync", name, self.device, stream, 1, 2, said)

    def _add(
        self, category: str, name: str, pid: int, tid: int, start: float, end: float, args: dict[str, Any]
    ) -> None:
        self.events.append(
            {
                "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start,
                "dur": round(end - start, 3), "args": args,
            }
        )  # fmt: skip

    def document(self, base_ns: int = BASE_NS) -> dict[str, Any]:
        labels = ((PID, "CPU"), (self.device, f"GPU {self.device}"))
        named = [
            {"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "ts": 0, "args": {"labels": label}}
            for pid, label in labels
        ]
        thread = {"name": "thread 177 (pt_autograd_0)"}
        named.append({"ph": "M", "name": "thread_name", "pid": PID, "tid": AUTOGRAD, "ts": 0, "args": thread})
        return {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": self.world},
            "host_name": self.host,
            "baseTimeNanoseconds": base_ns,
            "traceEvents": [*named, *self.events],
        }

    def spans(self, base_ns: int = BASE_NS) -> SpanColumns:
        return spans_of(self, base_ns=base_ns)

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(self.document()))
        return path


def spans_of(*profiles: Profile, base_ns: int = BASE_NS) -> SpanColumns:
    """Return the spans of all ``profiles``, each a trace of its own."""
    builder, ledger = SpanBuilder(10**6), Ledger()
    for profile in profiles:
        text = json.dumps(profile.document(base_ns)).encode()
        read_json([text], builder, ledger, "some.json", 1 << 24)
    return builder.finish(ledger)
