# SPDX-License-Identifier: Apache-2.0
"""Which names are of one machine: its host name, its ids, and what the user says that it is called."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

from grademl_otel.analyzers.resource_model.naming import HOST_KEYS


class Machines:
    """The hosts that phases ran on, and other names of theirs.

    A machine is called as its phases call it. Another name is of it where a resource has both (an id, its
    boot), where the user says so, or where one is the other without its domain.
    """

    def __init__(self, resources: Iterable[Mapping[str, Any]], given: Mapping[str, Iterable[str]]) -> None:
        self._names: dict[str, set[str]] = {}
        """Any name -> those that phases have for it."""
        self._hosts: dict[str, None] = {}
        self._known: dict[str, str] = {}
        for resource in resources:
            self.learn(resource, phases=True)
        self.given: dict[str, str] = {}
        for name, others in given.items():
            others = tuple(others)
            main = next((one for one in (name, *others) if one in self._hosts), name)
            for other in (name, *others):
                if other != main:
                    self.given[other] = main

    def learn(self, resource: Mapping[str, Any], phases: bool = False) -> str | None:
        """Return what the host of ``resource`` is called, and take its other names for the same."""
        told = [str(resource[key]) for key in HOST_KEYS if resource.get(key)]
        if not told:
            return None
        # As the execution model calls it: the host's name, else its boot.
        main = str(resource.get("host.name") or resource.get(HOST_KEYS[-1]) or told[0])
        if phases:
            self._hosts[main] = None
        for other in told:
            names = self._names.setdefault(other, set())
            if main not in names:
                names.add(main)
                self._known.clear()
        return main

    @property
    def hosts(self) -> list[str]:
        """Those of the phases, as these call them."""
        return list(self._hosts)

    def has(self, name: str) -> bool:
        """Whether phases ran on the machine that is called ``name`` somewhere."""
        return self.of(name) in self._hosts

    def of(self, name: str) -> str:
        """Return the identity of the machine that is called ``name`` somewhere."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self._found(name)
        return found

    def _found(self, name: str) -> str:
        name = self.given.get(name, name)
        if name in self._hosts:
            return name
        known = self._names.get(name, set())
        if len(known) == 1:  # several containers have one boot
            return self.given.get(found := next(iter(known)), found)
        return self._without_domain(name) or name

    def table(self) -> dict[str, str]:
        """Return every name that is known -> the machine's identity."""
        return {name: self.of(name) for name in (*self._hosts, *self._names, *self.given)}

    def _without_domain(self, name: str) -> str | None:
        if _is_address(name):
            return None
        short = name.partition(".")[0]
        like = [
            host
            for host in self._hosts
            if not _is_address(host)
            and host.partition(".")[0] == short
            and "." not in min(host, name, key=len)
        ]
        return like[0] if len(like) == 1 else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
