# SPDX-License-Identifier: Apache-2.0
"""What recording costs: `python -m benchmarks` in the root of the repository; see docs/costs.md."""
