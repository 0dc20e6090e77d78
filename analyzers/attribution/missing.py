# SPDX-License-Identifier: Apache-2.0
"""What stands in the way of an attribution, a line each, for people: nothing of it is silently zero."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from grademl_otel.analyzers.attribution.rules import Blocking, Rule, glob
from grademl_otel.analyzers.units import seconds

if TYPE_CHECKING:
    from grademl_otel.analyzers.attribution.attribute import Attributed

_LISTED: Final = 6


def problems_of(found: Attributed) -> Iterator[str]:
    """Yield what is missing in ``found``, beside what its resource model tells."""
    yield from _rules_of_nothing(found)
    yield from _blocking_of_nothing(found)
    if not len(found.activity) or not len(found):
        return
    yield from _apart_in_time(found)
    yield from _apart_in_place(found)
    if ranks := found.mapped.unnamed:
        told = _listed(sorted({str(each.rank) for each in ranks}, key=int))
        word = "ranks" if len(ranks) > 1 else "rank"
        yield f"{word} {told} named no GPU, and the host has several: counted on all of them"
    yield from _not_told_apart(found)


def _rules_of_nothing(found: Attributed) -> Iterator[str]:
    types = {metric.type for metric in found.resources.metrics}
    for rule in found.rules.rules:
        what = f'the rule for phase = "{rule.phase}", metric = "{rule.metric}"'
        if found.assignment.selects_nothing(rule):
            yield f"{_at(rule)}{what}: no phase is called so"
        elif not any(rule.metrics.fullmatch(each) for each in types):
            yield f"{_at(rule)}{what}: there is no such metric; there are {_listed(sorted(types)) or 'none'}"
        elif rule.resource is not None and not found.concerns(rule):
            yield f'{_at(rule)}{what}: no resource with it is "{rule.resource}"'


def _blocking_of_nothing(found: Attributed) -> Iterator[str]:
    types = {metric.type for metric in found.resources.metrics}
    stopped = set(found.blocked.by.tolist())
    for number, rule in enumerate(found.rules.blocking):
        if found.assignment.selects_nothing(rule):
            yield f'{_at(rule)}blocking of phase = "{rule.phase}": no phase is called so'
        elif rule.by is not None and not len(found.assignment.selected(rule.by)):
            yield f'{_at(rule)}blocking by "{rule.by}": no phase is called so'
        elif rule.metric is not None and not any(map(glob(rule.metric).fullmatch, types)):
            yield f'{_at(rule)}blocking by metric = "{rule.metric}": there is no such metric'
        elif not rule.none and number not in stopped:
            what = rule.by if rule.by is not None else rule.metric
            yield f'{_at(rule)}"{rule.phase}" was never stopped by "{what}"'


def _apart_in_time(found: Attributed) -> Iterator[str]:
    """Tell of metrics that were observed before the first phase or after the last one only."""
    low, high = int(found.activity.start.min()), int(found.activity.end.max())
    before, after = [], []
    for metric in found.resources.metrics:
        seen = metric.observed
        if not len(seen):
            continue
        if seen.end[-1] <= low:
            before.append((metric.type, low - int(seen.end[-1])))
        elif seen.start[0] >= high:
            after.append((metric.type, int(seen.start[0]) - high))
    for rows, where in ((before, "before the first phase began"), (after, "after the last phase had ended")):
        if rows:
            names, least = _listed(sorted({name for name, _ in rows})), min(gap for _, gap in rows)
            yield (
                f"{names}: observed only {where}, {seconds(least)} or more apart; if clocks differ, see"
                " --clocks"
            )


def _apart_in_place(found: Attributed) -> Iterator[str]:
    """Tell of hosts that are on one side only."""
    observed = {found.mapped.machine(metric.resource) for metric in found.resources.metrics} - {None}
    ran = {machine for machine in found.mapped.machines if machine is not None}
    strange = sorted(name for name in observed - ran if name is not None)
    if strange and ran and not observed & ran:
        yield (
            f"metrics are of {_listed(strange)}, phases ran on {_listed(sorted(ran))}: if these are the same"
            " machines, say so in the rules file, as [hosts] NAME = [OTHER]"
        )
    elif observed and (unseen := sorted(ran - observed)):
        yield f"no metric is of {_listed(unseen)}, where phases ran"


def _not_told_apart(found: Attributed) -> Iterator[str]:
    """Tell of fits that leave open which phases used what."""
    types = found.model.types
    groups: dict[tuple[str, ...], set[str]] = {}
    always: dict[tuple[str, ...], set[str]] = {}
    for metric in range(len(found)):
        fitted = found.use(metric).fitted
        if fitted is None:
            continue
        name = found.resources.metrics[metric].type
        for group in fitted.fit.ambiguous:
            alike = [types.path(int(fitted.types[ix])) for ix in group if ix < len(fitted.types)]
            if alike and len(alike) < len(group):
                always.setdefault(tuple(alike), set()).add(name)
            elif len(alike) > 1:
                groups.setdefault(tuple(alike), set()).add(name)
    for paths, names in sorted(groups.items(), key=lambda row: (-len(row[0]), row[0]))[:_LISTED]:
        yield (
            f"{_listed(sorted(names))}: {_listed(paths)} were active in the same proportion all the time; how"
            " they divide it is not known, taken as equal"
        )
    for paths, names in sorted(always.items(), key=lambda row: (-len(row[0]), row[0]))[:_LISTED]:
        divided = "; how they divide it is not known, taken as equal" * (len(paths) > 1)
        yield (
            f"{_listed(sorted(names))}: {_listed(paths)} were active all the time, as far as its intervals"
            f" tell: what is used whoever is active cannot be told apart, and counts as theirs{divided}"
        )


def _at(rule: Rule | Blocking) -> str:
    return f"{rule.where}: " if rule.where else ""


def _listed(words: Iterable[str]) -> str:
    every: Sequence[str] = list(words)
    more = f" and {len(every) - _LISTED:,} more" if len(every) > _LISTED else ""
    return ", ".join(every[:_LISTED]) + more
