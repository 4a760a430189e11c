"""POLICY. What may be done to a pool, as data: one record a pool, every threshold overridable in the config."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import msgspec

from gpuwatch.model.order import OrderKind

Seconds = Annotated[float, msgspec.Meta(ge=0.0)]
Ratio = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Mode(StrEnum):
    """How far gpuwatch may go by itself. Each includes the ones before it."""

    OBSERVE = "observe"
    RECOMMEND = "recommend"
    APPROVE = "approve"
    DRAIN = "drain"
    REPLACE = "replace"


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The safety envelope and the timing of one pool."""

    mode: Mode = Mode.OBSERVE
    max_nodes_out: Count = 2  # absolute budget of nodes taken out at the same time
    max_out_ratio: Ratio = 0.05  # and as a share of the pool, rounded down; see small_pool_nodes
    small_pool_nodes: Count = 20  # in a pool up to this size the ratio would round to nothing: one node may be out
    max_out_per_domain: Count = 1  # per failure domain, where nodes name one
    hold_off_s: Seconds = 120.0  # after the aggregator's start: nobody is condemned for silence
    silent_after_intervals: Annotated[float, msgspec.Meta(gt=0)] = 2.5  # two reports missed: suspect within three
    dead_after_s: Seconds = 30.0  # silence before a second witness may make it dead
    witness_fresh_s: Seconds = 60.0  # an older word of scheduler or cloud is no witness
    many_silent_ratio: Ratio = 0.34  # more of the fleet silent at once: first suspected to be us
    many_silent_nodes: Count = 3  # … but never fewer than this many nodes
    shared_cause_nodes: Annotated[int, msgspec.Meta(ge=2)] = 3  # same verdict on this many nodes …
    shared_cause_window_s: Seconds = 300.0  # … within this time is one incident of the shared thing: all are held
    spreading_window_s: Seconds = (
        3600.0  # those count too that were taken out for it so lately; 0: only who is sick now
    )
    driver_grace_s: Seconds = 60.0  # driver containers reload the module during upgrades
    reboot_grace_s: Seconds = 300.0  # a rebooting node is not dead
    join_deadline_s: Seconds = 900.0  # a new machine must report by then
    drain_deadline_s: Seconds = 600.0  # then the job action
    job_action: Literal["wait", "signal", "requeue", "cancel"] = "wait"
    empty_deadline_s: Seconds = 600.0  # after the job action; then power-off
    replace_order: Literal["grow_first", "release_first"] = "grow_first"
    software_fault: Literal["replace", "reimage"] = "replace"  # of a missing, mismatched or wedged driver
    local_repair: tuple[OrderKind, ...] = ()  # what the hands of its nodes may be told to do, before any replacement
    repair_again_s: Seconds = 86_400.0  # sick again so soon after one: not the same again, but the next rung
    order_deadline_s: Seconds = 1800.0  # until the hands have answered: for a reboot those of the next boot
    reimage_again_s: Seconds = 604_800.0  # sick again so soon after a reimage: another machine, not another reimage
    drain_before_maintenance_s: Seconds = 0.0  # so long before the cloud reboots or takes a machine; 0: it is only told
    max_attempts_per_machine: Annotated[int, msgspec.Meta(ge=1)] = 2  # per cause; then quarantine and a person
    cool_down_s: Seconds = 600.0  # between two actions on one slot
    approval_expires_s: Seconds = 3600.0
    event_expires_s: Seconds = 3600.0  # an older kernel event never causes an action
    restart_stalled_runs: bool = True  # in modes drain and replace, a stalled run is restarted by the job action
    restart_cost_s: Seconds = 600.0  # a gang's way back from a stop to its first step, to weigh a drain
    sick_hazard_per_hour: Annotated[float, msgspec.Meta(ge=0.0)] = 1.0  # a guess: how soon a sick, stepping node fails
    spare_quota: Count = 0  # free healthy nodes that are spare by intention, not idle

    def many_silent(self, silent_count: int, ought_count: int) -> bool:
        """So many silent at once that it is more likely us than them."""
        return silent_count >= self.many_silent_nodes and silent_count > self.many_silent_ratio * ought_count
