"""LEDGER -> MONEY. Pure: every billed node-second in exactly one category, priced exactly.

In: ledger lines, bill rows, a price source, and the moment as of which. Out: intervals, sums, a `CostReport`.
What the words mean: `docs/money.md`.

    history lives bills ........ lines in one order; billed time, machine by machine
    attempts executions lost ... what a run did, what of it was kept
    recovery timeline faults ... its time second by second, and which fault made it so
    condition node_time quota .. one machine's time, first match wins; spare or idle
    intervals .................. all of it together: `partition`, `account`
    pricing loose waste ........ exact money by any key; rounding only in `rounding`
    goodput repair_times ....... ratios and times; formulas of the literature in `formulas`
    report figures confess ..... the report, its figures, and what it does not know
"""
