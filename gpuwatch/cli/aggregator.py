"""`gpuwatch aggregator`: the process itself, and the check of its settings."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer

from gpuwatch.cli.words import Config, not_before_a_command

DEFAULT = Path("/etc/gpuwatch/aggregator.toml")

aggregator = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})


@aggregator.callback(invoke_without_command=True)
def _run(context: typer.Context, config: Config = DEFAULT) -> None:
    """Receive reports, judge, plan, act within the policy, keep the ledger, serve page, API and metrics."""
    not_before_a_command(context, "config", "--config")
    if context.invoked_subcommand is None:
        os.execv(sys.executable, [sys.executable, "-m", "gpuwatch.wiring.aggregator", "--config", str(config)])


@aggregator.command()
def check(config: Config = DEFAULT) -> None:
    """Say whether an aggregator would start with this settings file; every fault at once. Changes nothing."""
    from gpuwatch.wiring import aggregator_check as wiring

    raise typer.Exit(wiring.check(config, typer.echo))
