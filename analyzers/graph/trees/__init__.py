# SPDX-License-Identifier: Apache-2.0
"""The critical path of span trees: one by one, exactly, and many at once on arrays."""
