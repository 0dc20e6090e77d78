# SPDX-License-Identifier: Apache-2.0
"""Headers, logins and certificates: from the environment or an option, never from an address."""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from grademl_otel.analyzers.errors import UsageError
from grademl_otel.analyzers.secrecy import keep
from grademl_otel.analyzers.sources.base import SourceOptions

HEADERS_VARIABLE: Final = "GRADEML_HEADERS"
USER_VARIABLE: Final = "GRADEML_USER"
CA_VARIABLE: Final = "GRADEML_CA"
CLIENT_CERT_VARIABLE: Final = "GRADEML_CLIENT_CERT"
CLIENT_KEY_VARIABLE: Final = "GRADEML_CLIENT_KEY"


def from_environment(options: SourceOptions) -> SourceOptions:
    """Return ``options``, which win, with what the environment adds of the way to a server.

    ``$GRADEML_HEADERS`` holds ``NAME=VALUE,...``, ``$GRADEML_USER`` a ``name:password`` for basic
    authentication, ``$GRADEML_CA``, ``$GRADEML_CLIENT_CERT`` and ``$GRADEML_CLIENT_KEY`` names of PEM files.
    Nothing of who asks for ``options`` that are anonymous. Raises UsageError, without showing a value.
    """
    if options.anonymous:
        return replace(options, ca=options.ca or os.environ.get(CA_VARIABLE) or None)
    return replace(
        options,
        headers=headers_from(HEADERS_VARIABLE, USER_VARIABLE, options.headers),
        ca=options.ca or os.environ.get(CA_VARIABLE) or None,
        client_cert=options.client_cert or os.environ.get(CLIENT_CERT_VARIABLE) or None,
        client_key=options.client_key or os.environ.get(CLIENT_KEY_VARIABLE) or None,
    )


def headers_from(headers_variable: str, user_variable: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that are ``given``, which win, and those of these variables of the environment.

    Raises UsageError, without showing a value.
    """
    headers = parse_headers(os.environ.get(headers_variable, "").split(","), headers_variable)
    headers.update(given)
    login = os.environ.get(user_variable)
    if login and not any(name.lower() == "authorization" for name in headers):
        if ":" not in login:
            raise UsageError(f"${user_variable}: expected NAME:PASSWORD")
        keep((login, login.partition(":")[2]))
        headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
    return headers


def parse_headers(pairs: Sequence[str], where: str = "--header") -> dict[str, str]:
    """Return the headers of ``K=V`` pairs; raises UsageError for anything else, without showing values."""
    headers: dict[str, str] = {}
    for pair in pairs:
        if not pair.strip():
            continue
        name, sign, value = pair.partition("=")
        name, value = name.strip(), value.strip()
        if not sign or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise UsageError(f"{where}: expected NAME=VALUE")
        if not value.isprintable() or not value.isascii():
            raise UsageError(f"{where}: the value of {name} holds a character that no header may have")
        headers[name] = value
    return headers
