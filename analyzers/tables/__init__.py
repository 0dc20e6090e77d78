# SPDX-License-Identifier: Apache-2.0
"""What was read, as tables: of spans, steps, phases, metrics, the path. For SQL, Parquet, data frames."""

from grademl_otel.analyzers.tables.making import TABLES, attributes_of, table, why_empty
from grademl_otel.analyzers.tables.schema import SCHEMA, Column, TableSchema

__all__ = ["SCHEMA", "TABLES", "Column", "TableSchema", "attributes_of", "table", "why_empty"]
