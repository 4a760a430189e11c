"""What sysfs says of the RDMA network: InfiniBand, RoCE and EFA ports."""

from __future__ import annotations

import msgspec


class RdmaPort(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One port. A port that was here and is gone keeps its name, with `gone`."""

    device: str  # `mlx5_0`, `rdmap16s27`
    port: int
    pci: str | None = None
    link_layer: str | None = None  # infiniband | ethernet | unspecified (EFA)
    state: str | None = None  # down | init | armed | active
    phys_state: str | None = None  # linkup | disabled | polling | ...
    rate_gbps: float | None = None
    best_rate_gbps: float | None = None  # the highest that was ever seen on this port
    lid: int | None = None
    netdev: str | None = None
    board: str | None = None  # the maker's name of the card: ports of the same board are siblings
    virtual: bool = False  # a virtual function, or a port without a GUID: not the node's own
    expected: bool = False  # must be active: the settings say so, or it was active before
    configured: bool = False  # the settings say so
    gone: bool = False  # expected, and not in sysfs any more
    not_active_since_unix_ns: int | None = None  # when it was first seen so; None: it is active
    flap_count: int = 0  # losses of the link within `flap_window_s`
    counters: dict[str, int] = {}  # since the driver was loaded
    rises: dict[str, int] = {}  # by how much error counters rose within `rise_window_s`
    hung: str = ""  # its device does not answer: why, in words


class InfinibandFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All ports of the node."""

    ports: tuple[RdmaPort, ...] = ()
    flap_window_s: float = 3600.0
    rise_window_s: float = 3600.0


FACTS = InfinibandFacts
