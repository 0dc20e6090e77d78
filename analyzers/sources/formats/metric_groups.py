# SPDX-License-Identifier: Apache-2.0
"""Metrics of one resource as they were written, for who passes them on: in JSON or in protobuf.

OTLP/JSON is protobuf's JSON but for the ids of exemplars, which are hexadecimal there.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from grademl_otel.analyzers.sources.formats import otlp_messages
from grademl_otel.analyzers.sources.formats.decoding import Unreadable
from grademl_otel.analyzers.sources.formats.otlp_values import otlp_attributes

_DATA: Final = ("gauge", "sum", "histogram", "exponentialHistogram", "exponential_histogram", "summary")
_IDS: Final = ("traceId", "spanId", "trace_id", "span_id")


@dataclass(frozen=True)
class MetricGroup:
    """One ``ResourceMetrics``; every method raises Unreadable where it is none."""

    raw: bytes
    is_json: bool

    def resource(self) -> dict[str, Any]:
        """Return the attributes of the resource."""
        if self.is_json:
            resource = self._document().get("resource")
            pairs = resource.get("attributes") if isinstance(resource, dict) else None
            return otlp_attributes(msgspec.json.encode(pairs or []))
        return otlp_messages.key_values(self._message().resource.attributes)

    def points(self) -> int:
        """Return how many points are in it."""
        document = self._document() if self.is_json else self._as_document()
        return sum(len(points) for points in _points(document))

    def protobuf(self) -> bytes:
        """Return it as a ``ResourceMetrics`` message."""
        if not self.is_json:
            return self.raw
        document = self._document()
        _change_ids(document, lambda text: base64.b64encode(binascii.unhexlify(text)).decode())
        try:
            message = json_format.ParseDict(document, ResourceMetrics(), ignore_unknown_fields=True)
        except (json_format.Error, ValueError, TypeError, RecursionError) as error:
            raise Unreadable(f"not OTLP metrics: {error}") from None
        raw: bytes = message.SerializeToString()
        return raw

    def json(self) -> bytes:
        """Return it as OTLP/JSON, in one line."""
        return msgspec.json.encode(self._document() if self.is_json else self._as_document())

    def _document(self) -> dict[str, Any]:
        try:
            return msgspec.json.decode(self.raw, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise Unreadable(f"not OTLP metrics: {error}") from None

    def _message(self) -> ResourceMetrics:
        try:
            message: ResourceMetrics = ResourceMetrics.FromString(self.raw)
        except DecodeError:
            raise Unreadable("not OTLP metrics in protobuf, or a damaged message") from None
        return message

    def _as_document(self) -> dict[str, Any]:
        document: dict[str, Any] = json_format.MessageToDict(self._message(), use_integers_for_enums=True)
        _change_ids(document, lambda text: base64.b64decode(text).hex())
        return document


def _points(document: dict[str, Any]) -> Iterator[list[Any]]:
    """Yield the points of each metric; raises Unreadable where there is something else."""
    try:
        for scope in document.get("scopeMetrics") or document.get("scope_metrics") or ():
            for metric in scope.get("metrics") or ():
                data: dict[str, Any] = next((metric[key] for key in _DATA if metric.get(key)), {})
                points = data.get("dataPoints") or data.get("data_points") or []
                if not isinstance(points, list):
                    raise TypeError("points that are no array")
                yield points
    except (AttributeError, TypeError) as error:
        raise Unreadable(f"not OTLP metrics: {error}") from None


def _change_ids(document: dict[str, Any], change: Callable[[str], str]) -> None:
    """Write the ids of exemplars in another way; one that is none is left out."""
    for points in _points(document):
        for point in points:
            exemplars = point.get("exemplars") if isinstance(point, dict) else None
            for exemplar in exemplars if isinstance(exemplars, list) else ():
                if not isinstance(exemplar, dict):
                    continue
                for key in _IDS:
                    if key in exemplar:
                        try:
                            exemplar[key] = change(exemplar[key])
                        except (binascii.Error, TypeError, ValueError):
                            del exemplar[key]
