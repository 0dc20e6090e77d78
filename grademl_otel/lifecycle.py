# SPDX-License-Identifier: Apache-2.0
"""The life of a run in this process: when it starts, how it ends, and what a fork does to it.

A process is not a run: a run starts at the first ML event, so that tools, launchers and loader workers that
merely import a framework leave nothing behind. The first one's span starts when the instrumentation was
loaded, so that start-up is visible. A run ends with the program, in order or by an exception, when somebody
calls `Session.end`, or after ten idle minutes: then the next ML event starts another, with a ring and steps
of its own. Of a death by signal the relay writes the end.

The one :data:`session` is what hooks ask. Its ``recorder`` is None whenever there is nothing to record.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Final

from grademl_otel import marks, semconv
from grademl_otel.agreement import group_exists
from grademl_otel.config import (
    OTLP,
    Destination,
    Settings,
    complain,
    configuration_file,
    decide_destination,
    disabled,
    otlp_complaints,
    warn,
)
from grademl_otel.export.filestore import keepable
from grademl_otel.family import Member
from grademl_otel.identity import place_from_environment
from grademl_otel.naming import Named, Namer
from grademl_otel.recorder import MAIN_LANE, RUN_SCOPE, Keeper, Recorder, Writer
from grademl_otel.runinfo import announcement, describe_run, renamed
from grademl_otel.tracebacks import hide_our_frames

_RUN: Final = marks.SCOPE_INDEX[semconv.RUN]
_MAX_EARLY: Final = 16
IDLE_NS: Final = 600_000_000_000
"""So long without an event and without a live loop, and the next event starts another run."""
_ALONE_AFTER_NS: Final = 20_000_000_000
_ALONE_AFTER_ROWS: Final = 256
"""A rank that trains for so long before its process group exists has a run of its own."""

Open = Callable[[Settings, Destination, Any], tuple[Writer, Any]]
OnStart = Callable[[Recorder, marks.RunInfo], object]
OnEnd = Callable[[], object]


class Session:
    """The run of this process, if there is one."""

    def __init__(self, open_ring: Open | None = None, idle_ns: int = IDLE_NS) -> None:
        self.recorder: Recorder | None = None
        self.info: marks.RunInfo | None = None
        """What the run says of itself; None between runs."""
        self.loaded_at = time.perf_counter_ns()
        self.installed = False
        """Hooks are in place and nothing speaks against a run."""
        self.in_worker = False
        """This is a worker process of a loader: it never has a run."""
        self.child = False
        """This process was forked, or made by multiprocessing: its run starts at its first training event."""
        self.framework: tuple[str, str] = ("", "")
        self.device: Callable[[], str | None] = lambda: None
        """Tells the device in use; called when the first steps are done, never to initialize one."""
        self.records_grad: Callable[[], bool] = lambda: True
        """Tells whether the framework records gradients in this thread."""
        self.provider: Any = None
        """The tracer provider that the configurator left, with its processors as they were."""
        self._processors: tuple[Any, ...] = ()
        self._open_ring = open_ring or _open_ring
        self._idle_ns = idle_ns
        self.names = Namer()
        self.cells: Any = None
        """Of a notebook: they begin and end the runs, see `notebook`."""
        self.block: Any = None
        """The outermost block of the user's own that is entered, see `blocks`."""
        self._firm = True
        """The run's name will not change any more."""
        self._alone = False
        """The run has a name of its own only because no process group came; one that comes ends it."""
        self._unnamed_since = 0
        """When the first row was there of a run whose name is not firm."""
        self._starting = threading.RLock()  # a signal handler may train, too
        self._is_starting = False
        self._refused = False
        """No run starts here any more: it cannot be recorded, or the program is at its end."""
        self._since: int | None = self.loaded_at
        """Where the span of the next run begins; None for its first event."""
        self._on_start: list[OnStart] = []
        self._on_end: list[OnEnd] = []
        self._early: deque[tuple[int, int, int, int]] = deque(maxlen=_MAX_EARLY)
        self._transport: Any = None
        self._neighbours: Any = None
        self._shares = False
        """Processors that come late are to receive the spans, too."""
        self._writer: Writer | None = None
        self._settings: Settings | None = None
        self._error: str | None = None
        self._device_told = False
        self._previous_excepthook = sys.excepthook
        self._excepthook: Any = None

    # --- Installation ----------------------------------------------------------------------------------

    def install(self) -> bool:
        """Say that hooks are wanted; return False when the user's settings or the relay forbid them."""
        if disabled(os.environ):
            return False
        if not self.installed and self._since is None:
            self._since = time.perf_counter_ns()  # installed again
        self.installed = True
        self.names.prepare()
        self._look_for_cells()
        return True

    def uninstall(self) -> None:
        """End the run, if any, and start no other."""
        self.end()
        self.installed = False
        cells, self.cells = self.cells, None
        if cells is not None:
            cells.leave()
        self.names.retire()
        atexit.unregister(self.exit)
        if sys.excepthook is self._excepthook:
            sys.excepthook = self._previous_excepthook

    def note_provider(self, provider: Any) -> None:
        """Remember the provider that the configurator left, to tell it from a user's own."""
        from grademl_otel.neighbours import processors_of

        self.provider = provider
        self._processors = processors_of(provider)

    @property
    def is_named(self) -> bool:
        """Whether the name of the active run will not change any more."""
        return self._firm

    def on_start(self, callback: OnStart) -> Callable[[], None]:
        """Call ``callback(recorder, info)`` at the start of each run; at once for one that is active.

        A rank that trains before its process group exists calls it when the run's name is known. Return what
        takes the callback back. One that raises costs a line, nothing else.
        """
        self._on_start.append(callback)
        recorder, info = self.recorder, self.info
        if recorder is not None and info is not None and self._firm:
            _call(callback, recorder, info)
        return partial(_discard, self._on_start, callback)

    def on_end(self, callback: OnEnd) -> Callable[[], None]:
        """Call ``callback()`` when a run ends whose start was told, while its recorder still writes.

        A forked child is not told of the end of its parent's run.
        """
        self._on_end.append(callback)
        return partial(_discard, self._on_end, callback)

    # --- Start -----------------------------------------------------------------------------------------

    def begin(self, training: bool, at: int = 0) -> Recorder | None:
        """Return the recorder, starting a run when there is none; None when there is to be none.

        ``training`` marks events that only training has (a backward, an optimizer's step): in a forked child
        and in one of multiprocessing nothing else starts a run: it may be a worker, or a rank whose process
        group is still to come. ``at`` is when the event began: long after the last one, it is another
        run's.
        """
        recorder = self.recorder
        if recorder is not None and (at <= recorder.idle_at or not self._end_former(recorder, at)):
            return recorder
        if not self.child:
            self.child = _child_of_multiprocessing()
        if self._refused or not self.installed or self.in_worker or (self.child and not training):
            return None
        if _preparing_child():
            return None
        try:
            with self._starting:  # a thread that trains meanwhile waits; its first steps would be lost
                if self.recorder is None and not self._refused and not self._is_starting:
                    self._is_starting = True
                    try:
                        self.recorder = self._start(at or time.perf_counter_ns())
                        self._refused = self.recorder is None
                    finally:
                        self._is_starting = False
        except Exception as error:
            self._refused = True
            warn(f"nothing is recorded: {type(error).__name__}: {error}")
        return self.recorder

    def next_begins(self, at: int) -> None:
        """Let the span of the next run begin at ``at``; for a run that is active nothing changes."""
        if self.recorder is None:
            self._since = at
            self._early.clear()

    def _look_for_cells(self) -> None:
        if self.cells is None and not self.child and "IPython" in sys.modules:
            from grademl_otel.notebook import follow_cells

            self.cells = follow_cells(self)

    def early(self, kind: int, t0: int, t1: int, own: int) -> None:
        """Keep a phase from before the run, as the loading of a checkpoint, until there is one."""
        if self.installed and self._since is not None and not self.in_worker and not self.child:
            self._early.append((kind, t0, t1, own))

    def _start(self, at: int) -> Recorder | None:
        self._look_for_cells()
        settings = self._settings = Settings.from_env()
        provider, foreign = self._provider_in_place()
        destination = decide_destination(settings, os.environ, foreign, processors=_has_processors(provider))
        if destination.nowhere:
            if configuration_file(os.environ) and place_from_environment(os.environ).rank == 0:
                warn("nothing is recorded: OTEL_CONFIG_FILE sets no span processor up; see GRADEML_EXPORTER")
            return None
        destination, complaint = keepable(destination, settings.store_dir)
        if complaint:
            warn(complaint)
        if destination.nowhere:
            return None
        if provider is None and OTLP in destination.exporters:
            complaints = (*settings.complaints, *otlp_complaints(os.environ))
            settings = self._settings = replace(settings, complaints=complaints)
        named = self._name(settings)
        self._shares = destination.traces and not destination.through_provider and settings.exporters is None
        writer, transport = self._open_ring(settings, destination, provider)
        info = describe_run(named, settings, destination, provider, self.framework)
        if self.cells is not None:
            info = replace(info, needs_work=True, script=self.cells.script(info.script))
        self.info = info
        serials = count(RUN_SCOPE + 1)
        recorder = Recorder(writer, _Keeper(self, transport), serials, self.after_fork)
        self._writer, self._transport = writer, transport
        self._device_told, self._error = False, None
        lane = recorder.lane(MAIN_LANE)
        if self._since is not None:
            at, self._since = min(at, self._since), None
        recorder.idle_ns = self._idle_ns
        recorder.governor.budget = settings.budget / 100
        self._firm, self._alone, self._unnamed_since = named.firm, False, 0
        recorder.unnamed = not named.firm
        self._write_info(recorder, info, at)
        writer.write(marks.SCOPE_OPEN, lane, at, at, RUN_SCOPE, 0, _RUN, -1)
        for kind, t0, t1, own in self._early:
            recorder.phase(kind, lane, t0, t1, 0, -1, own, 0)
        self._early.clear()
        self._watch_the_end()
        if self._firm:
            self._tell_start(recorder, info, named)
        return recorder

    def _name(self, settings: Settings) -> Named:
        from grademl_otel.ring.place import meeting_places, places

        folders = dict.fromkeys((*places(settings.ring_dir, settings.ring_bytes), *meeting_places()))
        return self.names.next(settings.run_id, folders, os.environ)

    def _write_info(self, recorder: Recorder, info: marks.RunInfo, at: int) -> None:
        assert self._writer is not None
        # A name that may change starts with a space: whoever looks for the run among the texts goes on.
        text = info.to_json() if self._firm else f" {info.to_json()}"
        state = 0 if self._firm else marks.PROVISIONAL
        lane = recorder.lane(MAIN_LANE)
        self._writer.write(marks.RUN_INFO, lane, at, at, RUN_SCOPE, self._writer.intern(text), state, 0)

    def _tell_start(self, recorder: Recorder, info: marks.RunInfo, named: Named) -> None:
        """The run's name is known: tell the user, its children, and all who asked."""
        self.names.began(Member.of(info))
        if named.speaks:
            complain(self._settings.complaints if self._settings is not None else ())
            if self.cells is None:
                warn(announcement(info))
        self._meet_neighbours(recorder, info)
        for callback in tuple(self._on_start):
            _call(callback, recorder, info)

    def _settle(self, recorder: Recorder, at_the_end: bool = False) -> None:
        """Name a run for good that began before its process group: that exists, or has not come for long."""
        if self._firm or self.info is None or self._settings is None:
            return
        now = time.perf_counter_ns()
        self._unnamed_since = self._unnamed_since or now
        waited = now - self._unnamed_since > _ALONE_AFTER_NS or recorder.rows > _ALONE_AFTER_ROWS
        if not (waited or at_the_end or group_exists()):
            return
        named = self._name(self._settings)
        if not (waited or at_the_end or named.firm):
            return
        self._firm, self._alone = True, not named.firm
        recorder.unnamed = False
        self.info = renamed(self.info, named)
        self._write_info(recorder, self.info, now)
        self._tell_start(recorder, self.info, named)

    def _end_former(self, recorder: Recorder, at: int) -> bool:
        """End the run when an event at ``at`` can be none of it."""
        if self._alone and group_exists():
            self.end()
            return True
        if self.info is None or self.info.world_size > 1 or self.block is not None:
            return False  # ranks end together, blocks when they are left
        since = recorder.resting_since()
        if since is None or at - since <= self._idle_ns:
            return False
        self.end(at=since)
        return True

    def _provider_in_place(self) -> tuple[Any, bool]:
        """The SDK's tracer provider in place or None, and whether it is the user's own."""
        from grademl_otel.neighbours import processors_of, provider_in_place

        provider = provider_in_place()
        if provider is None:
            return None, False
        unchanged = provider is self.provider and processors_of(provider) == self._processors
        return provider, not unchanged

    def _meet_neighbours(self, recorder: Recorder, info: marks.RunInfo) -> None:
        try:
            from grademl_otel.neighbours import Neighbours

            self._neighbours = Neighbours(recorder, info, self.records_grad)
        except Exception as error:
            warn(f"spans do not nest in the steps: {type(error).__name__}: {error}")

    def _share_with_latecomers(self) -> None:
        """Give our spans to processors that were added since the run began, unless they have them."""
        if not self._shares:
            return
        provider, foreign = self._provider_in_place()
        if foreign and _has_processors(provider):
            self._shares = False
            self._transport.share(provider)
            self._be_first_at_exit()  # before the end of that provider, which is registered since

    def look_around(self) -> None:
        """See whether OpenTelemetry or a process group has been set up meanwhile."""
        recorder = self.recorder
        if recorder is not None:
            self._settle(recorder)
            if self._alone and group_exists():
                recorder.idle_at = 0  # the next event looks closer
        if self._neighbours is not None:
            self._neighbours.look()
            self._share_with_latecomers()

    # --- End -------------------------------------------------------------------------------------------

    def _watch_the_end(self) -> None:
        # Registered at the first ML event, so after nearly every import: atexit runs backwards, and the
        # user's threads have been joined before.
        self._be_first_at_exit()
        util = sys.modules.get("multiprocessing.util")
        if util is not None and _child_of_multiprocessing():
            # Children of multiprocessing may end with os._exit, which knows no atexit.
            util.Finalize(None, self._end_child, exitpriority=100)
        self._chain_excepthook()

    def _be_first_at_exit(self) -> None:
        atexit.unregister(self.exit)
        atexit.register(self.exit)

    def _chain_excepthook(self) -> None:
        """Note what ends the program, then do what would have been done."""
        if sys.excepthook is self._excepthook:
            return  # inherited through a fork
        previous = self._previous_excepthook = sys.excepthook

        def excepthook(
            kind: type[BaseException], error: BaseException, traceback: TracebackType | None
        ) -> None:
            try:
                if not hasattr(sys, "ps1"):  # at a prompt the program goes on
                    self._error = kind.__name__
                traceback = hide_our_frames(error)
            except Exception:
                pass
            previous(kind, error, traceback)

        sys.excepthook = self._excepthook = excepthook

    def _end_child(self) -> None:
        """The end of a child of multiprocessing, whose errors never come to the excepthook."""
        kind = sys.exc_info()[0]
        if kind is not None and not issubclass(kind, SystemExit):
            self._error = kind.__name__
        self.exit()

    def exit(self) -> None:
        """The program ends: end the run, and start no other."""
        self._refused = True
        try:
            if self.recorder is None or not self._end_former(self.recorder, time.perf_counter_ns()):
                self.end()
        except KeyboardInterrupt:
            pass  # whoever does not want to wait for the delivery need not, nor read where we were
        self.names.retire()

    def end(self, error: str | None = None, at: int | None = None) -> None:
        """End the run in order and wait until its telemetry is on its way, `GRADEML_EXIT_WAIT` at most.

        ``error`` is the name of the exception that ends it, ``at`` when it ended, by default now. The next ML
        event starts another run.
        """
        recorder = self.recorder
        if recorder is None or recorder.pid != os.getpid():
            self.recorder = None
            return
        self._error = self._error or error
        try:
            self._settle(recorder, at_the_end=True)
        except Exception as failure:
            warn(f"the run's name is not told: {type(failure).__name__}: {failure}")
        for callback in tuple(self._on_end):
            _call(callback)
        self.recorder, self.info = None, None
        neighbours, self._neighbours = self._neighbours, None
        try:
            if neighbours is not None:
                neighbours.leave()
                self._share_with_latecomers()
            recorder.finish()
            assert self._writer is not None
            self.tell_device(recorder)
            now = time.perf_counter_ns() if at is None else at
            lane = recorder.lane(MAIN_LANE)
            kind = self._writer.intern(self._error) if self._error else 0
            self._writer.write(
                marks.SCOPE_CLOSE, lane, now, now, RUN_SCOPE, 1 if self._error else 0, _RUN, kind
            )
            recorder.mute()  # daemon threads may still train
            wait = self._settings.exit_wait_s if self._settings is not None else 0.0
            self._transport.close(wait)
        except Exception as failure:
            warn(f"the end of the run is not recorded: {type(failure).__name__}: {failure}")
        finally:
            self.names.ended()

    def tell_device(self, recorder: Recorder) -> None:
        """Put the device on the run's span, once there is one."""
        if self._device_told or self._writer is None:
            return
        device = self.device()
        if device:
            self._device_told = True
            now = time.perf_counter_ns()
            key, value = self._writer.intern(semconv.DEVICE), self._writer.intern(device)
            self._writer.write(marks.SCOPE_TEXT, recorder.lane(MAIN_LANE), now, now, RUN_SCOPE, key, value)

    # --- Fork ------------------------------------------------------------------------------------------

    def after_fork(self) -> None:
        """In a forked child: ring, relay and run are the parent's; ours starts at our own first training."""
        recorder, self.recorder = self.recorder, None
        active = self.info is not None and self._firm
        self.names.forked(Member.of(self.info) if self.info is not None and active else None)
        self.info = self.block = None
        self._since = self.loaded_at = time.perf_counter_ns()
        self._starting = threading.RLock()
        self._is_starting = False
        self._refused = False
        self._early.clear()
        self.cells = None
        self.child = True
        transport, self._transport = self._transport, None
        neighbours, self._neighbours = self._neighbours, None
        self._writer = None
        try:
            if neighbours is not None:
                neighbours.leave(forked=True)
            if recorder is not None:
                recorder.mute()
            if transport is not None:
                transport.abandon()
        except Exception:
            pass  # the child loses nothing of its own


class _Keeper:
    """Looks after the transport, and tells the device once training has begun."""

    def __init__(self, session: Session, transport: Keeper) -> None:
        self._session = session
        self._transport = transport

    def tick(self, now_ns: int) -> None:
        recorder = self._session.recorder
        if recorder is not None and recorder.finished_steps():
            self._session.tell_device(recorder)
        self._session.look_around()
        self._transport.tick(now_ns)


def _open_ring(settings: Settings, destination: Destination, provider: Any) -> tuple[Writer, Any]:
    from grademl_otel.ring.writer import RingUnavailable, RingWriter
    from grademl_otel.transport import open_transport

    in_process = (
        settings.in_process
        or destination.through_provider
        or not sys.platform.startswith(("linux", "darwin"))
    )
    try:
        writer = RingWriter.create(settings)
    except RingUnavailable:
        writer = RingWriter.in_memory(settings)
        in_process = True
    taken = provider if destination.through_provider else None
    return writer, open_transport(writer, settings, "in-process" if in_process else "relay", taken)


def _call(callback: Callable[..., object], *args: object) -> None:
    try:
        callback(*args)
    except Exception as error:
        name = getattr(callback, "__qualname__", callback)
        warn(f"{name} is skipped: {type(error).__name__}: {error}")


def _discard(callbacks: list[Any], callback: object) -> None:
    if callback in callbacks:
        callbacks.remove(callback)


def _child_of_multiprocessing() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _preparing_child() -> bool:
    """Whether multiprocessing is still importing the main module into a child that it spawned.

    What a script builds at its top level is built in each loader worker, too. Only after this can the child
    say that it is one.
    """
    process = sys.modules.get("multiprocessing.process")
    return process is not None and getattr(process.current_process(), "_inheriting", False)


def _has_processors(provider: Any) -> bool:
    from grademl_otel.neighbours import processors_of

    return bool(processors_of(provider))


session: Final = Session()
"""The one session of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=session.after_fork)
