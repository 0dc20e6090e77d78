# SPDX-License-Identifier: Apache-2.0
"""How much later a training ends because it is recorded, for each way to end and each destination.

    python benchmarks/exit_cost.py
    python benchmarks/exit_cost.py --rounds 20 --only return

The program is `tests/support/plain_training.py`, which imports no framework. The time is from the moment at
which it begins to end, which it writes down itself, until it is gone. Bare and recorded runs alternate, in
turning order. Destinations: the file store, a collector that answers (on loopback, in a process of its own),
and one that is dead.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "tests" / "support" / "plain_training.py"
ENDINGS = ("return", "raise", "exit3", "os_exit", "SIGTERM", "SIGINT", "SIGKILL")
DESTINATIONS = ("bare", "file store", "collector answers", "collector dead")
COLLECTOR = """
import sys, time
sys.path.insert(0, sys.argv[1])
from tests.support.otlp_server import http_receiver
with http_receiver() as receiver:
    print(receiver.port, flush=True)
    sys.stdin.read()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, help="runs of each kind")
    parser.add_argument("--steps", type=int, default=400, help="of a run; 2 ms each")
    parser.add_argument("--only", choices=ENDINGS, action="append", help="this ending; may be repeated")
    arguments = parser.parse_args()
    # Its relays still work in the folder for some seconds.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, collector() as port:
        settings = destinations(Path(folder), port)
        print(f"from the last step until the process is gone; Python {sys.version.split()[0]}")
        print(f"{'':10}{'bare':>12}" + "".join(f"{name:>32}" for name in DESTINATIONS[1:]))
        for ending in arguments.only or ENDINGS:
            print(row(ending, measure(ending, arguments.steps, arguments.rounds, settings, Path(folder))))


def measure(
    ending: str, steps: int, rounds: int, settings: Mapping[str, Mapping[str, str]], folder: Path
) -> dict[str, list[float]]:
    """Seconds that each destination's runs took to end; one round warms up."""
    times: dict[str, list[float]] = {name: [] for name in settings}
    order = list(settings)
    for number in range(rounds + 1):
        for name in order[number % len(order) :] + order[: number % len(order)]:
            taken = seconds_to_end(ending, steps, settings[name], folder)
            if number:
                times[name].append(taken)
    return times


def seconds_to_end(ending: str, steps: int, settings: Mapping[str, str], folder: Path) -> float:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "GRADEML_"))}
    log = folder / "steps"
    log.unlink(missing_ok=True)
    with open(os.devnull, "w") as nowhere:
        subprocess.run(
            [sys.executable, str(PROGRAM), str(steps), ending, str(log)],
            env={**kept, **settings}, cwd=folder, stdout=nowhere, stderr=nowhere, check=False,
        )  # fmt: skip
    return time.time() - log.stat().st_mtime


def destinations(folder: Path, port: int) -> dict[str, dict[str, str]]:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = unused.getsockname()[1]
    common = {"GRADEML_STORE": str(folder / "runs"), "GRADEML_SPOOL_DIR": str(folder / "spool")}

    def otlp(port: int) -> dict[str, str]:
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
        return {**common, **endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}

    ways = ({"GRADEML_EXPORTER": "none"}, {**common, "GRADEML_EXPORTER": "file"}, otlp(port), otlp(dead))
    return dict(zip(DESTINATIONS, ways, strict=True))


@contextmanager
def collector() -> Iterator[int]:
    """The port of a receiver that takes everything."""
    process = subprocess.Popen(
        [sys.executable, "-c", COLLECTOR, str(ROOT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.communicate("")


def row(ending: str, times: Mapping[str, list[float]]) -> str:
    bare = times["bare"]
    cells = [f"{ending:10}{median(bare) * 1000:9.1f} ms"]
    for name in DESTINATIONS[1:]:
        added = [one - other for one, other in zip(times[name], bare, strict=True)]
        low, middle, high = quantiles(added, n=4)
        cells.append(f"{middle * 1000:+9.1f} ms ({low * 1000:+.1f} .. {high * 1000:+.1f})".rjust(32))
    return "".join(cells)


if __name__ == "__main__":
    main()
