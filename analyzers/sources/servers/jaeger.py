# SPDX-License-Identifier: Apache-2.0
"""A running Jaeger as a source, over HTTP or gRPC."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from grademl_otel.analyzers.errors import GrademlError, SourceError
from grademl_otel.analyzers.model.columns import Ledger, Telemetry
from grademl_otel.analyzers.model.run import RunSummary, list_runs
from grademl_otel.analyzers.sources.base import Listing, Piece, Probe, Selection, SourceOptions
from grademl_otel.analyzers.sources.servers.http_client import HttpClient
from grademl_otel.analyzers.sources.servers.jaeger_address import Address, merged, parse
from grademl_otel.analyzers.sources.servers.jaeger_api import ADVICE, JaegerApi, Search
from grademl_otel.analyzers.sources.servers.jaeger_http import connect
from grademl_otel.analyzers.sources.servers.jaeger_pieces import (
    pieces_of_ids,
    pieces_of_run,
    pieces_of_search,
)
from grademl_otel.analyzers.sources.servers.jaeger_reader import JaegerReader
from grademl_otel.analyzers.sources.servers.own_runs import AHEAD_NS, LOOKBACKS_NS, S

_LIMITS: Final = {
    "traces in an answer": "as many as are asked for; stores refuse more than they keep or 10,000",
    "a trace": "as large as the server's memory holds; Elasticsearch gives its spans in pages of 10,000",
}

log = logging.getLogger(__name__)


def open_jaeger(uri: str, options: SourceOptions) -> JaegerSource:
    """Return the source of ``jaeger[+grpc][s]://host[:port][/base]``, http(s)://... or a page's address."""
    return JaegerSource(parse(uri), options)


@dataclass(frozen=True)
class JaegerSource:
    """A Jaeger query service; its address may name traces, or a search for some."""

    address: Address
    options: SourceOptions

    @property
    def uri(self) -> str:
        url = self.address.url
        return f"jaeger+{url}" if url.startswith("grpc") else url

    def list(self) -> Listing:
        with self._reading() as reader:
            now = time.time_ns()
            reader.search_runs(None, now - LOOKBACKS_NS[-1], now + AHEAD_NS)
            telemetry = reader.telemetry()
            runs = list_runs(telemetry)
            ours = {run.service for run in runs}
            others = [name for name in reader.services if name not in ours]
            return Listing(runs, others, telemetry.ledger.warnings)

    def read(self, selection: Selection) -> Telemetry:
        selection = merged(selection, self.address.selection)
        with self._reading() as reader:
            if selection.trace_ids:
                return reader.read_traces(selection.trace_ids)
            run = _run(reader, selection)
            return reader.read_foreign(selection) if run is None else reader.read_run(*run)

    def pieces(self, selection: Selection, ledger: Ledger) -> Iterator[Piece]:
        selection = merged(selection, self.address.selection)
        with self._reading(on=True) as reader:
            if selection.trace_ids:
                return pieces_of_ids(reader, selection.trace_ids)
            run = _run(reader, selection)
            if run is not None:
                return pieces_of_run(reader, *run)
            return pieces_of_search(reader, selection, ledger)

    def probe(self) -> Probe:
        """Ask for the services, and for the runs of ours; as `Source.probe`."""
        try:
            with self._reading() as reader:
                return _probed(reader)
        except SourceError as error:
            return Probe(kind="Jaeger", problems=(str(error),))

    @contextmanager
    def _reading(self, on: bool = False) -> Iterator[JaegerReader]:
        """Connect, and afterwards break off what other threads still fetch; not if reading goes ``on``."""
        name = f"jaeger {self.address.url}"
        api, services = _connect(name, self.address, self.options)
        log.debug("%s: %s; %d services", name, api.api, len(services))
        try:
            yield JaegerReader(self.uri, name, api, services, self.options)
        except BaseException:
            api.abort()
            raise
        if not on:
            api.abort()


def _probed(reader: JaegerReader) -> Probe:
    api, now = reader.api, time.time_ns()
    runs: Sequence[RunSummary] = ()
    problems, notes = [], []
    try:
        api.summaries(Search(next(iter(reader.services), None)), now - S, now, 1)  # tells whether it has any
        reader.search_runs(None, now - LOOKBACKS_NS[-1], now + AHEAD_NS)
        runs = list_runs(reader.telemetry())
    except GrademlError as error:
        problems.append(str(error))
    if not reader.services:
        notes.append("no service in it: nothing has been sent there yet, or it was lost when it restarted")
    return Probe(
        kind="Jaeger",
        api=api.api,
        version=_version(api),
        limits=_LIMITS,
        clock_offset_ns=api.clock.offset_ns if api.clock else None,
        clock_error_ns=api.clock.error_ns if api.clock else None,
        services=tuple(reader.services),
        runs=tuple(runs),
        notes=tuple(notes),
        problems=tuple(problems),
    )


def _connect(name: str, address: Address, options: SourceOptions) -> tuple[JaegerApi, list[str]]:
    if address.scheme.startswith("grpc"):
        # Loading gRPC takes long: only for who asks for it.
        from grademl_otel.analyzers.sources.servers.jaeger_grpc import JaegerGrpc

        api = JaegerGrpc(name, address.host, address.scheme == "grpcs", options)
        try:
            return api, api.services()
        except BaseException:
            api.abort()
            raise
    client = HttpClient(name, address.url, ADVICE, options)
    try:
        return connect(client)
    except BaseException:
        client.abort()
        raise


def _run(reader: JaegerReader, selection: Selection) -> tuple[str, int] | None:
    """Return the run that is asked for; None when traces are, or there is none."""
    if selection.operation is not None or selection.attributes:
        return None
    return reader.find_run(selection)


def _version(api: JaegerApi) -> str | None:
    """Return what the API tells of the version: Jaeger gives its number nowhere."""
    if api.finest_ns > 1:
        return "before v1.40 or so: no api_v3 over HTTP"
    if api.has_summaries is None:
        return None
    return "v2.19 or later" if api.has_summaries else "before v2.19"
