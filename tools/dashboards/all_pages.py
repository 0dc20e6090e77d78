# SPDX-License-Identifier: Apache-2.0
"""All pages, by the names of their files."""

from __future__ import annotations

from gpu_page import gpu
from grafana_panels import Json
from overview_page import overview
from ranks_page import ranks


def pages_by_file() -> dict[str, Json]:
    return {"overview.json": overview(), "gpu.json": gpu(), "ranks.json": ranks()}
