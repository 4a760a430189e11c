"""Training: which run makes progress, which does not."""

from __future__ import annotations

from dashboards.parts import (
    CLUSTER,
    Json,
    dashboard,
    link,
    named,
    over_time,
    query,
    stat,
    table,
    timeline,
    variable,
    zero_if_alive,
)
from dashboards.shown import UNPRICED, book, stalled_runs, wasted


def runs() -> Json:
    """Training."""
    at = f'{CLUSTER},run=~"$run"'
    none = "no live run is known"
    live = table(
        "Live runs",
        "How long each has made no progress.",
        f"max by (run) (gpuwatch_run_progress_age_seconds{{{at}}})",
        empty=none,
        columns=("run",),
        value="without progress",
        unit="s",
        overrides=[named("run", links=[link("gpuwatch's page", "${page}")])],
    )
    stalled = timeline(
        "Stalled",
        "Red while a run makes no progress and no sick node explains it." + book("GpuwatchRunStalled"),
        query(f"max by (run) (gpuwatch_run_stalled{{{at}}})", "{{run}}"),
        empty=none,
        mappings=[
            {
                "type": "value",
                "options": {
                    "0": {"text": "moves", "color": "green", "index": 0},
                    "1": {"text": "stalled", "color": "red", "index": 1},
                },
            }
        ],
    )
    age = over_time(
        "Without progress",
        "A sawtooth as high as a step is long; what grows and grows is stuck.",
        query(f"max by (run) (gpuwatch_run_progress_age_seconds{{{at}}})", "{{run}}"),
        unit="s",
        empty=none,
    )
    behind = over_time(
        "Nodes furthest behind",
        "The ten nodes whose slowest rank ended its last step the longest ago.",
        query(
            f"topk(10, time() - gpuwatch_training_last_step_timestamp_seconds{{{CLUSTER}}} * on (cluster, instance) "
            f"group_left (slot) topk by (cluster, instance) (1, gpuwatch_node_info{{{CLUSTER}}}))",
            "{{slot}}",
        ),
        unit="s",
        empty="no agent that was scraped sees a rank that trains",
    )
    ranks = over_time(
        "Ranks",
        "With a heartbeat file on a node, by whether their process lives.",
        query(f"sum by (alive) (gpuwatch_training_ranks{{{CLUSTER}}})", "alive: {{alive}}"),
        empty="no agent was scraped",
        decimals=0,
    )
    burn = over_time(
        "What the nodes' time is",
        "Dollars an hour, by what the time was.",
        query(f"sum by (category) (gpuwatch_burn_dollars_per_hour{{{CLUSTER}}})", "{{category}}"),
        unit="currencyUSD",
        stacked=True,
        empty=UNPRICED,
    )
    useful = stat(
        "Productive",
        "Share of what is paid now that trains.",
        query(
            f'sum(gpuwatch_burn_dollars_per_hour{{{CLUSTER},category="productive"}}) '
            f"/ (sum(gpuwatch_burn_dollars_per_hour{{{CLUSTER}}}) > 0)"
        ),
        unit="percentunit",
        decimals=0,
        empty="nothing is paid for now, or no price is known",
        most=1,
    )
    count = stat(
        "Live runs", "Runs that gpuwatch hears of.", query(zero_if_alive(f"count(gpuwatch_run_stalled{{{at}}})"))
    )
    return dashboard(
        "gpuwatch-runs",
        "gpuwatch / Runs",
        "Which training makes progress, which does not, and what that costs.",
        [variable("run", "Run", f"label_values(gpuwatch_run_progress_age_seconds{{{CLUSTER}}}, run)")],
        [
            (
                "",
                4,
                [
                    (6, count),
                    (6, stalled_runs()),
                    (6, useful),
                    (6, wasted(CLUSTER)),
                ],
            ),
            ("Progress", 8, [(8, live), (8, stalled), (8, age)]),
            ("Ranks", 8, [(12, behind), (12, ranks)]),
            ("Money", 8, [(24, burn)]),
        ],
    )
