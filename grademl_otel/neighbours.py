# SPDX-License-Identifier: Apache-2.0
"""What ties a run to the OpenTelemetry of the user's program: nesting, sampling, and tags on their spans.

All of it hangs on the tracer provider in place. That one may come late, after the run began, or never; where
there is none, nothing is attached anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.environment_variables import OTEL_PYTHON_TRACER_PROVIDER
from opentelemetry.sdk.environment_variables import OTEL_TRACES_SAMPLER
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, sampling
from opentelemetry.util.types import AttributeValue

from grademl_otel import marks, semconv
from grademl_otel.context import StepContexts
from grademl_otel.recorder import Recorder

_LEAST_ROOM: Final = 64
"""Attributes that a span may have; where it is fewer, ours might be the ones too many."""


class Neighbours:
    """The ties of one run; ``records_grad`` is that of `StepContexts`."""

    def __init__(self, recorder: Recorder, info: marks.RunInfo, records_grad: Callable[[], bool]) -> None:
        self._recorder = recorder
        self._info = info
        self._records_grad = records_grad
        self._provider: Any = None
        self._tags = UserTags(info)
        self.look()
        if self._provider is None and os.environ.get(OTEL_TRACES_SAMPLER):  # holds for our steps all the same
            sampler = sampling._get_from_env_or_default()
            recorder.context = StepContexts(recorder, info, sampler, records_grad, nests=False)

    def look(self) -> None:
        """Follow the provider in place, if there is one by now."""
        if self._provider is not None:
            return
        provider = provider_in_place()
        if provider is None:
            return
        self._provider = provider
        sampler = getattr(provider, "sampler", None)
        self._recorder.context = StepContexts(self._recorder, self._info, sampler, self._records_grad)
        self._tags.join(provider)

    def leave(self, forked: bool = False) -> None:
        """Cut the ties: the provider is as if we had never been there."""
        self._tags.leave(forked)


class UserTags(SpanProcessor):
    """The one span processor of ours on the provider in place: run id and rank on the spans of others."""

    def __init__(self, info: marks.RunInfo) -> None:
        self._tags: dict[str, AttributeValue] = {semconv.RUN_ID: info.run_id, semconv.RANK: info.rank}
        self._provider: Any = None

    def join(self, provider: Any) -> None:
        """Take a place among the processors of ``provider``.

        One that has none to give is left alone, and one whose spans may have so few attributes that ours
        would push out others.
        """
        room = getattr(getattr(provider, "_span_limits", None), "max_span_attributes", None)
        if hasattr(_active(provider), "_span_processors") and (room is None or room >= _LEAST_ROOM):
            provider.add_span_processor(self)
            self._provider = provider

    def leave(self, forked: bool) -> None:
        """Give the place back; a forked child has one thread, and maybe a lock that nobody will release."""
        provider, self._provider = self._provider, None
        if provider is not None:
            active = _active(provider)
            with nullcontext() if forked else active._lock:
                active._span_processors = tuple(each for each in active._span_processors if each is not self)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Put the tags on ``span``; our own have them on their resource."""
        try:
            scope = span.instrumentation_scope
            if scope is None or scope.name != semconv.SCOPE_NAME:
                span.set_attributes(self._tags)
        except Exception:
            pass  # not the SDK's span; the user's program must not notice

    def on_end(self, span: ReadableSpan) -> None:
        """Nothing is to be done."""


def provider_in_place() -> Any:
    """The SDK's tracer provider in place; None when there is none, or one of another make."""
    if os.environ.get(OTEL_PYTHON_TRACER_PROVIDER) and trace._TRACER_PROVIDER is None:
        return None  # to ask would make one, before the user can set another
    provider = trace.get_tracer_provider()
    return provider if hasattr(provider, "resource") else None


def processors_of(provider: Any) -> tuple[Any, ...]:
    """The span processors of ``provider`` without ours."""
    found = getattr(_active(provider), "_span_processors", ())
    return tuple(each for each in found if not isinstance(each, UserTags))


def _active(provider: Any) -> Any:
    return getattr(provider, "_active_span_processor", None)
