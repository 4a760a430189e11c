"""Signs orders for the hands of nodes, and holds each for the replies to its machine's reports until it is taken back.

An order is put here only by a step of an action that the planner decided. What is held here need not survive a
restart: the step that posted it is written down with the order itself, and posts the same bytes again.
"""

from __future__ import annotations

import msgspec

from gpuwatch.model.order import Order, SignedOrder, as_text
from gpuwatch.model.wire import Ack
from gpuwatch.sdk.ed25519 import Signer

_encode = msgspec.json.Encoder().encode
Replies = tuple[bytes, bytes]
"""The acknowledgement of a report that is new, and of one that was seen before."""


class OrderDesk:
    """Posted by the executor's threads, read by the server's."""

    def __init__(self, signer: Signer | None = None) -> None:
        """Without a signer nothing can be ordered."""
        self._signer = signer
        self.key = "" if signer is None else signer.public
        self.replies: dict[str, Replies] = {}  # machine -> what its reports are answered with

    def post(self, order: Order) -> None:
        """Answer this machine's reports with it from now on."""
        assert self._signer is not None, "the planner orders nothing without a key"
        signature = self._signer.sign(order.signed_bytes())
        text = as_text(SignedOrder(order=order, key=self.key, signature=signature))
        self.replies[order.machine] = (
            _encode(Ack(ok=True, order=text)),
            _encode(Ack(ok=True, repeated=True, order=text)),
        )

    def take_back(self, machine: str) -> None:
        """It was answered, or is not wanted any more."""
        self.replies.pop(machine, None)
