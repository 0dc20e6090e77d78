# SPDX-License-Identifier: Apache-2.0
"""A click group with a default command, so that `grademl SOURCE` is `grademl report SOURCE`; and aliases."""

from __future__ import annotations

from typing import Any

import click

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

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {option for param in self.get_params(ctx) for option in param.opts}
        if not args or (args[0] not in own and self.get_command(ctx, args[0]) is None):
            if args and not args[0].startswith("-"):
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

    @property
    def names(self) -> list[str]:
        """Every word that a user may type as a command."""
        return sorted([*self.commands, *self._aliases])
