# SPDX-License-Identifier: Apache-2.0
"""How a server fails, as one line with advice each: what it refused, and what never came to an answer."""

from __future__ import annotations

import ssl
from http.client import responses
from typing import Any, Final

import msgspec
from urllib3 import exceptions

from grademl_otel.analyzers.errors import SourceError

_ASK_LESS: Final = "ask for less time (--since, --from, --to) or for one trace (--trace)"
_LOGIN: Final = (
    "pass --header NAME=VALUE (a tenant: {tenant}=..., a token: Authorization=...),"
    " or name and password in $GRADEML_USER"
)


class NotFound(SourceError):
    """The server answered 404."""


class Unexpected(SourceError):
    """The server does not know what it is asked for: 501, or a page for people instead of an answer."""


class TooLarge(SourceError):
    """The answer exceeds a bound, ours or the server's; asking for less may work."""


class Unreachable(SourceError):
    """There is nobody to ask: neither less nor a second question helps."""


def login_hint(tenant_header: str) -> str:
    """What to do when a server wants to know who asks."""
    return _LOGIN.format(tenant=tenant_header)


def beyond(name: str, limit: int) -> TooLarge:
    """An answer of more than ``limit`` bytes."""
    return TooLarge(f"{name}: an answer of more than {limit:,} bytes; {_ASK_LESS}")


def refusal(name: str, advice: str, tenant_header: str, status: int, body: bytes) -> SourceError:
    """Return what an answer other than 200 means."""
    said = error_text(body)
    text = f"{status} {said.removeprefix(f'{status} ') or responses.get(status, '')}".strip()
    if status in (401, 403):
        return SourceError(f"{name}: {text}; {login_hint(tenant_header)}")
    if status == 407:
        return SourceError(f"{name}: {text}; the proxy of $HTTP(S)_PROXY wants a login")
    if status == 404:
        return NotFound(f"{name}: {text}; {advice}")
    if status == 501:
        return Unexpected(f"{name}: {text}; {advice}")
    if status == 429:
        return SourceError(f"{name}: {text}; the server asks for fewer requests; try again later")
    if status in (413, 422, 502, 504) or "larger than the max" in said or "ResourceExhausted" in said:
        return TooLarge(f"{name}: {text}; the answer may be too large; {_ASK_LESS}")
    return SourceError(f"{name}: {text}")


def failure(name: str, advice: str, error: exceptions.HTTPError, silence_s: float) -> SourceError:
    """Return what went wrong before an answer came, or while it came."""
    if isinstance(error, exceptions.ProxyError):
        return Unreachable(f"{name}: the proxy of $HTTP(S)_PROXY failed; set NO_PROXY for this host?")
    if isinstance(error, exceptions.SSLError):
        return SourceError(f"{name}: TLS failed: {_tls_reason(error)}")
    if isinstance(error, exceptions.NameResolutionError):
        return Unreachable(f"{name}: no such host; check the name")
    if isinstance(error, exceptions.NewConnectionError):
        if "refused" in str(error).lower():
            return Unreachable(f"{name}: connection refused; {advice}")
        return Unreachable(f"{name}: cannot connect; {advice}")
    if isinstance(error, exceptions.TimeoutError):
        what = "no connection" if isinstance(error, exceptions.ConnectTimeoutError) else "no answer"
        return SourceError(f"{name}: {what} within {silence_s:g} s; {advice}; or allow more with --timeout")
    if isinstance(error, exceptions.ProtocolError):
        return TooLarge(f"{name}: closed the connection without an answer; {advice}")
    if isinstance(error, (exceptions.LocationValueError, exceptions.LocationParseError)):
        return SourceError(f"{name}: this is no address; check the host")
    return SourceError(f"{name}: {type(error).__name__}; {advice}")


def _tls_reason(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None:
        for each in (cause, *cause.args):
            if isinstance(each, ssl.SSLCertVerificationError):
                return (
                    f"the certificate is not accepted ({each.verify_message});"
                    " name the file of its CA with --ca or $GRADEML_CA"
                )
        if isinstance(cause, ssl.SSLError) and "CERTIFICATE_REQUIRED" in str(cause):
            return "the server wants a client certificate; name its file in $GRADEML_CLIENT_CERT"
        cause = cause.__cause__ or cause.__context__
    text = str(error)
    if "WRONG_VERSION_NUMBER" in text or "record layer" in text or "UNEXPECTED_EOF" in text:
        return "the server does not seem to speak it; is it plain http:// (jaeger://)?"
    return "is it plain http:// (jaeger://), or is its certificate not trusted (--ca)?"


def error_text(body: bytes) -> str:
    """Return the message in an error answer, one short line: Jaeger's JSON of v1 or v3, or plain text."""
    text = body.decode("utf-8", "replace").strip()
    try:
        answer: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        answer = None
    if isinstance(answer, dict):
        errors = answer.get("errors")
        error = answer.get("error") or (errors[0] if isinstance(errors, list) and errors else None)
        if isinstance(error, dict):
            text = str(error.get("message") or error.get("msg") or "")
        else:
            text = str(error or answer.get("message") or "")
    if text.startswith("<"):
        return ""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:300]
