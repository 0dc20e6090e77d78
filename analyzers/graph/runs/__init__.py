# SPDX-License-Identifier: Apache-2.0
"""A run of ours as lanes of activities, and as an event graph."""
