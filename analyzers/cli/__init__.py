# SPDX-License-Identifier: Apache-2.0
"""The command `grademl`. Importable, and clear about what to install, without the analyzer's packages."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Final, NoReturn

EXTRA_PACKAGES: Final = frozenset(
    {
        "click",
        "duckdb",
        "jinja2",
        "msgspec",
        "networkx",
        "numpy",
        "perfetto",
        "prompt_toolkit",
        "pyarrow",
        "pygments",
        "rich",
        "urllib3",
        "zstandard",
    }
)
"""Import names that the extra `analyzer` brings."""


def main() -> NoReturn:
    """Run the command line and exit with one of the codes of docs/commands.md."""
    try:
        from grademl_otel.analyzers.cli.app import run
    except ModuleNotFoundError as error:
        line = missing_package(error)
        if line is None:
            raise
        print(f"grademl: {line}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("grademl: interrupted", file=sys.stderr)
        sys.exit(130)
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # while the line about a first one was written
        code = 130
    # Threads that wait for a server would hold the end; a closed standard stream is no reason to stay.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def missing_package(error: ModuleNotFoundError) -> str | None:
    """Return what to install when ``error`` is about a package of the extra; None for a bug of ours."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRA_PACKAGES:
        return None
    return f"the analyzer needs {package}; run: pip install 'grademl-otel[analyzer]'"
