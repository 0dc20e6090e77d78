# SPDX-License-Identifier: Apache-2.0
"""The versions of torch that this instrumentation was run with."""

from typing import Final

instruments: Final = ("torch >= 2.3.0.dev0",)
"""The versions that are let in: newer ones are tried, and a hook that does not fit switches itself off.

`.dev0`: a requirement that names no pre-release lets none in, and vendors' builds are such (2.6.0a0+...).
"""
