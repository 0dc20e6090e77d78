# SPDX-License-Identifier: Apache-2.0
"""A running Tempo as a source."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from grademl_otel.analyzers.errors import UsageError, without_secrets
from grademl_otel.analyzers.model.columns import Ledger, Telemetry
from grademl_otel.analyzers.model.run import list_runs
from grademl_otel.analyzers.sources.base import Listing, Piece, Probe, Selection, SourceOptions
from grademl_otel.analyzers.sources.narrow import narrow
from grademl_otel.analyzers.sources.servers.http_client import HttpClient
from grademl_otel.analyzers.sources.servers.own_runs import AHEAD_NS, LOOKBACKS_NS
from grademl_otel.analyzers.sources.servers.tempo_api import ADVICE, TENANT_HEADER, TempoApi
from grademl_otel.analyzers.sources.servers.tempo_pieces import pieces_of_found, pieces_of_ids, pieces_of_run
from grademl_otel.analyzers.sources.servers.tempo_probe import probe
from grademl_otel.analyzers.sources.servers.tempo_reader import TempoReader

_PORT: Final = 3200
_TRACE: Final = re.compile(r"(?P<base>.*?)/api/(?:v2/)?traces/(?P<id>[0-9A-Fa-f]{1,32})/?")
_GIVES_UP_S: Final = 30.0
"""A Tempo hangs up without a word when an answer takes so long: who waits no longer cannot tell why."""
_RUNS: Final = 100
"""Runs that are listed: each is a trace to fetch."""


def open_tempo(uri: str, options: SourceOptions) -> TempoSource:
    """Return the source of ``tempo[s]://host[:port][/prefix]``, ``http[s]://...`` or a trace's address."""
    shown = without_secrets(uri)
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        raise UsageError(f"{shown}: no host and port in it; write tempo://host:{_PORT}") from None
    if parts.username or parts.password:
        raise UsageError(f"{shown}: no secrets in addresses; pass --header Authorization=... instead")
    if not parts.hostname:
        raise UsageError(f"{shown}: no host in it; write tempo://host:{_PORT}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    scheme = parts.scheme.lower()
    if scheme in ("tempo", "tempos"):
        port = port or _PORT
        scheme = "https" if scheme == "tempos" else "http"
    pasted = _TRACE.fullmatch(parts.path)
    prefix = pasted["base"] if pasted else parts.path.rstrip("/")
    trace_ids = (int(pasted["id"], 16),) if pasted else ()
    return TempoSource(f"{scheme}://{host}" + (f":{port}" if port else "") + prefix, trace_ids, options)


@dataclass(frozen=True)
class TempoSource:
    """A Tempo at ``base``; ``trace_ids`` are those of a pasted trace address."""

    base: str
    trace_ids: tuple[int, ...]
    options: SourceOptions

    @property
    def uri(self) -> str:
        return re.sub(r"^http", "tempo", self.base)

    def list(self) -> Listing:
        with self._reading() as reader:
            now = time.time_ns()
            reader.search_runs(None, now - LOOKBACKS_NS[-1], now + AHEAD_NS, _RUNS)
            telemetry = reader.telemetry()
            runs = list_runs(telemetry)
            ours = {run.service for run in runs}
            others = [name for name in reader.api.latest_services() if name not in ours]
        return Listing(runs, others, telemetry.ledger.warnings)

    def read(self, selection: Selection) -> Telemetry:
        with self._reading() as reader:
            trace_ids = selection.trace_ids or self.trace_ids
            if trace_ids:
                return reader.read_traces(trace_ids)
            if run := _run(reader, selection):
                return reader.read_run(*run)
            found = reader.find_foreign(selection, _choice(reader, selection), self.options.max_traces)
            telemetry = reader.read_found(found)
        return replace(telemetry, spans=narrow(telemetry.spans, replace(selection, run=None)))

    def pieces(self, selection: Selection, ledger: Ledger) -> Iterator[Piece]:
        with self._reading(ledger, on=True) as reader:
            trace_ids = selection.trace_ids or self.trace_ids
            if trace_ids:
                return pieces_of_ids(reader, trace_ids)
            if run := _run(reader, selection):
                return pieces_of_run(reader, *run)
            found = reader.find_foreign(selection, _choice(reader, selection), None)
            return pieces_of_found(reader, found)

    def probe(self) -> Probe:
        api = self._api()
        try:
            return probe(self.uri, api, self.options)
        finally:
            api.abort()

    def _api(self) -> TempoApi:
        silence = self.options.timeout_s
        if silence >= _GIVES_UP_S:
            silence = max(silence, _GIVES_UP_S + 10)
        options = replace(self.options, timeout_s=silence)
        return TempoApi(HttpClient(f"tempo {self.base}", self.base, ADVICE, options, TENANT_HEADER))

    @contextmanager
    def _reading(self, ledger: Ledger | None = None, on: bool = False) -> Iterator[TempoReader]:
        """Connect, and afterwards break off what other threads still fetch; not if reading goes ``on``."""
        api = self._api()
        try:
            api.greet()
            yield TempoReader(self.uri, api, self.options, ledger)
        except BaseException:
            api.abort()
            raise
        if not on:
            api.abort()


def _choice(reader: TempoReader, selection: Selection) -> Sequence[str]:
    """Return the services to choose from where none is named."""
    return reader.api.latest_services() if selection.service is None else ()


def _run(reader: TempoReader, selection: Selection) -> tuple[str, int] | None:
    """Return the run that is asked for; None when traces are, or there is none."""
    if selection.operation is not None or selection.attributes:
        return None
    return reader.find_run(selection)
