"""The steps of a repair by the node's own hands: the order is made, given, answered; then the node must be well.

The order is written down with its nonce before it is given, so that after a crash the very same one is given again: the
hands take a nonce once, and do it once. What they refuse or cannot do is a failed repair: the node stays drained, and
the planner takes the next rung.
"""

from __future__ import annotations

import msgspec

from gpuwatch.aggregator import repair
from gpuwatch.aggregator.heard import Heard
from gpuwatch.aggregator.reach import Done, Failed, Hands, Held, Result, Waiting
from gpuwatch.decide.local_repair import beyond
from gpuwatch.model.evidence import Evidence
from gpuwatch.model.facts.hands import HandsFacts
from gpuwatch.model.order import Answer, Order
from gpuwatch.model.states import Lifecycle

BECAUSE_CHARACTERS = 300
MOST_NONCE_CHARACTERS = 64  # hands give out 32; whoever speaks in their name may say anything


def refusal(hands: Hands) -> Result | None:
    """The last look before it is ordered: the node was emptied meanwhile, and more may ail it now."""
    found = _beyond(hands)
    return None if found is None else Failed(f"no {hands.saga.action.order} cures this: {found.because}")


def sign(hands: Hands) -> Result:
    """Make the order out to the nonce that the node's hands gave out last."""
    saga, action = hands.saga, hands.saga.action
    heard, told = _told(hands)
    if heard is None or told is None:
        return Waiting("its hands say nothing")
    if told.refuses or not 0 < len(told.nonce) <= MOST_NONCE_CHARACTERS:
        return Waiting(f"its hands take no order: {_cut(told.refuses) or 'they gave out no nonce'}")
    order = Order(
        machine=action.machine,
        boot_id=heard.boot,
        action_id=saga.action.action_id,
        kind=action.order,  # type: ignore[arg-type]
        target=action.target,
        nonce=told.nonce,
        expires_monotonic_ns=told.nonce_expires_monotonic_ns,
        because=_cut(action.because),
    )
    return Done({"order": order, "boot": heard.boot})


def give(hands: Hands) -> Result:
    """Give the order until it is answered."""
    saga, order = hands.saga, hands.saga.order
    desk, fleet = hands.reach.desk, hands.reach.fleet
    if order is None:
        return Failed("the order was never made")
    if order.kind == "reboot":
        fleet.order_boot(order.machine, order.boot_id)
    heard, told = _told(hands)
    answer = _answer(told, order)
    if order.kind == "reboot" and heard is not None and heard.boot != order.boot_id:
        desk.take_back(order.machine)
        return Done(because=f"it runs as boot {heard.boot} now")
    if answer is not None and answer.state != "begun":
        desk.take_back(order.machine)
        if answer.state == "done":
            # What its kernel said of another fault is no history: the node must not pass for well for want of it.
            cured = order.kind != "restart_service" and _beyond(hands) is None
            return Done(because=_cut(answer.reason), repaired=(saga.action.machine,) if cured else ())
        return Failed(f"its hands say {answer.state}: {_cut(answer.reason)}")
    if answer is not None:
        return Waiting("its hands are at it")
    if told is not None and told.boot_id == order.boot_id and told.told_monotonic_ns > order.expires_monotonic_ns:
        desk.take_back(order.machine)
        return Failed("the order expired before its hands saw it", {"order": None})
    try:
        hands.allow(harmful=True)
    except Held:
        desk.take_back(order.machine)
        raise
    desk.post(order)
    return Waiting("the order waits for the reply to a report")


def back(hands: Hands) -> Result:
    """It speaks, and its driver answers, since the order was done."""
    saga = hands.saga
    if saga.action.order == "reboot":
        return repair.back(hands)
    record = hands.reach.fleet.get(saga.action.machine)
    heard = None if record is None else record.heard
    if record is None or heard is None:
        return Waiting(f"{saga.action.machine} has not reported since the aggregator's start")
    nvml = heard.sources.get("nvml")
    if nvml is None or nvml.monotonic_ns <= hands.began.monotonic_ns:
        return Waiting("its driver has not answered since")
    if record.expected_gpu_count and nvml.envelope.status != "ok":
        return Waiting(f"its driver says {nvml.envelope.status}")
    return Done({}, ((saga.action.machine, Lifecycle.VALIDATING),))


def _beyond(hands: Hands) -> Evidence | None:
    action = hands.saga.action
    view, verdict = hands.scene.views.get(action.machine), hands.scene.verdicts.get(action.machine)
    return None if view is None or verdict is None else beyond(view, verdict, action.order, action.target)


def _told(hands: Hands) -> tuple[Heard | None, HandsFacts | None]:
    """What its agent said last, and in it its hands."""
    record = hands.reach.fleet.get(hands.saga.action.machine)
    heard = None if record is None else record.heard
    if record is None or heard is None:
        return None, None
    received = heard.sources.get("hands")
    if received is None or received.envelope.status != "ok":
        return heard, None
    try:
        return heard, msgspec.msgpack.decode(received.envelope.facts, type=HandsFacts)
    except msgspec.MsgspecError:
        return heard, None


def _answer(told: HandsFacts | None, order: Order) -> Answer | None:
    found = () if told is None else told.answers
    return next((answer for answer in reversed(found) if answer.action_id == order.action_id), None)


def _cut(words: str) -> str:
    """One line of bounded length: it is logged, kept and shown."""
    return " ".join(words[: 2 * BECAUSE_CHARACTERS].split())[:BECAUSE_CHARACTERS]
