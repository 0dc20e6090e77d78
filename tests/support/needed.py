# SPDX-License-Identifier: Apache-2.0
"""What a test needs and this machine has not: the test is skipped, or fails where nothing may be skipped."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def on_ci() -> bool:
    """Whether a part that cannot be had is a failure: `CI=true`."""
    return os.environ.get("CI", "").lower() in ("true", "1")


def cannot_be_had(reason: str) -> NoReturn:
    """Skip the test that asked, and say why; on CI it fails."""
    if on_ci():
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
