# SPDX-License-Identifier: Apache-2.0
"""Run `ring_program` under a relay in a folder of its own, and read what came of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass
class Workplace:
    """Ring folder, store and spool of one test."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def rings(self) -> Path:
        return self.folder / "rings" / f"grademl-{os.getuid()}"

    @property
    def log(self) -> Path:
        return self.folder / "relay.log"

    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "GRADEML_"))}
        return {
            **kept,
            "PYTHONPATH": str(REPOSITORY),
            "GRADEML_RING_DIR": str(self.folder / "rings"),
            "GRADEML_STORE": str(self.store),
            "GRADEML_SPOOL_DIR": str(self.folder / "spool"),
            "GRADEML_RELAY_LOG": str(self.log),
            "GRADEML_BUDGET": "100",
            **self.environ,
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.ring_program", *arguments],
            cwd=REPOSITORY,
            env=self.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def train(self, *arguments: str) -> tuple[int, dict[str, Any], str]:
        """Run the program to its end; return exit status, its last word, and its stderr."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=60)
        return process.returncode, json.loads(out.splitlines()[-1]) if out else {}, err

    def spans(self) -> list[dict[str, Any]]:
        """Return the spans in the file store, attributes as plain values."""
        return [span for path in self.store.glob("*/traces.jsonl") for span in spans_of(path)]

    def named(self, name: str) -> list[dict[str, Any]]:
        return [span for span in self.spans() if span["name"] == name]

    def rows(self) -> list[int]:
        """Return the step numbers of all rows in all windows, in the order of the file."""
        return [
            step
            for window in self.named("window")
            for step in window["attributes"].get("grademl.table.step", ())  # none: a long step runs
        ]

    def relay_pids(self) -> list[int]:
        """Return the relays of this workplace that live."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if (
                str(self.rings).encode() in command
                and b"relay/__main__.py" in b" ".join(command)
                and state != "Z"
            ):
                found.append(int(entry.name))
        return found

    def attached_relay(self) -> int:
        """Wait for the one relay that serves a ring now, and return its process id."""
        found: list[int] = []

        def attached() -> bool:
            found[:] = self.relay_pids()
            log = self.log.read_text() if self.log.exists() else ""
            return len(found) == 1 and f" {found[0]} attached" in log

        until(attached)
        return found[0]

    def stop_relays(self) -> None:
        for pid in self.relay_pids():
            os.kill(pid, signal.SIGKILL)


def spans_of(path: Path) -> list[dict[str, Any]]:
    spans = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        for resource_spans in json.loads(line)["resourceSpans"]:
            for scope_spans in resource_spans["scopeSpans"]:
                for span in scope_spans["spans"]:
                    span["attributes"] = {a["key"]: plain(a["value"]) for a in span.get("attributes", [])}
                    spans.append(span)
    return spans


def plain(value: Mapping[str, Any]) -> Any:
    ((kind, content),) = value.items()
    if kind == "arrayValue":
        return [plain(element) for element in content.get("values", [])]
    return int(content) if kind == "intValue" else content


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("waited in vain")
        time.sleep(0.02)
