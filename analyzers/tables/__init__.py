# SPDX-License-Identifier: Apache-2.0
"""What was read, as tables: of spans, steps, phases, metrics, the path. For SQL, Parquet, data frames."""
