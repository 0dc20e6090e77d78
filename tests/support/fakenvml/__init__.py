# SPDX-License-Identifier: Apache-2.0
"""A stand-in for NVIDIA's library: see `tests.support.nvml`, which builds and controls it."""
