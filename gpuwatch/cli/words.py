"""Options that several commands share, so that they are called the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuwatch.errors import UsageError

Config = Annotated[Path, typer.Option("--config", "-c", help="Settings file (TOML).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def not_before_a_command(context: typer.Context, name: str, option: str) -> None:
    """An option of the group itself that stands before one of its commands would be lost there. Raises `UsageError`."""
    given = context.get_parameter_source(name)
    if context.invoked_subcommand is not None and given is not None and given.name == "COMMANDLINE":
        command = f"{context.command_path} {context.invoked_subcommand}"
        raise UsageError(f"{option} stands before `{context.invoked_subcommand}`", next_step=f"{command} {option} FILE")
