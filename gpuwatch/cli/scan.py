"""`gpuwatch scan`: for a person at the node, and for the schedulers that ask a node how it is."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from gpuwatch.cli import failure
from gpuwatch.cli.words import AsJson
from gpuwatch.errors import GpuwatchError

UNKNOWN = 3


class Role(StrEnum):
    """Who asks."""

    PROLOG = "prolog"
    EPILOG = "epilog"
    HEALTHCHECK = "healthcheck"
    INIT = "init"


class ScanCommand(TyperCommand):
    """A word that is not understood is no finding: a scheduler would drain each node for a typing error."""

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        for_scheduler = any(word == "--as" or word.startswith("--as=") for word in args)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except Exception as error:
            if hasattr(error, "exit_code") and error.exit_code:
                error.exit_code = 0 if for_scheduler else UNKNOWN
            raise


def scan(
    as_json: AsJson = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="The agent's settings file, for its collectors' tables. None is needed."),
    ] = None,
    expect_gpus: Annotated[
        int | None, typer.Option(min=0, help="How many GPUs this node must have; default: as many as are on PCI.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Look at this source only, e.g. nvml; more of them with commas.")
    ] = None,
    role: Annotated[
        Role | None,
        typer.Option(
            "--as",
            help="Answer a scheduler: 10 only for a conclusive fault of this node which the aggregator allows to take "
            "it out, else 0. Within --deadline even if every source hangs.",
        ),
    ] = None,
    deadline: Annotated[float, typer.Option(min=2.0, max=60.0, help="Seconds for the whole call.")] = 10.0,
) -> None:
    """Look at this node once, with no server and no settings.

    Exit code: 0 ok, 1 warning, 2 critical, 3 unknown (something could not be looked at). With --as: 0 or 10.
    """
    from gpuwatch.wiring import scan as wiring

    names = [name for words in only or () for name in words.split(",") if name]
    if role is not None:
        code = wiring.run_as(
            role, as_json=as_json, config=config, expected_gpus=expect_gpus, only=names, deadline_s=deadline
        )
        raise typer.Exit(code)
    try:
        code = wiring.run(
            as_json=as_json, config=config, expected_gpus=expect_gpus, only=names, deadline_s=deadline - 2.0
        )
    except GpuwatchError as error:
        code = UNKNOWN  # 2 would say "critical"
        print(failure.told(error, code) if as_json else f"gpuwatch: {error}", file=sys.stderr)
    raise typer.Exit(code)
