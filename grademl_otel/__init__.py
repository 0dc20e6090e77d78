# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry tracing of machine-learning workflows; see README.md.

Importing this package imports no ML framework and nothing of the analyzer.
"""

from grademl_otel.version import __version__

__all__ = ["__version__"]
