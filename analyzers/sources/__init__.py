# SPDX-License-Identifier: Apache-2.0
"""Where telemetry is read from: files, Jaeger; all yield the same columns."""

from grademl_otel.analyzers.sources.base import Listing, Selection, Source, SourceOptions
from grademl_otel.analyzers.sources.registry import open_source, parse_headers

__all__ = ["Listing", "Selection", "Source", "SourceOptions", "open_source", "parse_headers"]
