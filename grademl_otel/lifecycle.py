# SPDX-License-Identifier: Apache-2.0
"""When a run starts in this process, when it ends, and what a fork does to it.

A process is not a run: a run starts at the first ML event, so that tools, launchers and loader workers that
merely import a framework leave nothing behind. The first one's span starts when the instrumentation was
loaded, so that start-up is visible. A run ends with the program, in order or by an exception, when somebody
calls `Session.end`, or after ten idle minutes: then the next ML event starts another, with a ring and steps
of its own. Of a death by signal the relay writes the end.

The one :data:`session` is what hooks ask. Its ``recorder`` is None whenever there is nothing to record.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from grademl_otel import agreement, marks
from grademl_otel.activerun import ActiveRun, Open, open_ring
from grademl_otel.config import OTLP, Settings, disabled, otlp_complaints
from grademl_otel.destination import configuration_file, decide_destination
from grademl_otel.export.filestore import keepable
from grademl_otel.family import Member
from grademl_otel.identity import place_from_environment
from grademl_otel.messages import complain, warn
from grademl_otel.naming import Named, Namer
from grademl_otel.programend import ProgramEnd, child_of_multiprocessing
from grademl_otel.recorder import MAIN_LANE, Recorder
from grademl_otel.runinfo import announcement, describe_run

_MAX_EARLY: Final = 16
IDLE_NS: Final = 600_000_000_000
"""So long without an event and without a live loop, and the next event starts another run."""
OnStart = Callable[[Recorder, marks.RunInfo], object]
OnEnd = Callable[[], object]


class Session:
    """The run of this process, if there is one."""

    def __init__(self, ring: Open | None = None, idle_ns: int = IDLE_NS) -> None:
        self.recorder: Recorder | None = None
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
        self.look_at_device: Callable[[Recorder], None] = lambda recorder: None
        """Called about once a second in a thread that trains: an asynchronous device may be in use by now."""
        self.records_grad: Callable[[], bool] = lambda: True
        """Tells whether the framework records gradients in this thread."""
        self.provider: Any = None
        """The tracer provider that the configurator left, with its processors as they were."""
        self._processors: tuple[Any, ...] = ()
        self._open_ring = ring or open_ring
        self._idle_ns = idle_ns
        self.names = Namer()
        self.cells: Any = None
        """Of a notebook: they begin and end the runs, see `notebook`."""
        self.block: Any = None
        """The outermost block of the user's own that is entered, see `blocks`."""
        self._starting = threading.RLock()  # a signal handler may train, too
        self._is_starting = False
        self._refused = False
        """No run starts here any more: it cannot be recorded, or the program is at its end."""
        self._since: int | None = self.loaded_at
        """Where the span of the next run begins; None for its first event."""
        self._on_start: list[OnStart] = []
        self._on_end: list[OnEnd] = []
        self._early: deque[tuple[int, int, int, int, str]] = deque(maxlen=_MAX_EARLY)
        self._active: ActiveRun | None = None
        self._shares = False
        """Processors that come late are to receive the spans, too."""
        self._end = ProgramEnd(self.exit)

    # --- Installation ----------------------------------------------------------------------------------

    def install(self) -> bool:
        """Say that hooks are wanted; return False when the user's settings or the relay forbid them."""
        if disabled(os.environ):
            return False
        if not self.installed and self._since is None:
            self._since = time.perf_counter_ns()  # installed again
        self.installed = True
        _switch_blocks(True)
        self.names.prepare()
        self._look_for_cells()
        return True

    def uninstall(self) -> None:
        """End the run, if any, and start no other."""
        self.end()
        self.installed = False
        _switch_blocks(False)
        cells, self.cells = self.cells, None
        if cells is not None:
            cells.leave()
        self.names.retire()
        self._end.unwatch()

    def note_provider(self, provider: Any) -> None:
        """Remember the provider that the configurator left, to tell it from a user's own."""
        from grademl_otel.neighbours import processors_of

        self.provider = provider
        self._processors = processors_of(provider)

    @property
    def info(self) -> marks.RunInfo | None:
        """What the run says of itself; None between runs."""
        return None if self._active is None else self._active.info

    @property
    def is_named(self) -> bool:
        """Whether the name of the active run will not change any more."""
        return self._active is None or self._active.firm

    @property
    def has_relay(self) -> bool:
        """Whether a run is going on that a relay serves; which samples the hardware, too."""
        return self._active is not None and self._active.has_relay

    def on_start(self, callback: OnStart) -> Callable[[], None]:
        """Call ``callback(recorder, info)`` at the start of each run; at once for one that is active.

        A rank that trains before its process group exists calls it when the run's name is known. Return what
        takes the callback back. One that raises costs a line, nothing else.
        """
        self._on_start.append(callback)
        recorder, info = self.recorder, self.info
        if recorder is not None and info is not None and self.is_named:
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
            self.child = child_of_multiprocessing()
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

    def early(self, kind: int, t0: int, t1: int, own: int, detail: str = "") -> None:
        """Keep a phase from before the run, as the loading of a checkpoint, until there is one."""
        if self.installed and self._since is not None and not self.in_worker and not self.child:
            self._early.append((kind, t0, t1, own, detail))

    def _start(self, at: int) -> Recorder | None:
        self._look_for_cells()
        settings = Settings.from_env()
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
            settings = replace(settings, complaints=complaints)
        named = self._name(settings)
        self._shares = destination.traces and not destination.through_provider and settings.exporters is None
        writer, transport = self._open_ring(settings, destination, provider)
        info = describe_run(named, settings, destination, provider, self.framework)
        if self.cells is not None:
            info = replace(info, needs_work=True, script=self.cells.script(info.script))
        active = ActiveRun(settings, writer, transport, info, named, self.look_around, self.after_fork)
        self._active = active
        self._end.error = None
        if self._since is not None:
            at, self._since = min(at, self._since), None
        active.open(at)
        recorder = active.recorder
        recorder.idle_ns = self._idle_ns
        lane = recorder.lane(MAIN_LANE)
        for kind, t0, t1, own, detail in self._early:
            recorder.phase(kind, lane, t0, t1, 0, -1, own, recorder.text(detail))
        self._early.clear()
        self._end.watch()
        if active.firm:
            self._tell_start(active, named)
        return recorder

    def _name(self, settings: Settings) -> Named:
        from grademl_otel.ring.place import meeting_places, places

        folders = dict.fromkeys((*places(settings.ring_dir, settings.ring_bytes), *meeting_places()))
        return self.names.next(settings.run_id, folders, os.environ)

    def _tell_start(self, active: ActiveRun, named: Named) -> None:
        """The run's name is known: tell the user, its children, and all who asked."""
        self.names.began(Member.of(active.info))
        if named.speaks:
            complain(active.settings.complaints)
            if self.cells is None:
                warn(announcement(active.info))
        active.meet_neighbours(self.records_grad)
        for callback in tuple(self._on_start):
            _call(callback, active.recorder, active.info)

    def _settle(self, active: ActiveRun, at_the_end: bool = False) -> None:
        """Name a run for good that began before its process group."""
        named = active.settle(partial(self._name, active.settings), at_the_end)
        if named is not None:
            self._tell_start(active, named)

    def _end_former(self, recorder: Recorder, at: int) -> bool:
        """End the run when an event at ``at`` can be none of it."""
        active = self._active
        if active is None:
            return False
        if active.alone and agreement.group_exists():
            self.end()
            return True
        if active.info.world_size > 1 or self.block is not None:
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

    def _share_with_latecomers(self, active: ActiveRun) -> None:
        """Give our spans to processors that were added since the run began, unless they have them."""
        if not self._shares:
            return
        provider, foreign = self._provider_in_place()
        if foreign and _has_processors(provider):
            self._shares = False
            active.share(provider)
            self._end.be_first()  # before the end of that provider, which is registered since

    def look_around(self) -> None:
        """See whether training, OpenTelemetry or a process group has begun meanwhile."""
        active = self._active
        if active is None:
            return
        recorder = active.recorder
        if recorder.finished_steps():
            active.tell_device(self.device)
        if active.settings.device_times:
            self.look_at_device(recorder)
        self._settle(active)
        if active.alone and agreement.group_exists():
            recorder.idle_at = 0  # the next event looks closer
        if active.look_at_neighbours():
            self._share_with_latecomers(active)

    # --- End -------------------------------------------------------------------------------------------

    def exit(self) -> None:
        """The program ends: end the run, and start no other."""
        self._refused = True
        try:
            if self.recorder is None or not self._end_former(self.recorder, time.perf_counter_ns()):
                self.end()
        except KeyboardInterrupt:
            pass  # whoever does not want to wait for the delivery need not, nor read where we were
        except Exception as failure:
            warn(f"the end of the run is not recorded: {type(failure).__name__}: {failure}")
        self.names.retire()

    def end(self, error: str | None = None, at: int | None = None) -> None:
        """End the run in order and wait until its telemetry is on its way, `GRADEML_EXIT_WAIT` at most.

        ``error`` is the name of the exception that ends it, ``at`` when it ended, by default now. The next ML
        event starts another run.
        """
        active = self._active
        if active is None or active.recorder.pid != os.getpid():
            self.recorder = None
            return
        try:
            self._settle(active, at_the_end=True)
        except Exception as failure:
            warn(f"the run's name is not told: {type(failure).__name__}: {failure}")
        for callback in tuple(self._on_end):
            _call(callback)
        with self._starting:  # another thread that trains on must find all of it over, the name included
            if self._active is not active:
                return
            self.recorder = self._active = None
            self.names.ended()
        try:
            if active.leave_neighbours():
                self._share_with_latecomers(active)
            active.recorder.finish()
            active.tell_device(self.device)
            active.close(self._end.error or error, at)
        except Exception as failure:
            warn(f"the end of the run is not recorded: {type(failure).__name__}: {failure}")

    # --- Fork ------------------------------------------------------------------------------------------

    def after_fork(self) -> None:
        """In a forked child: ring, relay and run are the parent's; ours starts at our own first training."""
        self.recorder = None
        active, self._active = self._active, None
        self.names.forked(Member.of(active.info) if active is not None and active.firm else None)
        self.block = None
        self._since = self.loaded_at = time.perf_counter_ns()
        self._starting = threading.RLock()
        self._is_starting = False
        self._refused = False
        self._early.clear()
        self.cells = None
        self.child = True
        _forget_blocks()
        self._end.forked()
        try:
            if active is not None:
                active.abandon()
        except Exception:
            pass  # the child loses nothing of its own


def _call(callback: Callable[..., object], *args: object) -> None:
    try:
        callback(*args)
    except Exception as error:
        name = getattr(callback, "__qualname__", callback)
        warn(f"{name} is skipped: {type(error).__name__}: {error}")


def _discard(callbacks: list[Any], callback: object) -> None:
    if callback in callbacks:
        callbacks.remove(callback)


def _switch_blocks(on: bool) -> None:
    """Have phases and steps that the program tells be recorded, or not, see `manual`."""
    manual = sys.modules.get("grademl_otel.manual")  # else it looks itself when it is imported
    if manual is not None:
        manual.switch(on)


def _forget_blocks() -> None:
    """Let nothing come here of the phases and steps that the parent was in."""
    manual = sys.modules.get("grademl_otel.manual")
    if manual is not None and hasattr(manual, "forget"):  # else it is being imported
        manual.forget()


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
