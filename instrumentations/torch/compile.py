# SPDX-License-Identifier: Apache-2.0
"""Compilations by `torch.compile`: what Dynamo compiles, and what is compiled later for it.

Dynamo compiles a frame at the first call of a function with new shapes, types or modules, in the middle of a
step; the backward may follow when it is first needed, and CUDA graphs are recorded at a second call. The
first is seen at the function that compiles a frame, the others through Dynamo's own callbacks, whose methods
are wrapped: `torch._dynamo.reset` forgets what is registered with them. Torch before these has callbacks for
Dynamo alone; there a backward that is compiled late is part of its backward.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import wraps
from time import perf_counter_ns
from types import CodeType
from typing import Any, Final, NamedTuple

from grademl_otel import marks, semconv
from grademl_otel.guard import Guard
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch.tensors import hooks
from grademl_otel.lifecycle import session
from grademl_otel.recorder import Recorder
from grademl_otel.steps import StepMachine
from grademl_otel.tracebacks import leave_out_this_frame, pass_over

_COMPILE: Final = marks.phase_kind(semconv.COMPILE)
_LONGEST_NAME: Final = 100
_LONGEST_REASON: Final = 200
_MAX_REASONS: Final = 256
"""Different reasons that are told of a process: each is kept in the ring as long as that lives."""
_MAX_FRAMES: Final = 1024
_STAND_IN_FILE: Final = "external_utils.py"
_NOTHING_TO_COMPILE: Final = "SkipFrame"
_EXPLAINS: Final = ("get_and_maybe_log_recompilation_reasons", "get_and_maybe_log_recompilation_reason")
"""What tells why a function is compiled again, by its names in torch, the latest first."""
_TRIGGERS: Final = {
    "DYNAMO": marks.COMPILE_FRAME,
    "LAZY_BACKWARD": marks.COMPILE_BACKWARD,
    "CUDAGRAPH_RECORDING": marks.COMPILE_CUDA_GRAPH,
}


def install(patches: Patches) -> None:
    """Wrap what compiles a frame, and what Dynamo calls around later compilations; it is imported."""
    tracer = sys.modules["torch._dynamo.symbolic_convert"].InstructionTranslator
    patches.replace(tracer, "__init__", _wrap_tracer(tracer.__init__))
    frames = sys.modules["torch._dynamo.convert_frame"]
    handler = sys.modules["torch._dynamo.callback"].CompilationCallbackHandler
    compilations = _Compilations()
    patches.replace(frames, "_compile", _wrap_compile(frames._compile, compilations))
    for name in _EXPLAINS:
        if hasattr(frames, name):
            patches.replace(frames, name, _wrap_explanation(getattr(frames, name), compilations))
    start, end = handler.run_start_callbacks, handler.run_end_callbacks
    patches.replace(handler, "run_start_callbacks", _wrap_callbacks(start, compilations.later_begins))
    patches.replace(handler, "run_end_callbacks", _wrap_callbacks(end, compilations.later_ends))


def _wrap_tracer(original: Callable[..., None]) -> Callable[..., None]:
    """What traces a frame, for whomever: `torch.compile`, `torch.export`, `explain`."""

    @pass_over
    @wraps(original)
    def __init__(*args: Any, **kwargs: Any) -> None:
        try:
            hooks.restore()
            original(*args, **kwargs)
        except BaseException as error:
            leave_out_this_frame(error)
            raise

    return __init__


def _wrap_compile(original: Callable[..., Any], compilations: _Compilations) -> Callable[..., Any]:
    @pass_over
    @wraps(original)
    def _compile(code: CodeType, *args: Any, **kwargs: Any) -> Any:
        running, failure = None, ""
        try:
            if "skip" in kwargs:
                kwargs["skip"] += 1  # frames that Dynamo leaves out of the stacks in its log
            running = compilations.begin()
            here.frame = here.frame or running is not None
            return original(code, *args, **kwargs)
        except BaseException as error:
            failure = type(error).__name__
            leave_out_this_frame(error)
            raise
        finally:
            if running is not None:
                here.frame = False
                compilations.end(running, code, args, kwargs.get("compile_id"), failure)

    return _compile


def _wrap_explanation(original: Callable[..., Any], compilations: _Compilations) -> Callable[..., Any]:
    @pass_over
    @wraps(original)
    def explain(*args: Any, **kwargs: Any) -> Any:
        try:
            reasons = original(*args, **kwargs)
        except BaseException as error:
            leave_out_this_frame(error)
            raise
        here.reasons = reasons
        return reasons

    return explain


def _wrap_callbacks(original: Callable[..., Any], ours: Callable[..., None]) -> Callable[..., Any]:
    @pass_over
    @wraps(original)
    def run_callbacks(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            ours(*args)
            return original(self, *args, **kwargs)
        except BaseException as error:
            leave_out_this_frame(error)
            raise

    return run_callbacks


class _Running(NamedTuple):
    """A compilation that is on its way; without a recorder the run has not begun."""

    recorder: Recorder | None
    machine: StepMachine | None
    t0: int


class _Here(threading.local):
    frame = False
    """A frame is being compiled in this thread."""
    later: _Running | None = None
    """Something else is."""
    reasons: Any = None
    """Why what had been compiled of the frame did not fit; a list of texts, if Dynamo gave one."""


here: Final = _Here()
"""Of this thread."""


class _Compilations:
    """What the wrappers call of ours."""

    def __init__(self) -> None:
        self.here = here
        self._guard = Guard("torch: compilation")
        self._names: dict[int, str] = {}
        """Of the functions that were compiled, by the numbers of their frames."""
        self._reasons: set[str] = set()

    def begin(self) -> _Running | None:
        """A compilation begins; None where that is not recorded, as inside another one."""
        if self.here.frame or not self._guard.on:
            return None
        try:
            t0 = perf_counter_ns()
            recorder = session.recorder
            if recorder is None:
                return _Running(None, None, t0)
            machine = recorder.here()
            machine.begin_inner(_COMPILE, t0)
            return _Running(recorder, machine, t0)
        except Exception as error:
            self._guard.failed(error)
            return None

    def end(
        self, running: _Running, code: CodeType, args: tuple[Any, ...], compile_id: Any, failure: str
    ) -> None:
        """That of a frame returned, or raised an exception of the type ``failure``."""
        t1 = perf_counter_ns()
        try:
            frame = _number(compile_id, "frame_id")
            version = _number(compile_id, "frame_compile_id")
            name = _name_of(code, args)
            if len(self._names) < _MAX_FRAMES:
                self._names[frame] = name
            detail = f"{name}:{failure}" if failure and failure != _NOTHING_TO_COMPILE else name
            own = marks.pack_compilation(frame, version, marks.COMPILE_FRAME)
            self._record(running, t1, own, detail, self._take_reason())
        except Exception as error:
            self._guard.failed(error)

    def later_begins(self, *_: Any) -> None:
        """Dynamo calls its callbacks at the start of a compilation: of a frame, or of another kind."""
        self.here.later = self.begin()

    def later_ends(self, *args: Any) -> None:
        """The same at its end; Dynamo says what it is, and which frame it is for."""
        t1 = perf_counter_ns()
        running, self.here.later = self.here.later, None
        if running is None:
            return
        try:
            about = args[0] if args else None
            trigger = getattr(getattr(about, "callback_trigger", None), "name", "")
            frame, version = _parse(getattr(about, "compile_id", ""))
            own = marks.pack_compilation(frame, version, _TRIGGERS.get(trigger, marks.COMPILE_FRAME))
            self._record(running, t1, own, self._names.get(frame, ""), "")
        except Exception as error:
            self._guard.failed(error)

    def _record(self, running: _Running, t1: int, own: int, detail: str, reason: str) -> None:
        recorder, machine, t0 = running
        if recorder is None or machine is None:
            session.early(_COMPILE, t0, t1, own, detail)
            return
        why = recorder.text(reason) if reason else -1
        machine.inner(_COMPILE, t0, t1, own, recorder.text(detail), why)

    def _take_reason(self) -> str:
        """Return the first reason why the frame is compiled again; empty where it is not known."""
        reasons, self.here.reasons = self.here.reasons, None
        if not isinstance(reasons, list) or not reasons or not isinstance(reasons[0], str):
            return ""
        reason = reasons[0].strip().partition("\n")[0][:_LONGEST_REASON]
        if reason not in self._reasons and len(self._reasons) >= _MAX_REASONS:
            return ""
        self._reasons.add(reason)
        return reason


def _number(compile_id: Any, name: str) -> int:
    value = getattr(compile_id, name, None)
    return value if isinstance(value, int) else -1


def _parse(compile_id: str) -> tuple[int, int]:
    """Return the numbers in ``2/1`` or ``[2/1_0]``; -1 for what is not there."""
    frame, _, version = compile_id.strip("[]").partition("/")
    version = version.partition("_")[0]
    if frame.isdecimal() and version.isdecimal():
        return int(frame), int(version)
    return -1, -1


def _name_of(code: CodeType, args: tuple[Any, ...]) -> str:
    """The name of the function, a method's with its class; ``args`` begin with its globals and locals."""
    scope = args[1] if len(args) > 1 and isinstance(args[1], dict) else {}
    name: str = getattr(code, "co_qualname", "")
    if code.co_name == "inner" and code.co_filename.endswith(_STAND_IN_FILE):
        name = _name_behind(code, scope, args)
    elif not name:  # Python 3.10
        first = scope.get(code.co_varnames[0]) if code.co_argcount else None
        method = isinstance(first, sys.modules["torch"].nn.Module)
        name = f"{type(first).__name__}.{code.co_name}" if method else code.co_name
    return name.rpartition("<locals>.")[2][:_LONGEST_NAME]


def _name_behind(code: CodeType, scope: dict[str, Any], args: tuple[Any, ...]) -> str:
    """The name of what Dynamo has put a function of its own around: a module of torch's, a builtin."""
    function = scope.get("fn")
    closure = args[3] if len(args) > 3 else None
    if function is None and isinstance(closure, tuple) and "fn" in code.co_freevars:
        function = closure[code.co_freevars.index("fn")].cell_contents
    owner = getattr(function, "__self__", function)
    if isinstance(owner, sys.modules["torch"].nn.Module):
        return f"{type(owner).__name__}.forward"
    return str(getattr(function, "__qualname__", code.co_name))
