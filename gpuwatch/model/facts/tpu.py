"""What a GCP TPU VM says of its chips."""

from __future__ import annotations

import msgspec


class TpuDevice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One device of the runtime: a chip, or one of its two cores on v2, v3 and 7x."""

    index: int
    hbm_used_bytes: int | None = None
    hbm_total_bytes: int | None = None
    duty_cycle_ratio: float | None = None  # share of time in which the tensor core worked; by chip


class TpuFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Chips on the bus, and what the runtime says while a program has them."""

    kind: str | None = None  # v4, v5e, v5p, v6e, 7x
    chip_count: int | None = None
    devices: tuple[TpuDevice, ...] | None = None  # None: no runtime answers, which is so whenever no program runs


FACTS = TpuFacts
