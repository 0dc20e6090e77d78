# SPDX-License-Identifier: Apache-2.0
"""Names and numbers of collectives, the same on all members of a process group.

Ranks do not talk for it. The name of a group follows from its members and from torch's own name of it, which
all members make alike; a collective's number is how many came before it in its group. Backends have numbers,
too, but those of some count point-to-point calls in, which not all members make.

Both ends of a point-to-point call count the calls between these two, by tag: a receiver may ask for tags in
another order than they were sent in.
"""

from __future__ import annotations

import sys
import weakref
from hashlib import sha256
from typing import Any, Final

from grademl_otel.recorder import Recorder

_TAGS: Final = 256
"""Tags that differ by this are counted as one, so that a tag of its own for each call takes no memory."""
_COUNT_BITS: Final = 32
_OF_THE_CPU: Final = frozenset({"gloo", "mpi"})

_made: dict[str, int] = {}
"""How many groups of each name there were: after `destroy_process_group` torch starts over with its names."""
_members: Final = weakref.WeakKeyDictionary[Any, "Group"]()


class Group:
    """One process group as this rank sees it; ``ranks`` are global ones, by their rank in the group."""

    __slots__ = ("_name", "_pairs", "collectives", "host", "items", "rank", "recorder", "size", "text")

    def __init__(self, name: str, ranks: list[int], rank: int, host: bool, before: int = 0) -> None:
        self.rank = rank
        self.host = host
        """Whether its backend works on the CPU, where a collective has no data that tell."""
        self.size = len(ranks)
        self.collectives = before
        """Issued so far."""
        members = ",".join(map(str, sorted(ranks)))
        self._name = f"{members}/{name}"
        again = _made[self._name] = _made.get(self._name, -1) + 1
        if again:
            self._name += f"/{again}"
        if before:
            self._name += f"/from {before}"
        self.text = named(self._name, self.size)
        """As marks and spans name the group."""
        self.recorder: Recorder | None = None
        self.items = 0
        """Packed item of its first collective, as ``recorder`` has it."""
        self._pairs: dict[tuple[int, int], _Pair] = {}

    def count_between(self, sender: int, receiver: int, tag: int) -> tuple[str, int]:
        """Return name and number of the call between two ranks of the group that was issued now."""
        pair = self._pairs.get((sender, receiver))
        if pair is None:
            pair = self._pairs[sender, receiver] = _Pair(named(f"{self._name}/{sender}>{receiver}", 2))
        tag %= _TAGS
        number = pair.counts.get(tag, 0)
        pair.counts[tag] = number + 1
        return pair.text, tag << _COUNT_BITS | number


class _Pair:
    __slots__ = ("counts", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.counts: dict[int, int] = {}


def named(name: str, size: int) -> str:
    """Return what marks call a group of ``size`` members: 16 hex digits of a hash, and the size."""
    return f"{sha256(name.encode('utf-8')).hexdigest()[:16]}/{size}"


def group_of(process_group: Any) -> Group:
    """Return the group of torch's ``process_group``, made when it is first asked for.

    That is at its first collective, when torch knows its members.
    """
    group = _members.get(process_group)
    if group is None:
        group = _members[process_group] = _look(process_group)
    return group


def found_late(process_group: Any) -> None:
    """``process_group`` was there before the hooks, and has numbers that nobody counted.

    Its name then tells how far it was: ranks that were instrumented at the same place in the program agree,
    others are not taken for each other's partners.
    """
    if process_group not in _members:
        _members[process_group] = _look(process_group, int(process_group._get_sequence_number_for_group()))


def forget() -> None:
    """Nothing is counted any more."""
    _members.clear()


def _look(process_group: Any, before: int = 0) -> Group:
    size, rank = int(process_group.size()), int(process_group.rank())
    host = process_group.name() in _OF_THE_CPU
    return Group(str(process_group.group_name), _ranks(process_group, size), rank, host, before)


def _ranks(process_group: Any, size: int) -> list[int]:
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    ranks = {} if world is None else world.pg_group_ranks.get(process_group, {})
    return list(ranks) if len(ranks) == size else list(range(size))
