# SPDX-License-Identifier: Apache-2.0
"""What a span of OTLP/JSON says that no column holds: kept beside its attributes, for who passes it on.

Few spans have any of it; those of a batch are in this form where one of them has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from grademl_otel.analyzers.model.raw import Event
from grademl_otel.analyzers.sources.formats.otlp_values import otlp_attributes

_NO_ATTRIBUTES: Final = msgspec.Raw(b"[]")


class LinkBeside(msgspec.Struct, omit_defaults=True, frozen=True):
    """What a link says beside the span that it names; names as in OTLP/JSON."""

    traceState: str = ""
    attributes: msgspec.Raw = _NO_ATTRIBUTES
    droppedAttributesCount: int = 0
    flags: int = 0


class Beside(msgspec.Struct, omit_defaults=True, frozen=True):
    """What a span says beside its columns."""

    attributes: msgspec.Raw = _NO_ATTRIBUTES
    """As they would be without the rest."""
    traceState: str = ""
    droppedAttributesCount: int = 0
    droppedEventsCount: int = 0
    droppedLinksCount: int = 0
    links: list[LinkBeside] = []
    """Of each link that is read, in their order."""


_decoder = msgspec.json.Decoder(Beside)


@dataclass(frozen=True)
class OtlpJsonSpan:
    """Raw attributes are a `Beside` in JSON; events are not in it."""

    @property
    def name(self) -> str:
        return "otlp-json-span"

    def attributes(self, raw: bytes) -> dict[str, Any]:
        return otlp_attributes(bytes(self.beside(raw).attributes))

    def events(self, raw: bytes) -> Sequence[Event]:
        return []

    def beside(self, raw: bytes) -> Beside:
        """Return all of it; nothing where it is damaged."""
        try:
            return _decoder.decode(raw)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return Beside()


OTLP_JSON_SPAN: Final = OtlpJsonSpan()
