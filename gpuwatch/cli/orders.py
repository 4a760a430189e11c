"""What a person asks a running aggregator, and what they order: status, explain, drift, approve, hold, clear."""

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


def status(as_json: AsJson = False, url: Url = AT_HOME, ca_file: CaFile = None) -> None:
    """Say what is sick, what is being done or stuck, what waits for you with the command for it, and what is held."""
    from gpuwatch.wiring import status as wiring

    raise typer.Exit(wiring.status(url=url, as_json=as_json, ca_file=ca_file))


def drift(as_json: AsJson = False, url: Url = AT_HOME, ca_file: CaFile = None) -> None:
    """Name the nodes that differ from their pool (driver, firmware, kernel …) or run (libraries), and since when."""
    from gpuwatch.wiring import ask

    raise typer.Exit(ask.drift(url=url, as_json=as_json, ca_file=ca_file))


def approve(
    action: Annotated[str, typer.Argument(help="The action's id, as `gpuwatch status` and the page show it.")],
    because: Because = "",
    as_json: AsJson = False,
    url: Url = AT_HOME,
    token_file: TokenFile = OPERATOR,
    ca_file: CaFile = None,
) -> None:
    """Agree to one action that waits for approval."""
    raise typer.Exit(_order("approve", action, because, as_json, url, token_file, ca_file))


def hold(
    slot: Annotated[str, typer.Argument(help="The node's slot.")],
    because: Because = "",
    as_json: AsJson = False,
    url: Url = AT_HOME,
    token_file: TokenFile = OPERATOR,
    ca_file: CaFile = None,
) -> None:
    """Hands off this node: nothing is done to it until it is cleared."""
    raise typer.Exit(_order("hold", slot, because, as_json, url, token_file, ca_file))


def clear(
    slot: Annotated[str, typer.Argument(help="The node's slot.")],
    because: Because = "",
    as_json: AsJson = False,
    url: Url = AT_HOME,
    token_file: TokenFile = OPERATOR,
    ca_file: CaFile = None,
) -> None:
    """Lift a hold on this node, and count its kernel events so far as history."""
    raise typer.Exit(_order("clear", slot, because, as_json, url, token_file, ca_file))


def _order(what: str, name: str, because: str, as_json: bool, url: str, token_file: Path, ca_file: Path | None) -> int:
    from gpuwatch.wiring import ask

    return ask.order(what, name, url=url, token_file=token_file, because=because, as_json=as_json, ca_file=ca_file)
