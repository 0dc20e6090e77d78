# SPDX-License-Identifier: Apache-2.0
"""Start a relay for a ring's folder, unless one serves it already.

A relay holds a lock in the folder (see `locks`) for as long as it lives; whoever finds it taken leaves it at
that, and of several relays started at once all but one exit again. The digest (see
`digest`) stands for the destination settings, so that a relay started by one process serves every process
with the same settings, with the headers and credentials that it finds in *its own* environment, inherited
from the process that started it.

The relay must never become a nuisance to the training process: it is started through an intermediate that
exits at once and is waited for here (a user's ``os.wait()`` must not return it), in a session of its own,
with nothing inherited but the environment and the ring, by absolute file path and without the working folder
on the module search path (a user's ``queue.py`` must not be imported).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from grademl_otel.locks import elect

_FOLDER: Final = Path(__file__).resolve().parent
_AUTO_INSTRUMENTATION: Final = os.path.join("opentelemetry", "instrumentation", "auto_instrumentation")
START_TIMEOUT_S: Final = 5.0


class RelayUnavailable(Exception):
    """No relay can be started in this process' surroundings."""


def ensure_relay(
    folder: Path,
    digest: str,
    environ: Mapping[str, str],
    descriptor: int | None = None,
    within_s: float = START_TIMEOUT_S,
) -> bool:
    """Start a relay for the rings of ``digest`` in ``folder``; return False when one is there already.

    ``descriptor`` is a ring without a name: the relay inherits it, so that nothing is lost when this process
    dies before the relay is ready. Does not wait until the relay is ready, only until it is on its way:
    ``within_s`` seconds at most. Raises `RelayUnavailable` or OSError.
    """
    election = elect(folder, digest)
    if election is None:
        return False
    os.close(election)  # a relay that is started meanwhile by another process wins, ours exits
    if not sys.executable:
        raise RelayUnavailable("this Python does not know its own executable")
    safe_path = ["-P"] if sys.version_info >= (3, 11) else []
    relay = [sys.executable, *safe_path, str(_FOLDER / "__main__.py"), str(folder), digest]
    inherited = () if descriptor is None else (descriptor,)
    relay += map(str, inherited)
    intermediate = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_FOLDER / "detach.py"), *relay],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=True,
        pass_fds=inherited,
        cwd="/",
        env=relay_environment(environ),
        start_new_session=True,
    )
    try:
        intermediate.wait(within_s)
    except subprocess.TimeoutExpired as error:
        intermediate.kill()
        intermediate.wait()
        raise RelayUnavailable("the relay's intermediate did not return") from error
    return True


def relay_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a relay: the same, but nothing in it instruments the relay itself."""
    result = dict(environ)
    entries = [entry for entry in result.pop("PYTHONPATH", "").split(os.pathsep) if entry]
    kept = [entry for entry in entries if not entry.rstrip(os.sep).endswith(_AUTO_INSTRUMENTATION)]
    if kept:
        result["PYTHONPATH"] = os.pathsep.join(kept)
    result["GRADEML_RELAY"] = "1"
    return result
