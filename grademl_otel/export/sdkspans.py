# SPDX-License-Identifier: Apache-2.0
"""Our spans through the SDK's own, for a user's processors and exporters; built past tracer and sampler.

Processors see what they see of any span: it starts, they may put attributes on it, it ends. The user's limits
on attributes do not hold for it, because a step table without some of its columns would be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, _Span
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from grademl_otel import semconv
from grademl_otel.convert.spans import Span
from grademl_otel.version import __version__

_SCOPE: Final = InstrumentationScope(semconv.SCOPE_NAME, __version__)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_NO_LIMITS: Final = SpanLimits(
    max_attributes=SpanLimits.UNSET,
    max_events=SpanLimits.UNSET,
    max_links=SpanLimits.UNSET,
    max_span_attributes=SpanLimits.UNSET,
    max_event_attributes=SpanLimits.UNSET,
    max_link_attributes=SpanLimits.UNSET,
    max_attribute_length=SpanLimits.UNSET,
    max_span_attribute_length=SpanLimits.UNSET,
)


def sdk_resource(provider: Any, attributes: Mapping[str, Any]) -> Resource:
    """Return the resource of ``provider`` with the run's identity, which ``attributes`` hold."""
    merged: Resource = Resource(_attributes(attributes)).merge(provider.resource)
    return merged


def hand_on(span: Span, provider: Any, resource: Resource) -> None:
    """Start and end ``span`` before the processors of ``provider``; raises what they raise."""
    parent = _context(span.trace_id, span.parent_id) if span.parent_id else None
    live = _Span(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=parent,
        sampler=provider.sampler,
        resource=resource,
        links=[
            Link(_context(link.trace_id, link.span_id), _attributes(link.attributes)) for link in span.links
        ],
        kind=SpanKind.INTERNAL,
        span_processor=provider._active_span_processor,
        limits=_NO_LIMITS,
        instrumentation_scope=_SCOPE,
    )
    # Not by `set_attributes`, which looks at each of the thousands of numbers in a step table.
    bounded: Any = live._attributes
    bounded._dict.update(_attributes(span.attributes))
    if span.error is not None:
        live.set_status(Status(StatusCode.ERROR, span.error))
    around = Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), Context())
    try:
        live.start(span.start_ns, around)
    finally:
        live.end(span.end_ns)  # whoever saw it start waits for its end


def _attributes(attributes: Mapping[str, Any]) -> dict[str, AttributeValue]:
    # The SDK keeps sequences as tuples.
    return {
        key: value if isinstance(value, str | bool | int | float) else tuple(value)
        for key, value in attributes.items()
    }


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=_SAMPLED)
