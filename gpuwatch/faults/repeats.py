"""Which events of a node stand, and how often one fault occurred. For the rules that judge them."""

from __future__ import annotations

from collections.abc import Iterable

from gpuwatch.model.facts.kernel_log import KernelEvent

TAKES_BACK = {162: 163}  # good news that takes back one Xid only


def standing(events: Iterable[KernelEvent], boot: str | None) -> list[KernelEvent]:
    """Events of this boot that no later good news of the same GPU takes back."""
    mine = [e for e in events if not (e.boot_id and boot and e.boot_id != boot)]
    if not any(event.clears for event in mine):
        return mine
    order = sorted(range(len(mine)), key=lambda index: (mine[index].at_unix_ns, index))
    left: list[KernelEvent] = []
    for index in order:
        event = mine[index]
        if not event.clears:
            left.append(event)
            continue
        only = TAKES_BACK.get(event.xid or 0)
        left = [e for e in left if e.pci != event.pci or (only is not None and e.xid != only)]
    return left


def occurrences(found: list[KernelEvent], *, window_s: float, burst_s: float, by_process: bool = True) -> int:
    """The most occurrences within one window; the window is measured by the node's own stamps alone.

    Events less than `burst_s` apart are one occurrence. `by_process`: those of one process are one, of another process
    another, however close.
    """
    starts: list[int] = []
    seen: set[int] = set()
    quiet_until_ns: int | None = None
    for event in sorted(found, key=lambda e: e.at_unix_ns):
        if by_process and event.pid is not None:
            if event.pid in seen:
                continue
            seen.add(event.pid)
        elif quiet_until_ns is not None and event.at_unix_ns < quiet_until_ns:
            quiet_until_ns = event.at_unix_ns + int(burst_s * 1e9)
            continue
        else:
            quiet_until_ns = event.at_unix_ns + int(burst_s * 1e9)
        starts.append(event.at_unix_ns)
    window_ns = int(window_s * 1e9)
    return max((sum(1 for other in starts if start <= other <= start + window_ns) for start in starts), default=0)
