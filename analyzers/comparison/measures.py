# SPDX-License-Identifier: Apache-2.0
"""What can be measured of a run and of traces: the one table of names, units and meanings.

docs/comparing.md holds it, and a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from grademl_otel.analyzers.comparison.resampling import MEDIAN, Sample, Statistic

NS: Final = "ns"
RATE: Final = "1/s"
FRACTION: Final = "1"
COUNT: Final = "count"
WORDS: Final = "word"
TRUTH: Final = "truth"

RUNS: Final = "runs"
TRACES: Final = "traces"
ANY: Final = "any"


@dataclass(frozen=True)
class Measure:
    """A name, or a kind of names in angle brackets, and what is meant by it."""

    name: str
    of: str
    """`RUNS`, `TRACES` or `ANY`."""
    unit: str
    meaning: str
    needs: str = ""


MEASURES: Final = (
    Measure("step_time", RUNS, NS, "a steady training step, without checkpoints and compilations in it",
            "20 steady steps"),
    Measure("<phase>", RUNS, NS, "this phase in a steady step (`data.wait`, `forward`, `gc`, your own); in "
            "`check` with `%`: its share of the step", "a level at which it is measured"),
    Measure("samples_per_s", RUNS, RATE, "samples trained on a second, all ranks together",
            "steps with detail that tell equally many samples"),
    Measure("<scope>", RUNS, NS, "one `checkpoint.save`, `checkpoint.load`, `compile`, `evaluate`, `epoch`",
            "20 of them for `diff`"),
    Measure("path(<phase>)", RUNS, FRACTION, "its share of the critical path within steady steps"),
    Measure("budget(<part>)", RUNS, NS, "this part of the lane budget, on the rank with most of it; in "
            "`check` with `%`: its share of the wall time", "`check`: it is measured once"),
    Measure("exposed_wait", RUNS, FRACTION, "part of the steady steps in which the device had nothing to do "
            "while they waited for data", "`check`; at most 20 % of the waiting unknown"),
    Measure("wall", RUNS, NS, "from the first start to the last end of a rank",
            "`check`: it is measured once"),
    Measure("steps", RUNS, COUNT, "training steps of the rank with most of them"),
    Measure("ranks", RUNS, COUNT, "ranks of which something is here"),
    Measure("ended", RUNS, WORDS, "how the ranks ended, the worst: `killed`, `exception`, `unknown`, `exit`",
            "`check`"),
    Measure("findings", RUNS, COUNT, "warnings and critical findings of the report",
            "`check`; that all rules could be judged"),
    Measure("finding(<id>)", RUNS, WORDS, "severity of this finding: `critical`, `warning`, `info`, `none`",
            "`check`; that its rule could be judged"),
    Measure("tracer", RUNS, FRACTION, "what recording cost, of the wall time",
            "`check`; the end of the run"),
    Measure("dropped", RUNS, COUNT, "marks that the recorder lost"),
    Measure("duration", TRACES, NS, "a trace, from the start of its root to its end", "20 traces"),
    Measure("<operation>", TRACES, NS, "a span of this name, as `GET /cart`; `service GET /cart` is that of "
            "one service, `GET /cart (client)` of one kind", "20 traces that have it"),
    Measure("own(<operation>)", TRACES, NS, "its own time on the critical path of a trace, without that of "
            "what it waited for: the mean", "20 traces"),
    Measure("path(<operation>)", TRACES, FRACTION, "its share of all critical paths", "20 traces"),
    Measure("errors", TRACES, FRACTION, "traces whose root has the status error", "20 traces"),
    Measure("errors(<operation>)", TRACES, FRACTION, "spans of this name with the status error",
            "20 traces that have it"),
    Measure("traces", TRACES, COUNT, "traces that match"),
    Measure("complete", ANY, TRUTH, "that nothing expected is missing; stands alone",
            "`check`; counts that tell: traces of others have none"),
    Measure("orphans", ANY, COUNT, "spans whose parent is not here"),
    Measure("spans", ANY, COUNT, "spans that arrived"),
)  # fmt: skip


@dataclass(frozen=True)
class Quantity:
    """What a measure is in one run or set of traces: a sample and what is made of it, a plain value, or why
    there is none.
    """

    unit: str
    sample: Sample | None = None
    statistic: Statistic = MEDIAN
    value: float | str | None = None
    """Where there is no sample."""
    reason: str | None = None
    """Why it is not known."""
    once: bool = False
    """Whether it was measured once, so that nothing tells its noise."""
    absent: bool = False
    """Whether it is not known because there is none of it."""

    @property
    def known(self) -> bool:
        return self.reason is None

    @property
    def number(self) -> float | str | None:
        """Return the value, whichever way it is made; None where it is not known."""
        if self.reason is not None:
            return None
        return self.value if self.sample is None else self.statistic.of(self.sample)

    @property
    def n(self) -> int | None:
        """Return how many steps or traces it was made of; None for a plain value."""
        return None if self.sample is None else len(self.sample)


def unknown(unit: str, reason: str) -> Quantity:
    """Return a quantity that is not known."""
    return Quantity(unit, reason=reason)


def absent(unit: str, reason: str) -> Quantity:
    """Return a quantity of what there is none of."""
    return Quantity(unit, reason=reason, absent=True)
