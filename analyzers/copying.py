# SPDX-License-Identifier: Apache-2.0
"""From a query to a copy on disk, and from a source to a collector."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from grademl_otel.analyzers.copy import pull, push
from grademl_otel.analyzers.copy.endpoint import settings_for
from grademl_otel.analyzers.copy.pull import Pulled, origin_of
from grademl_otel.analyzers.copy.push import Pushed
from grademl_otel.analyzers.errors import without_secrets
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.sources.base import Source, SourceOptions
from grademl_otel.analyzers.sources.registry import address, open_source
from grademl_otel.analyzers.subject import open_query, selection_of
from grademl_otel.export.settings import METRICS

_JAEGER_PORT: Final = 16686
_JAEGER_ANSWERS_S: Final = 2.0


def pulled(query: Query, folder: Path, refresh: bool = False) -> Pulled:
    """Answer `grademl pull`: copy what ``query`` selects into ``folder``; raises as `pull.pull` does."""
    source = open_query(query, everything=True)
    origin = origin_of(address(query.source), source.uri, selection_of(query), query.since)
    return pull.pull(source, folder, origin, refresh=refresh, progress=query.progress)


def pushed(
    query: Query,
    endpoint: str,
    headers: Mapping[str, str],
    verify: str | None = None,
    look: bool = True,
) -> Pushed:
    """Answer `grademl push`: send all that ``query`` selects to ``endpoint``, with ``headers``.

    Whether it arrived is looked for at ``verify``, or at a Jaeger on the same host; nowhere without ``look``.
    """
    there = None
    if look:
        there = _jaeger_at(endpoint) if verify is None else open_query(Query.of(verify), everything=True)
    return push.push(
        open_query(query, everything=True),
        settings_for(endpoint, headers),
        without_secrets(endpoint),
        selection_of(query),
        metrics=settings_for(endpoint, headers, signal=METRICS),
        verify=there,
        progress=query.progress,
    )


def _jaeger_at(endpoint: str) -> Source | None:
    """Return the Jaeger on the host of ``endpoint``, if one answers at its usual port."""
    host = urlsplit(endpoint).hostname or ""
    place = f"jaeger://[{host}]:{_JAEGER_PORT}" if ":" in host else f"jaeger://{host}:{_JAEGER_PORT}"
    # Nobody named this server: what the environment holds for others is not for it.
    everything = SourceOptions(max_spans=sys.maxsize, max_traces=sys.maxsize, anonymous=True)
    impatient = replace(everything, timeout_s=_JAEGER_ANSWERS_S)
    return None if open_source(place, impatient).probe().problems else open_source(place, everything)
