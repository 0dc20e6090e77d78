# SPDX-License-Identifier: Apache-2.0
"""The execution model: one tree of typed phases over all that ran, and the paths that select in it."""
