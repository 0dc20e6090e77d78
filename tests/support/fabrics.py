# SPDX-License-Identifier: Apache-2.0
"""Network devices as trees of files, which stand for /sys/class/infiniband, /sys/class/net and /proc/net.

``tests/data/fabrics/<shape>.txt`` is one RDMA device, in the form of `hosttrees`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from .hosttrees import HostTree

FABRICS: Final = Path(__file__).resolve().parents[1] / "data" / "fabrics"
SHAPES: Final = {
    "hdr": "mlx5_0",
    "roce": "mlx5_0",
    "qdr": "mlx4_0",
    "opa": "hfi1_0",
    "efa": "rdmap16s27",
    "irdma": "rocep24s0f0",
}
"""And the name of the device."""


def port_folder(device: str) -> str:
    """Return the folder of the device's only port, within the tree."""
    return f"sys/class/infiniband/{device}/ports/1"


def add_devices(tree: HostTree, shape: str, count: int = 1) -> list[str]:
    """Add devices of this shape to the tree; return their names."""
    text = (FABRICS / f"{shape}.txt").read_bytes()
    first = SHAPES[shape]
    stem = first.rstrip("0123456789")
    names = [first] + [f"{stem}{number}" for number in range(1, count)]
    for number, name in enumerate(names):
        changed = text.replace(first.encode(), name.encode())
        if number:
            changed = changed.replace(b"0000:", b"%04x:" % number)
        tree.add(changed)
    return names


class Interfaces:
    """Network interfaces of a tree: `show` writes all there are."""

    def __init__(self, tree: HostTree):
        self._tree = tree
        self._counts: dict[str, list[int]] = {}

    def add(
        self, name: str, device: str = "", lower: str = "", kind: int = 1, speed: str = "", state: str = "up"
    ) -> None:
        """Add one; ``device`` is a PCI address, of a virtual one "", ``lower`` what it is on."""
        folder = f"sys/class/net/{name}"
        self._counts[name] = [0] * 16
        self._tree.write(f"{folder}/type", f"{kind}\n")
        self._tree.write(f"{folder}/operstate", f"{state}\n")
        if speed:
            self._tree.write(f"{folder}/speed", f"{speed}\n")
        if device:
            (self._tree.root / folder / "device").symlink_to(f"../../../{device}")
        if lower:
            (self._tree.root / folder / f"lower_{lower}").symlink_to(f"../{lower}")

    def line(self, name: str, value: int) -> None:
        """Have it in /proc only, all its numbers ``value``."""
        self._counts[name] = [value] * 16

    def remove(self, name: str) -> None:
        """Take it away; not from /sys, where nobody looks for what /proc does not have."""
        del self._counts[name]

    def count(self, name: str, received: int, transmitted: int, packets: int = 0) -> None:
        """Let bytes pass, and as many packets each way."""
        counts = self._counts[name]
        counts[0] += received
        counts[1] += packets
        counts[8] += transmitted
        counts[9] += packets

    def set(self, name: str, index: int, value: int) -> None:
        """Set one number of its line in /proc/net/dev."""
        self._counts[name][index] = value

    def show(self) -> None:
        """Write /proc/net/dev."""
        self._tree.write("proc/net/dev", self.text())

    def text(self) -> str:
        """Return what /proc/net/dev says."""
        head = (
            "Inter-|   Receive                                                |  Transmit\n"
            " face |bytes    packets errs drop fifo frame compressed multicast"
            "|bytes    packets errs drop fifo colls carrier compressed\n"
        )
        lines = [f"{name:>6}: {' '.join(map(str, counts))}\n" for name, counts in self._counts.items()]
        return head + "".join(lines)
