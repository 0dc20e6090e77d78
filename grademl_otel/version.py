# SPDX-License-Identifier: Apache-2.0
"""The version of the distribution, in one place."""

__version__ = "0.1.0.dev0"
