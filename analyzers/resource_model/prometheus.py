# SPDX-License-Identifier: Apache-2.0
"""What a Prometheus has of the hosts of the phases, as series."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import FloatArray, IntArray
from grademl_otel.analyzers.resource_model import naming
from grademl_otel.analyzers.resource_model.gathering import Gathering, Told, tags_of
from grademl_otel.analyzers.resource_model.machines import Machines
from grademl_otel.analyzers.resource_model.naming import Meaning
from grademl_otel.analyzers.resource_model.of_tables import process_id
from grademl_otel.analyzers.resource_model.prometheus_api import Prometheus, as_arrays
from grademl_otel.analyzers.resource_model.series import Averages, Place, of_counter, of_samples
from grademl_otel.catalog.prometheus_names import label_name

_S: Final = 10**9
MARGIN_NS: Final = 120 * _S
"""So much before and after the phases is asked for, too: intervals begin with the sample before."""
_NAMES_OF_HOSTS: Final = ("node_uname_info", "target_info")
"""Metrics of value 1 that say what an instance, or the target of a job, is called."""
_LISTED: Final = 5
_AT_ONCE: Final = 100
"""Hosts in one request."""
_PUSHED: Final = ("hw", "grademl", "system", "process")
"""Metrics that came by OTLP: with times of the host, not of the server."""

ShiftOf = Callable[[str], int]
"""Returns what is taken from times of a machine, in ns."""


def of_prometheus(
    server: Prometheus,
    machines: Machines,
    window: tuple[int, int],
    shift_of: ShiftOf,
    runs: Collection[str],
) -> Told:
    """Return what ``server`` knows of the time of the phases, of their hosts and ``runs``.

    Raises SourceError.
    """
    start, end = window[0] - MARGIN_NS, window[1] + MARGIN_NS
    told = Told()
    meanings = naming.by_prometheus_name()
    there = server.names(start, end)
    names = sorted(meanings.keys() & set(there))
    if not names:
        told.problems.append(
            f"{server.name}: none of its {len(there):,} metrics of that time is known of hosts or GPUs"
            " (docs/resources.md lists them)"
        )
        return told
    labels = server.series(names, start, end)
    called = _Called(server, machines, there, start, end)
    wanted, others = _matching(labels, called, machines)
    if wanted is None:
        shown = ", ".join(others[:_LISTED]) + (
            f" and {len(others) - _LISTED:,} more" * (len(others) > _LISTED)
        )
        told.problems.append(
            f"{server.name}: knows {shown}, and none of the hosts of the phases"
            f" ({', '.join(machines.hosts[:_LISTED])}): say what they are called there in the rules file, as"
            f' [hosts] {machines.hosts[0]} = ["{others[0]}"]'
        )
        return told
    samples: dict[tuple[tuple[str, str], ...], list[tuple[IntArray, FloatArray]]] = {}
    for matching in wanted:
        for batch in server.samples(names, matching, start, end):
            for series in batch:
                key = tuple(sorted(series.metric.items()))
                samples.setdefault(key, []).append(as_arrays(series.values))
    gathering = Gathering(server.name)
    for key, parts in samples.items():
        if _run_of(dict(key)) in (None, *runs):
            _read(dict(key), parts, called, machines, shift_of, gathering)
    told.add(gathering.finish())
    return told


def _matching(
    labels: Sequence[Mapping[str, str]], called: _Called, machines: Machines
) -> tuple[list[dict[str, list[str]]] | None, list[str]]:
    """Return (matchers that select the series of the phases' hosts, the hosts that there are).

    Of phases that name no host all is taken.
    """
    by_label: dict[str, set[str]] = {}
    hosts: set[str] = set()
    unnamed = False
    for one in labels:
        found = called.label_of(one)
        if found is None:
            unnamed = True
            continue
        label, host = found
        hosts.add(host)
        if machines.has(host):
            by_label.setdefault(label, set()).add(one[label])
    if not machines.hosts or (unnamed and not hosts):
        return [{}], sorted(hosts)
    if not by_label:
        return None, sorted(hosts)
    matchings = []
    for label, values in sorted(by_label.items()):
        some = sorted(values)
        matchings += [{label: some[at : at + _AT_ONCE]} for at in range(0, len(some), _AT_ONCE)]
    return matchings, sorted(hosts)


def _read(
    labels: dict[str, str],
    parts: Sequence[tuple[IntArray, FloatArray]],
    called: _Called,
    machines: Machines,
    shift_of: ShiftOf,
    gathering: Gathering,
) -> None:
    """Hand on a series as what each of its meanings makes of it."""
    name = labels.get("__name__", "")
    time = np.concatenate([one for one, _ in parts])
    value = np.concatenate([one for _, one in parts])
    found = called.label_of(labels)
    host = None if found is None else machines.of(found[1])
    if host is not None and re.split(r"[._]", name)[0] in _PUSHED:
        time = time - shift_of(host)
    seen: dict[bool, Averages] = {}
    for meaning in naming.by_prometheus_name().get(name, ()):
        if not meaning.fits(labels):
            continue
        place = _place(meaning, labels, host)
        if place is None:
            continue
        if meaning.counter not in seen:
            seen[meaning.counter] = of_counter(time, value) if meaning.counter else of_samples(time, value)
        read = seen[meaning.counter]
        gathering.add(place, meaning, labels, read.scaled(meaning.factor))


def _place(meaning: Meaning, labels: Mapping[str, str], host: str | None) -> Place | None:
    if meaning.type == "process":
        run, rank = _run_of(labels), _told(labels, semconv.RANK)
        if not run or not rank:
            return None
        attempt = _told(labels, semconv.ATTEMPT) or "0"
        owner = (("attempt", attempt), ("rank", rank), ("run", run))
        return Place(host, "process", process_id(f"rank {rank}", run, attempt), owner)
    found = meaning.id_of(labels)
    if found is None:
        return None
    tags = tags_of({_DOTTED.get(key, key): labels[key] for key in labels})
    if labels.get(meaning.part):
        tags = tuple(sorted({**dict(tags), "parent": labels[meaning.id[0]]}.items()))
    return Place(host, meaning.type, found, tags)


def _run_of(labels: Mapping[str, str]) -> str | None:
    """Return the run that a series says it is of; that is of processes only."""
    return _told(labels, semconv.RUN_ID)


def _told(labels: Mapping[str, str], attribute: str) -> str | None:
    return labels.get(label_name(attribute)) or labels.get(attribute) or None


_DOTTED: Final = {label_name(key): key for key in naming.TAGS}


class _Called:
    """What the host of a series is called: by its labels, else by what its instance says of itself."""

    def __init__(
        self, server: Prometheus, machines: Machines, there: Sequence[str], start: int, end: int
    ) -> None:
        self._machines = machines
        self._of_instance: dict[tuple[str, str], str] = {}
        telling = [name for name in _NAMES_OF_HOSTS if name in there]
        for labels in server.series(telling, start, end) if telling else ():
            own = next((labels[key] for key in naming.HOST_LABELS[:-1] if labels.get(key)), None)
            if own and labels.get("instance"):
                self._of_instance[labels.get("job", ""), labels["instance"]] = own
                self._of_instance.setdefault(("", labels["instance"]), own)

    def label_of(self, labels: Mapping[str, str]) -> tuple[str, str] | None:
        """Return (the label that tells the host, what it is called); a host of the phases goes first."""
        told: list[tuple[str, str]] = []
        for key in naming.HOST_LABELS:
            value = labels.get(key)
            if not value:
                continue
            if key == "instance":
                own = self._of_instance.get((labels.get("job", ""), value))
                own = own or self._of_instance.get(("", value))
                told += [(key, own)] if own else []
                told += [(key, value), (key, _without_port(value))]
            else:
                told.append((key, value))
        for label, host in told:
            if self._machines.has(host):
                return label, host
        return told[0] if told else None


def _without_port(instance: str) -> str:
    host, colon, port = instance.rpartition(":")
    return host.strip("[]") if colon and port.isdigit() and host else instance
