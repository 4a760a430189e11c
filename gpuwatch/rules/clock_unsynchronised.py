"""No time service keeps this node's clock, or it is off.

The kernel knows: a time service tells it that the clock is kept, and forgets to after a while without a server
(adjtimex(2), STA_UNSYNC). A clock that drifts makes logs lie about what came first, tokens expire, and distributed file
systems refuse. Told, never judged, and not in the first `after_boot_s`, while the time service still looks for one.
"""

from __future__ import annotations

import msgspec

from gpuwatch.model.evidence import Evidence, Subject
from gpuwatch.model.facts.host import HostFacts
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Health
from gpuwatch.model.view import NodeView
from gpuwatch.rules import Rule


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From which offset on, and how long after the boot."""

    offset_s: float = 0.5
    after_boot_s: float = 900.0


def examine(view: NodeView, now: Moment, settings: Settings) -> Evidence | None:  # noqa: ARG001
    """Silent where the agent cannot know."""
    facts = view.facts.get(HostFacts)
    if facts is None or facts.clock_synchronised is None or (facts.uptime_s or 0.0) < settings.after_boot_s:
        return None
    offset_s = facts.clock_offset_s or 0.0
    if not facts.clock_synchronised:
        words = "no time service keeps the clock of this node"
    elif abs(offset_s) >= settings.offset_s:
        words = f"the clock of this node is {offset_s:+.1f} s off, and its time service still corrects that"
    else:
        return None
    return Evidence(
        rule="clock_unsynchronised",
        subject=Subject("machine", view.machine),
        argues_for=Health.SUSPECT,
        because=words,
        software=True,
        note=True,
    )


RULE = Rule(
    settings=Settings,
    examine=examine,
    watches=(HostFacts,),
    matters="logs lie about what came first, and tokens and certificates are refused",
    source="adjtimex(2)",
)
