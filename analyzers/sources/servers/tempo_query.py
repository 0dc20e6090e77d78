# SPDX-License-Identifier: Apache-2.0
"""What is searched for in a Tempo, as TraceQL; names and values are quoted and stand for themselves."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from grademl_otel import semconv

_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_INTEGER: Final = re.compile(r"-?\d{1,18}")
_FLOAT: Final = re.compile(r"-?\d{1,18}\.\d{1,18}")
NEWEST: Final = " with (most_recent=true)"
"""Makes a search that is cut at its limit one for the newest; older servers do not know it."""


@dataclass(frozen=True)
class Wanted:
    """What one span of a trace must be like."""

    service: str | None = None
    operation: str | None = None
    attributes: tuple[tuple[str, str], ...] = ()
    """(key, value as text), on the span or its resource."""
    run: str | None = None
    """The beginning of a run's id: hexadecimal digits."""

    def traceql(self) -> str:
        """Return the query of the traces that have such a span."""
        terms = []
        if self.service is not None:
            terms.append(f"resource.service.name = {_text(self.service)}")
        if self.operation is not None:
            terms.append(f"name = {_text(self.operation)}")
        terms += [_attribute(key, value) for key, value in self.attributes]
        if self.run is not None:
            terms.append(f"resource.{semconv.RUN_ID} =~ {_text(re.escape(self.run.lower()) + '.*')}")
        return f"{{ {' && '.join(terms)} }}" if terms else "{ }"


def _attribute(key: str, value: str) -> str:
    """A value of TraceQL has a type, and text may stand for several: any of them will do."""
    name = f".{key}" if _PLAIN_KEY.fullmatch(key) else f".{_text(key)}"
    forms = [_text(value)]
    if _INTEGER.fullmatch(value) or _FLOAT.fullmatch(value) or value in ("true", "false"):
        forms.append(value)
    alternatives = " || ".join(f"{name} = {form}" for form in forms)
    return f"({alternatives})" if len(forms) > 1 else alternatives


def _text(value: str) -> str:
    """Return a string literal. JSON's escapes are those of Go, which TraceQL has."""
    return json.dumps(value.encode("utf-8", "replace").decode(), ensure_ascii=False)
