# SPDX-License-Identifier: Apache-2.0
"""The memory-mapped ring between a training process and its relay: who writes, who reads, where it lies."""
