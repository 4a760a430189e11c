"""The commands about a node's hands."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from gpuwatch.cli.words import Config

hands = typer.Typer(help="Signed orders for this node: restart a service, reset a GPU, reboot. Off by default.")
SETTINGS = Path("/etc/gpuwatch/hands.toml")


@hands.command()
def run(config: Config = SETTINGS) -> None:
    """Take the orders that this node's agent is given, as far as the settings allow and the node is free."""
    os.execv(sys.executable, [sys.executable, "-m", "gpuwatch.wiring.hands", "--config", str(config)])


@hands.command()
def keygen(
    private: Annotated[Path, typer.Argument(help="Where the private key goes; never an existing file.")],
) -> None:
    """Make a pair of keys: the aggregator signs orders with one, nodes know them by the other."""
    from gpuwatch.wiring import hands as wiring

    raise typer.Exit(wiring.keygen(private, typer.echo))


@hands.command()
def check(config: Config = SETTINGS) -> None:
    """Explain the settings: what may be ordered, by whom, and what speaks against it now. Changes nothing."""
    from gpuwatch.wiring import hands as wiring

    raise typer.Exit(wiring.check(config, typer.echo))
