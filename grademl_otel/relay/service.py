# SPDX-License-Identifier: Apache-2.0
"""The relay's loop: find rings, serve each, finish those whose process is gone, leave when none is left.

A fault in one ring's handling costs that ring only.
"""

from __future__ import annotations

import logging
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from grademl_otel.config import Settings
from grademl_otel.digest import namespaces
from grademl_otel.export.sinks import Sinks
from grademl_otel.pump import Pump
from grademl_otel.relay.launch import elect, retire, wake_path
from grademl_otel.ring import layout
from grademl_otel.ring.place import remove_forgotten
from grademl_otel.ring.reader import RingCorrupt, RingReader

_log = logging.getLogger(__name__)

POLL_S: Final = 0.25
BATCH: Final = 4096
LINGER_NS: Final = 10_000_000_000
"""A relay without rings stays for so long: the next run of a loop of short ones finds it ready."""
_SETTLE_S: Final = 0.02
_DRAIN_LIMIT_NS: Final = 10_000_000_000
_UNUSABLE_FOR_NS: Final = 60_000_000_000
_FORGOTTEN_AFTER_S: Final = 24 * 3600.0


class Relay:
    """Serves the rings of one digest in one folder."""

    def __init__(self, folder: Path, digest: str, settings: Settings, environ: Mapping[str, str]):
        self._folder = folder
        self._digest = digest
        self._pumps: dict[Path, Pump] = {}
        self._unusable: dict[Path, int] = {}
        self._sinks = Sinks(settings, environ)
        self._stopping = False
        self._idle_since = time.perf_counter_ns()

    def run(self) -> None:
        """Serve until told to stop or until no ring was there for 10 s; returns at once if another relay
        serves.
        """
        lock = elect(self._folder, self._digest)
        if lock is None:
            return
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is meant for the training
        waker = _bind(wake_path(self._folder, self._digest))
        _log.info("serving %s in %s", self._digest, self._folder)
        try:
            while not self._stopping and not self._idle_too_long():
                self._scan()
                busy = self._serve()
                if not busy:
                    _wait(waker, self._pause())
            self._drain()
            for path in remove_forgotten(self._folder, _FORGOTTEN_AFTER_S):
                _log.warning("%s: removed, no relay could deliver it for a day", path)
        finally:
            if waker is not None:
                waker.close()
            wake_path(self._folder, self._digest).unlink(missing_ok=True)
            retire(self._folder, self._digest, lock)
        _log.info("done")

    # --- Rings ------------------------------------------------------------------------------------------

    def _scan(self) -> None:
        """Attach to rings that are new, whether their process lives or not."""
        now = time.perf_counter_ns()
        for path in self._folder.glob(f"{self._digest}-*{layout.SUFFIX}"):
            if path in self._pumps or now - self._unusable.get(path, -_UNUSABLE_FOR_NS) < _UNUSABLE_FOR_NS:
                continue
            try:
                reader = RingReader.open(path)
                if reader.namespaces != namespaces():
                    raise RingCorrupt("made in other namespaces")
                reader.attend(now)
            except FileNotFoundError:
                continue
            except (RingCorrupt, OSError) as error:
                _log.warning("%s: %s", path, error)
                self._unusable[path] = now
                continue
            _log.info("attached to %s of process %d", path.name, reader.pid)
            self._pumps[path] = Pump(reader, self._sinks.open)

    def _serve(self) -> bool:
        """Give every ring its turn; return True when one of them has more to read at once."""
        busy = False
        for path, pump in list(self._pumps.items()):
            try:
                busy |= self._serve_one(path, pump)
            except Exception as error:  # whatever a ring holds, the others go on
                _log.warning("%s: given up", path, exc_info=not isinstance(error, (RingCorrupt, OSError)))
                self._unusable[path] = time.perf_counter_ns()
                self._detach(path, pump)
        self._sinks.relieve()
        return busy

    def _serve_one(self, path: Path, pump: Pump) -> bool:
        now = time.perf_counter_ns()
        reader = pump.reader
        reader.attend(now)
        if pump.finished:
            pump.acknowledge()
            if pump.delivered:
                self._remove(path, pump)
            return False
        if reader.abandoned:
            # Its process took it back to convert its marks itself.
            self._detach(path, pump)
            return False
        number = pump.turn(BATCH, now)
        if number == BATCH:
            return True
        if reader.drained or (reader.closing and reader.owner_unlocked()):
            pump.finish("exit", now)
        elif reader.owner_dead(now):
            _log.info("the process of %s died", path.name)
            pump.finish("killed", now)
        return pump.finished

    def _remove(self, path: Path, pump: Pump) -> None:
        path.unlink(missing_ok=True)
        path.with_suffix(layout.LOCK_SUFFIX).unlink(missing_ok=True)
        _log.info("finished %s", path.name)
        self._detach(path, pump)

    def _detach(self, path: Path, pump: Pump) -> None:
        self._pumps.pop(path, None)
        try:
            pump.close()
        except OSError as error:
            _log.warning("%s: %s", path, error)

    # --- The end ----------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Read what the rings hold now and deliver or spool it; rings of living processes stay for the next
        relay.
        """
        deadline = time.perf_counter_ns() + _DRAIN_LIMIT_NS
        for path, pump in list(self._pumps.items()):
            try:
                while not pump.finished and pump.turn(BATCH, time.perf_counter_ns()) == BATCH:
                    pass
                while not pump.delivered and time.perf_counter_ns() < deadline:
                    self._sinks.relieve()
                    time.sleep(_SETTLE_S)
                    pump.acknowledge()
                if pump.finished and pump.delivered:
                    self._remove(path, pump)
            except Exception as error:
                _log.warning("%s: %s", path, error)
            self._detach(path, pump)
        self._sinks.close(max(0.0, (deadline - time.perf_counter_ns()) / 1e9))

    def _idle_too_long(self) -> bool:
        now = time.perf_counter_ns()
        if self._pumps:
            self._idle_since = now
        return now - self._idle_since > LINGER_NS

    def _pause(self) -> float:
        """Return how long to sleep: shortly while a process waits for its last acknowledgement."""
        return _SETTLE_S if any(pump.finished for pump in self._pumps.values()) else POLL_S

    def _stop(self, *_: object) -> None:
        self._stopping = True


def _bind(path: Path) -> socket.socket | None:
    """Return a socket on which writers wake this relay; None where it cannot be had, then polling does."""
    waker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        path.unlink(missing_ok=True)
        waker.bind(str(path))
        return waker
    except OSError as error:
        _log.info("no wake-up socket: %s", error)
        waker.close()
        return None


def _wait(waker: socket.socket | None, seconds: float) -> None:
    if waker is None:
        time.sleep(seconds)
        return
    waker.settimeout(seconds)
    try:
        waker.recv(16)
    except OSError:  # nobody called
        pass
