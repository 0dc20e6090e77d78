# SPDX-License-Identifier: Apache-2.0
"""Connections to one host: the proxy on the way, what TLS trusts, and an end to every wait.

A server may send a byte now and then for ever. So each read from a socket waits until the answer's deadline
at most, headers and body alike.
"""

from __future__ import annotations

import io
import ipaddress
import socket
import ssl
import time
import urllib.request
from contextlib import suppress
from http.client import HTTPResponse
from pathlib import Path
from threading import Lock
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit
from weakref import WeakSet

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util import make_headers

from grademl_otel.analyzers.errors import SourceError, UsageError
from grademl_otel.analyzers.sources.base import SourceOptions

_BUFFER: Final = 1 << 16


class Connections:
    """The connections to the host of one address; usable from several threads."""

    def __init__(self, url: str, options: SourceOptions, at_once: int, whole_s: float) -> None:
        """Connect to nothing yet; ``whole_s`` bounds an answer from its request to its last byte."""
        self._answering: WeakSet[socket.socket] = WeakSet()
        self._lock = Lock()
        self._closed = False
        secure = urlsplit(url).scheme == "https"
        settings: dict[str, Any] = {"maxsize": at_once, "retries": False}
        if secure:
            settings["ssl_context"] = trusting(options)
        proxy = proxy_for(url)
        if proxy is None:
            self._pools = urllib3.PoolManager(1, **settings)
        else:
            self._pools = _through(proxy, options, settings)
        self.proxied = proxy is not None
        self._pools.pool_classes_by_scheme = _pool_classes(self, whole_s)

    def get(
        self, url: str, headers: dict[str, str], connect_s: float, silence_s: float
    ) -> urllib3.BaseHTTPResponse:
        """Send a request; return the answer, its body still to be read. Raises urllib3's errors."""
        timeout = urllib3.Timeout(connect=connect_s, read=silence_s)
        return self._pools.request(
            "GET", url, headers=headers, timeout=timeout, redirect=False, preload_content=False
        )

    def register(self, sock: socket.socket) -> None:
        """Note that an answer is awaited on ``sock``, so that `abort` can end the wait."""
        with self._lock:
            self._answering.add(sock)
        if self._closed:
            _shut(sock)

    def abort(self) -> None:
        """Break off what is going on in other threads."""
        with self._lock:
            self._closed = True
            waiting = list(self._answering)
        for sock in waiting:
            _shut(sock)
        self._pools.clear()


def _shut(sock: socket.socket) -> None:
    # TLS within the TLS of a proxy is no socket, but has one.
    below: socket.socket = getattr(sock, "socket", sock)
    with suppress(OSError):
        below.shutdown(socket.SHUT_RDWR)


class _Patient(io.RawIOBase):
    """What arrives on a socket until a deadline; TimeoutError after it."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._raw = cast(io.RawIOBase, sock.makefile("rb", buffering=0))
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer has taken too long")
        silence = self._sock.gettimeout()
        if silence is None or left < silence:
            self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _pool_classes(connections: Connections, whole_s: float) -> dict[str, type[urllib3.HTTPConnectionPool]]:
    class Answer(HTTPResponse):
        def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
            super().__init__(sock, *args, **kwargs)
            self.fp.close()
            self.fp = io.BufferedReader(_Patient(sock, time.monotonic() + whole_s), _BUFFER)
            connections.register(sock)

    class Plain(HTTPConnection):
        response_class = Answer

    class Secure(HTTPSConnection):
        response_class = Answer

    class PlainPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(urllib3.HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}


# --- Proxies ----------------------------------------------------------------------------------------------


def proxy_for(url: str) -> str | None:
    """Return the proxy that the environment names for ``url``, or None."""
    parts = urlsplit(url)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or _excepted(parts.hostname or "", parts.port, proxies.get("no", "")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _excepted(host: str, port: int | None, exceptions: str) -> bool:
    """Whether NO_PROXY names the host, a domain above it, or a network that its address is in."""
    if urllib.request.proxy_bypass(f"{host}:{port}" if port else host):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for exception in exceptions.split(","):
        with suppress(ValueError):
            if address in ipaddress.ip_network(exception.strip(), strict=False):
                return True
    return False


def _through(proxy: str, options: SourceOptions, settings: dict[str, Any]) -> urllib3.ProxyManager:
    parts = urlsplit(proxy)
    if parts.scheme not in ("http", "https"):
        raise SourceError(
            f"the proxy of the environment is {parts.scheme}://, and only http:// and https:// ones are"
            " spoken to; set NO_PROXY for this host"
        )
    login = make_headers(proxy_basic_auth=f"{unquote(parts.username)}:{unquote(parts.password or '')}") if (
        parts.username
    ) else None  # fmt: skip
    address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    if parts.scheme == "https":
        settings["proxy_ssl_context"] = _trusting_system()
        if options.ca is not None:
            settings["proxy_ssl_context"].load_verify_locations(cadata=read_pem(options.ca, "the CA file"))
    try:
        return urllib3.ProxyManager(address, 1, proxy_headers=login, **settings)
    except urllib3.exceptions.HTTPError:
        raise SourceError("the proxy of the environment has no address that can be understood") from None


# --- TLS --------------------------------------------------------------------------------------------------


def trusting(options: SourceOptions) -> ssl.SSLContext:
    """Return a context that trusts ``options.ca`` instead of the system's certificates, if it is given."""
    if options.ca is None:
        context = _trusting_system()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=read_pem(options.ca, "the CA file"))
    if options.client_cert is not None:
        try:
            context.load_cert_chain(options.client_cert, options.client_key)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"the client certificate {options.client_cert}: {_reason(error)}; give a PEM file that holds"
                " the certificate and its key, or name the key's file in $GRADEML_CLIENT_KEY"
            ) from None
    return context


def _trusting_system() -> ssl.SSLContext:
    context = ssl.create_default_context()
    # A slim image has no certificates of its own.
    with suppress(ImportError, OSError):
        import certifi

        context.load_verify_locations(certifi.where())
    return context


def read_pem(path: str, what: str) -> str:
    """Return the certificates in a file; UsageError when there are none."""
    try:
        text = Path(path).read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise UsageError(f"{what} {path}: {_reason(error)}; name a PEM file") from None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):
        raise UsageError(f"{what} {path}: no certificate in it; name a PEM file") from None
    return text


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return "no certificate and key in it"
    if isinstance(error, OSError):
        return (error.strerror or "cannot be read").lower()
    return "no text in it"
