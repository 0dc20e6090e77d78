# SPDX-License-Identifier: Apache-2.0
"""Write docs/commands/: a page of each command, as man would show it.

    python tools/command_pages.py

What a page says is what `--help` says; exit codes and variables are those of docs/commands.md and
docs/configuration.md. A test fails when the pages are not current.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from grademl_otel.analyzers.cli.commands import grademl

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
FOLDER: Final = DOCS / "commands"
MADE: Final = "<!-- Written by tools/command_pages.py from the command's help: change that, then run it. -->"

SEE_ALSO: Final = {
    "report": ("html-report.md", "completeness.md", "devices.md"),
    "runs": ("runs.md", "sources.md"),
    "critical-path": ("critical-path.md", "profiles.md"),
    "ranks": ("ranks.md", "collectives.md"),
    "resources": ("attribution.md", "hardware.md"),
    "query": ("tables.md",),
    "diff": ("comparing.md",),
    "check": ("comparing.md",),
    "export": ("exports.md", "tables.md", "execution-model.md"),
    "pull": ("copies.md", "sources.md"),
    "push": ("copies.md", "collectors.md"),
    "doctor": ("doctor.md", "completeness.md"),
}
"""Further pages of a command; one that has its own name in docs/ is added."""
_FAILS: Final = frozenset({"diff", "check"})
_OF_SOURCES: Final = (
    "GRADEML_SOURCE", "GRADEML_HEADERS", "GRADEML_USER", "GRADEML_CA", "GRADEML_CLIENT_CERT",
)  # fmt: skip
_OF_SCREENS: Final = ("NO_COLOR", "FORCE_COLOR", "COLUMNS")


def pages() -> dict[str, str]:
    """Return the text of each page by the name of its file."""
    made = {f"{name}.md": page(name, command) for name, command in sorted(grademl.commands.items())}
    return {**made, "README.md": contents()}


def contents() -> str:
    """Return the list of all pages."""
    lines = [f"{MADE}\n", "# Commands, a page each\n"]
    lines += [
        f"* [`grademl {name}`]({name}.md): {command.get_short_help_str(200).rstrip('.')}"
        for name, command in sorted(grademl.commands.items())
    ]
    lines += [
        "\nWhat they share (SOURCE, which part of it, output, exit codes): [commands.md](../commands.md)."
    ]
    return "\n".join(lines) + "\n"


def page(name: str, command: click.Command) -> str:
    """Return the page of ``command``."""
    root = click.Context(grademl, info_name="grademl", **grademl.context_settings)
    context = click.Context(command, info_name=name, parent=root)
    names = [f"grademl {one}" for one in (name, *grademl.aliases_of(name))]
    text, examples = _help(command)
    usage = " ".join([f"grademl {name}", *command.collect_usage_pieces(context)])
    parts = [
        f"{MADE}\n\n# grademl {name}\n",
        ("NAME", f"`{'`, `'.join(names)}`: {_sentence(command.get_short_help_str(200))}"),
        ("SYNOPSIS", f"```\n{usage}\n```"),
        ("DESCRIPTION", text),
        ("OPTIONS", "\n".join(_options(command, context))),
        ("OUTPUT", "\n".join(_output(name, command))),
        ("EXAMPLES", f"```\n{examples}\n```" if examples else ""),
        ("EXIT STATUS", _exit_codes(name, command)),
        ("ENVIRONMENT", _environment(command)),
        ("SEE ALSO", " · ".join(_see_also(name))),
    ]
    made = [part if isinstance(part, str) else f"## {part[0]}\n\n{part[1]}\n" for part in parts if part[1]]
    return "\n".join(made)


def _help(command: click.Command) -> tuple[str, str]:
    """Return (what the help says, its examples)."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    said = [" ".join(one.split()) for one in paragraphs if not one.startswith("\b")]
    kept = [one.removeprefix("\b\n") for one in paragraphs if one.startswith("\b")]
    return "\n\n".join(map(_escaped, said)), "\n\n".join(kept)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if parameter.name == "source":
            yield "* `SOURCE`: see [commands.md](../commands.md#source)"
        elif record is not None and record[1]:
            yield f"* `{record[0]}`: {_escaped(record[1])}"


def _output(name: str, command: click.Command) -> Iterator[str]:
    chosen = next((one for one in command.params if one.name == "format_"), None)
    if chosen is not None and isinstance(chosen.type, click.Choice):
        yield f"Formats (`-f`): {', '.join(map(str, chosen.type.choices))}; text unless told otherwise."
    if any(one.name == "as_json" for one in command.params):
        schema = name.replace("-", "_")
        there = (DOCS / "schemas" / f"{schema}.json").exists()
        document = f"`grademl.{schema}/1`"
        yield f"`--json` prints {f'[{document}](../schemas/{schema}.json)' if there else document}."


def _exit_codes(name: str, command: click.Command) -> str:
    """Return the rows of the table in docs/commands.md that hold for ``command``."""
    strict = any(one.name == "strict" for one in command.params)
    analyzes = any(one.name == "source" for one in command.params) or name in _FAILS
    wanted = {"0", "2", *(("3", "5", "70", "130") if analyzes else ())}
    wanted |= {"4"} if strict else set()
    wanted |= {"1"} if name in _FAILS else set()
    rows = _table_rows(DOCS / "commands.md", r"\d+")
    return "\n".join(["| code | means |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows if a in wanted)])


def _environment(command: click.Command) -> str:
    wanted = set(
        re.findall(r"\$([A-Z_]+)", " ".join(getattr(one, "help", "") or "" for one in command.params))
    )
    if any(one.name == "source" for one in command.params):
        wanted |= set(_OF_SOURCES)
    if any(one.name == "no_color" for one in command.params):
        wanted |= set(_OF_SCREENS)
    rows = _table_rows(DOCS / "configuration.md", r"`[A-Z_`, ]+`")
    found = [(names, cells) for names, *cells in rows if wanted & set(re.findall("[A-Z_]+", names))]
    told = {one for names, _ in found for one in re.findall("[A-Z_]+", names)}
    assert wanted <= told, f"not in docs/configuration.md: {wanted - told}"
    return "\n".join(f"* {names}: {cells[-1]}" for names, cells in found)


def _table_rows(path: Path, first: str) -> list[list[str]]:
    """Return the cells of the rows of tables whose first cell is ``first`` (an expression)."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = (re.fullmatch(r"\| (.*) \|", line) for line in lines)
    cells = [row[1].split(" | ") for row in rows if row is not None]
    return [row for row in cells if re.fullmatch(first, row[0])]


def _see_also(name: str) -> Iterator[str]:
    named = [page for page in SEE_ALSO.get(name, ()) if (DOCS / page).exists()]
    if (DOCS / f"{name}.md").exists():
        named.append(f"{name}.md")
    for page in dict.fromkeys(("commands.md", *named, "python.md")):
        if (DOCS / page).exists():
            yield f"[{page}](../{page})"


def _sentence(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _escaped(text: str) -> str:
    """Return ``text`` such that Markdown shows it as it is."""
    return re.sub(r"([\\*_\[\]<|])", r"\\\1", " ".join(text.split()))


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    made = pages()
    for path in FOLDER.glob("*.md"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
