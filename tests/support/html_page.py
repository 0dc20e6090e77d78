# SPDX-License-Identifier: Apache-2.0
"""A page read the strict way: what is not well-formed, refers to nothing or could run is an error."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any, Final

_VOID: Final = frozenset({"meta", "link", "br", "input", "img", "hr"})
_REFERENCES: Final = ("aria-labelledby", "aria-describedby", "aria-controls", "for")
_ADDRESSES: Final = ("src", "href", "action", "formaction", "data", "poster", "srcset", "xlink:href")


@dataclass
class Element:
    """One element with what is in it."""

    tag: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text within, but not that of scripts and styles."""
        if self.tag in ("script", "style"):
            return ""
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def all(self, *tags: str) -> list[Element]:
        """All elements within of these tags, in order."""
        found = [self] if self.tag in tags else []
        for child in self.children:
            if isinstance(child, Element):
                found += child.all(*tags)
        return found

    def by_id(self, name: str) -> Element | None:
        if self.attributes.get("id") == name:
            return self
        within = (child.by_id(name) for child in self.children if isinstance(child, Element))
        return next((one for one in within if one is not None), None)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.open = [self.root]
        self.errors: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        self.errors += [f"{tag}: {name} twice" for name, n in Counter(names).items() if n > 1]
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if self.open[-1].tag != tag:
            self.errors.append(f"</{tag}> where <{self.open[-1].tag}> is open")
        else:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)

    def handle_comment(self, data: str) -> None:
        self.errors.append(f"a comment: {data[:40]}")


@dataclass(frozen=True)
class Page:
    """A page that was read, and everything that is wrong with it."""

    source: str
    root: Element
    errors: list[str]

    @property
    def text(self) -> str:
        return " ".join(self.root.text.split())

    def data(self, name: str) -> Any:
        """The JSON in the script element with this id."""
        element = self.root.by_id(name)
        assert element is not None
        assert element.attributes["type"] == "application/json"
        return json.loads("".join(map(str, element.children)))

    def cells(self, table: str) -> list[dict[str, str]]:
        """The rows of a table by the names of its columns: the exact value of each cell, as it is saved."""
        element = self.root.by_id(table)
        assert element is not None, f"no table {table}"
        names = [heading.attributes["data-name"] for heading in element.all("th")]
        return [
            {
                name: cell.attributes.get("data-value", cell.text)
                for name, cell in zip(names, row.all("td"), strict=True)
            }
            for row in element.all("tbody")[0].all("tr")
        ]


def read_page(source: str) -> Page:
    """Read a page; ``errors`` is empty if nothing in it is wrong."""
    reader = _Reader()
    reader.feed(source)
    reader.close()
    errors = list(reader.errors)
    errors += [f"<{one.tag}> is not closed" for one in reader.open[1:]]
    elements = reader.root.all(*_tags(reader.root))
    ids = Counter(one.attributes["id"] for one in elements if "id" in one.attributes)
    errors += [f"id {name} {n} times" for name, n in ids.items() if n > 1]
    for one in elements:
        errors += list(_wrong(one, ids))
    errors += list(_headings(reader.root))
    unprinted = {character for character in source if not character.isprintable() and character != "\n"}
    errors += [f"character {character!r}" for character in sorted(unprinted)]
    return Page(source, reader.root, errors)


def _tags(element: Element) -> set[str]:
    found = {element.tag}
    for child in element.children:
        if isinstance(child, Element):
            found |= _tags(child)
    return found - {""}


def _wrong(one: Element, ids: Counter[str]) -> list[str]:
    found = []
    for name, value in one.attributes.items():
        if name.startswith("on") or name == "style":
            found.append(f"{one.tag}: {name}={value[:40]}")
        if name in _ADDRESSES and not value.startswith(("#", "data:")):
            found.append(f"{one.tag}: {name}={value[:40]}")
        if name == "href" and value.startswith("#") and value[1:] not in ids:
            found.append(f"{one.tag}: nothing is called {value}")
        if name in _REFERENCES:
            found += [f"{one.tag}: {name} of {word}" for word in value.split() if word not in ids]
    if one.tag == "table":
        width = len(one.all("th"))
        rows = [len(row.all("td")) for body in one.all("tbody") for row in body.all("tr")]
        found += [f"table {one.attributes.get('id')}: {n} cells of {width}" for n in rows if n != width]
        found += [] if one.all("caption") else [f"table {one.attributes.get('id')}: no caption"]
        found += ["th without scope" for th in one.all("th") if "scope" not in th.attributes]
    if one.tag == "button" and one.attributes.get("type") != "button":
        found.append("a button that submits")
    if one.tag in ("iframe", "object", "embed", "form", "base", "img", "a") and "href" not in one.attributes:
        found.append(f"<{one.tag}>")
    return found


def _headings(root: Element) -> list[str]:
    levels = [int(one.tag[1]) for one in root.all("h1", "h2", "h3", "h4", "h5", "h6")]
    found = [] if levels[:1] == [1] and levels.count(1) == 1 else ["not one h1, first of all headings"]
    return found + [f"h{after} after h{before}" for before, after in pairwise(levels) if after > before + 1]
