# SPDX-License-Identifier: Apache-2.0
"""The critical path of a profile by HTA (on PyPI: HolisticTraceAnalysis), if this Python has it.

    python benchmarks/peer_hta.py PATH

prints one line of JSON, the last, as `walking` does. Run as a file: that Python needs nothing of ours.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    path = Path(sys.argv[1]).resolve()
    start, wall = time.process_time(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = TraceAnalysis(trace_files={0: str(path)}, trace_dir=folder)
        # An empty annotation: all of the profile.
        graph, _ = found.critical_path_analysis(rank=0, annotation="", instance_id=None)
    taken = {"cpu_s": time.process_time() - start, "wall_s": time.monotonic() - wall}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({**taken, "peak": peak, "number": len(graph.critical_path_events_set)}))


if __name__ == "__main__":
    main()
