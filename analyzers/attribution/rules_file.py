# SPDX-License-Identifier: Apache-2.0
"""Rules that a user writes, in TOML (``grademl resources --rules FILE``):

.. code-block:: toml

    builtin = true                       # false: nothing of what is built in

    [[rule]]
    phase = "**/step/forward"            # or a list of patterns
    metric = "gpu.utilization"           # or a list; * stands for any text
    exact = 1.0                          # or variable = 2, fit = true, none = true
    resource = "/host*/gpu[id=GPU-1]"    # only of these; optional

    [[blocking]]
    phase = "**/rank/comm/**"
    by = "**/gc"                         # or metric = "cpu.throttled" and at_least = 0.5; or none = true

    [hosts]
    node-1 = ["10.0.0.1", "ip-10-0-0-1"]

    [[capacity]]
    metric = "network.rx"
    resource = "/host*/network[id=eth0]"
    value = 12.5e9
    unit = "By/s"
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from grademl_otel.analyzers.attribution.builtin import BUILT_IN
from grademl_otel.analyzers.attribution.observations import EXACT, NONE, VARIABLE
from grademl_otel.analyzers.attribution.rules import FIT, Blocking, Rule, RuleSet
from grademl_otel.analyzers.errors import SourceError, UsageError
from grademl_otel.analyzers.execution.patterns import InvalidPattern, Pattern
from grademl_otel.analyzers.resource_model.series import MOST
from grademl_otel.analyzers.resource_model.settings import Capacity
from grademl_otel.analyzers.suggest import or_near

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MOST_BYTES: Final = 1 << 20
_KINDS: Final[Mapping[str, int]] = {"none": NONE, "exact": EXACT, "variable": VARIABLE, "fit": FIT}
_TABLES: Final = ("rule", "blocking", "capacity")
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "rule": ("phase", "metric", "resource", *_KINDS),
    "blocking": ("phase", "by", "metric", "at_least", "none"),
    "capacity": ("metric", "resource", "value", "unit"),
}
_HEADER: Final = re.compile(r"\s*\[\[\s*[\"']?(\w+)[\"']?\s*\]\]")
_PLACE: Final = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


def read_rules(path: str | Path) -> RuleSet:
    """Return what the file at ``path`` says, and what is built in.

    Raises SourceError for what cannot be read, and UsageError for what holds no rules.
    """
    try:
        with Path(path).open("rb") as file:
            found = file.read(_MOST_BYTES + 1)
    except (FileNotFoundError, IsADirectoryError):
        raise SourceError(f"{path}: no such file") from None
    except OSError as error:
        raise SourceError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
    if len(found) > _MOST_BYTES:
        raise UsageError(f"{path}: larger than 1 MiB, which no rules are")
    try:
        text = found.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{path}: no TOML: it is not UTF-8") from None
    return parse_rules(text, str(path))


def parse_rules(text: str, name: str = "rules") -> RuleSet:
    """Return the rules in ``text``, which errors call ``name``. Raises UsageError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(_not_toml(name, str(error))) from None
    except RecursionError:
        raise UsageError(f"{name}: no TOML that can be read: too many tables within each other") from None
    except ValueError:  # of Python's own numbers
        raise UsageError(f"{name}: no TOML that can be read: a number of too many digits") from None
    return _File(document, text, name).rules()


class _File:
    """One file of rules that becomes a rule set."""

    def __init__(self, document: Mapping[str, Any], text: str, name: str) -> None:
        self._document, self._name = document, name
        self._places = _places(text, document)
        self._lines = text.splitlines()

    def rules(self) -> RuleSet:
        known = ("builtin", "hosts", *_TABLES)
        for key in self._document:
            if key not in known:
                self._refuse(self._line_of(key), f"no {key!r} in a file of rules; {or_near(key, known)}")
        built_in = self._document.get("builtin", True)
        if not isinstance(built_in, bool):
            self._refuse(self._line_of("builtin"), "builtin is true or false")
        return RuleSet(
            built_in=BUILT_IN if built_in else (),
            rules=tuple(rule for table in self._tables("rule") for rule in self._rule(table)),
            blocking=tuple(one for table in self._tables("blocking") for one in self._blocking(table)),
            aliases=dict(self._hosts()),
            capacities=tuple(one for table in self._tables("capacity") for one in self._capacity(table)),
        )

    # --- Tables -----------------------------------------------------------------------------------------

    def _rule(self, table: _Table) -> Iterator[Rule]:
        kinds = [key for key in _KINDS if key in table.values]
        if len(kinds) != 1:
            told = " and ".join(kinds) if kinds else "none of them"
            table.refuse(f"one of exact = N, variable = N, fit = true, none = true; there is {told}")
        kind = kinds[0]
        amount = 0.0
        if kind in ("exact", "variable"):
            amount = table.number(kind, "0 or more", lambda value: value >= 0)
        else:
            table.true(kind)
        resource = table.pattern("resource") if "resource" in table.values else None
        for phase in table.patterns("phase"):
            for metric in table.texts("metric"):
                yield Rule(phase, metric, _KINDS[kind], amount, resource=resource, where=table.where())

    def _blocking(self, table: _Table) -> Iterator[Blocking]:
        ways = [key for key in ("by", "metric", "none") if key in table.values]
        if len(ways) != 1:
            told = " and ".join(ways) if ways else "none of them"
            table.refuse(f"one of by = PHASE, metric = METRIC, none = true; there is {told}")
        if "at_least" in table.values and ways != ["metric"]:
            table.refuse("at_least is for a metric", "at_least")
        if ways == ["none"]:
            table.true("none")
        at_least = 0.0
        if ways == ["metric"]:
            at_least = table.number("at_least", "more than 0", lambda value: value > 0)
        sources = {"by": table.patterns, "metric": table.texts}.get(ways[0], lambda _: [""])(ways[0])
        for phase in table.patterns("phase"):
            for source in sources:
                yield Blocking(
                    phase,
                    by=source if ways == ["by"] else None,
                    metric=source if ways == ["metric"] else None,
                    at_least=at_least,
                    none=ways == ["none"],
                    where=table.where(),
                )

    def _capacity(self, table: _Table) -> Iterator[Capacity]:
        value = table.number("value", "more than 0", lambda number: number > 0)
        (unit,) = table.texts("unit", several=False)
        resource = table.pattern("resource") if "resource" in table.values else None
        for metric in table.texts("metric"):
            yield Capacity(metric, value, unit, resource, table.where())

    def _hosts(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        hosts = self._document.get("hosts", {})
        if not isinstance(hosts, dict):
            self._refuse(self._line_of("hosts"), "hosts is a table: [hosts], then NAME = [OTHER, ...]")
        owner: dict[str, str] = {host: host for host in hosts}
        for host, others in hosts.items():
            line = self._line_of(host, after=self._line_of("hosts") or 0)
            names = [others] if isinstance(others, str) else others
            if not isinstance(names, list) or not all(isinstance(each, str) and each for each in names):
                self._refuse(line, f"what {host} is also called is a text or a list of texts")
            for each in names:
                if owner.setdefault(each, host) != host:
                    self._refuse(line, f"{each!r} cannot be both {owner[each]} and {host}")
            yield host, tuple(names)

    def _tables(self, kind: str) -> Iterator[_Table]:
        found = self._document.get(kind, [])
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            self._refuse(self._line_of(kind), f"{kind} is written [[{kind}]], once for each of them")
        for number, values in enumerate(found):
            lines = self._places.get(kind)
            yield _Table(self, kind, number, values, lines[number] if lines else None)

    # --- Where it is written ----------------------------------------------------------------------------

    def _line_of(self, key: str, after: int = 0, until: int | None = None) -> int | None:
        """Return the line, from 1, of the first ``key`` after line ``after``; None where none is found."""
        written = re.escape(key)
        pattern = re.compile(rf"\s*\[*\s*(?:{written}|\"{written}\"|'{written}')\s*(?:[=.\]]|$)")
        for number, line in enumerate(self._lines[after:until], after + 1):
            if pattern.match(line):
                return number
        return None

    def place(self, line: int | None) -> str:
        return self._name if line is None else f"{self._name}:{line}"

    def line_in(self, first: int | None, key: str) -> int | None:
        """Return the line of ``key`` in the table whose header is at line ``first``."""
        if first is None:
            return None
        later = [line for lines in self._places.values() for line in lines if line > first]
        return self._line_of(key, first, min(later, default=len(self._lines) + 1) - 1) or first

    def _refuse(self, line: int | None, message: str) -> None:
        raise UsageError(f"{self.place(line)}: {message}")


class _Table:
    """One ``[[...]]`` of the file."""

    def __init__(
        self, file: _File, kind: str, number: int, values: Mapping[str, Any], line: int | None
    ) -> None:
        self.values = values
        self._file, self._kind, self._number, self._line = file, kind, number, line
        for key in values:
            if key not in _KEYS[kind]:
                self.refuse(f"no {key!r} in it; {or_near(key, _KEYS[kind])}", key)

    def where(self) -> str:
        return self._file.place(self._line)

    def refuse(self, message: str, key: str | None = None) -> None:
        line = self._line if key is None else self._file.line_in(self._line, key)
        name = f"[[{self._kind}]]" if line is not None else f"[[{self._kind}]] number {self._number + 1}"
        raise UsageError(f"{self._file.place(line)}: {name}: {message}")

    def texts(self, key: str, several: bool = True) -> list[str]:
        """Return the text, or the texts, of ``key``."""
        if key not in self.values:
            self.refuse(f"{key} is missing")
        value = self.values[key]
        values = value if isinstance(value, list) and several else [value]
        if not values or not all(isinstance(each, str) and each for each in values):
            self.refuse(f"{key} is a text{' or a list of texts' if several else ''}", key)
        return values

    def patterns(self, key: str) -> list[str]:
        """Return the patterns of paths of ``key``."""
        found = self.texts(key)
        for each in found:
            try:
                pattern = Pattern(each)
            except InvalidPattern as error:
                self.refuse(f"{key}: {error}", key)
            else:
                if ".." in pattern.steps:
                    self.refuse(f"{key}: {each!r} goes up; a pattern here begins at the root", key)
        return found

    def pattern(self, key: str) -> str:
        if not isinstance(self.values[key], str):
            self.refuse(f"{key} is a text", key)
        return self.patterns(key)[0]

    def number(self, key: str, bounds: str, allowed: Any) -> float:
        if key not in self.values:
            self.refuse(f"{key} is missing")
        value = self.values[key]
        number = math.nan
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            with suppress(OverflowError):  # TOML has integers that no float can hold
                number = float(value)
        if number > MOST or not math.isfinite(number) or not allowed(number):
            self.refuse(f"{key} is a number, {bounds}{f', up to {MOST:g}' * (number > MOST)}", key)
        return number

    def true(self, key: str) -> None:
        if self.values[key] is not True:
            self.refuse(f"{key} is true, or not there", key)


def _places(text: str, document: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the lines, from 1, on which tables begin; of kinds that are all written as ``[[...]]``."""
    found: dict[str, list[int]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if (match := _HEADER.match(line)) is not None:
            found.setdefault(match[1], []).append(number)
    return {kind: lines for kind, lines in found.items() if _counted(document.get(kind)) == len(lines)}


def _counted(tables: Any) -> int:
    return len(tables) if isinstance(tables, list) else -1


def _not_toml(name: str, told: str) -> str:
    match = _PLACE.fullmatch(told)
    if match is None or match[2] is None:
        return f"{name}: no TOML: {told}"
    return f"{name}:{match[2]}: no TOML: {match[1]}, in column {match[3]}"
