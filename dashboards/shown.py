"""Numbers and words that more than one dashboard shows."""

from __future__ import annotations

from dashboards.parts import CLUSTER, Json, query, stat, zero_if_alive

WASTE_SAYS = "Time that is paid for and lost: hung, dead, recovery, idle and such."
UNPRICED = "no price is known yet"


def book(name: str) -> str:
    """Where a person at night reads on."""
    return f" [Run-book](${{runbooks}}/{name}.md)"


def paid() -> Json:
    """What everything costs now."""
    asked = query(f"sum(gpuwatch_burn_dollars_per_hour{{{CLUSTER}}})")
    return stat("Paid now", "What all nodes cost, an hour.", asked, unit="currencyUSD", empty=UNPRICED)


def wasted() -> Json:
    """What of it buys nothing."""
    asked = query(f"sum(gpuwatch_waste_dollars_per_hour{{{CLUSTER}}})")
    says = WASTE_SAYS + " An hour." + book("GpuwatchDollarsBurning")
    steps = [(1, "yellow")]  # how much is too much depends on the fleet: the share says it
    return stat("Wasted now", says, asked, unit="currencyUSD", steps=steps, empty=UNPRICED)


def stalled_runs() -> Json:
    """Runs that stand still."""
    asked = query(zero_if_alive(f"sum(gpuwatch_run_stalled{{{CLUSTER}}})"))
    says = "Live runs that make no progress while no sick node explains it." + book("GpuwatchRunStalled")
    return stat("Stalled runs", says, asked, steps=[(1, "red")])
