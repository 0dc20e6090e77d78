# SPDX-License-Identifier: Apache-2.0
"""Who used what, and what was the bottleneck: after GradeML (ICPE'21) and Grade10 (CLUSTER'20)."""
