# SPDX-License-Identifier: Apache-2.0
"""Our spans as the SDK's, for a user's own processors and exporters; built past tracer and sampler."""

from __future__ import annotations

from typing import Final

from opentelemetry.sdk.resources import Resource as SdkResource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AttributeValue

from grademl_otel import semconv
from grademl_otel.convert.spans import Attributes, Span
from grademl_otel.version import __version__

_SCOPE: Final = InstrumentationScope(semconv.SCOPE_NAME, __version__)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


def readable_span(span: Span, resource: SdkResource) -> ReadableSpan:
    """Return ``span`` as a finished span of the SDK."""
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=_context(span.trace_id, span.parent_id) if span.parent_id else None,
        resource=resource,
        attributes=_attributes(span.attributes),
        links=[
            Link(_context(link.trace_id, link.span_id), _attributes(link.attributes)) for link in span.links
        ],
        kind=SpanKind.INTERNAL,
        instrumentation_scope=_SCOPE,
        status=Status() if span.error is None else Status(StatusCode.ERROR, span.error),
        start_time=span.start_ns,
        end_time=span.end_ns,
    )


def _attributes(attributes: Attributes) -> dict[str, AttributeValue]:
    # The SDK keeps sequences as tuples.
    return {
        key: value if isinstance(value, str | bool | int | float) else tuple(value)
        for key, value in attributes.items()
    }


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=_SAMPLED)
