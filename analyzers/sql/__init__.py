# SPDX-License-Identifier: Apache-2.0
"""SQL over what was read: DuckDB on the tables of `analyzers.tables`, closed to files and the network."""
