"""Whether an order is ours to carry out at all: who signed it, for which machine and boot, until when, what it asks.

Looks at nothing but the order, the settings and what is remembered; whether the node is free is another question.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from gpuwatch.hands.settings import HandsSettings
from gpuwatch.model.identity import pci_address
from gpuwatch.model.order import Order, SignedOrder

GPU_UUID = re.compile(r"^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
SHOWN = 60  # characters of what somebody else wrote

Verify = Callable[[str, str, bytes], bool]


def forged(signed: SignedOrder, settings: HandsSettings, verifies: Verify) -> str:
    """Why nobody who may order anything here has given this order; empty: it is genuine."""
    if not settings.public_keys:
        return "no public key is set here: nobody may order anything"
    if signed.key not in settings.public_keys:
        return f"it is signed with a key that is not known here: {signed.key[:16]!r}…"
    if not verifies(signed.key, signed.signature, signed.order.signed_bytes()):
        return "the signature is not one of this order: somebody changed it"
    return ""


def misdirected(
    order: Order, *, machines: Collection[str], boot: str, nonces: Mapping[str, int], now_monotonic_ns: int
) -> str:
    """Why a genuine order is not for here and now; empty: it is."""
    if order.machine not in machines:
        return f"it is for the machine {order.machine[:SHOWN]!r}"
    if order.boot_id != boot:
        return f"it is for the boot {order.boot_id[:SHOWN]!r}; this is {boot}"
    until = nonces.get(order.nonce)
    if until is None:
        return "its nonce was used already, has expired, or was never given out here"
    if now_monotonic_ns >= min(until, order.expires_monotonic_ns):
        return f"it has expired {(now_monotonic_ns - min(until, order.expires_monotonic_ns)) / 1e9:.0f} s ago"
    return ""


def not_allowed(order: Order, settings: HandsSettings) -> str:
    """Why this node's settings do not allow it; empty: they do."""
    if order.kind == "restart_service":
        if order.target not in settings.restart_service.units:
            return f"{order.target[:SHOWN]!r} is not among restart_service.units"
    elif order.kind == "reset_gpu":
        if not settings.reset_gpu.allowed:
            return "reset_gpu.allowed is not set"
        if not GPU_UUID.match(order.target) and pci_address(order.target) is None:
            return f"{order.target[:SHOWN]!r} is neither the UUID nor the PCI address of a GPU"
    elif order.kind == "reboot":
        if not settings.reboot.allowed:
            return "reboot.allowed is not set"
        if order.target:
            return "a reboot has no target"
    return ""
