# SPDX-License-Identifier: Apache-2.0
"""A real Jupyter kernel: cells go in, and what they show comes out."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

TIMEOUT_S = 60.0


@dataclass
class Shown:
    """What one cell wrote, and how it ended."""

    out: str = ""
    err: str = ""
    error: str = ""
    """Name of the exception that the cell raised."""
    traceback: list[str] = field(default_factory=list)


class Kernel:
    """One kernel with a client; `interrupt` and `restart` as a user has them in the menu."""

    def __init__(self, folder: Path, environ: Mapping[str, str], command: list[str]):
        self.manager = KernelManager(transport="ipc", ip=str(folder / "kernel"))
        self.manager._kernel_spec = KernelSpec(argv=[*command, "-f", "{connection_file}"])
        self.manager.start_kernel(cwd=str(folder), env=dict(environ))
        self.client: Any = None
        self._connect()

    def _connect(self) -> None:
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=TIMEOUT_S)

    def run(self, source: str, interrupt_at: str = "") -> Shown:
        """Execute one cell; interrupt it once it has written ``interrupt_at``."""
        shown = Shown()
        request = self.client.execute(source)
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise AssertionError(f"the cell does not end: {source}\n{shown}") from None
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                attribute = {"stdout": "out", "stderr": "err"}[content["name"]]
                setattr(shown, attribute, getattr(shown, attribute) + content["text"])
                if interrupt_at and interrupt_at in shown.out:
                    interrupt_at = ""
                    self.manager.interrupt_kernel()
            elif message["msg_type"] == "error":
                shown.error, shown.traceback = content["ename"], content["traceback"]
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return shown

    def restart(self, now: bool) -> None:
        """Restart it: in order, or ``now``, which kills it."""
        self.client.stop_channels()
        self.manager.restart_kernel(now=now)
        self._connect()

    def stop(self) -> None:
        """Shut it down as Jupyter does."""
        self.client.stop_channels()
        self.manager.shutdown_kernel()


@contextmanager
def kernel(folder: Path, environ: Mapping[str, str], *prefix: str) -> Iterator[Kernel]:
    """Run a kernel in ``folder``; ``prefix`` is a command that starts it in its own way."""
    running = Kernel(folder, environ, [*prefix, sys.executable, "-m", "ipykernel_launcher"])
    try:
        yield running
    finally:
        running.client.stop_channels()
        if running.manager.is_alive():
            running.manager.shutdown_kernel(now=True)
