"""The last look at a cloud group before a machine is made or reimaged: is it still ours, and does it want one more?"""

from __future__ import annotations

from gpuwatch.aggregator.reach import Hands

_COUNTED = frozenset({"running", "starting", "unknown"})


def group_refusal(hands: Hands) -> str:
    """Why the action's group may not be changed now, by the cloud's last answer; empty: nothing against it."""
    saga, witness = hands.saga, hands.reach.cloud_witness
    last = None if witness is None else witness.last()
    if last is None:
        return ""
    group = next((item for item in last.answer.groups if item.name == saga.group), None)
    if group is None:
        return ""
    if group.owner != "gpuwatch":
        return f"group {group.name} belongs to {group.owner or 'an unknown controller'} now"
    if group.refuses:
        return f"group {group.name} refuses now: {', '.join(group.refuses)}"
    if saga.action.kind == "reimage":
        return ""
    others = {m.machine for m in last.answer.machines if m.group == group.name and m.state in _COUNTED}
    others.discard(saga.action.machine)
    if group.target_count is not None and len(others) >= group.target_count:
        return f"group {group.name} wants {group.target_count} machines now and has them without it"
    return ""
