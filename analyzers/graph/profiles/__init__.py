# SPDX-License-Identifier: Apache-2.0
"""Profiles of threads and streams as event graphs."""
