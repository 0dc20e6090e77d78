# SPDX-License-Identifier: Apache-2.0
"""The relay's loop: find rings, serve each, finish those whose process is gone, leave when none is left.

A fault in one ring's handling costs that ring only. What is found in the folder is not trusted: see `reader`
for what a ring holds, `place` and `sealed` for what lies in a ring's place.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from grademl_otel.config import Settings
from grademl_otel.digest import SETTINGS_DIGITS
from grademl_otel.export.sinks import Sinks
from grademl_otel.locks import elect, holds, retire
from grademl_otel.pump import Pump
from grademl_otel.relay.calls import answer_at, hand_over, let_go, wait_for_call, wake_path
from grademl_otel.relay.hardware import Hardware
from grademl_otel.ring import layout
from grademl_otel.ring.mirror import Mirror
from grademl_otel.ring.place import is_unlocked, private_folder, remove, remove_forgotten
from grademl_otel.ring.reader import RingCorrupt, RingReader

_log = logging.getLogger(__name__)

POLL_S: Final = 0.25
BATCH: Final = 4096
LINGER_NS: Final = 10_000_000_000
"""A relay without rings stays for so long: the next run of a loop of short ones finds it ready."""
_SETTLE_S: Final = 0.02
_DYING_WAIT_NS: Final = 2_000_000_000
"""A relay told to stop waits so long for processes that were told, too, and are on their way out."""
_DRAIN_LIMIT_NS: Final = 10_000_000_000
_UNUSABLE_FOR_NS: Final = 60_000_000_000
_ADOPT_EVERY_NS: Final = 2_000_000_000
_SWEEP_EVERY_NS: Final = 3_600_000_000_000
_FORGOTTEN_AFTER_S: Final = 24 * 3600.0


class _Served:
    """A ring that is being read: its pump, and the copy of it, if it has no file of its own."""

    def __init__(self, pump: Pump, mirror: Mirror | None, foreign: tuple[str, int] | None):
        self.pump = pump
        self.mirror = mirror
        self.foreign = foreign
        """The digest of other namespaces that it was made in, and the lock of their relay, held here."""


class Relay:
    """Serves the rings of one digest in one folder.

    ``inherited`` are descriptors of rings without a name that the process gave which started this one.
    """

    def __init__(
        self,
        folder: Path,
        digest: str,
        settings: Settings,
        environ: Mapping[str, str],
        inherited: Iterable[int] = (),
    ):
        self._folder = folder
        self._digest = digest
        self._given = list(inherited)
        """Rings without a name that have come since the last look at the folder."""
        self._lock: int | None = None
        self._rings: dict[Path, _Served] = {}
        self._unusable: dict[Path, int] = {}
        self._sinks = Sinks(settings, environ)
        self._hardware = Hardware(settings, environ, self._sinks, folder, digest)
        self._stopping = False
        self._idle_since = time.perf_counter_ns()
        self._adopted_at = -_ADOPT_EVERY_NS
        self._swept_at = time.perf_counter_ns()

    def run(self) -> None:
        """Serve until told to stop or until no ring was there for 10 s; returns at once if another relay
        serves.
        """
        self._lock = elect(self._folder, self._digest)
        if self._lock is None:
            hand_over(self._folder, self._digest, self._given)
            return
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is meant for the training
        waker = answer_at(wake_path(self._folder, self._digest))
        _log.info("serving %s in %s", self._digest, self._folder)
        try:
            while not self._stopping and not self._idle_too_long():
                self._turn(waker)
            deadline = time.perf_counter_ns() + _DYING_WAIT_NS
            while self._rings and time.perf_counter_ns() < deadline:
                self._turn(waker)
            self._drain()
            self._sweep()
        finally:
            if waker is not None:
                waker.close()
            remove(wake_path(self._folder, self._digest))
            retire(self._folder, self._digest, self._lock)
        _log.info("done")

    def _turn(self, waker: socket.socket | None) -> None:
        self._keep_lock()
        self._scan()
        if not self._serve():
            self._given += wait_for_call(waker, self._pause())

    def _keep_lock(self) -> None:
        """Take the lock again when somebody deleted its file: the next relay must find it taken."""
        assert self._lock is not None
        if holds(self._folder, self._digest, self._lock):
            return
        try:
            self._folder.lstat()
            lock = elect(private_folder(self._folder), self._digest)
        except OSError:  # the folder is gone, too, or another user's now; the owner of a ring makes it anew
            return
        if lock is None:  # another relay was quicker
            self._stopping = True
            return
        os.close(self._lock)
        self._lock = lock

    # --- Rings ------------------------------------------------------------------------------------------

    def _scan(self) -> None:
        """Attach to rings that are new, whether their process lives or not."""
        now = time.perf_counter_ns()
        for path in self._folder.glob(f"{self._digest}-*{layout.POINTER_SUFFIX}"):
            self._attach(path, now)
        let_go(self._given)  # served by now: their memory must go when it is delivered
        for path in self._folder.glob(f"{self._digest}-*{layout.SUFFIX}"):
            pointer = path.with_suffix(layout.POINTER_SUFFIX)
            if pointer not in self._rings and not pointer.is_symlink():  # else it is our copy
                self._attach(path, now)
        if now - self._adopted_at >= _ADOPT_EVERY_NS:
            self._adopted_at = now
            self._adopt(now)
        if now - self._swept_at >= _SWEEP_EVERY_NS:
            self._swept_at = now
            self._sweep()

    def _attach(self, path: Path, now: int, foreign: tuple[str, int] | None = None) -> bool:
        if path in self._rings or now - self._unusable.get(path, -_UNUSABLE_FOR_NS) < _UNUSABLE_FOR_NS:
            return False
        try:
            reader = RingReader.open(path, self._given)
        except (RingCorrupt, OSError) as error:
            gone = isinstance(error, (FileNotFoundError, PermissionError))
            if not gone or not self._forgets_owner(path):
                self._leave_alone(path, now, f"{error}")
            return False
        try:
            served = self._begin(path, now, reader, foreign)
        except (RingCorrupt, OSError) as error:  # somebody truncates it just now
            self._leave_alone(path, now, f"{error}")
            served = None
        if served is None:
            reader.close()
            return False
        self._rings[path] = served
        return True

    def _begin(
        self, path: Path, now: int, reader: RingReader, foreign: tuple[str, int] | None
    ) -> _Served | None:
        """Return what serves the ring at ``path`` from now on; None when that is not for us to do."""
        if foreign is None and reader.attended(now):
            return None  # by another relay, whose lock's file somebody deleted
        if not path.name.startswith(f"{reader.digest}-") or reader.abandoned:
            self._leave_alone(path, now, "it is not what its name says")
            return None
        mirror = None
        if path.suffix == layout.POINTER_SUFFIX:
            mirror = Mirror(path.with_suffix(layout.SUFFIX))
        recovered = reader.owner_unlocked()
        reader.attend(now)
        _log.info("attached to %s of process %d%s", path.name, reader.pid, ", gone" if recovered else "")
        pump = Pump(
            reader,
            self._sinks.open,
            metrics_every_ns=self._sinks.metrics_every_ns,
            recovered=recovered,
            # Else a relay that dies with the process, as in a container, leaves it to be told once more.
            before_last_ack=partial(_remove_files, path),
            beside=self._hardware.beside(reader.pid, alive=foreign is None and not recovered),
        )
        if mirror is not None:
            mirror.update(reader)  # before anything is read: there may be much
        return _Served(pump, mirror, foreign)

    def _leave_alone(self, path: Path, now: int, why: str) -> None:
        if path not in self._unusable:
            _log.warning("%s: left alone: %s", path, why)
        self._unusable[path] = now

    def _forgets_owner(self, path: Path) -> bool:
        """Remove a pointer whose process is gone, and its ring with it; what is left is the copy, if any.

        What its descriptor is by now says nothing: its number and that of the process may be in use again.
        """
        lock = path.with_suffix(layout.LOCK_SUFFIX)
        if path.suffix != layout.POINTER_SUFFIX or not lock.exists() or not is_unlocked(lock):
            return False
        remove(path)
        if not path.with_suffix(layout.SUFFIX).exists():
            remove(lock)
            _log.warning("%s: its process is gone, no copy was kept: what it recorded is lost", path)
        return True

    def _adopt(self, now: int) -> None:
        """Take over what processes of other namespaces left, as containers that are gone, to the same place.

        Only under the lock of their own relay, and only when their process is dead.
        """
        settings = self._digest[:SETTINGS_DIGITS]
        for path in self._folder.glob(f"{settings}*{layout.SUFFIX}"):
            digest = path.name.partition("-")[0]
            if digest == self._digest or path in self._rings or path in self._unusable:
                continue
            try:
                if not is_unlocked(path.with_suffix(layout.LOCK_SUFFIX)):
                    continue
                lock = elect(self._folder, digest)
            except (OSError, ValueError):
                continue
            if lock is None:
                continue
            if self._attach(path, now, (digest, lock)):
                remove(path.with_suffix(layout.POINTER_SUFFIX))
            else:
                retire(self._folder, digest, lock)

    def _sweep(self) -> None:
        for path in remove_forgotten(self._folder, _FORGOTTEN_AFTER_S):
            _log.warning("%s: removed, no relay could deliver it for a day", path)

    def _serve(self) -> bool:
        """Give every ring its turn; return True when one of them has more to read at once."""
        busy = False
        for path, ring in list(self._rings.items()):
            try:
                busy |= self._serve_one(path, ring)
            except Exception as error:  # whatever a ring holds, the others go on
                _log.warning("%s: given up", path, exc_info=not isinstance(error, (RingCorrupt, OSError)))
                self._unusable[path] = time.perf_counter_ns()
                self._detach(path, ring)
        self._hardware.turn(time.perf_counter_ns())
        self._sinks.relieve()
        return busy

    def _serve_one(self, path: Path, ring: _Served) -> bool:
        now = time.perf_counter_ns()
        pump, reader = ring.pump, ring.pump.reader
        reader.attend(now)
        if pump.finished:
            pump.acknowledge()
            if pump.delivered:
                self._remove(path, ring)
            return False
        if reader.abandoned:
            # Its process took it back to convert its marks itself.
            if ring.mirror is not None:
                ring.mirror.remove()
            self._detach(path, ring)
            return False
        number = pump.turn(BATCH, now)
        if ring.mirror is not None:
            ring.mirror.update(reader)
        if number == BATCH:
            return True
        if reader.drained or (reader.closing and reader.owner_unlocked()):
            pump.finish("exit", now)
        elif reader.owner_dead(now) or (self._stopping and number == 0 and reader.owner_unlocked()):
            _log.info("the process of %s died", path.name)
            pump.finish("killed", now)
        return pump.finished

    def _remove(self, path: Path, ring: _Served) -> None:
        _remove_files(path)
        _log.info("finished %s", path.name)
        self._detach(path, ring)

    def _detach(self, path: Path, ring: _Served) -> None:
        self._rings.pop(path, None)
        if ring.mirror is not None:
            ring.mirror.close()
        if ring.foreign is not None:
            retire(self._folder, *ring.foreign)
        try:
            ring.pump.close()
        except OSError as error:
            _log.warning("%s: %s", path, error)

    # --- The end ----------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Read what the rings hold now, windows that are open included, and deliver or spool it; rings of
        living processes stay for the next relay.
        """
        deadline = time.perf_counter_ns() + _DRAIN_LIMIT_NS
        for path, ring in list(self._rings.items()):
            pump = ring.pump
            try:
                while not pump.finished and pump.turn(BATCH, time.perf_counter_ns()) == BATCH:
                    pass
                pump.flush()
                while not pump.delivered and time.perf_counter_ns() < deadline:
                    self._sinks.relieve()
                    time.sleep(_SETTLE_S)
                    pump.acknowledge()
                if pump.finished and pump.delivered:
                    self._remove(path, ring)
                    continue
                if ring.mirror is not None:
                    ring.mirror.update(pump.reader)
            except Exception as error:
                _log.warning("%s: %s", path, error)
            self._detach(path, ring)
        self._hardware.close()
        self._sinks.close(max(0.0, (deadline - time.perf_counter_ns()) / 1e9))

    def _idle_too_long(self) -> bool:
        now = time.perf_counter_ns()
        if self._rings:
            self._idle_since = now
        return now - self._idle_since > LINGER_NS

    def _pause(self) -> float:
        """Return how long to sleep: shortly while a process waits for its last acknowledgement."""
        return _SETTLE_S if any(ring.pump.finished for ring in self._rings.values()) else POLL_S

    def _stop(self, *_: object) -> None:
        self._stopping = True


def _remove_files(ring: Path) -> None:
    for suffix in (layout.POINTER_SUFFIX, layout.SUFFIX, layout.LOCK_SUFFIX):
        remove(ring.with_suffix(suffix))
