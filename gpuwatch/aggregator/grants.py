"""May a check on the node take it out of service? `POST /v1/grants`, asked by `gpuwatch scan --as prolog|epilog|…`.

A scheduler drains a node whose prolog fails. A bad check, or a fault that all nodes share, would so empty the cluster
within one job start; the check therefore asks here first, and fails only where it is told yes. The answer comes from
the same safety envelope as our own actions: HOLD file, a person's hold, mode, blindness, shared cause, budget. What was
granted counts as out until the scheduler says so itself, and is written down before it is told.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import msgspec
from prometheus_client.core import CounterMetricFamily, Metric

from gpuwatch.aggregator.admission import Tokens
from gpuwatch.aggregator.fleet import Fleet
from gpuwatch.aggregator.guard import Guard
from gpuwatch.aggregator.orders import OrderError
from gpuwatch.aggregator.scene import Stage
from gpuwatch.clock import Clock
from gpuwatch.decide.limits import budgets
from gpuwatch.errors import StoreError
from gpuwatch.model.ledger import HumanAct, LedgerLine, snap_ns
from gpuwatch.model.plan import PlanMemory
from gpuwatch.model.policy import Mode, Policy
from gpuwatch.model.states import OUT
from gpuwatch.model.view import FleetView
from gpuwatch.store.sqlite import Store

NS = 10**9
LASTS_S = 900.0  # by then the scheduler's own word says that the node is out, or nobody acted on the grant
OLDEST_SCENE_S = 30.0  # an aggregator that does not tick does not know
WHO = "gpuwatch scan --as "
_MAY = frozenset({Mode.DRAIN, Mode.REPLACE})
Word = Annotated[str, msgspec.Meta(max_length=400)]


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """The body: which node, asked as what, and the finding."""

    machine: Word
    role: Word
    rule: Word
    subject: Word
    because: Word


class Grants:
    """Answers, and remembers what was granted."""

    def __init__(
        self,
        *,
        secret: bytes,
        store: Store,
        fleet: Fleet,
        stage: Stage,
        guard: Guard,
        policies: dict[str, Policy],
        memory: Callable[[], PlanMemory],
        clock: Clock,
    ) -> None:
        """`memory`: what else is under way. Raises `StoreError`."""
        self._tokens = Tokens(secret, fleet)
        self._store = store
        self._fleet = fleet
        self._stage = stage
        self._guard = guard
        self._policies = policies
        self._memory = memory
        self._clock = clock
        self._lock = threading.Lock()
        self._until_ns: dict[str, int] = {}  # slot -> monotonic
        self.granted_count = 0
        self.refused_count = 0
        now_unix_ns, now_ns = clock.unix_ns(), clock.monotonic_ns()
        self._started_ns = now_ns
        for line in store.lines_of("human_act"):
            left_ns = line.at_unix_ns + int(LASTS_S * NS) - now_unix_ns
            if isinstance(line, HumanAct) and line.who.startswith(WHO) and 0 < left_ns <= LASTS_S * NS:
                self._until_ns[line.subject] = now_ns + left_ns

    def slots(self) -> frozenset[str]:
        """Slots that may be going out by a grant, and that the scheduler may not show as out yet."""
        now_ns = self._clock.monotonic_ns()
        return frozenset(slot for slot, until_ns in tuple(self._until_ns.items()) if until_ns > now_ns)

    def answer(self, authorization: str, body: bytes) -> dict[str, Any]:
        """`{"ok": true, "granted": …, "because": …}`. Raises `GpuwatchError` for a stranger or garbage."""
        try:
            ask = msgspec.json.decode(body, type=Ask)
        except (msgspec.MsgspecError, RecursionError) as error:
            step = "send machine, role, rule, subject and because, each a text of at most 400 characters"
            raise OrderError("this is no question for a grant", code=400, why=str(error), next_step=step) from None
        token = authorization[7:].strip() if authorization[:7].lower() == "bearer " else ""
        self._tokens.check(token.encode(), ask.machine)
        with self._lock:
            granted, because = self._judge(ask)
        if granted:
            self.granted_count += 1
        else:
            self.refused_count += 1
        return {"ok": True, "granted": granted, "because": because}

    def metrics(self) -> Iterator[Metric]:
        """What was asked, by answer."""
        family = CounterMetricFamily(
            "gpuwatch_grants", "Questions of checks on nodes whether they may take one out.", labels=("answer",)
        )
        family.add_metric(("granted",), self.granted_count)
        family.add_metric(("refused",), self.refused_count)
        yield family

    def _judge(self, ask: Ask) -> tuple[bool, str]:
        scene = self._stage.scene
        record = self._fleet.get(ask.machine)
        view = scene.views.get(ask.machine)
        if record is None or view is None:
            return False, f"{ask.machine} has not reported here yet"
        if self._fleet.current(record.slot) is not record:
            return False, f"another machine fills {record.slot}"
        age_s = (self._clock.monotonic_ns() - scene.now.monotonic_ns) / NS
        if age_s > OLDEST_SCENE_S:
            return False, f"the aggregator has not looked at the fleet for {age_s:.0f} s"
        policy = self._policies.get(record.pool, Policy())
        ours_s = (self._clock.monotonic_ns() - self._started_ns) / NS
        if ours_s < policy.hold_off_s:
            return False, f"the aggregator began {ours_s:.0f} s ago and does not know yet who is out"
        if policy.mode not in _MAY:
            return False, f"the mode of pool {record.pool} is {policy.mode}: nothing is taken out by itself"
        objection = self._guard.objection(record.slot, record.pool, harmful=True, replaces=False)
        if objection:
            return False, objection
        if record.lifecycle in OUT or record.slot in self.slots():
            return True, f"{record.slot} is out already"
        fleet = FleetView(nodes=tuple(scene.views.values()), policies=self._policies)
        memory = msgspec.structs.replace(self._memory(), granted=self.slots())
        refusal = budgets(fleet, scene.verdicts, self._policies, memory)[record.pool].refusal(view)
        if refusal is not None:
            return False, f"{refusal[0]}: {refusal[1]}"
        return self._grant(ask, record.slot)

    def _grant(self, ask: Ask, slot: str) -> tuple[bool, str]:
        line: LedgerLine = HumanAct(
            at_unix_ns=snap_ns(self._clock.unix_ns()),
            who=f"{WHO}{ask.role}",
            what=f"may take it out of service: {ask.because} ({ask.subject}, {ask.rule})",
            subject=slot,
        )
        try:
            self._store.append([line])
        except StoreError as error:
            return False, f"it cannot be written down: {error.what}"
        self._until_ns[slot] = self._clock.monotonic_ns() + int(LASTS_S * NS)
        return True, "within the budget"
