"""The cloud says that the machine does not run: stopped, failed, being released, or not in its list any more.

A second path: the cloud's control plane does not go over the node's own network. Alone it condemns nobody whose agent
still speaks. Gone is not dead: a machine that was scaled in, evicted, stopped or powered down is absent, and only an
unexplained absence may ever lead to a replacement. How old the word may be is the pool's policy (`witness_fresh_s`).
"""

from __future__ import annotations

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health, Lifecycle
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing to set here: see `witness_fresh_s` of the pool's policy."""


EXPLAINED = frozenset({"scaled_in", "evicted", "stopped", "powered_down", "surplus"})


def examine(view: NodeView, now: Moment, settings: Settings) -> Evidence | None:  # noqa: ARG001
    """`unknown`, `starting` and `running` say nothing against the machine."""
    says = view.cloud
    if says is None or says.state not in ("stopped", "failed", "gone", "releasing"):
        return None
    if says.state == "stopped" and view.lifecycle is Lifecycle.REPAIRING:
        return None  # it goes down and comes back: we ordered it
    absent = says.state in ("gone", "releasing") or says.absent_because in EXPLAINED
    why = says.absent_because or ("unexplained" if absent else "")
    told = "; ".join(word for word in (why.replace("_", " "), says.because) if word)
    return Evidence(
        rule="machine_gone",
        subject=Subject("machine", view.machine),
        argues_for=Health.ABSENT if absent else Health.DEAD,
        because=f"the cloud says that the machine is {says.state}" + (f" ({told})" if told else ""),
        path="cloud",
        action="drain_replace",
        cause=f"absent_{why}" if absent else "",
    )


RULE = Rule(
    settings=Settings,
    examine=examine,
    on="tick",
    matters="a machine that does not run holds up every other node of its run",
    source="the provider's own state of the machine",
)
