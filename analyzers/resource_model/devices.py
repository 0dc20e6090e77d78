# SPDX-License-Identifier: Apache-2.0
"""Devices that are parts of others, or show the same bytes again: exporters list all of them."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

_COMPOSED: Final = re.compile(r"dm-\d+|md\d+|loop\d+|ram\d+|zram\d+|sr\d+|fd\d+")
_PARTITION: Final = re.compile(r"(.+?\d)p\d+|([a-z]+)\d+")
_VIRTUAL: Final = re.compile(
    r"(?:veth|cali|cni|flannel|docker|br-|virbr|vnet|tunl|tap|tun|cilium|lxc|kube-|nodelocaldns|bond|dummy|gre|"
    r"erspan|sit|ip6tnl|ovs-).*|.*[.@].*"
)


def counted_twice(type_: str, ids: Collection[str]) -> set[str]:
    """Return those of the devices of one host whose bytes others of them count, too.

    Partitions of disks that are here, disks that consist of others, interfaces that stand on others: where
    nothing else is there they stay.
    """
    if type_ == "disk":
        twice = {one for one in ids if _COMPOSED.fullmatch(one) or _base(one) in ids}
    elif type_ == "network":
        twice = {one for one in ids if _VIRTUAL.fullmatch(one)}
    else:
        return set()
    rest = set(ids) - twice - {"lo"}
    return twice if rest else set()


def _base(name: str) -> str | None:
    found = _PARTITION.fullmatch(name)
    return None if found is None else found[1] or found[2]
