# SPDX-License-Identifier: Apache-2.0
"""A metrics file of a copy: the ``ResourceMetrics`` of one file of the source, as they were, one a row."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from grademl_otel.analyzers.copy.folder import metrics_name, part_name, to_disk, writing
from grademl_otel.analyzers.copy.records import SCHEMA, CopiedMetrics
from grademl_otel.analyzers.sources.base import MetricPart, TakeGroup
from grademl_otel.analyzers.sources.formats.decoding import Unreadable
from grademl_otel.analyzers.sources.formats.metric_groups import MetricGroup
from grademl_otel.analyzers.units import count

_KEY: Final = b"grademl.copy.metrics"
_COLUMNS: Final = pa.schema([("json", pa.bool_()), ("metrics", pa.large_binary())])
_TOGETHER: Final = 8 << 20
"""Bytes that are written, and read, at once."""


def copy_metrics(part: MetricPart, folder: Path, number: int) -> CopiedMetrics:
    """Write what is in ``part`` into the metrics file with this number, if there is any.

    Raises UsageError where the folder cannot be written.
    """
    name = metrics_name(number)
    path, aside = folder / name, folder / part_name(name)
    with writing(path):
        try:
            with aside.open("xb") as file:
                with _Rows(file) as rows:
                    warnings = part.read(rows.take)
                file.flush()
                os.fsync(file.fileno())
            if not rows.points:
                aside.unlink()
                return CopiedMetrics(part.key, part.version, None, 0, 0, warnings)
            size = aside.stat().st_size
            aside.rename(path)
            to_disk(folder)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
    return CopiedMetrics(part.key, part.version, name, size, rows.points, warnings)


class _Rows:
    """Takes metrics and writes them, some megabytes at a time."""

    def __init__(self, file: Any) -> None:
        schema = _COLUMNS.with_metadata({_KEY: str(SCHEMA)})
        self._writer = pq.ParquetWriter(
            file, schema, compression="zstd", use_dictionary=False, write_page_checksum=True
        )
        self._waiting: list[MetricGroup] = []
        self._bytes = 0
        self.points = 0

    def __enter__(self) -> _Rows:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._writer.close()

    def take(self, group: MetricGroup) -> None:
        """Raises Unreadable for what is none."""
        points = group.points()
        if not points:
            return
        self.points += points
        self._waiting.append(group)
        self._bytes += len(group.raw)
        if self._bytes >= _TOGETHER:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            columns = [[group.is_json for group in self._waiting], [group.raw for group in self._waiting]]
            self._writer.write_table(pa.table(dict(zip(_COLUMNS.names, columns, strict=True)), _COLUMNS))
        self._waiting, self._bytes = [], 0


def read_groups(path: Path, take: TakeGroup) -> list[str]:
    """Hand what is in a metrics file to ``take``; return a line where it is damaged, or none of ours."""
    warnings: list[str] = []
    left_out, reason = 0, ""
    for group in _groups(path, warnings):
        try:
            take(group)
        except Unreadable as fault:
            left_out += 1
            reason = reason or str(fault)
    if left_out:
        warnings.append(f"{path}: metrics of {count(left_out, 'export')} left out; {reason}")
    return warnings


def _groups(path: Path, warnings: list[str]) -> Iterator[MetricGroup]:
    """Yield what is in a metrics file, up to where it is damaged."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            if (file.schema_arrow.metadata or {}).get(_KEY) != str(SCHEMA).encode():
                raise ValueError(f"not of format {SCHEMA}")
            for number in range(file.num_row_groups):
                table = file.read_row_group(number, columns=_COLUMNS.names, use_threads=False)
                for is_json, raw in zip(table["json"].to_pylist(), table["metrics"].to_pylist(), strict=True):
                    yield MetricGroup(raw, is_json)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        why = " ".join(str(error).split())[:160]
        warnings.append(f"{path}: no metrics file of a copy, or damaged: {why}")
