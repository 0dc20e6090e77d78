# SPDX-License-Identifier: Apache-2.0
"""From a query to a file in one of the forms, and what was written into it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

from grademl_otel.analyzers.errors import GrademlError, IncompleteError, SourceError, UsageError
from grademl_otel.analyzers.exports.forms import Counts, Form, form_of
from grademl_otel.analyzers.model.clocks import ClockRule
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.reporting.canvas import Canvas
from grademl_otel.analyzers.shown import Records, Shown
from grademl_otel.analyzers.subject import broken_off, read_subject
from grademl_otel.analyzers.units import count, size
from grademl_otel.analyzers.whole_files import write_whole

SCHEMA: Final = "grademl.export/1"


@dataclass(frozen=True)
class Exported(Shown, screen="exports.export"):
    """What an export wrote, and how whole that is: schema `grademl.export/1`."""

    schema: str
    source: str
    to: str
    path: str
    bytes: int
    written: Counts
    """What, in the plural -> how many."""
    verdict: str
    incomplete_because: list[str]
    warnings: list[str]
    broken: str | None
    """Why the source broke off midway, if it did: then a part was written."""

    def _tables(self) -> Mapping[str, Records]:
        return {"export": Records(Exported, [self])}

    def __str__(self) -> str:
        what = ", ".join(count(number, word.removesuffix("s")) for word, number in self.written.items())
        return f"wrote {self.path}: {what}, {size(self.bytes)}"


def draw(canvas: Canvas, done: Exported) -> None:
    """Write what was written, and what is missing in it."""
    canvas.verbatim(str(done))
    for reason in done.incomplete_because:
        canvas.line(f"- {reason}", indent=2)


class Export:
    """What was read for one form, to be written once. Raises as `read_subject` does, and UsageError."""

    def __init__(self, query: Query, to: str, options: Mapping[str, str | None]) -> None:
        self.form = form_of(to, options)
        self._options: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        self.is_folder = self.form.folder and not self._options
        """Whether a folder is written, no file."""
        self.notes: list[str] = []
        """What the form does not hold, a line each; known once it is written."""
        if self.form.tells:
            self._options["notes"] = self.notes
        self.about = read_subject(_recorded(query, self.form) if self.form.recorded else query)
        self.broken = broken_off(self.about.telemetry)

    def into_file(self, file: IO[bytes]) -> Counts:
        """Write into an open file."""
        return self.form.write(self.about, file, **self._options)

    def text(self) -> str:
        """Return what would be written, of a form that is text."""
        file = io.BytesIO()
        self.into_file(file)
        return file.getvalue().decode()

    def into(self, path: str) -> Exported:
        """Write ``path``, whole or not at all. Raises UsageError where it cannot be written."""
        written: Counts = {}
        if self.is_folder:
            written, length = self.form.write_folder(self.about, Path(path))
        else:
            if self.form.named:
                self._options["name"] = path
            length = write_whole(Path(path), lambda file: written.update(self.into_file(file)))
        found = self.about.completeness
        return Exported(
            SCHEMA,
            source=self.about.telemetry.uri,
            to=self.form.name,
            path=path,
            bytes=length,
            written=written,
            verdict=found.verdict,
            incomplete_because=found.reasons,
            warnings=[*self.about.telemetry.ledger.warnings, *self.notes],
            broken=self.broken,
        )

    def reservation(self, strict: bool) -> GrademlError | None:
        """Return what is to be told after writing: the source broke off, or data are missing."""
        if self.broken is not None:
            return SourceError(self.broken)
        if strict and self.about.completeness.verdict == "incomplete":
            return IncompleteError(f"the data are incomplete: {self.reasons}")
        return None

    @property
    def reasons(self) -> str | None:
        """The first reason why data are incomplete, and how many more there are; None where none is known."""
        reasons = self.about.completeness.reasons
        if self.about.completeness.verdict != "incomplete" or not reasons:
            return None
        more = f" (and {count(len(reasons) - 1, 'more reason')})" if len(reasons) > 1 else ""
        return f"{reasons[0]}{more}"


def _recorded(query: Query, form: Form) -> Query:
    """Return ``query`` for what was recorded as it was; UsageError where it asks for something else."""
    chosen = {
        "--fit": query.fit is not None,
        "--ranks": query.ranks is not None,
        "--steps": query.steps is not None,
        "--clocks": query.clocks is not None,
        "--overlap-tolerance": query.tolerance is not None,
        "--no-inferred": not query.inferred,
    }
    for option, given in chosen.items():
        if given:
            raise UsageError(f"{option}: --to {form.name} writes what was recorded, as it was; leave it out")
    return replace(query, clocks=ClockRule.parse(["off"]))
