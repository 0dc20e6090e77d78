# SPDX-License-Identifier: Apache-2.0
"""What recording adds to a training step, beside OpenTelemetry SDK spans at the same points of the same loop.

    python benchmarks/step_overhead.py
    python benchmarks/step_overhead.py --width 512

Each way is a process of its own that trains one block of steps when its turn comes; turns alternate, so that
what else the machine does hits all alike. `plain again` is the same as `plain`: how far its ratio is from 1
is what this run cannot resolve. Ours is complete: `opentelemetry-instrument`, ring, relay process, files, all
phases of every step. The SDK's spans are set by hand; their exporter throws them away, so that encoding and
sending come on top of it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

from interleaved import compare, print_table

WAYS = ("plain", "plain again", "grademl-otel", "OpenTelemetry SDK")
Around = Callable[[str], AbstractContextManager[object]]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=128, help="of a layer; sets the length of a step")
    parser.add_argument("--depth", type=int, default=12, help="number of layers")
    parser.add_argument("--steps", type=int, default=100, help="in a block")
    parser.add_argument("--rounds", type=int, default=20, help="blocks of each way")
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    return parser.parse_args()


# --- A child: one way of training -------------------------------------------------------------------------


def train_on_demand(arguments: argparse.Namespace) -> None:
    """For each line on stdin train one block, and answer with its mean time a step in ns."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    torch.set_num_threads(1)
    width, batch = arguments.width, 32
    hidden = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(arguments.depth)]
    network = nn.Sequential(*hidden, nn.Linear(width, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    count = batch * arguments.steps
    data = TensorDataset(torch.randn(count, width), torch.randint(10, (count,)))
    loader = DataLoader(data, batch_size=batch)
    loss_of = nn.CrossEntropyLoss()
    around = sdk_spans() if arguments.child == "OpenTelemetry SDK" else lambda name: nullcontext()

    for _ in sys.stdin:
        start = time.perf_counter_ns()
        batches = iter(loader)
        while True:
            with around("step"):
                with around("data.wait"):
                    inputs, labels = next(batches, (None, None))
                if inputs is None:
                    break
                optimizer.zero_grad()
                with around("forward"):
                    outputs = network(inputs)
                loss = loss_of(outputs, labels)
                with around("backward"):
                    loss.backward()
                with around("optimizer"):
                    optimizer.step()
        print((time.perf_counter_ns() - start) / arguments.steps, flush=True)


def sdk_spans() -> Around:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Discard(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Discard(), max_queue_size=65_536))
    tracer = provider.get_tracer("benchmark")
    return lambda name: tracer.start_as_current_span(name, attributes={"grademl.lane": "main"})


# --- The parent: whose turn it is -------------------------------------------------------------------------


class Child:
    """A process that trains in one of the ways."""

    def __init__(self, way: str, folder: Path):
        command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--child", way]
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "GRADEML_"))}
        if way == "grademl-otel":
            command.insert(0, str(Path(sys.executable).with_name("opentelemetry-instrument")))
            environ |= {
                "GRADEML_EXPORTER": "file",
                "GRADEML_STORE": str(folder / "runs"),
                "GRADEML_BUDGET": "100",
            }
        self.process = subprocess.Popen(
            command, env=environ, cwd=folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def block(self) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self) -> None:
        self.process.communicate(timeout=60)


def main() -> None:
    arguments = parse_arguments()
    if arguments.child:
        train_on_demand(arguments)
        return
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        children = {way: Child(way, Path(folder)) for way in WAYS}
        for child in children.values():
            running.callback(child.end)
        results = compare({way: child.block for way, child in children.items()}, arguments.rounds)
        title = f"one training step, {arguments.depth} layers of {arguments.width}"
        print_table(title, results, "plain", "us")
        for way in WAYS[1:]:
            print(f"  {way} adds {results[way].added_to(results['plain']) / 1000:+.1f} us a step")


if __name__ == "__main__":
    main()
