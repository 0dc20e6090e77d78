# SPDX-License-Identifier: Apache-2.0
"""What every answer can be asked for: text, JSON, tables of pandas, and how a notebook shows it.

An answer is a dataclass; its fields are the keys of its JSON. What is written for people is drawn by its
screen (`reporting.text`), so that a terminal and a notebook cannot say different things.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from grademl_otel.analyzers.errors import GrademlError, MissingPackage, UsageError
from grademl_otel.analyzers.printable import clean_json
from grademl_otel.analyzers.reporting.canvas import Canvas
from grademl_otel.analyzers.suggest import or_near

if TYPE_CHECKING:
    import pandas as pd

_DTYPES: Final[Mapping[tuple[type, bool], str]] = {
    (int, False): "int64",
    (int, True): "Int64",
    (float, False): "float64",
    (float, True): "Float64",
    (bool, False): "bool",
    (bool, True): "boolean",
}
"""Of pandas, by type and whether there may be none: an integer stays one, exactly, beside what is unknown."""


@dataclass(frozen=True)
class Records:
    """A table within an answer: records of one type, a dataclass or a msgspec struct."""

    of: type
    rows: Sequence[Any]


class Shown:
    """Mixed into every answer."""

    _screen: ClassVar[str]

    def __init_subclass__(cls, *, screen: str, **rest: Any) -> None:
        """``screen`` is the module within `analyzers` whose ``draw(canvas, answer, **options)`` shows it."""
        super().__init_subclass__(**rest)
        cls._screen = screen
        # IPython takes the nearest of this and __repr__, and dataclasses have one of their own.
        cls._repr_pretty_ = cls._repr_pretty_  # type: ignore[method-assign]

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain dicts, lists, numbers and strings: its JSON, read."""
        plain: dict[str, Any] = msgspec.json.decode(self._encoded())
        return plain  # by way of JSON: to_builtins leaves tuples, which a JSON Schema takes for no array

    def to_json(self, *, indent: bool = True) -> str:
        """Return the answer as the JSON of the command, without a final newline; one line if not indented."""
        encoded = self._encoded()
        return clean_json((msgspec.json.format(encoded, indent=2) if indent else encoded).decode())

    def to_text(self, *, color: bool | None = False, width: int | None = None, **options: Any) -> str:
        """Return what the command prints, with a final newline.

        ``width`` is that of standard output unless given, ``color`` None what standard output likes;
        ``options`` are those of the screen (``by`` and ``top`` of a critical path).
        """
        return self._drawn(Canvas(color, width), **options).text()

    def to_pandas(self, table: str | None = None) -> pd.DataFrame:
        """Return one of the answer's `tables` as a frame, by default the first one; times in ns.

        What is not known is NA, and integers are exact. Nested fields have names as ``gain.fraction``, lists
        are values. Raises UsageError for a table that is not there, MissingPackage without pandas.
        """
        found = self._tables()
        name = next(iter(found)) if table is None else table
        if name not in found:
            raise UsageError(f"no table {name!r} in this answer; {or_near(name, found)}")
        return frame(found[name])

    @property
    def tables(self) -> list[str]:
        """Names of the tables that `to_pandas` returns."""
        return list(self._tables())

    def _document(self) -> Shown:
        """Return what is told of it: itself, but for what is no document."""
        return self

    def _tables(self) -> Mapping[str, Records]:
        return self._document()._tables()

    def _drawn(self, canvas: Canvas, **options: Any) -> Canvas:
        import_module(f"grademl_otel.analyzers.{self._screen}").draw(canvas, self._document(), **options)
        return canvas

    def _encoded(self) -> bytes:
        document = self._document()
        told = {name: value for name, value in vars(document).items() if not name.startswith("_")}
        encoded: bytes = msgspec.json.encode(told, enc_hook=_built)
        return encoded

    def _repr_html_(self) -> str:
        return self._drawn(Canvas()).html()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Let IPython print the text of the command, not all fields."""
        printer.text(str(self))

    def __str__(self) -> str:
        return self.to_text().rstrip("\n")


def frame(table: Records) -> pd.DataFrame:
    """Return ``table`` as a frame of pandas, with its columns even where there is no row."""
    pd = pandas()
    return pd.DataFrame({name: pd.Series(values, dtype=dtype) for name, dtype, values in _columns(table)})


def pandas() -> Any:
    """Return the module, which nothing but frames needs; MissingPackage without it."""
    try:
        return import_module("pandas")
    except ModuleNotFoundError as error:
        if error.name != "pandas":
            raise
        raise MissingPackage("pandas") from None


def _columns(table: Records, prefix: str = "", absent: bool = False) -> Iterable[tuple[str, str, list[Any]]]:
    """Yield (name, dtype, values) of each field of the records, those of records in them one by one.

    With ``absent`` there may be None instead of a record.
    """
    for name, hint in get_type_hints(table.of).items():
        if name not in _fields(table.of):
            continue
        kind, optional = _without_none(hint)
        values = [None if row is None else getattr(row, name) for row in table.rows]
        optional = optional or absent
        if _is_record(kind):
            yield from _columns(Records(kind, values), f"{prefix}{name}.", optional)
        else:
            dtype = _DTYPES.get((kind, optional), "object")
            yield (
                f"{prefix}{name}",
                dtype,
                [_plain(value) for value in values] if dtype == "object" else values,
            )


def _fields(of: type) -> Sequence[str]:
    return [one.name for one in (fields(of) if is_dataclass(of) else msgspec.structs.fields(of))]


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, msgspec.Struct))


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return (type, whether it may be None instead)."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    rest = [one for one in get_args(hint) if one is not type(None)]
    return (rest[0] if len(rest) == 1 else object), len(rest) < len(get_args(hint))


def _plain(value: object) -> object:
    if value is None or isinstance(value, str):
        return value
    return msgspec.to_builtins(value, enc_hook=_built)


def _built(value: object) -> object:
    """Return the entries of a sequence that is no list, and the line of an error."""
    if isinstance(value, Sequence):
        return list(value)
    if isinstance(value, GrademlError):
        return str(value)
    raise NotImplementedError(type(value))
