# SPDX-License-Identifier: Apache-2.0
"""The tables of `grademl query` as Parquet: a folder of them, or one in a file."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from grademl_otel.analyzers.errors import UsageError, without_secrets
from grademl_otel.analyzers.exports.forms import Counts
from grademl_otel.analyzers.subject import Subject
from grademl_otel.analyzers.suggest import or_near
from grademl_otel.analyzers.tables import SCHEMA, TABLES, why_empty
from grademl_otel.analyzers.tables import table as made
from grademl_otel.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa

KEY: Final = b"grademl.export"
"""Key in the metadata of a file: a JSON object, see `_about`."""
_SUFFIX: Final = ".parquet"
_ROWS: Final = 128 * 1024
"""Of a row group: a reader that wants few of them need not read the rest."""


def write(about: Subject, file: IO[bytes], table: str, notes: list[str] | None = None) -> Counts:
    """Write one table; why it is empty goes to ``notes``. Raises UsageError for a name that no table has."""
    if table not in TABLES:
        raise UsageError(f"table {table!r}: there is none of that name; {or_near(table, TABLES)}")
    rows = _write(about, file, table)
    if not rows and notes is not None and (why := why_empty(about, table)):
        notes.append(why)
    return {"rows": rows}


def write_folder(about: Subject, folder: Path) -> tuple[Counts, int]:
    """Write all tables into ``folder``, whole or not at all; return what, and how many bytes.

    Tables that an earlier export left there are replaced. Raises UsageError where it holds anything else, or
    cannot be written.
    """
    target = folder.resolve()
    try:
        _check_ours(folder)
        aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part"))
        try:
            rows = size = 0
            for name in TABLES:
                path = aside / f"{name}{_SUFFIX}"
                with path.open("xb") as file:
                    rows += _write(about, file, name)
                size += path.stat().st_size
            mask = os.umask(0)
            os.umask(mask)
            aside.chmod(0o777 & ~mask)
            _put_in_place(aside, target)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"cannot write {folder}: {reason}; choose another folder with -o") from None
    return {"tables": len(TABLES), "rows": rows}, size


def _check_ours(folder: Path) -> None:
    """Raise UsageError for a folder that holds anything but tables of ours."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder}: a file; the tables are a folder, name one with -o, or --table NAME")
    for entry in folder.iterdir():
        if entry.stem not in TABLES or entry.suffix != _SUFFIX or not _is_ours(entry):
            raise UsageError(
                f"{folder}: holds {entry.name}, which is no table of an export; name an empty folder or a new"
                " one with -o"
            )


def _is_ours(path: Path) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with suppress(pa.ArrowException, OSError):
        return KEY in (pq.read_schema(path).metadata or {})
    return False


def _put_in_place(aside: Path, target: Path) -> None:
    """Rename ``aside`` to ``target``; what was there goes away once that is done."""
    if not target.exists():
        aside.rename(target)
        return
    before = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".old"))
    target.rename(before)  # over an empty folder
    try:
        aside.rename(target)
    except BaseException:
        before.rename(target)
        raise
    shutil.rmtree(before, ignore_errors=True)


def _write(about: Subject, file: IO[bytes], name: str) -> int:
    import pyarrow.parquet as pq

    found: pa.Table = made(about, name)
    metadata = {**(found.schema.metadata or {}), KEY: msgspec.json.encode(_about(about, name))}
    pq.write_table(
        found.replace_schema_metadata(metadata),
        file,
        row_group_size=_ROWS,
        compression="zstd",
        write_page_checksum=True,
    )
    return int(found.num_rows)


def _about(about: Subject, name: str) -> dict[str, Any]:
    """Return what a file says of itself; no time is in it: equal tables are equal files."""
    found = about.completeness
    return {
        "schema": SCHEMA,
        "table": name,
        "source": without_secrets(about.telemetry.uri),
        "run": None if about.run is None else about.run.run_id,
        "attempt": None if about.run is None else about.run.attempt,
        "verdict": found.verdict,
        "incomplete_because": found.reasons,
        "grademl": __version__,
    }
