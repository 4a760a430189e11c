"""The command line: words in, one call into `wiring`, errors as text and an exit code."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from gpuwatch import __version__
from gpuwatch.cli import failure, orders
from gpuwatch.cli.agent import agent
from gpuwatch.cli.aggregator import aggregator
from gpuwatch.cli.dashboards import dashboards
from gpuwatch.cli.hands import hands
from gpuwatch.cli.report import CostReport, cost_report
from gpuwatch.cli.scan import ScanCommand, scan
from gpuwatch.cli.words import AsJson
from gpuwatch.errors import UsageError

app = typer.Typer(
    name="gpuwatch",
    help="Find dead and driver-failed GPU nodes, drain and replace them, and say what it cost in dollars.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gpuwatch {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.add_typer(agent, name="agent")
app.add_typer(aggregator, name="aggregator")


@app.command()
def decode(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="Logs to explain; `-`, or nothing behind a pipe: standard input; or a number or name: 79, nvme_lost."
        ),
    ] = None,
    as_json: AsJson = False,
    summary: Annotated[bool, typer.Option("--summary", help="With --json: one last object, the decision.")] = False,
) -> None:
    """Explain a pasted log: each fault of GPUs and node, how bad, what to do. Looks a number up too: `decode 79`."""
    from gpuwatch.wiring import decode as wiring

    if not files and sys.stdin.isatty():
        raise UsageError("no log is named", next_step="name one, or pipe one in: dmesg | gpuwatch decode")
    raise typer.Exit(wiring.run(files or ["-"], as_json=as_json, summary=summary))


@app.command()
def demo(
    leave: Annotated[bool, typer.Option("--exit", help="End after the story; 0 if all of it happened.")] = False,
    nodes: Annotated[int, typer.Option(min=5, max=64, help="Nodes of eight simulated GPUs each.")] = 16,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0 takes a free one.")] = 9190,
    directory: Annotated[
        Path | None, typer.Option(help="Where to keep its files; a new temporary folder if not given.")
    ] = None,
) -> None:
    """Run a cluster on this machine and break it: a dead node, a wedged driver, a lost GPU, a hung rank."""
    from gpuwatch.wiring import demo as wiring

    raise typer.Exit(wiring.run(leave=leave, node_count=nodes, port=port, directory=directory))


@app.command()
def token(
    machine: Annotated[str, typer.Argument(help="The machine's id, as its agent reports it.")],
    secret_file: Annotated[Path, typer.Option(help="The cluster secret.")] = Path("/etc/gpuwatch/secret"),
) -> None:
    """Print the token with which this machine's agent may speak, and only for itself."""
    from gpuwatch.model.token import machine_token

    try:
        secret = secret_file.read_bytes().strip()
    except OSError as error:
        raise UsageError(
            f"{secret_file} cannot be read", why=str(error), next_step="name the secret with --secret-file"
        ) from error
    if not secret:
        raise UsageError(
            f"{secret_file} is empty",
            why="everybody could make the tokens of an empty secret",
            next_step=f"make one: (umask 077; head -c 32 /dev/urandom | base64 > {secret_file})",
        )
    if not machine.strip():
        raise UsageError("a token is for one machine", next_step="name its id, as `gpuwatch scan --json` prints it")
    typer.echo(machine_token(secret, machine))


app.command("cost-report", cls=CostReport)(cost_report)
app.command(cls=ScanCommand)(scan)
for command in (orders.status, orders.explain, orders.drift, orders.approve, orders.hold, orders.clear):
    app.command()(command)
app.add_typer(dashboards, name="dashboards")
app.add_typer(hands, name="hands")


def main() -> None:
    """The console script."""
    try:
        failure.run(app, sys.argv[1:])
    except BrokenPipeError:  # `gpuwatch decode … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
