# SPDX-License-Identifier: Apache-2.0
"""Where telemetry is read from: files, Jaeger; all yield the same columns.

A further back end is a class with the two methods of `Source` and one entry in `registry.SCHEMES`; a further
file format is a reader that `documents.read_document` hands its documents to.
"""

from grademl_otel.analyzers.sources.base import Listing, Selection, Source, SourceOptions
from grademl_otel.analyzers.sources.registry import open_source, parse_headers

__all__ = ["Listing", "Selection", "Source", "SourceOptions", "open_source", "parse_headers"]
