# SPDX-License-Identifier: Apache-2.0
"""An http(s) address, which does not say what is behind it: a Jaeger, or else a Tempo."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from grademl_otel.analyzers.errors import SourceError
from grademl_otel.analyzers.model.columns import Ledger, Telemetry
from grademl_otel.analyzers.sources.base import Listing, Piece, Probe, Selection, Source, SourceOptions
from grademl_otel.analyzers.sources.servers.http_client import HttpClient
from grademl_otel.analyzers.sources.servers.jaeger import JaegerSource
from grademl_otel.analyzers.sources.servers.jaeger_address import parse
from grademl_otel.analyzers.sources.servers.jaeger_api import ADVICE
from grademl_otel.analyzers.sources.servers.jaeger_http import connect
from grademl_otel.analyzers.sources.servers.refusals import NotFound, Unexpected
from grademl_otel.analyzers.sources.servers.tempo import open_tempo

_TEMPO_TRACE: Final = re.compile(r"/api/v2/traces/[0-9A-Fa-f]{1,32}/?$")


class ProbedSource:
    """Asks the server what it is when it is first read; an HTTP address stays HTTP."""

    def __init__(self, uri: str, options: SourceOptions) -> None:
        self._address = parse(uri)
        self._typed = uri
        self._options = options
        self._known: Source | None = None

    @property
    def uri(self) -> str:
        return self._address.url if self._known is None else self._known.uri

    def list(self) -> Listing:
        return self._source().list()

    def read(self, selection: Selection) -> Telemetry:
        return self._source().read(selection)

    def pieces(self, selection: Selection, ledger: Ledger) -> Iterator[Piece]:
        return self._source().pieces(selection, ledger)

    def probe(self) -> Probe:
        try:
            source = self._source()
        except SourceError as error:
            return Probe(kind="server", problems=(str(error),))
        return source.probe()

    def _source(self) -> Source:
        if self._known is None:
            self._known = self._found()
        return self._known

    def _found(self) -> Source:
        if _TEMPO_TRACE.search(self._address.base):
            return open_tempo(self._typed, self._options)
        client = HttpClient(f"jaeger {self._address.url}", self._address.url, ADVICE, self._options)
        try:
            connect(client)
        except (NotFound, Unexpected) as missing:
            if not _is_tempo(client):
                raise SourceError(str(missing)) from None
            return open_tempo(self._typed, self._options)
        finally:
            client.abort()
        return JaegerSource(self._address, self._options)


def _is_tempo(client: HttpClient) -> bool:
    try:
        with client.get("/api/echo") as answer:
            return answer.head().strip() == b"echo"
    except SourceError:
        return False
