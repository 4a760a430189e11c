"""Numbers and words that more than one dashboard shows."""

from __future__ import annotations

from dashboards.parts import CLUSTER, POOL, Json, query, stat, variable, zero_if_alive

WASTE_SAYS = "Time that is paid for and lost: hung, dead, recovery, idle and such."
UNPRICED = "no price is known yet"
WASTE = 'category=~"slow|lost_work|hung|recovery|idle|unused_commitment|dead|draining|quarantine"'  # loss, unusable
BURN = f"gpuwatch_burn_dollars_per_hour{{{POOL}}}"
POOLS = variable("pool", "Pool", f"label_values(gpuwatch_node_state{{{CLUSTER}}}, pool)")


def book(name: str) -> str:
    """Where a person at night reads on."""
    return f" [Run-book](${{runbooks}}/{name}.md)"


def waste_of(where: str) -> str:
    """Dollars an hour that buy nothing; 0 while something is paid for and nothing is wasted. `where`: whose."""
    burn = "gpuwatch_burn_dollars_per_hour"
    return f"sum({burn}{{{where},{WASTE}}}) or 0 * sum({burn}{{{where}}})"


def paid() -> Json:
    """What everything costs now."""
    asked = query(f"sum({BURN})")
    return stat("Paid now", "What all nodes cost, an hour.", asked, unit="currencyUSD", empty=UNPRICED)


def wasted(where: str = POOL) -> Json:
    """What of it buys nothing."""
    asked = query(waste_of(where))
    says = WASTE_SAYS + " An hour." + book("GpuwatchDollarsBurning")
    steps = [(1, "yellow")]  # how much is too much depends on the fleet: the share says it
    return stat("Wasted now", says, asked, unit="currencyUSD", steps=steps, empty=UNPRICED)


def waiting() -> Json:
    """What goes on only when somebody acts."""
    asked = query(zero_if_alive(f"sum(gpuwatch_waiting_for_person{{{POOL}}})"))
    says = "Nodes and runs that wait until a person acts; the alert has the command." + book("GpuwatchPersonNeeded")
    return stat("Wait for you", says, asked, steps=[(1, "red")])


def stalled_runs() -> Json:
    """Runs that stand still."""
    asked = query(zero_if_alive(f"sum(gpuwatch_run_stalled{{{CLUSTER}}})"))
    says = "Live runs that make no progress while no sick node explains it." + book("GpuwatchRunStalled")
    return stat("Stalled runs", says, asked, steps=[(1, "red")])
