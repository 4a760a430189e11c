"""The command line: words in, one call into `wiring`, errors as text and an exit code."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from gpuwatch import __version__
from gpuwatch.errors import GpuwatchError, UsageError

app = typer.Typer(
    name="gpuwatch",
    help="Find dead and driver-failed GPU nodes, drain and replace them, and say what it cost in dollars.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Config = Annotated[Path, typer.Option("--config", "-c", help="Settings file (TOML).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


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


@app.command()
def agent(config: Config = Path("/etc/gpuwatch/agent.toml")) -> None:
    """Watch this node: NVML, kernel log, host and training heartbeats; send reports to the aggregator."""
    # A fresh interpreter: the agent must not carry this command line's libraries in memory for months.
    os.execv(sys.executable, [sys.executable, "-m", "gpuwatch.wiring.agent", "--config", str(config)])


@app.command()
def aggregator(config: Config = Path("/etc/gpuwatch/aggregator.toml")) -> None:
    """Receive reports, judge, plan, act within the policy, keep the ledger, serve page, API and metrics."""
    os.execv(sys.executable, [sys.executable, "-m", "gpuwatch.wiring.aggregator", "--config", str(config)])


@app.command()
def scan(
    as_json: AsJson = False,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The agent's settings file, for its collectors' tables.")
    ] = None,
    expect_gpus: Annotated[int | None, typer.Option(min=0, help="How many GPUs this node must have.")] = None,
) -> None:
    """Look at this node once, with no server and no settings. Exit code: 0 ok, 1 warning, 2 critical, 3 unknown."""
    from gpuwatch.wiring import scan as wiring

    raise typer.Exit(wiring.run(as_json=as_json, config=config, expected_gpus=expect_gpus))


@app.command()
def decode(
    files: Annotated[list[str], typer.Argument(help="Kernel logs to explain; `-` reads standard input.")],
    as_json: AsJson = False,
    summary: Annotated[bool, typer.Option("--summary", help="With --json: one last object, the decision.")] = False,
) -> None:
    """Explain a pasted kernel log: each GPU event, which GPU and process, how bad it is, what to do."""
    from gpuwatch.wiring import decode as wiring

    raise typer.Exit(wiring.run(files, as_json=as_json, summary=summary))


class _CostReport(TyperCommand):
    """With one `--from-NAME FILE` for each importer of the registry."""

    def get_params(self, ctx: Any) -> list[Any]:
        found: list[Any] = list(super().get_params(ctx))
        for param in found:  # typer's own types differ between its versions
            if param.name == "history":
                param.help = "A history from elsewhere. " + " ".join(
                    f"--from-{name}: {what}" for name, what in _importers().items()
                )
        return found

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words: list[str] = []
        given = iter(args)
        for word in given:
            option, has_value, value = word.partition("=")
            name = option.removeprefix("--from-")
            if name == option:
                words.append(word)
                continue
            if name not in _importers():
                raise UsageError(f"there is no {option}", next_step=f"there is --from-{', --from-'.join(_importers())}")
            file = value if has_value else next(given, "")
            if not file:
                raise UsageError(f"{option} needs a file", next_step=f"{option} FILE, or {option} - for standard input")
            words.append(f"--from-NAME={name}={file}")
        return super().parse_args(ctx, words)


def _importers() -> dict[str, str]:
    from gpuwatch.wiring import cost_report_from as wiring

    return wiring.choices()


@app.command("cost-report", cls=_CostReport)
def cost_report(
    ledger: Annotated[Path, typer.Option("--ledger", help="The aggregator's ledger file.")] = Path(
        "/var/lib/gpuwatch/ledger.db"
    ),
    by: Annotated[
        str | None,
        typer.Option(
            help="category (default), node, run, team, user, incident, pool, cause or day; two with a comma. "
            "With --from-…: state (default), group, user, account, partition or month.",
        ),
    ] = None,
    since: Annotated[str | None, typer.Option(help="Begin: a date or an ISO time, UTC.")] = None,
    until: Annotated[str | None, typer.Option(help="End (exclusive): a date or an ISO time, UTC.")] = None,
    last: Annotated[str | None, typer.Option(help="A period that ends now: 90m, 24h, 7d.")] = None,
    month: Annotated[str | None, typer.Option(help="A calendar month, UTC: 2026-11.")] = None,
    form: Annotated[str, typer.Option("--format", "-f", help="table, csv or json.")] = "table",
    as_json: AsJson = False,
    prices: Annotated[Path | None, typer.Option(help="Your own prices (TOML), before the bundled list.")] = None,
    history: Annotated[list[str] | None, typer.Option("--from-NAME", metavar="FILE|-")] = None,
    usd_per_gpu_hour: Annotated[
        list[str] | None, typer.Option(metavar="USD", help="With --from-…: 3.40, or for one partition h100=3.40.")
    ] = None,
    sku: Annotated[
        list[str] | None, typer.Option(help="With --from-…: the nodes' type, ND96asr_v4, or a100=ND96asr_v4.")
    ] = None,
    provider: Annotated[str, typer.Option(help="With --sku: azure, aws or gcp.")] = "",
    region: Annotated[str, typer.Option(help="With --sku: eastus.")] = "",
    fleet_gpus: Annotated[
        int | None, typer.Option(min=1, help="With --from-…: how many GPUs you pay for, to show what was idle.")
    ] = None,
    tz: Annotated[
        str,
        typer.Option(
            "--tz", help="With --from-…: the zone of its times: UTC, America/New_York. Default: this machine's."
        ),
    ] = "",
    delimiter: Annotated[str, typer.Option(help="With --from-…: what separates its fields; else it is found.")] = "",
) -> None:
    """Say what was paid for: every billed node-second in one category, priced; the categories sum to the bill.

    With --from-sacct: GPU-hours and dollars of a Slurm cluster's own history, by how its jobs ended. Nothing of ours
    needs to be installed there: see docs/sacct.md.
    """
    form = "json" if as_json else form
    own = {
        "--usd-per-gpu-hour": usd_per_gpu_hour,
        "--sku": sku,
        "--provider": provider,
        "--region": region,
        "--fleet-gpus": fleet_gpus,
        "--tz": tz,
        "--delimiter": delimiter,
    }
    sources = history or []
    if len(sources) > 1:
        raise UsageError("a report is made from one history", next_step="keep one --from-…")
    if sources:
        from gpuwatch.wiring import cost_report_from

        name, _, file = sources[0].partition("=")
        code = cost_report_from.run(
            name,
            file,
            by=by,
            since=since,
            until=until,
            last=last,
            month=month,
            form=form,
            prices=prices,
            usd_per_gpu_hour=usd_per_gpu_hour or (),
            skus=sku or (),
            provider=provider,
            region=region,
            fleet_gpus=fleet_gpus,
            zone=tz,
            delimiter=delimiter,
        )
        raise typer.Exit(code)
    if stray := [option for option, value in own.items() if value]:
        raise UsageError(
            f"{', '.join(stray)} belong{'s' * (len(stray) == 1)} to a history from elsewhere",
            next_step="add --from-sacct FILE, or leave it out",
        )
    from gpuwatch.wiring import cost_report as wiring

    code = wiring.run(
        ledger,
        by=by or "category",
        since=since,
        until=until,
        last=last,
        month=month,
        form=form,
        prices=prices,
    )
    raise typer.Exit(code)


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


Url = Annotated[str, typer.Option("--url", envvar="GPUWATCH_URL", help="The aggregator's address.")]
CaFile = Annotated[Path | None, typer.Option(help="Who signed its certificate; default: the system's list.")]
TokenFile = Annotated[Path, typer.Option(help="The operator's token.")]
Because = Annotated[str, typer.Option(help="Why; the ledger keeps it.")]
AT_HOME = "http://127.0.0.1:9190"
OPERATOR = Path("/etc/gpuwatch/operator")


@app.command()
def explain(
    slot: Annotated[str, typer.Argument(help="The node's slot.")],
    as_json: AsJson = False,
    url: Url = AT_HOME,
    ca_file: CaFile = None,
) -> None:
    """Say what was seen of a node, by whom, what was concluded, what was done, and what is held."""
    from gpuwatch.wiring import ask

    raise typer.Exit(ask.explain(slot, url=url, as_json=as_json, ca_file=ca_file))


@app.command()
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


@app.command()
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


@app.command()
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


dashboards = typer.Typer(help="The Grafana dashboards.", no_args_is_help=True)
app.add_typer(dashboards, name="dashboards")


@dashboards.callback()
def _dashboards() -> None:
    pass


@dashboards.command("push")
def dashboards_push(
    url: Annotated[str, typer.Option(help="Grafana's address, with the path under which it is served.")],
    token_file: Annotated[Path, typer.Option(help="A file with a service account's token, and nothing else.")],
    folder: Annotated[str, typer.Option(help="Folder in Grafana, by title; made if it is not there. '' for none.")] = (
        "gpuwatch"
    ),
    page: Annotated[str | None, typer.Option(metavar="URL", help="Where browsers find the aggregator's page.")] = None,
    runbooks: Annotated[str | None, typer.Option(metavar="URL", help="Where docs/runbooks/ is published.")] = None,
    source: Annotated[Path, typer.Option("--from", help="Folder of the dashboards' files.")] = Path("dashboards"),
    ca_file: Annotated[Path | None, typer.Option(help="Certificates to trust (PEM), not the usual ones.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace dashboards that differ.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
) -> None:
    """Put the dashboards into a Grafana. What is there and equal is left alone. Needs the extra `grafana`."""
    from gpuwatch.wiring import dashboards as wiring

    code = wiring.run(
        source,
        url=url,
        token_file=token_file,
        into=folder,
        page=page,
        runbooks=runbooks,
        ca_file=ca_file,
        overwrite=overwrite,
        dry_run=dry_run,
    )
    raise typer.Exit(code)


def main() -> None:
    """The console script."""
    try:
        app()
    except GpuwatchError as error:
        print(f"gpuwatch: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # `gpuwatch decode … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
