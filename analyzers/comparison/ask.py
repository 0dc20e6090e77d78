# SPDX-License-Identifier: Apache-2.0
"""From queries to the answers of `grademl diff` and `grademl check`, and what they end with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from grademl_otel.analyzers.answers import Answer
from grademl_otel.analyzers.comparison import limits
from grademl_otel.analyzers.comparison.differences import BY, THRESHOLD, differences
from grademl_otel.analyzers.comparison.document import (
    FAILED,
    NOT_KNOWN,
    CheckDocument,
    DiffDocument,
    status_of,
)
from grademl_otel.analyzers.comparison.expressions import Expression, has_operator, parse
from grademl_otel.analyzers.comparison.sides import measured, side_of
from grademl_otel.analyzers.errors import (
    Failed,
    GrademlError,
    IncompleteError,
    NothingFound,
    SourceError,
    UsageError,
)
from grademl_otel.analyzers.model.run import Run
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.subject import broken_off, open_query, read_subject

_RUN_OF_SOURCE: Final = re.compile(r"(.*)#([0-9a-fA-F]{1,32}|latest)")
_MOST_EXPRESSIONS: Final = 1_000
_ALONE: Final = "complete"
"""The one expression without an operator."""
_LISTED: Final = 3


def diff(
    a: Query,
    b: Query,
    *,
    by: str = BY[0],
    fail_on: Sequence[str] = (),
    threshold: float = THRESHOLD,
) -> Answer[DiffDocument]:
    """Answer `grademl diff`."""
    if by not in BY:
        raise UsageError(f"by {by!r}: sides are aligned by one of {', '.join(BY)}")
    if not 0 <= threshold < 1:
        raise UsageError(f"threshold {threshold}: give a share from 0 to 1")
    expressions = _parsed(fail_on)
    if a == b:
        raise UsageError("A and B are the same: name two SOURCEs, or two runs as SOURCE#RUN")
    first, second = read_subject(a), read_subject(b)
    ours = [about.run for about in (first, second) if about.run is not None]
    if len(ours) == 2 and _same_part(a, b) and _identity(ours[0]) == _identity(ours[1]):
        raise UsageError(f"A and B are both run {ours[0].run_id}: name another as SOURCE#RUN")
    found = differences(measured(first), measured(second), by, expressions, threshold)
    return Answer(found, broken_off(first.telemetry) or broken_off(second.telemetry))


def check(query: Query, expressions: Sequence[str]) -> Answer[CheckDocument]:
    """Answer `grademl check`."""
    parsed = _parsed(expressions)
    if not parsed:
        raise UsageError("what to check? give expressions, as 'step_time<200ms' or complete")
    about = read_subject(query)
    found = measured(about)
    results = [limits.check(expression, found) for expression in parsed]
    document = CheckDocument(subject=side_of(found), status=status_of(results), results=results)
    return Answer(document, broken_off(about.telemetry))


def reservation(answer: Answer[DiffDocument] | Answer[CheckDocument], strict: bool) -> GrademlError | None:
    """Return the error that an answer is followed by: the source broke off, a limit does not hold, data are
    missing and that is not accepted, a limit could not be judged; the first of these.
    """
    document = answer.found
    if answer.broken is not None:
        return SourceError(answer.broken)
    of_status = {
        status: [result for result in document.results if result.status == status]
        for status in (FAILED, NOT_KNOWN)
    }
    count = len(document.results)
    if failed := of_status[FAILED]:
        named = ", ".join(result.expression for result in failed[:_LISTED])
        more = ", ..." if len(failed) > _LISTED else ""
        what = "limits are exceeded" if isinstance(document, DiffDocument) else "checks failed"
        return Failed(f"{len(failed)} of {count} {what}: {named}{more}")
    if strict and document.incomplete:
        return IncompleteError("the data are incomplete; the answer says what is missing")
    if doubtful := of_status[NOT_KNOWN]:
        first = doubtful[0]
        return NothingFound(f"{len(doubtful)} of {count} not known: {first.expression}: {first.reason}")
    return None


def query_of(source: str | None, **options: Any) -> Query:
    """Return the query of one side, whose ``source`` may be ``SOURCE#RUN``."""
    place, run = split_run(source)
    if run is not None:
        if options.get("run") is not None:
            raise UsageError(f"{source} names a run, and so does --run; give one of them")
        options["run"] = None if run == "latest" else run
    return Query.of(place, **options)


def split_run(source: str | None) -> tuple[str | None, str | None]:
    """Return (source, run) of ``SOURCE#RUN``; no run where there is none in it, or a file is called so."""
    found = _RUN_OF_SOURCE.fullmatch(source or "")
    if found is None or Path(source or "").exists() or found[1].startswith(("http://", "https://")):
        return source, None
    return found[1] or None, found[2]


def latest_two(query: Query) -> tuple[Query, Query]:
    """Return the queries of the latest run in the source and, as A, of the one before."""
    if query.run is not None or query.attempt is not None or query.traces:
        raise UsageError("A and B are the same: name two SOURCEs, or give --run twice")
    source = open_query(query)
    listed = list(dict.fromkeys(run.run_id for run in source.list().runs))
    if len(listed) < 2:
        there = "one run" if listed else "no run of ours"
        raise NothingFound(f"{source.uri}: {there} in it; name two SOURCEs to compare")
    return replace(query, run=listed[1]), replace(query, run=listed[0])


def is_source(text: str) -> bool:
    """Return whether ``text``, before expressions, is a SOURCE: a place, or nothing that could be one of
    them.
    """
    if text == "-" or "://" in text:
        return True
    return text != _ALONE and (Path(text).exists() or not has_operator(text))


def _parsed(texts: Sequence[str]) -> list[Expression]:
    if len(texts) > _MOST_EXPRESSIONS:
        raise UsageError(f"{len(texts):,} expressions; {_MOST_EXPRESSIONS:,} at most")
    return [parse(text) for text in texts]


def _same_part(a: Query, b: Query) -> bool:
    """Return whether both ask for the same part of a run, whichever that is."""
    return (a.steps, a.ranks, a.fit) == (b.steps, b.ranks, b.fit)


def _identity(run: Run) -> tuple[str, int]:
    return run.run_id, run.attempt
