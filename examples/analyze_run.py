# SPDX-License-Identifier: Apache-2.0
"""What the analyzer knows of a recorded run, asked from Python.

    python examples/analyze_run.py [SOURCE]

Prints the verdict, the phases of the steady step, the longest sections of the critical path, and which steps
took longest by SQL; writes the report as report.html.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grademl_otel import analyzers


def main(source: str | None = None) -> int:
    try:
        report = analyzers.report(source)
    except analyzers.GrademlError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"data: {report.completeness.verdict}", *report.incomplete_because, sep="\n- ")
    if report.verdict is not None:
        print(*report.verdict.lines, sep="\n")
    for phase in report.step.phases if report.step is not None else []:
        print(f"{phase.phase:<20} {phase.mean_ns / 1e6:8.2f} ms {phase.share:6.1%}")
    path = analyzers.critical_path(source, top=3).path
    if isinstance(path, analyzers.PathInfo):
        for section in path.sections:
            print(f"{section.phase} ({section.kind}): {(section.end_ns - section.start_ns) / 1e6:.1f} ms")
    slowest = "SELECT step, duration_ns / 1e6 AS ms FROM steps ORDER BY duration_ns DESC LIMIT 3"
    for step, ms in analyzers.query(source, slowest):
        print(f"step {step}: {ms:.1f} ms")
    Path("report.html").write_text(report.to_html(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
