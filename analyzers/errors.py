# SPDX-License-Identifier: Apache-2.0
"""The analyzing half's one family of errors: a line that says what, where and what to do, and an exit code.

A message never holds a header's value or the user information of an address; `without_secrets` removes the
latter before an address is put into one.
"""

from __future__ import annotations

from typing import ClassVar, Final
from urllib.parse import urlsplit, urlunsplit

from grademl_otel.analyzers.printable import clean
from grademl_otel.analyzers.secrecy import hidden

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_SOURCE: Final = 3
EXIT_INCOMPLETE: Final = 4
EXIT_NOTHING_FOUND: Final = 5
EXIT_BUG: Final = 70
EXIT_INTERRUPTED: Final = 130


class GrademlError(Exception):
    """Anything that ends a command in an expected way; ``str()`` is the one line for stderr."""

    exit_code: ClassVar[int] = EXIT_SOURCE
    excerpt: str | None = None
    """Lines that show the place of a mistake, for a terminal."""

    def __init__(self, message: str) -> None:
        super().__init__(hidden(clean(" ".join(message.split()))))


class Failed(GrademlError):
    """A check, or a limit of a difference, does not hold."""

    exit_code = EXIT_FAILED


class UsageError(GrademlError):
    """The question itself is wrong: an unknown SOURCE, a malformed option."""

    exit_code = EXIT_USAGE


class MissingExtra(UsageError):
    """A package of an extra is not installed; the line holds the pip command."""

    def __init__(self, package: str, extra: str = "analyzer") -> None:
        super().__init__(f"{package} is not installed; run: pip install 'grademl-otel[{extra}]'")


class MissingPackage(UsageError):
    """A package is not installed that no extra brings: what uses it is for those who have it anyway."""

    def __init__(self, package: str) -> None:
        super().__init__(f"{package} is not installed; run: pip install {package}")


class SourceError(GrademlError):
    """A source is unreachable, refused, is not what it was taken for, or broke off midway."""

    exit_code = EXIT_SOURCE


class IncompleteError(GrademlError):
    """The data are incomplete and ``--strict`` was asked for."""

    exit_code = EXIT_INCOMPLETE


class NothingFound(GrademlError):
    """The source was read, but nothing in it matches, or a needed signal is absent."""

    exit_code = EXIT_NOTHING_FOUND


class Interrupted(GrademlError):
    """Ctrl-C or SIGTERM; the line says what was done so far and is usable."""

    exit_code = EXIT_INTERRUPTED


def without_secrets(uri: str) -> str:
    """Return ``uri`` without its user information and query, either of which may hold a secret."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return uri.split("@")[-1]
    if not parts.scheme or not parts.netloc:
        return uri
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
