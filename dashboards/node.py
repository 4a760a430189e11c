"""One node: the aggregator's word on it, and its agent's own numbers."""

from __future__ import annotations

from dashboards.parts import (
    CLUSTER,
    COLORS,
    Json,
    colored,
    dashboard,
    health_column,
    link,
    named,
    over_time,
    query,
    stat,
    table,
    timeline,
    variable,
)
from dashboards.shown import book

# By whichever knows the node: at night perhaps only the agents answer.
EITHER = f'{{__name__=~"gpuwatch_node_state|gpuwatch_node_info",{CLUSTER}}}'


def node() -> Json:
    """One node: the aggregator's word on it, and its agent's own numbers."""
    at = f'{CLUSTER},slot="$node"'
    own = f'{CLUSTER},instance=~"$instance"'
    silent = "no agent of this node was scraped"
    usable = stat(
        "GPUs",
        "How many answer the driver, of how many are on the PCI bus." + book("GpuwatchDriverFailed"),
        query(f"min(gpuwatch_gpus_usable{{{own}}})", "answer"),
        query(f"max(gpuwatch_gpus_expected{{{own}}})", "there"),
        empty=silent,
    )
    sources = stat(
        "What the agent reads",
        "Its collectors: does each answer.",
        query(f'max by (collector) (gpuwatch_collector_status{{{own},status="ok"}})', "{{collector}}"),
        empty=silent,
        mappings=[
            {
                "type": "value",
                "options": {
                    "1": {"text": "ok", "color": "green", "index": 0},
                    "0": {"text": "does not answer", "color": "red", "index": 1},
                },
            }
        ],
    )
    state = table(
        "What gpuwatch says",
        "Its machine, how it is, what is done with it. Why: on gpuwatch's page.",
        f"max by (pool, machine, health, lifecycle) (gpuwatch_node_state{{{at}}})",
        empty="the aggregator does not know this node",
        columns=("health", "lifecycle", "pool", "machine"),
        overrides=[health_column(), named("health", links=[link("why", "${page}/api/v1/nodes/${node}")])],
    )
    xids = table(
        "GPU errors in the kernel log",
        "Xid events since the agent started. `gpuwatch decode` explains one.",
        f"sum by (xid, pci) (gpuwatch_xid_events_total{{{own}}})",
        empty="no Xid since the agent started, or no agent was scraped",
        columns=("xid", "pci"),
        value="events",
    )
    history = timeline(
        "How it was",
        "A bar for each health that the node was in.",
        query(f"max by (health) (gpuwatch_node_state{{{at}}})", "{{health}}"),
        empty="the aggregator does not know this node",
        overrides=colored(COLORS),
    )

    def gpus(title: str, says: str, name: str, unit: str, most: float | None = None) -> Json:
        asked = query(f"max by (gpu) (gpuwatch_gpu_{name}{{{own}}})", "GPU {{gpu}}")
        return over_time(title, says, asked, unit=unit, empty=silent + ", or its GPUs do not tell", most=most)

    errors = over_time(
        "Memory errors",
        "Uncorrected since the driver was loaded, and rows that were remapped for one.",
        query(
            f'sum by (gpu) (gpuwatch_gpu_ecc_volatile_errors_total{{{own},kind="uncorrected"}})',
            "GPU {{gpu}} uncorrected",
        ),
        query(f'sum by (gpu) (gpuwatch_gpu_rows_remapped_total{{{own},kind="uncorrected"}})', "GPU {{gpu}} rows"),
        empty=silent + ", or its GPUs count no memory errors",
    )
    host = over_time(
        "Host",
        "Shares of CPU, memory and root disk in use.",
        query(f"max(gpuwatch_host_cpu_ratio{{{own}}})", "CPU"),
        query(f"max(gpuwatch_host_memory_used_bytes{{{own}}} / gpuwatch_host_memory_total_bytes{{{own}}})", "memory"),
        query(f"max(gpuwatch_host_root_disk_used_ratio{{{own}}})", "root disk"),
        unit="percentunit",
        most=1,
        empty=silent,
    )
    stuck = over_time(
        "Processes that hang",
        "In uninterruptible sleep, as a wedged driver leaves them; and zombies.",
        query(f"max(gpuwatch_host_blocked_processes{{{own}}})", "blocked"),
        query(f"max(gpuwatch_host_zombie_processes{{{own}}})", "zombies"),
        empty=silent,
        decimals=0,
    )
    agent = over_time(
        "Agent",
        "Reports that wait for the aggregator: more than a few means that it cannot be reached.",
        query(f"max(gpuwatch_reports_waiting{{{own}}})", "reports waiting"),
        empty=silent,
        decimals=0,
    )
    return dashboard(
        "gpuwatch-node",
        "gpuwatch / Node",
        "One node: what gpuwatch says of it, and what its agent measures.",
        [
            variable("node", "Node", f"label_values({EITHER}, slot)", every=False),
            variable(
                "instance",
                "Agent",
                f'label_values(gpuwatch_node_info{{{CLUSTER},slot="$node"}}, instance)',
                every=False,
                hidden=True,
            ),
        ],
        [
            (
                "",
                5,
                [
                    (8, state),
                    (
                        4,
                        stat(
                            "Last report",
                            "How long ago the aggregator heard of it." + book("GpuwatchNodeDead"),
                            query(f"min(gpuwatch_node_report_age_seconds{{{at}}})"),
                            unit="s",
                            steps=[(20, "yellow"), (60, "red")],
                            empty="it never reported",
                        ),
                    ),
                    (4, usable),
                    (8, sources),
                ],
            ),
            ("", 5, [(14, history), (10, xids)]),
            (
                "GPUs",
                7,
                [
                    (
                        8,
                        gpus(
                            "Busy",
                            "Share of time in which a kernel ran. A hung GPU may show 100 %.",
                            "utilization_ratio",
                            "percentunit",
                            1,
                        ),
                    ),
                    (8, gpus("Power", "What each GPU draws.", "power_watts", "watt")),
                    (8, gpus("Temperature", "Of each GPU.", "temperature_celsius", "celsius")),
                ],
            ),
            (
                "",
                7,
                [
                    (8, gpus("Memory in use", "Of each GPU.", "memory_used_bytes", "bytes")),
                    (8, gpus("Clock", "Of the multiprocessors.", "sm_clock_hertz", "hertz")),
                    (8, errors),
                ],
            ),
            ("Host and agent", 7, [(8, host), (8, stuck), (8, agent)]),
        ],
    )
