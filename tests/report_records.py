"""Records that every report format is tried with: long names, unknown amounts, nothing at all."""

from __future__ import annotations

from decimal import Decimal

from gpuwatch.model.job_report import GpuPrice, JobReport, JobRow
from gpuwatch.model.report import CostReport, Figure, PriceUsed, ReportRow

COST = CostReport(
    by=("team", "category"),
    since_unix_ns=1_638_316_800_000_000_000,
    until_unix_ns=1_638_320_400_000_000_000,
    made_unix_ns=1_638_320_400_000_000_000,
    basis="list",
    rows=(
        ReportRow(
            keys=("a team whose name is much longer than any column should be", "productive"),
            node_hours=Decimal("1234.567891234"),
            gpu_hours=Decimal("9876.5"),
            usd=Decimal("33576.54"),
            provisional_usd=Decimal("12.00"),
            share_percent=Decimal("100.3"),
        ),
        ReportRow(keys=("blue", "idle"), node_hours=Decimal(2), unpriced_node_hours=Decimal(2)),
        ReportRow(keys=("blue", "billing_roundup"), usd=Decimal("-0.02"), detail="slivers"),
    ),
    total=ReportRow(
        keys=("total",),
        node_hours=Decimal("1236.567891234"),
        usd=Decimal("33576.52"),
        provisional_usd=Decimal("12.00"),
        unpriced_node_hours=Decimal(2),
    ),
    sum_line="The categories sum to the priced time, $33,576.52: an estimate.",
    sums_to="estimate",
    figures=(Figure(name="goodput", text="61.38 % of node-time", value=0.6138, unit="ratio"),),
    prices=(
        PriceUsed(what="X", usd_per_hour=Decimal("27.197"), kind="ondemand", as_of="2026-06-18", source="a list"),
        PriceUsed(what="Y", usd_per_hour=None, node_hours=Decimal(2)),
    ),
    below={"tax": Decimal("1.00")},
    findings=("something to look at",),
)
NO_COST = CostReport(
    by=("category",), since_unix_ns=None, until_unix_ns=0, made_unix_ns=0, empty_because="Nothing. Next: begin."
)


def line(*keys: str, hours: int, usd: str | None, unpriced: int = 0, detail: str = "") -> JobRow:
    return JobRow(
        keys=keys,
        tries=1,
        gpu_seconds=hours * 3600,
        gpu_hours=Decimal(hours).quantize(Decimal("0.001")),
        usd=None if usd is None else Decimal(usd),
        unpriced_gpu_seconds=unpriced,
        share_percent=Decimal("50.0"),
        detail=detail,
    )


JOBS = JobReport(
    by=("account", "state"),
    source="sacct",
    since_unix_ns=1_793_491_200 * 10**9,
    until_unix_ns=1_793_577_600 * 10**9,
    made_unix_ns=1_793_577_600 * 10**9,
    rows=(
        line("a" * 90, "FAILED", hours=1_234_567, usd="4938268.00", detail="failed: at most this is lost"),
        line("old", "COMPLETED", hours=2, usd=None, unpriced=7200),
    ),
    total=line("total", hours=1_234_569, usd="4938268.00", unpriced=7200),
    sum_line="The lines sum.",
    idle=line("idle", hours=5, usd=None),
    said=("Failed: an UPPER BOUND.",),
    prices=(GpuPrice(what="all GPUs", usd_per_gpu_hour="4.00", kind="given", source="the command"),),
    findings=("a finding that is longer than a line " * 5,),
)
NO_JOBS = JobReport(
    by=("state",),
    source="sacct",
    since_unix_ns=None,
    until_unix_ns=None,
    made_unix_ns=0,
    empty_because="The dump has a header and no jobs.",
)
