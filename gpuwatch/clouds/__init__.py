"""PLAN <-> CLOUD API. One provider per file; leaf line `CLOUD = CloudLeaf(...)`.

In: explicit machine ids and an action id. Out: receipts that say what really happened, and snapshots with their age.
The same action id twice is the same action: never two machines for one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar, cast

import msgspec

from gpuwatch.model.money import BillRow

S = TypeVar("S")

MachineState = Literal["starting", "running", "stopped", "failed", "releasing", "gone", "unknown"]


class CloudMachine(msgspec.Struct, frozen=True, kw_only=True):
    """One machine as the provider sees it. Slot and machine are apart: a slot outlives its machines."""

    machine: str
    slot: str | None
    group: str
    state: MachineState
    because: str = ""
    provider: str = ""
    region: str = ""
    sku: str = ""
    price_kind: str = "ondemand"
    gpu_count: int | None = None
    started_unix_ns: int | None = None  # billing began
    ended_unix_ns: int | None = None  # billing ended
    action_id: str = ""  # the action that created it, if it was ours
    absent_because: str = ""  # for gone: scaled_in | evicted | stopped | powered_down | surplus | unexplained


class CloudGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Who owns a group's size. If it is not `gpuwatch`, we act through the owner's door or hold."""

    name: str
    owner: str
    target_count: int | None
    refuses: tuple[str, ...] = ()
    reimages: bool = False  # its cloud is a `Reimager`, for the machines of this group


class CloudSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the provider lists. An incomplete or failed answer raises; it is never an empty list."""

    machines: tuple[CloudMachine, ...]
    groups: tuple[CloudGroup, ...]


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What one call did. `pending`: begun, ask again with the same action id."""

    action_id: str
    state: Literal["done", "pending"]
    machine: str = ""  # the machine concerned: for `create`, the new one
    because: str = ""


class Cloud(Protocol):
    """One provider account or group set."""

    def snapshot(self) -> CloudSnapshot:
        """All machines, the ended ones of the last day included. Raises `CloudError`."""

    def create(self, *, slot: str, group: str, action_id: str) -> Receipt:
        """Start one machine for this slot. The same action id again answers with the same machine."""

    def release(self, machine: str, *, action_id: str) -> Receipt:
        """End this one machine and its billing. Releasing a machine that is gone is done."""

    def bill(self) -> tuple[BillRow, ...]:
        """The provider's own billing records, newest state; empty where it offers none."""


class Reimager(Protocol):
    """What a cloud may offer beside: the same machine, on the same hardware, with a fresh system disk."""

    def reimage(self, machine: str, *, action_id: str) -> Receipt:
        """Begin it, and say when it is over; the same action id again begins no second one that is known of.

        Over means that the provider has ended it: whether the machine is well then is for its agent to say.
        """


def reimager(cloud: Cloud) -> Reimager | None:
    """The same cloud where it reimages; None where it does not."""
    return cast("Reimager", cloud) if callable(getattr(cloud, "reimage", None)) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudLeaf(Generic[S]):
    """A provider's door: its settings, and how to open it (import its SDK there, not at the top)."""

    settings: type[S]
    open: Callable[[S], Cloud]
    proven: bool = True  # False: never yet run against the real API or its SDK
