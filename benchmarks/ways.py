# SPDX-License-Identifier: Apache-2.0
"""The ways of running a program that are compared, and processes that run a block of it when told to."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PLAIN, AGAIN = "plain", "plain again"
RECORDED, EVERYTHING = "recorded", "recorded, all phases"
SDK, PROFILER = "SDK spans", "torch.profiler"

Around = Callable[[str], AbstractContextManager[Any]]


def environment(folder: Path, way: str) -> dict[str, str]:
    """The environment of a process that runs in this way; without the caller's telemetry settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "GRADEML_"))}
    settings = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    if way in (RECORDED, EVERYTHING):
        settings |= {"GRADEML_EXPORTER": "file", "GRADEML_STORE": str(folder / "runs")}
    if way == EVERYTHING:
        settings["GRADEML_BUDGET"] = "100"
    return {**kept, **settings}


def command(way: str, *arguments: str) -> list[str]:
    """How Python is started in this way."""
    started = [sys.executable, *arguments]
    if way in (RECORDED, EVERYTHING):
        started.insert(0, str(Path(sys.executable).with_name("opentelemetry-instrument")))
    return started


class Worker:
    """One process of a module of this package, or several (ranks), which run a block when told to."""

    def __init__(
        self,
        way: str,
        arguments: Sequence[str],
        folder: Path,
        ranks: int = 1,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        environ = {**environment(folder, way), **(settings or {})}
        if ranks > 1:
            environ |= {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(_free_port()),
                "WORLD_SIZE": str(ranks),
            }
        self.answer: dict[str, Any] = {}
        """The last one of the first process."""
        self._way = way
        self._log = folder / "stderr"
        with self._log.open("w") as log:
            self.processes = [
                subprocess.Popen(
                    command(way, "-m", *arguments, way),
                    env=environ | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}),
                    cwd=folder,
                    text=True,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                )
                for rank in range(ranks)
            ]

    def block(self) -> list[float]:
        """Have one block run; return the ns of each of its steps. Raises RuntimeError when it died."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = []
        for process in self.processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"{self._way!r} has died:\n{self._log.read_text()[-2000:]}")
            answers.append(json.loads(line))
        self.answer = answers[0]
        return list(map(float, self.answer["ns"]))

    def end(self) -> None:
        for process in self.processes:
            if process.stdin is not None and not process.stdin.closed:
                process.stdin.close()
        for process in self.processes:
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def workers(
    names: Sequence[str], arguments: Sequence[str], folder: Path, ranks: int = 1
) -> Iterator[dict[str, Worker]]:
    """A worker for each way, ended at the end."""
    with ExitStack() as running:
        made = {}
        for name in names:
            made[name] = Worker(name, arguments, folder / name.replace(" ", "-"), ranks)
            running.callback(made[name].end)
        yield made


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- In the worker ----------------------------------------------------------------------------------------


def serve(block: Callable[[], list[float]], way: str) -> None:
    """For each line on stdin run a block and answer with the ns of its steps and the peak memory so far.

    A block that times no steps is timed as a whole, with what a profiler does before and after it.
    """
    for _ in sys.stdin:
        start = time.perf_counter_ns()
        with profiled(way):
            taken = block()
        taken = taken or [float(time.perf_counter_ns() - start)]
        print(json.dumps({"ns": taken, "peak": peak_bytes()}), flush=True)


def profiled(way: str) -> AbstractContextManager[Any]:
    """`torch.profiler` around a block, where that is the way."""
    if way != PROFILER:
        return nullcontext()
    from torch.profiler import ProfilerActivity, profile

    return profile(activities=[ProfilerActivity.CPU])  # type: ignore[no-any-return]


def around(way: str) -> Around:
    """What a loop puts around its phases: spans of OpenTelemetry's SDK where that is the way."""
    if way != SDK:
        nothing = nullcontext()
        return lambda name: nothing
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Discard(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Discard(), max_queue_size=65_536))
    tracer = provider.get_tracer("benchmark")
    return lambda name: tracer.start_as_current_span(name, attributes={"grademl.lane": "main"})


def peak_bytes() -> int:
    """The most memory that this process has had resident, in bytes."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
