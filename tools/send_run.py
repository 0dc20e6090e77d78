# SPDX-License-Identifier: Apache-2.0
"""Send a run that lies in a folder of the file store to an OTLP/HTTP endpoint, for example to a Jaeger's.

    python tools/send_run.py grademl-runs/20261201T103349Z-3f2a... http://localhost:4318

Without a folder the latest run of ./grademl-runs is sent; without an endpoint it goes to http://localhost:4318.
A line of the file is one OTLP/JSON request, so that it can be sent as it is. Standard library only.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from pathlib import Path

DEFAULT_ENDPOINT = "http://localhost:4318"
STORE = Path("grademl-runs")


class SendFailed(Exception):
    """One line: what, where, what to do."""


def latest_run() -> Path:
    runs = sorted(path.parent for path in STORE.glob("*/traces.jsonl"))  # names begin with the start in UTC
    if not runs:
        raise SendFailed(f"no runs in ./{STORE}; `make demo` records one")
    return runs[-1]


def send(traces: Path, endpoint: str) -> int:
    """Post every line of `traces` to `endpoint`/v1/traces; the number of requests sent."""
    sent = 0
    for line in traces.read_bytes().split(b"\n"):  # not splitlines(): a span may hold U+2028
        if not line:
            continue
        post = urllib.request.Request(
            f"{endpoint.rstrip('/')}/v1/traces", line, {"Content-Type": "application/json"}
        )
        try:
            urllib.request.urlopen(post, timeout=30).close()
        except (urllib.error.URLError, OSError, ValueError) as error:
            hint = "is a Jaeger or Collector listening for OTLP/HTTP there?"
            raise SendFailed(f"{endpoint}: {error}; {hint}") from None
        sent += 1
    return sent


def main(arguments: list[str]) -> int:
    if len(arguments) > 2:
        print("usage: send_run.py [FOLDER [ENDPOINT]]", file=sys.stderr)
        return 2
    try:
        folder = Path(arguments[0]) if arguments else latest_run()
        endpoint = arguments[1] if len(arguments) > 1 else DEFAULT_ENDPOINT
        sent = send(folder / "traces.jsonl", endpoint)
    except (SendFailed, OSError) as error:
        print(f"send_run: {error}", file=sys.stderr)
        return 1
    print(f"sent {folder} ({sent} requests) to {endpoint}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
