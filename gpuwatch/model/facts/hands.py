"""What the node's own hands say: what they may do, the nonce for the next order, and what became of the last ones."""

from __future__ import annotations

import msgspec

from gpuwatch.model.order import Answer


class HandsFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """As `gpuwatch-hands` wrote it down last."""

    boot_id: str
    nonce: str  # empty: no order is taken now, see `refuses`
    nonce_expires_monotonic_ns: int  # on the node's monotonic clock
    told_monotonic_ns: int  # on the same clock: when this was written
    units: tuple[str, ...] = ()  # services that may be restarted
    may_reset_gpu: bool = False
    may_reboot: bool = False
    keys: tuple[str, ...] = ()  # public keys whose orders are taken
    refuses: str = ""  # why every order is refused now, e.g. the HOLD file
    answers: tuple[Answer, ...] = ()  # oldest first
    held: str = ""  # of `refuses`: a person put the HOLD file there, so nothing at all is done to this node


FACTS = HandsFacts
