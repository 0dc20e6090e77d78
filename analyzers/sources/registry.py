# SPDX-License-Identifier: Apache-2.0
"""From a SOURCE as it is typed to the source that reads it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from grademl_otel.analyzers.copy import is_copy
from grademl_otel.analyzers.errors import MissingExtra, NothingFound, UsageError, without_secrets
from grademl_otel.analyzers.sources.base import Source, SourceOptions
from grademl_otel.analyzers.sources.files import FileSource

SOURCE_VARIABLE: Final = "GRADEML_SOURCE"
HEADERS_VARIABLE: Final = "GRADEML_HEADERS"
DEFAULT_STORE: Final = "grademl-runs"
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def _jaeger(uri: str, options: SourceOptions) -> Source:
    # Imported when asked for: a report on a file needs no HTTP client.
    try:
        from grademl_otel.analyzers.sources.servers.jaeger import open_jaeger
    except ModuleNotFoundError as missing:
        raise MissingExtra(missing.name or "a package") from None
    return open_jaeger(uri, options)


def _tempo(uri: str, options: SourceOptions) -> Source:
    try:
        from grademl_otel.analyzers.sources.servers.tempo import open_tempo
    except ModuleNotFoundError as missing:
        raise MissingExtra(missing.name or "a package") from None
    return open_tempo(uri, options)


def _planned(uri: str, options: SourceOptions) -> Source:
    scheme = uri.partition(":")[0].lower()
    raise UsageError(
        f"{without_secrets(uri)}: {scheme}:// is not supported yet; use jaeger://host:16686 or a trace file"
    )


SCHEMES: Final[dict[str, Callable[[str, SourceOptions], Source]]] = {
    "jaeger": _jaeger,
    "http": _jaeger,
    "https": _jaeger,
    "tempo": _tempo,
    "tempos": _tempo,
    "jaeger+grpc": _planned,
}
"""Scheme -> opener; a further back end is one more entry."""


def open_source(uri: str | None = None, options: SourceOptions | None = None) -> Source:
    """Return the source that ``uri`` stands for.

    Without ``uri``: ``$GRADEML_SOURCE``, then ``./grademl-runs``. Headers of ``$GRADEML_HEADERS``
    (``K=V,...``) are added to those of ``options``, which win. Raises UsageError for an address that no
    source reads and NothingFound when there is nothing to read by default; nothing is connected to yet.
    """
    uri = address(uri)
    options = options or SourceOptions()
    from_environment = parse_headers(os.environ.get(HEADERS_VARIABLE, "").split(","), HEADERS_VARIABLE)
    if from_environment:
        options = replace(options, headers={**from_environment, **options.headers})
    match = _SCHEME.match(uri)
    if match is None:
        return _of_path(uri, options)
    scheme = match.group(1).lower()
    if scheme == "file":
        return _of_path(uri[len(match.group(0)) :], options)
    opener = SCHEMES.get(scheme)
    if opener is None:
        known = ", ".join(f"{name}://" for name in SCHEMES if SCHEMES[name] is not _planned)
        raise UsageError(
            f"{without_secrets(uri)}: unknown kind of SOURCE {scheme}://; known: a path, {known}"
        )
    return opener(uri, options)


def address(uri: str | None) -> str:
    """Return ``uri``, or the default: ``$GRADEML_SOURCE``, then ``./grademl-runs``; else NothingFound."""
    found = uri or os.environ.get(SOURCE_VARIABLE)
    if found:
        return found
    if not Path(DEFAULT_STORE).is_dir():
        raise NothingFound(
            f"no runs: no SOURCE was given and there is no folder ./{DEFAULT_STORE} here;"
            " run `opentelemetry-instrument python train.py` first, or name a SOURCE (a folder, a file,"
            " jaeger://HOST:16686)"
        )
    return DEFAULT_STORE


def _of_path(path: str, options: SourceOptions) -> Source:
    if is_copy(path):
        from grademl_otel.analyzers.copy.source import CopySource  # brings SQLite

        return CopySource(path, options)
    return FileSource(path, options)


def parse_headers(pairs: list[str] | tuple[str, ...], where: str = "--header") -> dict[str, str]:
    """Return the headers of ``K=V`` pairs; raises UsageError for anything else, without showing values."""
    headers: dict[str, str] = {}
    for pair in pairs:
        if not pair.strip():
            continue
        name, sign, value = pair.partition("=")
        name, value = name.strip(), value.strip()
        if not sign or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise UsageError(f"{where}: expected NAME=VALUE")
        if not value.isprintable():
            raise UsageError(f"{where}: the value of {name} holds a character that no header may have")
        headers[name] = value
    return headers
