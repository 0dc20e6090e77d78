# SPDX-License-Identifier: Apache-2.0
"""Metrics of OTLP, JSON and protobuf, into points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.metrics.v1 import metrics_pb2

from grademl_otel.analyzers.model.metrics import Buckets
from grademl_otel.analyzers.sources.formats import otlp_messages
from grademl_otel.analyzers.sources.formats.decoding import Unreadable
from grademl_otel.analyzers.sources.formats.metric_groups import MetricGroup
from grademl_otel.analyzers.sources.formats.otlp_values import (
    NO_SCOPE,
    otlp_attributes,
    otlp_scope,
    to_float,
    to_int,
)
from grademl_otel.analyzers.sources.points import Metric, PointBuilder

_JSON_KINDS: Final = ("gauge", "sum", "histogram", "exponentialHistogram", "summary")
_PROTO_KINDS: Final = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
_TEMPORALITIES: Final = {"DELTA": 1, "CUMULATIVE": 2}
_POINTS: Final = (
    metrics_pb2.NumberDataPoint,
    metrics_pb2.NumberDataPoint,
    metrics_pb2.HistogramDataPoint,
    metrics_pb2.ExponentialHistogramDataPoint,
    metrics_pb2.SummaryDataPoint,
)


# --- JSON -------------------------------------------------------------------------------------------------

_NULL: Final = b"null"
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]] | None)
_raws = msgspec.json.Decoder(list[msgspec.Raw] | None)
_any = msgspec.json.Decoder()


@dataclass(frozen=True)
class JsonPoint:
    """A point as OTLP/JSON writes it."""

    def attributes(self, raw: bytes) -> dict[str, Any]:
        return otlp_attributes(self.attributes_raw(raw))

    def attributes_raw(self, raw: bytes) -> bytes:
        return bytes(_object.decode(raw).get("attributes", b"[]"))

    def buckets(self, raw: bytes) -> Buckets | None:
        point = _any.decode(raw)
        counts, bounds = point.get("bucketCounts"), point.get("explicitBounds", [])
        if not isinstance(counts, list) or not isinstance(bounds, list):
            return None
        return Buckets(
            tuple(bound for bound in map(to_float, bounds) if bound is not None),
            tuple(count or 0 for count in map(to_int, counts)),
        )


JSON_POINT: Final = JsonPoint()


def groups_of(raw: bytes | msgspec.Raw) -> list[MetricGroup]:
    """Return the elements of a ``resourceMetrics`` array. Raises Unreadable where it is none of objects."""
    try:
        found = [bytes(each) for each in _raws.decode(raw) or ()]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Unreadable(f"not OTLP metrics: {error}") from None
    if not all(each.startswith(b"{") for each in found):
        raise Unreadable("not OTLP metrics: an array, but not of objects")
    return [MetricGroup(each, is_json=True) for each in found]


def read_group(group: MetricGroup, builder: PointBuilder) -> None:
    """Add the points of ``group``. Raises Unreadable where it holds something else."""
    if not group.is_json:
        _read_proto_group(group.raw, builder)
        return
    try:
        _read_json_group(_object.decode(group.raw), builder)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Unreadable(f"not OTLP metrics: {error}") from None


def _read_json_group(group: dict[str, msgspec.Raw], builder: PointBuilder) -> None:
    resource = _members(group.get("resource"))
    resource_ix = builder.resource(bytes(resource.get("attributes", b"[]")), otlp_attributes)
    for scope in _list(group.get("scopeMetrics")):
        own = bytes(scope.get("scope", b""))
        scope_ix = -1 if own in NO_SCOPE else builder.scope(own, otlp_scope)
        for metric in _list(scope.get("metrics")):
            _read_json_metric(metric, resource_ix, scope_ix, builder)


def _read_json_metric(
    metric: dict[str, msgspec.Raw], resource_ix: int, scope_ix: int, builder: PointBuilder
) -> None:
    kind = next((number for number, key in enumerate(_JSON_KINDS) if key in metric), None)
    if kind is None:
        return
    data = _members(metric[_JSON_KINDS[kind]])
    temporality = _plain(data, "aggregationTemporality")
    shared = Metric(
        name=str(_plain(metric, "name") or ""),
        unit=str(_plain(metric, "unit") or ""),
        kind=kind,
        temporality=_TEMPORALITIES.get(str(temporality).rpartition("_")[2], to_int(temporality) or 0),
        monotonic=_plain(data, "isMonotonic") is True,
        resource_ix=resource_ix,
        scope_ix=scope_ix,
        form=JSON_POINT,
    )
    for raw in _raws.decode(data.get("dataPoints", _NULL)) or ():
        if builder.full:
            return
        point = _object.decode(raw)
        value: float | int | None
        if "asInt" in point:
            value = to_int(_plain(point, "asInt"))
        else:
            value = to_float(_plain(point, "asDouble" if kind <= 1 else "sum"))
        time, start = (to_int(_plain(point, key)) or 0 for key in ("timeUnixNano", "startTimeUnixNano"))
        builder.add(shared, time, start, value, to_int(_plain(point, "count")) or 0, bytes(raw))


def _members(raw: msgspec.Raw | None) -> dict[str, msgspec.Raw]:
    return _object.decode(raw) if raw is not None and bytes(raw) != _NULL else {}


def _list(raw: bytes | msgspec.Raw | None) -> list[dict[str, msgspec.Raw]]:
    """Return the objects of an array; none of what is absent or null."""
    return [] if raw is None else _objects.decode(raw) or []


def _plain(members: dict[str, msgspec.Raw], key: str) -> Any:
    raw = members.get(key)
    return None if raw is None else _any.decode(raw)


# --- Protobuf ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProtoPoint:
    """A point as OTLP protobuf writes it; ``kind`` says which message it is."""

    kind: int

    def attributes(self, raw: bytes) -> dict[str, Any]:
        return otlp_messages.key_values(_POINTS[self.kind].FromString(raw).attributes)

    def attributes_raw(self, raw: bytes) -> bytes:
        own = _POINTS[self.kind]()
        own.attributes.extend(_POINTS[self.kind].FromString(raw).attributes)
        found: bytes = own.SerializeToString()
        return found

    def buckets(self, raw: bytes) -> Buckets | None:
        point = _POINTS[self.kind].FromString(raw)
        return Buckets(tuple(point.explicit_bounds), tuple(point.bucket_counts))


def _read_proto_group(message: bytes, builder: PointBuilder) -> None:
    try:
        group = metrics_pb2.ResourceMetrics.FromString(message)
    except DecodeError:
        raise Unreadable("not OTLP metrics in protobuf, or a damaged message") from None
    resource_ix = builder.resource(group.resource.SerializeToString(), otlp_messages.resource)
    for scope in group.scope_metrics:
        own = scope.scope.SerializeToString()
        scope_ix = builder.scope(own, otlp_messages.scope) if own else -1
        for metric in scope.metrics:
            _read_proto_metric(metric, resource_ix, scope_ix, builder)


def _read_proto_metric(metric: Any, resource_ix: int, scope_ix: int, builder: PointBuilder) -> None:
    which = metric.WhichOneof("data")
    if which not in _PROTO_KINDS:
        return
    kind, data = _PROTO_KINDS.index(which), getattr(metric, which)
    shared = Metric(
        name=metric.name,
        unit=metric.unit,
        kind=kind,
        temporality=getattr(data, "aggregation_temporality", 0),
        monotonic=getattr(data, "is_monotonic", False),
        resource_ix=resource_ix,
        scope_ix=scope_ix,
        form=ProtoPoint(kind),
    )
    for point in data.data_points:
        if builder.full:
            return
        value = _proto_value(point, kind)
        raw = point.SerializeToString()
        count = 0 if kind <= 1 else point.count
        builder.add(shared, point.time_unix_nano, point.start_time_unix_nano, value, count, raw)


def _proto_value(point: Any, kind: int) -> float | int | None:
    if kind <= 1:
        which = point.WhichOneof("value")
        return None if which is None else getattr(point, which)
    if kind < len(_PROTO_KINDS) - 1 and not point.HasField("sum"):
        return None
    return float(point.sum)
