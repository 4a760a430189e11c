"""`gpuwatch cost-report`: the ledger's money, or that of a history from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from gpuwatch.cli.words import AsJson
from gpuwatch.errors import UsageError


class CostReport(TyperCommand):
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
