# SPDX-License-Identifier: Apache-2.0
"""Ports of InfiniBand, RoCE, Omni-Path and EFA, and network interfaces, from /proc and /sys."""

from __future__ import annotations

from grademl_otel.instrumentations.interconnect.interfaces import Interfaces
from grademl_otel.instrumentations.interconnect.ports import Ports
from grademl_otel.sampling.roots import Roots
from grademl_otel.sampling.source import Provider


def providers(roots: Roots) -> list[Provider]:
    """Return what finds ports, and what finds interfaces: neither waits for the other."""
    return [Ports(roots), Interfaces(roots)]
