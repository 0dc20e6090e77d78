# SPDX-License-Identifier: Apache-2.0
"""From a SOURCE as it is typed to the source that reads it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final

from grademl_otel.analyzers.copy import is_copy
from grademl_otel.analyzers.errors import MissingExtra, NothingFound, UsageError, without_secrets
from grademl_otel.analyzers.sources.base import Source, SourceOptions
from grademl_otel.analyzers.sources.credentials import from_environment, parse_headers
from grademl_otel.analyzers.sources.files.source import FileSource
from grademl_otel.semconv import DEFAULT_STORE

SOURCE_VARIABLE: Final = "GRADEML_SOURCE"
_SERVERS: Final = "grademl_otel.analyzers.sources.servers"
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


Opener = Callable[[str, SourceOptions], Source]


def _server(module: str, opener: str) -> Opener:
    """Return what opens a source of `servers`; loaded when asked for: a report on a file needs no network."""

    def open_it(uri: str, options: SourceOptions) -> Source:
        try:
            found: Opener = getattr(import_module(f"{_SERVERS}.{module}"), opener)
        except ModuleNotFoundError as missing:
            package = (missing.name or "").partition(".")[0]
            if package == __name__.partition(".")[0]:  # a module of ours: no package to install
                raise
            raise MissingExtra(package or "a package") from None
        return found(uri, from_environment(options))

    return open_it


_JAEGER: Final = _server("jaeger", "open_jaeger")
_TEMPO: Final = _server("tempo", "open_tempo")
_PROBED: Final = _server("probed", "ProbedSource")

SCHEMES: Final[dict[str, Opener]] = {
    "jaeger": _JAEGER,
    "jaegers": _JAEGER,
    "jaeger+grpc": _JAEGER,
    "jaeger+grpcs": _JAEGER,
    "tempo": _TEMPO,
    "tempos": _TEMPO,
    "http": _PROBED,
    "https": _PROBED,
}
"""Scheme -> opener; a further back end is one more entry."""


def open_source(uri: str | None = None, options: SourceOptions | None = None) -> Source:
    """Return the source that ``uri`` stands for.

    Without ``uri``: ``$GRADEML_SOURCE``, then ``./grademl-runs``. What ``options`` leave open of the way to
    a server comes from the environment. Raises UsageError for an address that no source reads, NothingFound
    when there is nothing to read by default; nothing is connected to yet.
    """
    uri = address(uri)
    options = options or SourceOptions()
    match = _SCHEME.match(uri)
    if match is None:
        return _of_path(uri, options)
    scheme = match.group(1).lower()
    if scheme == "file":
        return _of_path(uri[len(match.group(0)) :], options)
    opener = SCHEMES.get(scheme)
    if opener is None:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise UsageError(
            f"{without_secrets(uri)}: unknown kind of SOURCE {scheme}://; known: a path, {known}"
        )
    return opener(uri, options)


__all__ = ["SCHEMES", "address", "open_source", "parse_headers"]


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
