# SPDX-License-Identifier: Apache-2.0
"""A run of many short steps: what grows in the process and in the relay, and what the relay's work costs.

    python -m benchmarks.longrun STEPS WAY

trains that many steps for each line on stdin. `measure` has it do so twice: the first block warms up.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

from benchmarks.tables import Table, duration, size
from benchmarks.ways import EVERYTHING, PLAIN, Worker, serve

_WARMUP_SHARE = 10


def measure(folder: Path, steps: int) -> list[Table]:
    """Return growth of memory over ``steps`` steps, and the relay's time per step and per span."""
    growth, work = [], []
    warmup = steps // _WARMUP_SHARE
    for way in (PLAIN, EVERYTHING):
        rings = folder / way.replace(" ", "-") / "rings"
        rings.mkdir(parents=True, exist_ok=True)
        settings = {"GRADEML_RING_DIR": str(rings)}
        worker = Worker(way, ("benchmarks.longrun", str(warmup)), rings.parent, settings=settings)
        try:
            pid = worker.processes[0].pid
            _blocks(worker, 1)
            time.sleep(2)  # until the relay has caught up
            relay = _relay(rings) if way == EVERYTHING else None
            before = [_resident(each) for each in (pid, relay) if each]
            cpu, spans = (_cpu_s(relay) if relay else 0.0), _spans(rings.parent)
            step_ns = _blocks(worker, _WARMUP_SHARE)
            time.sleep(2)
            after = [_resident(each) for each in (pid, relay) if each]
            for name, was, now in zip(("process", "relay"), before, after, strict=False):
                growth.append([f"{way}: {name}", size(was), size(now), size(now - was)])
            taken = _cpu_s(relay) - cpu if relay else 0.0
            worker.end()
            if relay:
                sent = max(_spans(rings.parent) - spans, 1)
                of_step, of_span = duration(taken * 1e9 / steps), duration(taken * 1e9 / sent)
                work.append([duration(step_ns), of_step, f"{sent:,}", of_span])
        finally:
            worker.end()
    return [
        Table(
            f"(e) Memory over {steps:,} steps, after {warmup:,} that warm up",
            ("", "resident before", "after", "growth"),
            growth,
            "All phases of each step are recorded.",
        ),
        Table(
            "(f) CPU time of the relay in that run",
            ("step", "relay, per step", "spans sent", "relay, per span"),
            work,
            "It reads every mark; few steps become spans. So the time per span holds that of all steps that "
            "are only a row of a table.",
        ),
    ]


def _blocks(worker: Worker, number: int) -> float:
    """Run blocks; return the mean ns of a step."""
    taken = [worker.block()[0] for _ in range(number)]
    return sum(taken) / len(taken)


def _relay(rings: Path) -> int | None:
    """The relay that serves the rings in this folder."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(bytes(rings)) for word in words) and any(
            word.endswith(b"relay/__main__.py") for word in words
        ):
            return int(entry.name)
    return None


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _cpu_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _spans(folder: Path) -> int:
    """Spans in the store below ``folder``."""
    found: Counter[str] = Counter()
    for path in folder.glob("runs/*/traces.jsonl"):
        for line in path.read_bytes().split(b"\n")[:-1]:
            for resource in json.loads(line)["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    found["spans"] += len(scope["spans"])
    return found["spans"]


def main() -> None:
    import torch
    from torch import nn

    steps, way = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    batch = torch.randn(4, 8)

    def block() -> list[float]:
        start = time.perf_counter_ns()
        for _ in range(steps):
            optimizer.zero_grad()
            net(batch).sum().backward()
            optimizer.step()
        return [(time.perf_counter_ns() - start) / steps]

    serve(block, way)


if __name__ == "__main__":
    main()
