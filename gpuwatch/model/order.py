"""ORDER. One thing that a node's hands shall do, and the exact bytes that are signed for it.

The signature is Ed25519 over `signed_bytes`. What an order is bound to: one machine, one boot of it, one action, and a
nonce that this node gave out and takes back once. Its expiry is a moment of the node's own monotonic clock, as its
hands told it: no step of any wall clock makes an old order young.
"""

from __future__ import annotations

from typing import Literal

import msgspec

OrderKind = Literal["restart_service", "reset_gpu", "reboot"]
AnswerState = Literal["refused", "begun", "done", "failed", "unknown"]

DOMAIN = "gpuwatch-order-1"  # no signature for anything else is one for an order
MAX_ORDER_BYTES = 4096


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, for whom, and until when."""

    machine: str
    boot_id: str
    action_id: str
    kind: OrderKind
    target: str  # restart_service: a unit; reset_gpu: UUID or PCI address; reboot: empty
    nonce: str
    expires_monotonic_ns: int  # on the node's monotonic clock of that boot
    because: str = ""  # for whoever reads the node's log

    def signed_bytes(self) -> bytes:
        """The canonical form: each field as UTF-8 behind its length (4 bytes, big-endian), in the order below."""
        fields = (
            DOMAIN,
            self.machine,
            self.boot_id,
            self.action_id,
            self.kind,
            self.target,
            self.nonce,
            str(self.expires_monotonic_ns),
            self.because,
        )
        encoded = [field.encode() for field in fields]
        return b"".join(len(field).to_bytes(4, "big") + field for field in encoded)


class SignedOrder(msgspec.Struct, frozen=True, kw_only=True):
    """As it travels, as JSON in the reply to a report."""

    order: Order
    key: str  # whose signature: the public key, 64 hex digits
    signature: str  # 128 hex digits


class Answer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What became of one order."""

    action_id: str
    kind: str
    target: str
    state: AnswerState
    reason: str  # refused, failed and unknown: why; done: what was seen
    at_unix_ns: int


def as_text(signed: SignedOrder) -> str:
    """The order as one line of JSON."""
    return msgspec.json.encode(signed).decode()


def from_text(text: bytes | str) -> SignedOrder | None:
    """The order that this text is; None: it is none."""
    if len(text) > MAX_ORDER_BYTES:
        return None
    try:
        return msgspec.json.decode(text, type=SignedOrder)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
