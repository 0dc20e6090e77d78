# SPDX-License-Identifier: Apache-2.0
"""How a process calls its relay: a datagram wakes it, and may bring a ring without a name.

A descriptor that was sent is kept by the kernel until it is received: what a ring holds is safe from then on,
even when its process dies before the relay has looked.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from array import array
from pathlib import Path
from typing import Final

from grademl_otel.locks import checked
from grademl_otel.ring.layout import WAKE_SUFFIX

_log = logging.getLogger(__name__)

_MESSAGE: Final = b"w"
_PERSIST_S: Final = 2.0
_AGAIN_S: Final = 0.02


def wake_path(folder: Path, digest: str) -> Path:
    """Return the datagram socket by which a relay is woken before its next poll."""
    return folder / f"relay-{checked(digest)}{WAKE_SUFFIX}"


def open_caller() -> socket.socket:
    """Return a socket for `call`, which never blocks."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)


def call(caller: socket.socket, folder: Path, digest: str, ring: int | None = None) -> bool:
    """Wake the relay and give it the descriptor ``ring``, if any; return False when it was not reached."""
    address = str(wake_path(folder, digest))
    try:
        # Not by `socket.send_fds`, which takes an address and does not use it.
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [ring]))] if ring is not None else []
        caller.sendmsg([_MESSAGE], rights, 0, address)
    except (OSError, ValueError):  # no relay yet, or its path is too long for a socket: it polls anyway
        return False
    return True


def hand_over(folder: Path, digest: str, rings: list[int]) -> None:
    """Give the relay that was elected what another one was started with; takes 2 s at most."""
    deadline = time.monotonic() + _PERSIST_S
    with open_caller() as caller:
        for ring in rings:
            while not call(caller, folder, digest, ring) and time.monotonic() < deadline:
                time.sleep(_AGAIN_S)


def answer_at(path: Path) -> socket.socket | None:
    """Return the socket on which a relay is called; None where it cannot be had, then polling does."""
    called = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        path.unlink(missing_ok=True)
        called.bind(str(path))
        return called
    except OSError as error:
        _log.info("no wake-up socket: %s", error)
        called.close()
        return None


def wait_for_call(called: socket.socket | None, seconds: float) -> list[int]:
    """Sleep until somebody calls; return descriptors of rings that came with it, which are ours to close."""
    if called is None:
        time.sleep(seconds)
        return []
    called.settimeout(seconds)
    try:
        return socket.recv_fds(called, 16, 1, getattr(socket, "MSG_CMSG_CLOEXEC", 0))[1]
    except OSError:  # nobody called
        return []


def let_go(rings: list[int]) -> None:
    """Close descriptors and forget them."""
    while rings:
        os.close(rings.pop())
