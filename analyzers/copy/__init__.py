# SPDX-License-Identifier: Apache-2.0
"""Copies of telemetry: on disk as Parquet, to be resumed and read offline, and on to a collector."""
