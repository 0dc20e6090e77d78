# SPDX-License-Identifier: Apache-2.0
"""The forms of `grademl export`, in one place. Words only: what writes one is loaded when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from grademl_otel.analyzers.errors import UsageError

Counts = dict[str, int]
"""What was written: word in the plural -> how many."""

DEPENDENCIES: Final = "dependencies"
PATH: Final = "path"
PHASES: Final = "phases"
TYPES: Final = "types"
GRAPHS: Final = (DEPENDENCIES, PATH, PHASES, TYPES)

TIME: Final = "time"
STACKS: Final = (TIME, PATH)


@dataclass(frozen=True)
class Form:
    """One form. Its module here has ``write(about: Subject, file: IO[bytes], **options) -> Counts``."""

    name: str
    suffix: str
    """As files of it are mostly named."""
    about: str
    text: bool
    """Whether it may go to a terminal."""
    module: str
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Options that only this form has -> their values, the default first; none where any text is taken."""
    folder: bool = False
    """Whether it is a folder of files, unless an option names one of these: the module has `write_folder`."""
    named: bool = False
    """Whether the name of the file tells more: it is given to the writer as ``name``."""
    tells: bool = False
    """Whether the writer has something to say: it is given a list for that as ``notes``."""
    recorded: bool = False
    """Whether it is of what was recorded, as it was: neither clocks nor a part of a run can be chosen."""

    @property
    def write(self) -> Callable[..., Counts]:
        found: Callable[..., Counts] = _of(self.module, "write")
        return found

    @property
    def write_folder(self) -> Callable[..., tuple[Counts, int]]:
        found: Callable[..., tuple[Counts, int]] = _of(self.module, "write_folder")
        return found


def _of(module: str, name: str) -> Any:
    return getattr(import_module(f"grademl_otel.analyzers.exports.{module}"), name)


FORMS: Final = {
    form.name: form
    for form in (
        Form(
            "perfetto",
            ".perfetto-trace",
            "a trace for ui.perfetto.dev: lanes, the critical path, metrics",
            text=False,
            module="perfetto",
        ),
        Form(
            "folded",
            ".folded",
            "stacks for flame graphs",
            text=True,
            module="folded",
            options={"of": STACKS},
        ),
        Form(
            "graphml",
            ".graphml",
            "a graph: what waited for what, the critical path, or the execution model",
            text=True,
            module="graphs",
            options={"graph": GRAPHS},
        ),
        Form(
            "parquet",
            ".parquet",
            "the tables of `grademl query`, a file each in a folder",
            text=False,
            module="parquet",
            options={"table": ()},
            folder=True,
            tells=True,
        ),
        Form(
            "otlp",
            ".jsonl",
            "spans and metrics as OTLP: JSON lines, or protobuf where FILE ends in .pb; also .gz, .zst",
            text=True,
            module="otlp",
            named=True,
            tells=True,
            recorded=True,
        ),
    )
}


def form_of(name: str, options: Mapping[str, str | None]) -> Form:
    """Return the form called ``name``; UsageError where there is none, or ``options`` are not its own."""
    if name not in FORMS:
        raise UsageError(f"export to {name!r}: there is {', '.join(FORMS)}")
    form = FORMS[name]
    for option, value in options.items():
        if value is None:
            continue
        if option not in form.options:
            (owner,) = (other.name for other in FORMS.values() if option in other.options)
            raise UsageError(f"--{option} is an option of --to {owner}; {name} has {_words(form)}")
        if form.options[option] and value not in form.options[option]:
            raise UsageError(f"{option} {value!r}: there are {', '.join(form.options[option])}")
    return form


def _words(form: Form) -> str:
    return "none of its own" if not form.options else " and ".join(f"--{name}" for name in form.options)
