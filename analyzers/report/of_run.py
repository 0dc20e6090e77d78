# SPDX-License-Identifier: Apache-2.0
"""The answer about a run of ours: its critical path, lane budget, steady step, findings and verdict."""

from __future__ import annotations
