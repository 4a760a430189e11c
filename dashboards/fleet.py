"""All nodes: what is sick, what is being done about it, what it costs."""

from __future__ import annotations

from dashboards.parts import (
    CLUSTER,
    COLORS,
    POOL,
    Json,
    bars,
    colored,
    dashboard,
    health_column,
    link,
    named,
    over_time,
    query,
    stat,
    table,
    zero_if_alive,
)
from dashboards.shown import POOLS, book, paid, stalled_runs, waiting, wasted

HELD = POOL + ',reason!="in_progress"'  # what is acted on already is shown as that
TO_NODE = "/d/gpuwatch-node?${datasource:queryparam}&${cluster:queryparam}&${__url_time_range}&var-node="
YES_NO: Json = {
    "type": "value",
    "options": {"0": {"text": "no", "color": "green", "index": 0}, "1": {"text": "YES", "color": "red", "index": 1}},
}


def _answers() -> list[tuple[int, Json]]:
    """The first line: sick, being done, cost."""
    sick = f'sum(gpuwatch_nodes{{{POOL},health=~"degraded|driver_failed|dead"}})'
    unsure = f'sum(gpuwatch_nodes{{{POOL},health=~"suspect|unknown|absent"}})'
    return [
        (
            3,
            stat(
                "Sick nodes",
                "Dead, driver failed or degraded." + book("GpuwatchNodeDead"),
                query(zero_if_alive(sick)),
                steps=[(1, "red")],
            ),
        ),
        (
            3,
            stat(
                "Not known",
                "Suspect, unknown or absent: not called healthy, and not called sick.",
                query(zero_if_alive(unsure)),
                steps=[(1, "yellow")],
            ),
        ),
        (2, stalled_runs()),
        (
            2,
            stat(
                "Being acted on",
                "Actions that were begun and are not over.",
                query(zero_if_alive(f"sum(gpuwatch_actions_under_way{{{POOL}}})")),
                steps=[(1, "blue")],
            ),
        ),
        (
            2,
            stat(
                "Held",
                "Sick nodes and runs that wait, each for a reason: see below.",
                query(zero_if_alive(f"sum(gpuwatch_holds{{{HELD}}})")),
                steps=[(1, "yellow")],
            ),
        ),
        (3, waiting()),
        (3, paid()),
        (3, wasted()),
        (
            3,
            stat(
                "Incidents so far",
                "The price of all incidents since the ledger began.",
                query(f"sum(gpuwatch_incident_cost_dollars{{{CLUSTER}}})"),
                unit="currencyUSD",
            ),
        ),
    ]


def fleet() -> Json:
    """All nodes."""
    to_node = link("this node", TO_NODE + "${__value.raw}")
    sick = table(
        "Sick or not known",
        "Each node that is not healthy, and what is being done with it. The slot leads to the node.",
        f'max by (slot, pool, machine, health, lifecycle) (gpuwatch_node_state{{{POOL},health!~"healthy|joining"}})',
        empty="no node is sick, or no aggregator was scraped: see `Aggregator`",
        columns=("slot", "health", "lifecycle", "pool", "machine"),
        overrides=[health_column(), named("slot", links=[to_node])],
    )
    health = over_time(
        "Nodes by health",
        "Absence of evidence is never healthy.",
        query(f"sum by (health) (gpuwatch_nodes{{{POOL}}})", "{{health}}"),
        stacked=True,
        decimals=0,
        overrides=colored(COLORS),
    )
    under_way = bars(
        "Under way",
        "Actions that were begun, by kind." + book("GpuwatchActionStuck"),
        query(f"sum by (kind) (gpuwatch_actions_under_way{{{POOL}}})", "{{kind}}"),
        empty="nothing is under way",
        steps=[],
    )
    holds = bars(
        "Held, and why",
        "Sick nodes and runs that nothing is done with, by reason. The page names them.",
        query(f"sum by (reason) (gpuwatch_holds{{{HELD}}})", "{{reason}}"),
        empty="nothing is held",
        links=[link("who is held", "${page}")],
    )
    ended = table(
        "Ended in the last week",
        "What was done, and how it ended.",
        f"sum by (kind, outcome) (gpuwatch_actions_ended_last_week{{{POOL}}})",
        empty="no action ended in the last week",
        columns=("kind", "outcome"),
        value="actions",
    )
    coverage = over_time(
        "Seen, of what there should be",
        "Nodes that report, or whose silence has a known reason." + book("GpuwatchCoverageLow"),
        query(
            f"sum by (pool) (gpuwatch_pool_nodes_seen{{{POOL}}}) / sum by (pool) "
            f"(gpuwatch_pool_nodes_expected{{{POOL}}} > 0)",
            "{{pool}}",
        ),
        unit="percentunit",
        most=1,
    )
    witnesses = over_time(
        "Age of what we know",
        "The oldest report of a node, the witnesses' last good answers, the last tick." + book("GpuwatchWitnessSilent"),
        query(f"max(gpuwatch_node_report_age_seconds{{{CLUSTER}}})", "oldest report"),
        query(f"max by (witness) (gpuwatch_witness_age_seconds{{{CLUSTER}}})", "{{witness}}"),
        query(f"max(gpuwatch_tick_age_seconds{{{CLUSTER}}})", "tick"),
        unit="s",
    )
    return dashboard(
        "gpuwatch-fleet",
        "gpuwatch / Fleet",
        "What is sick, what is being done about it, what it costs.",
        [POOLS],
        [
            ("", 4, _answers()),
            ("What is sick", 8, [(12, sick), (12, health)]),
            ("What is being done", 7, [(6, under_way), (9, holds), (9, ended)]),
            ("Can this be believed", 4, _ourselves()),
            ("", 7, [(12, coverage), (12, witnesses)]),
        ],
    )


def _ourselves() -> list[tuple[int, Json]]:
    return [
        (
            4,
            stat(
                "Aggregator",
                "Its version." + book("GpuwatchAggregatorAbsent"),
                query(f"max by (version) (gpuwatch_aggregator_info{{{CLUSTER}}})", "{{version}}"),
                by_name=True,
                empty="NONE ANSWERS",
            ),
        ),
        (
            3,
            stat(
                "Agents scraped",
                "Those whose own numbers Prometheus has now. It knows them also while no aggregator answers.",
                query(f"count(gpuwatch_agent_build_info{{{CLUSTER}}})"),
                empty="no agent was scraped",
            ),
        ),
        (
            3,
            stat(
                "Doubts its own sight",
                "While it does, it acts on nothing." + book("GpuwatchBlind"),
                query(f"max(gpuwatch_blind{{{CLUSTER}}})"),
                mappings=[YES_NO],
            ),
        ),
        (
            3,
            stat(
                "Everything held",
                "A person has put the HOLD file there: nothing is done.",
                query(f"max(gpuwatch_hold_everything{{{CLUSTER}}})"),
                mappings=[YES_NO],
            ),
        ),
        (
            3,
            stat(
                "Ledger fails",
                "What is not written down is not done." + book("GpuwatchLedgerFailing"),
                query(f"max(gpuwatch_ledger_failing{{{CLUSTER}}})"),
                mappings=[YES_NO],
            ),
        ),
        (
            4,
            stat(
                "Actions stuck",
                "Their present step takes longer than it should." + book("GpuwatchActionStuck"),
                query(f"sum(gpuwatch_actions_stuck{{{CLUSTER}}})"),
                steps=[(1, "red")],
            ),
        ),
        (
            4,
            stat(
                "Reports refused",
                "In the last hour; the aggregator's log says which and why.",
                query(zero_if_alive(f"sum(increase(gpuwatch_reports_refused_total{{{CLUSTER}}}[1h]))")),
                decimals=0,
                steps=[(1, "yellow")],
            ),
        ),
    ]
