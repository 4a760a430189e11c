"""`gpuwatch agent`: the process itself, and what a person may ask of the one that runs on this node."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from gpuwatch.cli.words import Config, not_before_a_command

DEFAULT = Path("/etc/gpuwatch/agent.toml")

agent = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})


@agent.callback(invoke_without_command=True)
def _run(context: typer.Context, config: Config = DEFAULT) -> None:
    """Watch this node: NVML, kernel log, host and training heartbeats; send reports to the aggregator."""
    not_before_a_command(context, "config", "--config")
    if context.invoked_subcommand is None:
        # A fresh interpreter: the agent must not carry this command line's libraries in memory for months.
        os.execv(sys.executable, [sys.executable, "-m", "gpuwatch.wiring.agent", "--config", str(config)])


@agent.command()
def check(config: Config = DEFAULT) -> None:
    """Say whether an agent would take this settings file; every fault at once."""
    from gpuwatch.wiring import release as wiring

    raise typer.Exit(wiring.check(config))


@agent.command()
def release(
    config: Config = DEFAULT,
    minutes: Annotated[float, typer.Option(min=1, max=1440, help="Then it is taken again by itself.")] = 60.0,
    because: Annotated[str, typer.Option(help="Why; it is shown where this node is.")] = "",
) -> None:
    """Let go of the GPU driver on this node, so that it can be unloaded. Exit code 1: a call in it hangs."""
    from gpuwatch.wiring import release as wiring

    raise typer.Exit(wiring.release(config, minutes=minutes, because=because))


@agent.command()
def resume(config: Config = DEFAULT) -> None:
    """Watch the GPUs again."""
    from gpuwatch.wiring import release as wiring

    raise typer.Exit(wiring.resume(config))
