# SPDX-License-Identifier: Apache-2.0
"""What is lost on the way to a collector: counted for each run, and told in one line."""

from __future__ import annotations

from grademl_otel import semconv
from grademl_otel.export.destination import Destination
from grademl_otel.export.ledger import Ledger
from grademl_otel.export.otlp import Request
from grademl_otel.export.senders import Verdict
from grademl_otel.export.settings import TRACES


class Books:
    """Counts spans, not metrics, and keeps the first reason for the user."""

    def __init__(self) -> None:
        self.total = Ledger()
        """Of all runs of this process."""
        self.earlier = Ledger()
        """Of runs that other processes recorded, whose spans lay in the spool."""
        self._reason: str | None = None
        self._reason_of_earlier: str | None = None

    def loss_of(self, ledger: Ledger) -> str | None:
        """Return why the run with ``ledger`` lost spans and how many; what another run lost is its affair.

        Metrics that were refused are told, too, where no spans were.
        """
        if self._reason is None or (self.total.lost and not ledger.lost):
            return None
        return f"{self._reason}; {ledger.lost:,} spans are lost" if ledger.lost else self._reason

    @property
    def loss_of_earlier(self) -> str | None:
        lost = self.earlier.lost
        return f"{lost:,} spans of earlier runs are lost: {self._reason_of_earlier}" if lost else None

    def spooled(self, request: Request, ledger: Ledger) -> None:
        """Count what was put into the spool."""
        self._count(semconv.UNSENT_SPOOLED, request, request.count, ledger)

    def dropped(self, destination: Destination, why: str, request: Request, ledger: Ledger) -> None:
        """Count what we give up."""
        if request.signal == TRACES:
            self._reason = self._reason or destination.complaint("dropped", destination.last, why)
            self._count(semconv.UNSENT_DROPPED, request, request.count, ledger)

    def dropped_of_earlier(self, why: str, spans: int) -> None:
        """Count what we give up of a run that another process recorded."""
        self._reason_of_earlier = self._reason_of_earlier or why
        self.earlier.add(semconv.UNSENT_DROPPED, spans)

    def refused(self, destination: Destination, verdict: Verdict, request: Request, ledger: Ledger) -> None:
        """Count what the collector does not want: a whole request, or a part of one that it took."""
        in_part = verdict.outcome == "ok"
        fate = "rejected in part" if in_part else "refused"
        self._reason = self._reason or destination.complaint(fate, verdict)
        spans = min(verdict.rejected, request.count) if in_part else request.count
        self._count(semconv.UNSENT_REFUSED, request, spans, ledger)

    def _count(self, reason: str, request: Request, spans: int, ledger: Ledger) -> None:
        if request.signal == TRACES:
            ledger.add(reason, spans)
            if ledger is not self.earlier:
                self.total.add(reason, spans)
