# SPDX-License-Identifier: Apache-2.0
"""What a shell completes: commands, options and choices by click; files, runs and words here.

A shell asks at every press of a key, so nothing of the analysis is loaded, and no file is opened: of runs the
names of their folders are enough.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from grademl_otel.semconv import DEFAULT_STORE

VARIABLE: Final = "_GRADEML_COMPLETE"
"""Through which the script of a shell asks, see click's documentation on completion."""
SHELLS: Final = ("bash", "zsh", "fish")

_MOST_RUNS: Final = 100
_DIGITS: Final = 12
_RUN_FOLDER: Final = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)\d\dZ-([0-9a-f]{32})")
_SCHEMES: Final = ("jaeger://", "jaeger+grpc://", "tempo://", "http://", "https://")

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


@click.command(short_help="The script that lets a shell complete what is typed.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what lets a shell complete commands, options, choices, files and the ids of local runs.

    \b
    eval "$(grademl completion bash)"                                    in ~/.bashrc
    eval "$(grademl completion zsh)"                                     in ~/.zshrc
    grademl completion fish > ~/.config/fish/completions/grademl.fish
    """
    made = get_completion_class(shell)
    assert made is not None, shell
    root = click.get_current_context().find_root().command
    click.echo(made(root, {}, "grademl", VARIABLE).source())


def answer_shell(group: click.Group) -> int:
    """Answer the script of a shell; whatever goes wrong, nothing is printed into the line being typed."""
    with suppress(Exception), open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        return shell_complete(group, {}, "grademl", VARIABLE, os.environ[VARIABLE])
    return 1


def words(*offered: str) -> Complete:
    """Return what completes one of these words; others may be typed."""

    def complete(context: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
        return [CompletionItem(word) for word in offered if word.startswith(typed)]

    return complete


def files(context: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Leave it to the shell to complete the path of a file."""
    return [CompletionItem(typed, type="file")]


def folders(context: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Leave it to the shell to complete the path of a folder."""
    return [CompletionItem(typed, type="dir")]


def sources(context: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete what a SOURCE may be: a kind of server that was begun, else a path."""
    if typed and (servers := [scheme for scheme in _SCHEMES if scheme.startswith(typed)]):
        return [CompletionItem(scheme) for scheme in servers]
    return files(context, param, typed)


def runs(context: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete the id of a run of the folder that is SOURCE, or of the default one, the latest first."""
    found = [("latest", "the latest run"), *_local_runs(_folder(context))]
    return [CompletionItem(word, help=about) for word, about in found if word.startswith(typed)]


def _folder(context: click.Context) -> Path:
    # Arguments before an option whose value is being typed are not parsed yet.
    given = context.params.get("source") or next(iter(context.args), None)
    return Path(given or os.environ.get("GRADEML_SOURCE") or DEFAULT_STORE)


def _local_runs(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (first digits of the id, start) of the runs whose folders are in ``folder``."""
    try:
        names = sorted(os.listdir(folder), reverse=True)
    except OSError:
        return
    matches = [match for name in names if (match := _RUN_FOLDER.fullmatch(name))]
    for match in matches[:_MOST_RUNS]:
        year, month, day, hour, minute, run = match.groups()
        yield run[:_DIGITS], f"{year}-{month}-{day} {hour}:{minute} UTC"
