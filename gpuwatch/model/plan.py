"""PLAN. A value: what should be done and what is held, each with its because. Nothing has happened yet."""

from __future__ import annotations

from typing import Literal

import msgspec

ActionKind = Literal["drain", "replace", "reimage", "repair", "restart_job", "resume", "ask_approval"]


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do. The same `action_id` twice is the same thing, and is done once."""

    action_id: str
    kind: ActionKind
    slot: str
    machine: str
    pool: str
    because: str
    fault: str  # fault id
    takes_out: bool  # counts against the budget: the node was in service
    run: str = ""  # restart_job: whose attempt
    attempt: str = ""
    cause: str = ""  # see Evidence.cause_key: the attempt caps count by machine and cause
    order: str = ""  # repair: what the node's hands are told to do (OrderKind)
    target: str = ""  # of the order


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """One thing not done, and why: the commonest question at three in the morning."""

    slot: str
    machine: str
    pool: str
    reason: str  # observe | recommend | approval | budget | domain | shared_cause | blind | cool_down | …
    because: str
    fault: str = ""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Actions and holds of one tick. Every sick node is in exactly one of them."""

    at_unix_ns: int
    actions: tuple[Action, ...] = ()
    holds: tuple[Hold, ...] = ()


class Objection(msgspec.Struct, frozen=True, kw_only=True):
    """The inspector refuses an action."""

    action_id: str
    because: str


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What the planner must remember of the past: one action that was begun."""

    action_id: str
    kind: str
    slot: str
    machine: str
    cause: str
    fault: str
    started_unix_ns: int
    started_monotonic_ns: int | None  # None: before the aggregator's last start
    ended: bool
    outcome: str = ""  # done | failed | cancelled; empty while open
    order: str = ""  # repair: see Action; empty where it failed before the node's hands saw an order


class PlanMemory(msgspec.Struct, frozen=True, kw_only=True):
    """State that survives a restart and limits the next plan."""

    actions: tuple[Done, ...] = ()
    approved: tuple[str, ...] = ()  # action ids that a person approved and that have not expired
    faults: dict[str, str] = {}  # machine (or `run:<id>`) -> open fault id
    human_holds: dict[str, str] = {}  # slot -> who wants hands off, and why
    hold_everything: str = ""  # the HOLD file: no new harm
    granted: frozenset[str] = frozenset()  # slots that a check on the node may be taking out right now
