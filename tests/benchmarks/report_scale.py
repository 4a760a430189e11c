"""The cost report of a large ledger: time and memory in a child process, beside DuckDB summing the same intervals.

The budget is for a year of 1,000 nodes from daily roll-ups. Those are not built yet, so this measures what is there, a
report made from the ledger's lines each time, at a smaller size that it states.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from gpuwatch.model.ledger import (
    TICK_NS,
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    FaultClosed,
    FaultOpened,
    LedgerLine,
    LifeStarted,
    Member,
    PhaseBegan,
    PhaseEnded,
    RunClosed,
    StepEnded,
)
from tests.benchmarks.row import Row

NODES = 1_000
GANG = 125  # nodes of one run: eight runs at a time fill the cluster
SAVES = 6  # of one attempt
BEGIN_UNIX_NS = 1_764_547_200 * 10**9 // TICK_NS * TICK_NS
MINUTE_NS = 60 * 10**9
BUDGET_S, BUDGET_MB = 2.0, 200.0


def lines_of(rounds: int) -> tuple[list[LedgerLine], int]:
    """Lines of 1,000 nodes on which eight gangs train, attempt after attempt; every third ends by a fault. And now."""
    lines: list[LedgerLine] = [
        LifeStarted(
            at_unix_ns=BEGIN_UNIX_NS,
            machine=f"m{node:04d}",
            slot=f"gpu{node:04d}",
            pool="h100",
            gpu_count=8,
            provider="azure",
            region="eastus",
            sku="ND96isr_H100_v5",
        )
        for node in range(NODES)
    ]
    end_ns = BEGIN_UNIX_NS
    for gang in range(NODES // GANG):
        members = tuple(Member(machine=f"m{gang * GANG + n:04d}", gpu_thousandths=8000) for n in range(GANG))
        at_ns = BEGIN_UNIX_NS + (gang + 1) * MINUTE_NS
        step = 0
        for number in range(rounds):
            at_ns, step = _attempt(lines, f"run{gang}", number, members, at_ns, step)
        lines.append(RunClosed(at_unix_ns=at_ns, run=f"run{gang}", how="exit0"))
        end_ns = max(end_ns, at_ns + MINUTE_NS)
    return lines, end_ns


def _attempt(
    lines: list[LedgerLine], run: str, number: int, members: tuple[Member, ...], at_ns: int, step: int
) -> tuple[int, int]:
    """One attempt of some twenty hours; when the next may begin, and from which step."""
    attempt = f"{run}.{number}"
    lines.append(
        AttemptStarted(
            at_unix_ns=at_ns, run=run, attempt=attempt, members=members, world_size=8 * GANG, team=f"team-{run[-1]}"
        )
    )
    lines.append(PhaseBegan(at_unix_ns=at_ns, run=run, attempt=attempt, phase="init"))
    at_ns += 10 * MINUTE_NS
    lines.append(PhaseEnded(at_unix_ns=at_ns, run=run, attempt=attempt, phase="init", resumed_step=step))
    for _ in range(SAVES):
        for _ in range(10):
            at_ns += 20 * MINUTE_NS
            step += 200
            lines.append(StepEnded(at_unix_ns=at_ns, run=run, attempt=attempt, step=step))
        saved = step
        lines.append(PhaseBegan(at_unix_ns=at_ns, run=run, attempt=attempt, phase="checkpoint"))
        at_ns += 2 * MINUTE_NS
        lines.append(PhaseEnded(at_unix_ns=at_ns, run=run, attempt=attempt, phase="checkpoint"))
        lines.append(CheckpointSaved(at_unix_ns=at_ns, run=run, attempt=attempt, step=saved))
    failed = number % 3 == 2
    if failed:
        at_ns += 20 * MINUTE_NS
        lines.append(StepEnded(at_unix_ns=at_ns, run=run, attempt=attempt, step=step + 200))
    fault = f"xid-{attempt}" if failed else None
    if fault is not None:
        machine = members[number % GANG].machine
        opened = at_ns + 30 * 10**9
        lines.append(
            FaultOpened(
                at_unix_ns=opened,
                fault=fault,
                kind="xid_79",
                onset_unix_ns=at_ns + 10 * 10**9,
                cause="xid_79",
                because="the GPU has fallen off the bus",
                machine=machine,
                run=run,
                pool="h100",
            )
        )
    at_ns += MINUTE_NS
    ended = AttemptEnded(
        at_unix_ns=at_ns, run=run, attempt=attempt, ended="unplanned" if failed else "planned", fault=fault
    )
    lines.append(ended)
    if fault is not None:
        lines.append(FaultClosed(at_unix_ns=at_ns + 5 * MINUTE_NS, fault=fault, because="replaced"))
    return at_ns + 6 * MINUTE_NS, step


def measure(*, quick: bool = False) -> list[Row]:
    """One row."""
    rounds = 14 if quick else 60
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        ours = _child("report", str(rounds), str(directory / "intervals.csv"))
        peer = _child("duckdb", str(directory / "intervals.csv"), str(directory / "intervals.parquet"))
    same = ours["ticks"] == peer["ticks"]
    lacking = "roll-ups are not built yet: made from the ledger's lines, "
    return [
        Row(
            what="cost report from daily roll-ups, 1,000 nodes × 1 year (5 M intervals)",
            budget=f"≤ {BUDGET_S:.0f} s, ≤ {BUDGET_MB:.0f} MB",
            measured=f"{lacking}{NODES:,} nodes × {ours['days']:.0f} days ({ours['intervals']:,.0f} intervals from "
            f"{ours['lines']:,.0f} lines) take {ours['s']:.1f} s ({ours['s'] / ours['intervals'] * 1e6:.0f} µs an "
            f"interval: {ours['account_s']:.1f} s for the partition, {ours['report_s']:.1f} s for the sums) "
            f"and {ours['mb']:.0f} MB",
            beside=f"DuckDB sums the same intervals from Parquet by category in {peer['s'] * 1e3:.0f} ms, "
            f"{peer['mb']:.0f} MB" + ("" if same else "; ITS SUM IS ANOTHER"),
            met=False,
        )
    ]


def _child(*words: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks.report_scale", *words]
    done = subprocess.run(command, capture_output=True, timeout=400, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.decode()[-400:])
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _report(rounds: int, csv: Path) -> dict[str, float]:
    """What `gpuwatch cost-report` does once it has read the lines; the intervals as CSV for the peer."""
    from gpuwatch.cost.intervals import account
    from gpuwatch.cost.report import make_report
    from gpuwatch.prices.book import PriceBook

    lines, now_ns = lines_of(rounds)
    book = PriceBook.bundled(None)
    begun = time.perf_counter()
    known = account(lines, now_ns)
    split = time.perf_counter()
    report = make_report(known, book, made_unix_ns=now_ns)
    ended = time.perf_counter()
    peak_mb = _peak_mb()
    assert not report.empty_because
    ticks = 0
    with csv.open("w") as file:
        file.write("machine,category,run,start_unix_ns,end_unix_ns,gpu_thousandths\n")
        for i in known.intervals:
            row = (i.machine, i.category, i.run or "", i.start_unix_ns, i.end_unix_ns, i.gpu_thousandths)
            file.write(",".join(map(str, row)) + "\n")
            ticks += (i.end_unix_ns - i.start_unix_ns) // TICK_NS * i.gpu_thousandths
    return {
        "intervals": len(known.intervals),
        "lines": len(lines),
        "days": (now_ns - BEGIN_UNIX_NS) / 86_400e9,
        "s": ended - begun,
        "account_s": split - begun,
        "report_s": ended - split,
        "mb": peak_mb,
        "ticks": ticks,
    }


def _duckdb(csv: Path, parquet: Path) -> dict[str, float]:
    """The same sums by the peer, from Parquet, in a process that did not make the file."""
    import duckdb

    if not parquet.exists():
        duckdb.execute(f"COPY (SELECT * FROM read_csv('{csv}')) TO '{parquet}' (FORMAT parquet)")
        return _child("duckdb", str(csv), str(parquet))
    begun = time.perf_counter()
    rows: Sequence[tuple[str, int]] = duckdb.execute(
        f"SELECT category, sum((end_unix_ns - start_unix_ns) // {TICK_NS} * gpu_thousandths::HUGEINT) "
        f"FROM '{parquet}' GROUP BY category"
    ).fetchall()
    return {"s": time.perf_counter() - begun, "mb": _peak_mb(), "ticks": sum(int(ticks) for _, ticks in rows)}


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    if sys.argv[1] == "report":
        print(json.dumps(_report(int(sys.argv[2]), Path(sys.argv[3]))))
    else:
        print(json.dumps(_duckdb(Path(sys.argv[2]), Path(sys.argv[3]))))
