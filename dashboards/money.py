"""What is paid for, and what for."""

from __future__ import annotations

from dashboards.parts import CLUSTER, POOL, Json, bars, dashboard, over_time, query, stat, table
from dashboards.shown import BURN, POOLS, UNPRICED, WASTE, WASTE_SAYS, book, paid, waste_of, wasted


def money() -> Json:
    """What is paid for, and what for."""
    now = bars(
        "Paid now, by what it is",
        "Dollars an hour, the dearest first.",
        query(f"sort_desc(sum by (category) (gpuwatch_burn_dollars_per_hour{{{POOL}}}))", "{{category}}", instant=True),
        unit="currencyUSD",
        empty=UNPRICED,
    )
    over = over_time(
        "Paid an hour",
        "By category; the colours above the productive one are what else the money bought.",
        query(f"sum by (category) (gpuwatch_burn_dollars_per_hour{{{POOL}}})", "{{category}}"),
        unit="currencyUSD",
        stacked=True,
        empty=UNPRICED,
    )
    total = table(
        "Paid since the ledger began",
        "By category. `gpuwatch cost-report` has nodes, runs, teams and bills.",
        f"sum by (category) (gpuwatch_cost_dollars{{{POOL}}})",
        empty=UNPRICED,
        columns=("category",),
        value="paid",
        unit="currencyUSD",
    )
    period = table(
        "Paid in the time shown",
        "About: from scrapes. Less than zero: time that turned out to be something else, such as work that was lost.",
        f"sum by (category) (delta(gpuwatch_cost_dollars{{{POOL}}}[$__range]))",
        empty=UNPRICED,
        columns=("category",),
        value="paid",
        unit="currencyUSD",
    )
    waste = over_time(
        "Wasted an hour",
        WASTE_SAYS + book("GpuwatchDollarsBurning"),
        query(f"sum by (category) (gpuwatch_burn_dollars_per_hour{{{POOL},{WASTE}}})", "{{category}}"),
        unit="currencyUSD",
        stacked=True,
        empty="nothing is wasted, or no price is known",
    )
    incidents = over_time(
        "Price of all incidents",
        "Since the ledger began.",
        query(f"sum(gpuwatch_incident_cost_dollars{{{CLUSTER}}})", "incidents"),
        unit="currencyUSD",
    )
    share = stat(
        "Wasted share",
        "Of what is paid now.",
        query(f"({waste_of(POOL)}) / (sum({BURN}) > 0)"),
        unit="percentunit",
        decimals=0,
        most=1,
        steps=[(0.1, "yellow"), (0.25, "red")],
        empty="nothing is paid for now",
    )
    return dashboard(
        "gpuwatch-money",
        "gpuwatch / Money",
        "What is paid for, what of it is wasted, and what incidents have cost. List prices until bills are read.",
        [POOLS],
        [
            (
                "",
                4,
                [
                    (6, paid()),
                    (6, wasted()),
                    (6, share),
                    (
                        6,
                        stat(
                            "Paid since the ledger began",
                            "All categories together: what was paid for.",
                            query(f"sum(gpuwatch_cost_dollars{{{POOL}}})"),
                            unit="currencyUSD",
                            empty=UNPRICED,
                        ),
                    ),
                ],
            ),
            ("Now", 9, [(10, now), (14, over)]),
            ("Waste", 8, [(14, waste), (10, incidents)]),
            ("Sums", 10, [(12, total), (12, period)]),
        ],
    )
