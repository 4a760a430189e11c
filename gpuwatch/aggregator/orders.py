"""What a person may order over the API: approve, hold, clear. Each needs the operator's token and is written down."""

from __future__ import annotations

import hmac
from typing import Any

import msgspec

from gpuwatch.aggregator.fleet import Fleet
from gpuwatch.aggregator.people import People
from gpuwatch.aggregator.scene import Stage
from gpuwatch.aggregator.settings import Settings
from gpuwatch.clock import Clock
from gpuwatch.errors import GpuwatchError
from gpuwatch.model.ledger import FaultNote, HumanAct, LedgerLine, snap_ns
from gpuwatch.store.sqlite import Store

MAX_BODY_BYTES = 10_000


class OrderError(GpuwatchError):
    """An order cannot be taken. `code` is the HTTP status."""

    def __init__(self, what: str, *, code: int, why: str = "", next_step: str = "") -> None:
        super().__init__(what, why=why, next_step=next_step)
        self.code = code


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an order: who gives it, and why."""

    who: str = "operator"
    because: str = ""


class Orders:
    """Takes orders of people who hold the operator's token."""

    def __init__(
        self,
        *,
        token: bytes | None,
        settings: Settings,
        store: Store,
        people: People,
        fleet: Fleet,
        stage: Stage,
        clock: Clock,
    ) -> None:
        self._token = token
        self._settings = settings
        self._store = store
        self._people = people
        self._fleet = fleet
        self._stage = stage
        self._clock = clock

    def check(self, authorization: str) -> None:
        """Let only an operator pass. Raises `OrderError`."""
        if self._token is None:
            raise OrderError(
                "nobody may give orders here",
                code=403,
                why="the settings name no server.operator_token_file",
                next_step="put a secret into a file, name it there, and restart the aggregator",
            )
        given = authorization[7:].strip() if authorization[:7].lower() == "bearer " else ""
        if not given or not hmac.compare_digest(given.encode(), self._token):
            raise OrderError(
                "the operator's token is missing or wrong",
                code=401,
                why="orders need `Authorization: Bearer …` with the content of server.operator_token_file",
                next_step="ask whoever runs the aggregator for it",
            )

    def approve(self, action_id: str, order: Order) -> dict[str, Any]:
        """Agree to one action that the last plan asks for."""
        asked = next(
            (
                action
                for action in self._stage.scene.plan.actions
                if action.kind == "ask_approval" and action.action_id in (action_id, f"ask-{action_id}")
            ),
            None,
        )
        if asked is None:
            raise OrderError(
                f"no action {action_id!r} waits for approval",
                code=404,
                why="the plan has changed, or somebody approved it already",
                next_step="look at /api/v1/plan and approve what it asks now",
            )
        policy = self._settings.pools[asked.pool].policy
        row = self._people.approve(asked.action_id, order.who, policy.approval_expires_s)
        if asked.fault:
            self._note(asked.fault, f"{order.who} approved it" + (f": {order.because}" if order.because else ""))
        return {"ok": True, "action_id": asked.action_id, "expires_unix_ns": row.expires_unix_ns}

    def hold(self, slot: str, order: Order) -> dict[str, Any]:
        """Hands off this slot, until it is cleared."""
        self._known(slot)
        self._people.hold(slot, order.who, order.because or "no reason given")
        return {"ok": True, "slot": slot}

    def clear(self, slot: str, order: Order) -> dict[str, Any]:
        """Lift a hold on this slot, and count its kernel events so far as history: a person has looked at them."""
        self._known(slot)
        lifted = self._people.lift(slot, order.who)
        record = self._fleet.current(slot)
        if record is not None:
            at_ns = snap_ns(self._clock.unix_ns())
            what = "clear" + (f": {order.because}" if order.because else "")
            self._store.clear_events(
                record.machine, [HumanAct(at_unix_ns=at_ns, who=order.who, what=what, subject=slot)]
            )
            record.events = ()
        return {"ok": True, "slot": slot, "hold_lifted": lifted}

    def _known(self, slot: str) -> None:
        if self._fleet.current(slot) is None and slot not in self._settings.places:
            raise OrderError(
                f"there is no slot {slot!r}", code=404, next_step="look at /api/v1/fleet for the names of all slots"
            )

    def _note(self, fault: str, text: str) -> None:
        line: LedgerLine = FaultNote(at_unix_ns=snap_ns(self._clock.unix_ns()), fault=fault, text=text)
        self._store.append([line])


def read_order(body: bytes) -> Order:
    """The body as an order; an empty one is an order without words. Raises `OrderError`."""
    if not body:
        return Order()
    try:
        order = msgspec.json.decode(body, type=Order)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise OrderError(
            "this is not an order", code=400, why=str(error), next_step='send {"who": "…", "because": "…"} or nothing'
        ) from None
    return Order(who=order.who[:100] or "operator", because=order.because[:1000])
