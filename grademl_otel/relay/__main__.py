# SPDX-License-Identifier: Apache-2.0
"""The relay process: ``python -P __main__.py FOLDER DIGEST [DESCRIPTOR]``; started by `launch.ensure_relay`,
never by hand.
"""

import logging
import os
import sys
from pathlib import Path

if sys.version_info < (3, 11) and sys.path and Path(sys.path[0]) == Path(__file__).resolve().parent:
    del sys.path[0]  # what `-P` does from 3.11 on
# Last, for a package that the training process found by other means than the environment.
sys.path.append(str(Path(__file__).resolve().parents[2]))


def main(folder: str, digest: str, descriptor: str = "") -> int:
    """Serve the rings of ``digest`` in ``folder``; returns the exit status."""
    from grademl_otel.config import Settings
    from grademl_otel.relay.service import Relay
    from grademl_otel.ring.place import private_folder

    settings = Settings.from_env()
    logger = logging.getLogger("grademl_otel")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    if settings.relay_log is not None:
        _log_to(settings.relay_log, logger)
    _allow_many_files()
    try:
        inherited = [int(descriptor)] if descriptor else []
        Relay(private_folder(Path(folder)), digest, settings, os.environ, inherited).run()
    except Exception:
        logger.exception("the relay stopped")
        return 1
    return 0


def _allow_many_files() -> None:
    """A ring takes five descriptors, and one relay serves all ranks of a host."""
    try:
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ImportError, OSError, ValueError):
        pass


def _log_to(path: Path, logger: logging.Logger) -> None:
    try:
        handler = logging.FileHandler(path)
    except OSError:  # nobody to tell, and the telemetry matters more
        return
    handler.setFormatter(logging.Formatter(f"%(asctime)s {os.getpid()} %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
