"""When what a cloud has announced begins, a window of maintenance is written to the ledger.

In it, time in which the node is away or without a run is the cloud's, not a fault's. It is written when it begins and
not when it is announced: what is called off leaves no trace. A window ends after the announced duration, and goes on as
long as the machine speaks and still says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuwatch.model.evidence import Evidence, Finding
from gpuwatch.model.facts.maintenance import MaintenanceFacts
from gpuwatch.model.ledger import Maintenance
from gpuwatch.model.moment import Moment
from gpuwatch.model.policy import Policy
from gpuwatch.model.view import NodeView

AT_LEAST_S = 900.0  # from the stop of a training process to the machine's next report, where Azure says 9 s
AT_MOST_S = 6 * 3600.0  # a longer one is not believed at once


class MaintenanceWindows:
    """Until when each machine's window is written."""

    def __init__(self) -> None:
        self._until_ns: dict[str, int] = {}  # machine -> monotonic

    def begun(
        self,
        views: Mapping[str, NodeView],
        findings: Mapping[str, tuple[Finding, ...]],
        policies: Mapping[str, Policy],
        now: Moment,
    ) -> list[Maintenance]:
        """A line for each window that begins now, or goes on."""
        lines: list[Maintenance] = []
        for machine, found in findings.items():
            due = [e.due_monotonic_ns for e in found if isinstance(e, Evidence) and e.due_monotonic_ns is not None]
            if not due or min(due) > now.monotonic_ns or self._until_ns.get(machine, 0) > now.monotonic_ns:
                continue
            view = views.get(machine)
            if view is None or (machine in self._until_ns and not _speaks(view, policies, now)):
                continue
            facts = view.facts.get(MaintenanceFacts)
            durations = [notice.duration_s or 0.0 for notice in facts.notices] if facts is not None else []
            length_ns = int(min(max([AT_LEAST_S, *durations]), AT_MOST_S) * 1e9)
            self._until_ns[machine] = now.monotonic_ns + length_ns
            lines.append(
                Maintenance(
                    at_unix_ns=now.unix_ns,
                    machine=machine,
                    begin_unix_ns=now.unix_ns,
                    end_unix_ns=now.unix_ns + length_ns,
                )
            )
        if len(self._until_ns) > 2 * len(views) + 16:
            self._until_ns = {machine: at_ns for machine, at_ns in self._until_ns.items() if machine in views}
        return lines


def _speaks(view: NodeView, policies: Mapping[str, Policy], now: Moment) -> bool:
    policy = policies.get(view.pool, Policy())
    return not view.is_silent(now.monotonic_ns, policy.silent_after_intervals)
