# SPDX-License-Identifier: Apache-2.0
"""From a source to an OTLP receiver, and a look whether it arrived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.copy.delivery import Delivery, Unsupported
from grademl_otel.analyzers.copy.metric_requests import MetricPacker, MetricRequest
from grademl_otel.analyzers.copy.otlp_requests import Packer, Request
from grademl_otel.analyzers.copy.stream import SpanStream, rows_of
from grademl_otel.analyzers.copy.verify import SentSpans, missing
from grademl_otel.analyzers.errors import GrademlError, Interrupted, NothingFound, SourceError
from grademl_otel.analyzers.model.columns import Ledger
from grademl_otel.analyzers.shown import Records, Shown
from grademl_otel.analyzers.sources.base import MetricSource, Progress, Selection, Source, no_progress
from grademl_otel.analyzers.sources.batch import SpanBatch
from grademl_otel.analyzers.sources.formats.metric_groups import MetricGroup
from grademl_otel.export.senders import open_sender
from grademl_otel.export.settings import OtlpSettings

_AGAIN = "run the same command again: spans that are sent twice have the same ids"
_REBUILT = (
    "spans of other formats than OTLP go without trace states, attributes of links beside their"
    " kind, and counts of what an SDK dropped"
)


@dataclass(frozen=True)
class Pushed(Shown, screen="reporting.copying_screen"):
    """What a push did: schema `grademl.push/1`; numbers of spans where nothing else is said."""

    schema: str = field(default="grademl.push/1", kw_only=True)
    source: str
    endpoint: str
    sent: int
    accepted: int
    rejected: int
    requests: int
    traces: int
    metrics_sent: int = 0
    """Metric points; those that were not taken, too."""
    metrics_rejected: int = 0
    verified_at: str | None = None
    """Where it was looked for; None where nobody looked."""
    verified: int | None = None
    """Distinct spans found there."""
    missing: int | None = None
    notes: list[str] = field(default_factory=list)
    error: GrademlError | None = None
    """Why it is not all there, if it is not."""

    def _tables(self) -> Mapping[str, Records]:
        return {"push": Records(Pushed, [self])}


def push(
    source: Source,
    settings: OtlpSettings,
    shown: str,
    selection: Selection,
    *,
    metrics: OtlpSettings | None = None,
    verify: Source | None = None,
    progress: Progress = no_progress,
) -> Pushed:
    """Send the spans that ``selection`` names the run of; compare with ``verify`` afterwards.

    ``shown`` is the endpoint without secrets, ``metrics`` says how to send metrics to it (None: not at all).
    Raises SourceError when the source cannot be read or nothing could be delivered, NothingFound for no
    spans, and Interrupted. What arrived only in part is told in `Pushed.error`.
    """
    sender = open_sender(settings)
    sending = _Push(source, Delivery(sender, shown), selection, progress)
    try:
        sending.send_all()
        if metrics is not None:
            sending.send_metrics(metrics, shown)
        done = sending.pushed(shown)
        if not done.sent and done.error is None:
            raise NothingFound(f"{source.uri}: no span in it matches; see `grademl runs {source.uri}`")
        return done if verify is None or done.error is not None else sending.verified(done, verify)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted: {sending.so_far()}; {_AGAIN}") from None
    finally:
        sender.close()


class _Undelivered(Exception):
    """Goes through who reads metrics, for whom errors of a source are faults of a file."""

    def __init__(self, error: SourceError) -> None:
        self.error = error


class _Push:
    """One push at work."""

    def __init__(self, source: Source, delivery: Delivery, selection: Selection, progress: Progress) -> None:
        self._source = source
        self._delivery = delivery
        self._selection = selection
        self._progress = progress
        self._stream = SpanStream(self._take)
        self._packer = Packer(self._stream.resources, self._stream.scopes, self._send)
        self._sent = SentSpans()
        self._wanted: list[bool] = []
        """For each resource so far whether its spans are asked for."""
        self._ledger = Ledger()
        self._metrics: Delivery | None = None
        self._error: SourceError | None = None

    def send_all(self) -> None:
        """Send until the end, or until the source or the other end fails; that is kept for `pushed`."""
        try:
            for piece in self._source.pieces(self._selection, self._ledger):
                self._stream.begin_piece()
                piece.read(self._stream, self._ledger)
            self._packer.flush()
        except SourceError as error:
            if not self._delivery.requests:
                raise
            self._error = error
        if self._error is None and self._ledger.broken is not None:
            self._error = SourceError(self._ledger.broken)

    def _take(self, batch: SpanBatch) -> None:
        for ix in range(len(self._wanted), len(self._stream.resources)):
            self._wanted.append(self._is_wanted(self._stream.resources[ix]))
        wanted = [ix for ix in np.unique(batch.resource_ix).tolist() if self._wanted[ix]]
        mask = np.isin(batch.resource_ix, wanted)
        some = batch if mask.all() else rows_of(batch, np.flatnonzero(mask))
        if len(some):
            self._sent.add(some)
            self._packer.add(some)

    def send_metrics(self, settings: OtlpSettings, shown: str) -> None:
        """Send the metrics beside the spans, unless these were not all sent; as `send_all` otherwise.

        That the other end takes none is no fault: it is told.
        """
        if self._error is not None or not isinstance(self._source, MetricSource):
            return
        sender = open_sender(settings)
        self._metrics = Delivery(sender, shown)
        packer = MetricPacker(self._send_metrics)
        try:
            for part in self._source.metric_parts(self._selection):
                self._ledger.warnings += part.read(partial(self._take_metrics, packer))
            packer.flush()
        except _Undelivered as fault:
            if isinstance(fault.error, Unsupported):
                self._ledger.warnings.append(f"metrics were not sent: {shown} takes none")
            else:
                self._error = fault.error
        finally:
            sender.close()

    def _take_metrics(self, packer: MetricPacker, group: MetricGroup) -> None:
        if self._is_wanted(group.resource()):
            packer.add(group)

    def _send_metrics(self, request: MetricRequest) -> None:
        assert self._metrics is not None
        try:
            self._metrics.send(request)
        except SourceError as error:
            raise _Undelivered(error) from None
        self._progress("metric points sent", self._metrics.accepted + self._metrics.rejected, None)

    def _is_wanted(self, attributes: Mapping[str, Any]) -> bool:
        """Whether what has a resource of these attributes is of the run and the attempt asked for."""
        run, attempt = self._selection.run_id, self._selection.attempt
        named = str(attributes.get(semconv.RUN_ID, "")).lower()
        of_run = run is None or (bool(named) and named.startswith(run.lower()))
        return of_run and (attempt is None or attributes.get(semconv.ATTEMPT) == attempt)

    def _send(self, request: Request) -> None:
        self._delivery.send(request)
        self._progress("spans sent", self._delivery.accepted + self._delivery.rejected, None)

    def so_far(self) -> str:
        return f"{self._delivery.accepted:,} spans were taken"

    def pushed(self, shown: str) -> Pushed:
        """Return what was sent."""
        delivery, metrics = self._delivery, self._metrics
        error: GrademlError | None = None
        if self._error is not None:
            error = SourceError(f"{self._error}; {self.so_far()}; {_AGAIN}")
        elif delivery.rejected:
            error = SourceError(
                f"{shown}: {delivery.rejected:,} of {delivery.accepted + delivery.rejected:,} spans were"
                f" refused: {delivery.reason or 'no reason given'}"
            )
        elif metrics is not None and metrics.rejected:
            error = SourceError(
                f"{shown}: {metrics.rejected:,} of {metrics.accepted + metrics.rejected:,} metric points were"
                f" refused: {metrics.reason or 'no reason given'}"
            )
        return Pushed(
            source=self._source.uri,
            endpoint=shown,
            sent=delivery.accepted + delivery.rejected,
            accepted=delivery.accepted,
            rejected=delivery.rejected,
            requests=delivery.requests,
            traces=self._sent.traces(),
            metrics_sent=0 if metrics is None else metrics.accepted + metrics.rejected,
            metrics_rejected=0 if metrics is None else metrics.rejected,
            notes=[*self._ledger.warnings, *([_REBUILT] if self._packer.rebuilt else [])],
            error=error,
        )

    def verified(self, done: Pushed, verify: Source) -> Pushed:
        """Return ``done`` with what was found at ``verify``."""
        sent = self._sent.by_trace()
        total = sum(map(len, sent.values()))
        try:
            absent = missing(sent, verify, self._progress)
        except SourceError as fault:
            unknown = SourceError(f"it is not known whether all arrived: {fault}; {self.so_far()}")
            return replace(done, verified_at=verify.uri, error=unknown)
        lost = sum(map(len, absent.values()))
        error = None
        if lost:
            hi, lo = next(iter(absent))
            error = SourceError(
                f"{verify.uri}: {lost:,} of {total:,} spans are not there, in {len(absent):,} of"
                f" {len(sent):,} traces (as {hi:016x}{lo:016x}); {_AGAIN}"
            )
        return replace(done, verified_at=verify.uri, verified=total - lost, missing=lost, error=error)
