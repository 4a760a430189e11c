"""`gpuwatch dashboards`: into a Grafana."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

dashboards = typer.Typer(help="The Grafana dashboards.", no_args_is_help=True)


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
    source: Annotated[
        Path | None, typer.Option("--from", help="Folder of the dashboards' files; default: those of this gpuwatch.")
    ] = None,
    ca_file: Annotated[Path | None, typer.Option(help="Certificates to trust (PEM), not the usual ones.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace dashboards that differ.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
) -> None:
    """Put the dashboards into a Grafana. What is there and equal is left alone. Needs the extra `grafana`."""
    from gpuwatch.wiring import dashboards as wiring

    code = wiring.run(
        source or wiring.came_with_us(),
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
