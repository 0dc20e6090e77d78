# SPDX-License-Identifier: Apache-2.0
"""A click group with a default command, so that `grademl SOURCE` is `grademl report SOURCE`; and aliases."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from grademl_otel.analyzers.cli.completion import sources
from grademl_otel.analyzers.errors import Interrupted
from grademl_otel.analyzers.suggest import explain_source


class DefaultGroup(click.Group):
    """Runs ``default`` when the first argument names no command; lists no alias among the commands."""

    def __init__(self, *args: Any, default: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._default = default
        self._aliases: dict[str, str] = {}

    def add_alias(self, alias: str, name: str) -> None:
        """Let ``alias`` run the command ``name``."""
        self._aliases[alias] = name

    def aliases_of(self, name: str) -> list[str]:
        """Return the other words for the command ``name``."""
        return [alias for alias, meant in self._aliases.items() if meant == name]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing and not args:  # a shell asks what may come: commands, too
            return super().parse_args(ctx, args)
        own = {option for param in self.get_params(ctx) for option in param.opts}
        if not args or (args[0] not in own and self.get_command(ctx, args[0]) is None):
            if args and not args[0].startswith("-") and not ctx.resilient_parsing:
                explain_source(args[0])  # a mistyped command must not be refused for what follows it
            args = [self._default, *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Before click sees it, which prints an empty line.
            raise Interrupted("interrupted") from None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, self._aliases.get(cmd_name, cmd_name))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return what may come first: a command or an alias, an option of the default one, or a SOURCE."""
        found = super().shell_complete(ctx, incomplete)
        default = self.commands[self._default]
        if incomplete.startswith("-"):
            there = {item.value for item in found}
            return found + [
                item for item in default.shell_complete(ctx, incomplete) if item.value not in there
            ]
        found += [
            CompletionItem(alias, help=self.commands[name].get_short_help_str())
            for alias, name in self._aliases.items()
            if alias.startswith(incomplete)
        ]
        return found or sources(ctx, default.params[0], incomplete)

    @property
    def names(self) -> list[str]:
        """Every word that a user may type as a command."""
        return sorted([*self.commands, *self._aliases])
