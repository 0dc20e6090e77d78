# SPDX-License-Identifier: Apache-2.0
"""From marks to spans and metrics: pure, without input or output."""
