# SPDX-License-Identifier: Apache-2.0
"""What is asked about the use of resources: by what it is added up, of what, with what beside the spans."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike

from grademl_otel.analyzers.errors import without_secrets
from grademl_otel.analyzers.secrecy import keep

Place = str | PathLike[str]


@dataclass(frozen=True)
class Question:
    """The options of `grademl resources` beside those of every command."""

    by: str = "type"
    phase: str | None = None
    """Pattern of the path language: of types, or of phases where use is added up by these."""
    metric: str | None = None
    """Type of a metric, in which ``*`` stands for any text."""
    depth: int | None = None
    rules: Place | None = None
    """File of rules."""
    metrics: tuple[Place, ...] = ()
    prometheus: tuple[str, ...] = ()
    csv: tuple[Place, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For the servers in ``prometheus``."""

    def __post_init__(self) -> None:
        keep(self.headers.values())

    @property
    def additions(self) -> tuple[object, ...]:
        """What tells from another question whether the same was attributed: not how it is added up."""
        return self.rules, self.metrics, self.prometheus, self.csv, tuple(self.headers.items())

    def words(self) -> str:
        """Return its options as words of a shell; headers, which may be secret, are left out."""
        words: list[str] = []
        if self.by != "type":
            words += ["--by", self.by]
        single = (
            ("phase", self.phase),
            ("metric", self.metric),
            ("depth", self.depth),
            ("rules", self.rules),
        )
        for name, value in single:
            words += [] if value is None else [f"--{name}", str(value)]
        several = (("metrics", self.metrics), ("prometheus", self.prometheus), ("csv", self.csv))
        for name, values in several:
            for one in values:
                words += [f"--{name}", without_secrets(str(one))]
        return "".join(f" {word}" for word in map(shlex.quote, words))
