# SPDX-License-Identifier: Apache-2.0
"""The numbers that charts are drawn from: exact, in order of time, and bounded however long the run was.

What is too long to be shown one by one is put together in bins of equal length, at several sizes for several
zooms; nothing is lost by that: per level the bins sum to the whole. All times are ns from one origin.
"""
