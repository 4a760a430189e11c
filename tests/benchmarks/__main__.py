"""`make bench`: the budgets, measured as ratios in one run, each with its peer; what is met and what is not.

`make bench ARGS="heartbeat ingest"` runs some of them; `ARGS=--quick` is shorter and rougher; `ARGS=--write` keeps the
table in docs/benchmarks.md with machine and date.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.benchmarks.row import Row

MODULES = (
    "heartbeat",
    "agent_cost",
    "agent_memory",
    "ingest",
    "decide_tick",
    "detection",
    "report_scale",
    "sacct_import",
)
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def table(rows: list[Row]) -> str:
    """Markdown."""
    words = {True: "met", False: "**not met**", None: "not measured"}
    lines = ["| what | budget | measured | beside, in the same run | |", "|---|---|---|---|---|"]
    lines += [f"| {row.what} | {row.budget} | {row.measured} | {row.beside} | {words[row.met]} |" for row in rows]
    return "\n".join(lines)


def tally(rows: list[Row]) -> str:
    """How many budgets are met, in a sentence."""
    met = sum(1 for row in rows if row.met)
    missed = sum(1 for row in rows if row.met is False)
    return f"{met} met, {missed} not met, {len(rows) - met - missed} not measured."


def company() -> str:
    """Who else used the machine: measured before the first benchmark."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    said = f"The load average when it began was {load:.1f} on {cores} cores"
    if load > 0.3 * cores:
        return f"{said}: other work ran beside it, so absolute figures are worse than they need be."
    return f"{said}."


def machine() -> str:
    """What the figures were measured on."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return f"{os.cpu_count()} cores of {model}, Linux {platform.release()}, Python {platform.python_version()}"


def main() -> int:
    """Print the table; 0 whatever the figures say, 1 if a benchmark itself broke."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(MODULES)}; all if none is named")
    parser.add_argument("--quick", action="store_true", help="shorter runs, rougher figures")
    parser.add_argument("--write", action="store_true", help="keep the table in docs/benchmarks.md")
    parser.add_argument("--note", default="", help="a sentence for the page, such as what else ran on the machine")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in MODULES]
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(MODULES)}")
    rows: list[Row] = []
    broken = 0
    beside, began = company(), time.monotonic()
    for name in args.names or MODULES:
        print(f"{name} …", file=sys.stderr, flush=True)
        begun = time.monotonic()
        try:
            rows += importlib.import_module(f"tests.benchmarks.{name}").measure(quick=args.quick)
        except Exception as error:
            broken += 1
            rows.append(Row(what=name, budget="", measured=f"broke: {type(error).__name__}: {error}"))
        print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    text = f"{table(rows)}\n\n{tally(rows)} {beside}"
    print(text)
    if args.write:
        took_min = (time.monotonic() - began) / 60
        head = (
            "# Benchmarks\n\nBudgets are goals; each was measured in one run with the thing beside it. Absolute\n"
            "figures belong to the machine, ratios travel. Made by `make bench ARGS=--write`.\n\n"
            f"{datetime.now(UTC):%Y-%m-%d}, {machine()}, {took_min:.0f} minutes.\n\n"
        )
        PAGE.write_text(f"{head}{text}" + (f"\n\n{args.note}\n" if args.note else "\n"))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
