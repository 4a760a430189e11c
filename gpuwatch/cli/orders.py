"""What a person asks a running aggregator, and what they order: explain, approve, hold, clear."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuwatch.cli.words import AsJson

Url = Annotated[str, typer.Option("--url", envvar="GPUWATCH_URL", help="The aggregator's address.")]
CaFile = Annotated[Path | None, typer.Option(help="Who signed its certificate; default: the system's list.")]
TokenFile = Annotated[Path, typer.Option(help="The operator's token.")]
Because = Annotated[str, typer.Option(help="Why; the ledger keeps it.")]
AT_HOME = "http://127.0.0.1:9190"
OPERATOR = Path("/etc/gpuwatch/operator")


def explain(
    slot: Annotated[str, typer.Argument(help="The node's slot.")],
    as_json: AsJson = False,
    url: Url = AT_HOME,
    ca_file: CaFile = None,
) -> None:
    """Say what was seen of a node, by whom, what was concluded, what was done, and what is held."""
    from gpuwatch.wiring import ask

    raise typer.Exit(ask.explain(slot, url=url, as_json=as_json, ca_file=ca_file))


def drift(as_json: AsJson = False, url: Url = AT_HOME, ca_file: CaFile = None) -> None:
    """Name the nodes that differ from their pool (driver, firmware, kernel …) or run (libraries), and since when."""
    from gpuwatch.wiring import ask

    raise typer.Exit(ask.drift(url=url, as_json=as_json, ca_file=ca_file))


def approve(
    action: Annotated[str, typer.Argument(help="The action's id, as page and /api/v1/plan show it.")],
    because: Because = "",
    url: Url = AT_HOME,
    token_file: TokenFile = OPERATOR,
    ca_file: CaFile = None,
) -> None:
    """Agree to one action that waits for approval."""
    from gpuwatch.wiring import ask

    raise typer.Exit(ask.order("approve", action, url=url, token_file=token_file, because=because, ca_file=ca_file))


def hold(
    slot: Annotated[str, typer.Argument(help="The node's slot.")],
    because: Because = "",
    url: Url = AT_HOME,
    token_file: TokenFile = OPERATOR,
    ca_file: CaFile = None,
) -> None:
    """Hands off this node: nothing is done to it until it is cleared."""
    from gpuwatch.wiring import ask

    raise typer.Exit(ask.order("hold", slot, url=url, token_file=token_file, because=because, ca_file=ca_file))


def clear(
    slot: Annotated[str, typer.Argument(help="The node's slot.")],
    because: Because = "",
    url: Url = AT_HOME,
    token_file: TokenFile = OPERATOR,
    ca_file: CaFile = None,
) -> None:
    """Lift a hold on this node, and count its kernel events so far as history."""
    from gpuwatch.wiring import ask

    raise typer.Exit(ask.order("clear", slot, url=url, token_file=token_file, because=because, ca_file=ca_file))
