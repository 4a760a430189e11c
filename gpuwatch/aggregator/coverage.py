"""How much of the fleet we see: what there should be by the settings, and what reports or is known to be ill.

A node whose silence is an open incident, a replacement under way, or an absence that somebody wanted is not missing
from sight: it has an alert of its own, or needs none. What is left is what we are blind for.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gpuwatch.aggregator.expected import expected_gpus
from gpuwatch.aggregator.fleet import Fleet
from gpuwatch.aggregator.scene import Scene
from gpuwatch.aggregator.settings import Settings
from gpuwatch.model.facts.kernel_log import KernelLogFacts
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView

FRESH_INTERVALS = 4.0
FRESH_S = 30.0  # at least: a report may be late


class Coverage(msgspec.Struct):
    """One pool."""

    node_count: int = 0
    seen_node_count: int = 0
    gpu_count: int = 0  # of the nodes whose number of GPUs is set, or known by their type; 0: of none
    seen_gpu_count: int = 0
    deaf_node_count: int = 0  # that report, and cannot read their kernel's log


def coverage(
    settings: Settings,
    fleet: Fleet,
    scene: Scene,
    explained: Mapping[str, object],
    busy: set[str],
    now_monotonic_ns: int,
) -> dict[str, Coverage]:
    """By pool. `explained`: machine -> its open incident. `busy`: slots with an action under way."""
    fresh_ns = max(FRESH_S, FRESH_INTERVALS * fleet.interval_s()) * 1e9
    pools: dict[str, Coverage] = {}
    for slot in set(settings.places) | {record.slot for record in fleet.machines()}:
        record = fleet.current(slot)
        pool = settings.place(slot).pool
        found = pools.setdefault(pool, Coverage())
        gpus = expected_gpus(settings.pools[pool]) or 0
        found.node_count += 1
        found.gpu_count += gpus
        seen = slot in busy
        if record is not None and not seen:
            heard = record.heard is not None and now_monotonic_ns - record.heard.last.monotonic_ns < fresh_ns
            found.deaf_node_count += heard and _is_deaf(scene.views.get(record.machine))
            seen = heard or record.machine in explained or scene.health(record.machine) == Health.ABSENT
        if seen:
            found.seen_node_count += 1
            found.seen_gpu_count += gpus
    return pools


def _is_deaf(view: NodeView | None) -> bool:
    if view is None:
        return False
    log, source = view.facts.get(KernelLogFacts), view.sources.get("kernel_log")
    if log is None:  # not watched, not told yet, or not to be read
        return source is not None and source.status in ("failed", "hung")
    return not log.readable
