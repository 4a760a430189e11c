"""The token with which one machine may speak, and only for itself.

`hex(HMAC-SHA256(cluster secret, machine id))`: the aggregator needs no list of tokens, and a token that leaks speaks
for one machine only. Whoever starts a machine and holds the secret can give it its token.
"""

from __future__ import annotations

import hashlib
import hmac


def machine_token(secret: bytes, machine: str) -> str:
    """64 hex digits."""
    return hmac.new(secret, machine.encode(), hashlib.sha256).hexdigest()
