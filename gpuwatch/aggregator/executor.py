"""Carries actions out, step by step. It chooses nothing, and may be killed at any instant.

Before a step begins it is written down as intended; when its effect was seen, as done. What is called is idempotent by
the step's key, so going on after a crash is doing the present step again. Each action is carried by one thread at a
time; a call that hangs keeps only its own action waiting.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from gpuwatch.aggregator import saga as s
from gpuwatch.aggregator import steps
from gpuwatch.aggregator.people import People
from gpuwatch.aggregator.reach import Cancelled, Done, Failed, Hands, Held, Reach, Result, Waiting
from gpuwatch.aggregator.saga import Saga
from gpuwatch.clock import Clock
from gpuwatch.errors import CloudError, SchedulerError, StoreError
from gpuwatch.model.ledger import HoldNoted, LedgerLine, LifecycleChanged, snap_ns
from gpuwatch.model.moment import Moment
from gpuwatch.model.plan import Action
from gpuwatch.model.plan import Done as PlanDone
from gpuwatch.model.policy import Policy
from gpuwatch.model.states import Lifecycle
from gpuwatch.store.records import SagaRow
from gpuwatch.store.sqlite import Store

LOG = logging.getLogger("gpuwatch.executor")
ROUND_S = 0.25
RETRY_S = 5.0  # after an error that may pass
REMEMBERED_S = 7 * 86_400.0  # ended actions that still count against attempt caps and cool-downs
_ENCODE = msgspec.json.Encoder()
_DECODE = msgspec.json.Decoder(Saga)


class Executor:
    """All open actions, and the ended ones that still count."""

    def __init__(
        self,
        *,
        store: Store,
        reach: Reach,
        people: People,
        clock: Clock,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._reach = reach
        self._fleet = reach.fleet
        self._people = people
        self._clock = clock
        self._changed = changed  # something was done: the brain may want to look
        self._lock = threading.Lock()
        self._sagas: dict[str, Saga] = {}
        self._started_ns: dict[str, int] = {}  # monotonic, of those begun in this process
        self._began: dict[str, tuple[str, Moment]] = {}  # action -> its present step and when that began here
        self._not_before_ns: dict[str, int] = {}
        self.waiting: dict[str, str] = {}  # action -> why it does not go on just now
        self._busy: set[str] = set()
        self._stopped = threading.Event()
        self._wake = threading.Event()
        self._pool: ThreadPoolExecutor | None = None
        self._thread: threading.Thread | None = None
        since_ns = clock.unix_ns() - int(REMEMBERED_S * 1e9)
        for row in store.sagas(since_unix_ns=since_ns):
            saga = _DECODE.decode(row.body)
            self._sagas[row.action_id] = saga
            if not saga.outcome and s.ADOPT in saga.passed:
                reach.fleet.adopt(saga.action.slot, saga.new_machine)
            if saga.boot:
                reach.fleet.order_boot(saga.action.machine, saga.boot)

    # what the brain asks

    def sagas(self) -> list[Saga]:
        """Every action that is remembered, oldest first."""
        with self._lock:
            return list(self._sagas.values())

    def open(self) -> list[Saga]:
        """The actions under way."""
        return [saga for saga in self.sagas() if not saga.outcome]

    def memory(self) -> tuple[PlanDone, ...]:
        """What the planner must know of them."""
        return tuple(s.remembered(saga, self._started_ns.get(saga.action.action_id)) for saga in self.sagas())

    def begin(self, action: Action, *, urgent: bool = False, soft: bool = False) -> bool:
        """Start an action; False if it is known already, open or ended. Raises `StoreError`: then nothing began."""
        with self._lock:
            if action.action_id in self._sagas:
                return False
        now = self._now()
        record = self._fleet.get(action.machine)
        policy = self._reach.policies.get(action.pool, Policy())
        saga = s.begin(
            action,
            order=policy.replace_order,
            now_unix_ns=now.unix_ns,
            group="" if record is None else record.group or action.pool,
            urgent=urgent,
            soft=soft,
        )
        self._save(saga, [])
        self._started_ns[action.action_id] = now.monotonic_ns
        LOG.info("%s %s (%s): %s", action.kind, action.slot, action.machine, action.because)
        self._wake.set()
        return True

    def step_age_s(self, saga: Saga) -> float:
        """Seconds in the present step, since this process began if it began before."""
        step, began = self._began.get(saga.action.action_id, ("", self._now()))
        return self._now().age_s(began.monotonic_ns) if step == saga.step else 0.0

    def stuck(self) -> list[Saga]:
        """Actions whose present step has taken longer than it should."""
        return [saga for saga in self.open() if self.is_stuck(saga)]

    def is_stuck(self, saga: Saga) -> bool:
        """Whether this open one is among them."""
        policy = self._reach.policy(saga)
        limit_s = steps.deadline_s(saga.step, policy) or policy.drain_deadline_s + policy.empty_deadline_s
        return self.step_age_s(saga) > limit_s

    # going on

    def start(self) -> None:
        """Carry actions in the background until `stop`."""
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="action")
        self._thread = threading.Thread(target=self._work, name="executor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Begin no further step. What is under way is finished, or found unfinished at the next start."""
        self._stopped.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def advance_all(self) -> None:
        """One round over every open action, in this thread."""
        for saga in self.open():
            self.advance(saga.action.action_id)

    def advance(self, action_id: str) -> None:
        """Carry one action as far as it goes without waiting."""
        while not self._stopped.is_set():
            with self._lock:
                saga = self._sagas[action_id]
            if saga.outcome or not self._step(saga):
                return

    def _work(self) -> None:
        assert self._pool is not None
        while not self._stopped.is_set():
            self._wake.clear()
            now_ns = self._clock.monotonic_ns()
            for saga in self.open():
                action_id = saga.action.action_id
                if action_id not in self._busy and now_ns >= self._not_before_ns.get(action_id, 0):
                    self._busy.add(action_id)
                    self._pool.submit(self._carry, action_id)
            self._wake.wait(ROUND_S)

    def _carry(self, action_id: str) -> None:
        try:
            self.advance(action_id)
        except StoreError as error:  # nothing goes on that cannot be written down
            self._pause(action_id, str(error))
        except Exception:
            LOG.exception("action %s met a bug of ours; it is tried again", action_id)
            self._pause(action_id, "an internal error; see the log")
        finally:
            self._busy.discard(action_id)

    def _step(self, saga: Saga) -> bool:
        """One try at the present step. True if the action went on."""
        action_id = saga.action.action_id
        now = self._now()
        saga = self._worsened(saga, now)
        step, began = self._began.get(action_id, ("", now))
        if step != saga.step:
            began = now
            self._began[action_id] = (saga.step, now)
        hands = self._hands(saga, now, began)
        try:
            if not saga.intended:
                before = steps.BEFORE.get(saga.step)
                verdict = before(hands) if before is not None else None
                if verdict is not None:
                    return self._take(saga, verdict, hands)
                saga = msgspec.structs.replace(saga, intended=True)
                self._save(saga, [s.step_line(saga, saga.step, "intended", snap_ns(now.unix_ns))])
                hands = self._hands(saga, now, began)
            result = steps.STEPS[saga.step](hands)
        except Held as held:
            self._hold(saga, str(held), now)
            return False
        except (SchedulerError, CloudError) as error:
            if error.retry or saga.step in (s.RESUME, s.UNDO_RESUME, s.UNDO_CREATE):
                self._pause(action_id, str(error))
                result = Waiting(error.what)
            else:
                result = Failed(str(error))
        return self._take(saga, result, hands)

    def _worsened(self, saga: Saga, now: Moment) -> Saga:
        """As it stands with what its node has since turned out to be."""
        verdict = self._reach.scene().verdicts.get(saga.action.machine)
        worse = s.worsened(saga, verdict, snap_ns(now.unix_ns))
        if worse is not saga and verdict is not None:
            self._save(worse, [])
            LOG.info("%s %s: it is worse by now: %s", saga.action.kind, saga.action.slot, verdict.because)
        return worse

    def _hands(self, saga: Saga, now: Moment, began: Moment) -> Hands:
        return Hands(saga=saga, now=now, began=began, reach=self._reach, scene=self._reach.scene())

    def _take(self, saga: Saga, result: Result, hands: Hands) -> bool:
        """What follows from a step's result."""
        action_id = saga.action.action_id
        if isinstance(result, Waiting):
            if hands.scene.blind_because:  # what we wait for may be there, unseen: no deadline runs meanwhile
                self._began[action_id] = (saga.step, hands.now)
                self.waiting[action_id] = f"{result.because}; we may be blind: {hands.scene.blind_because}"
                return False
            limit_s = steps.deadline_s(saga.step, hands.policy)
            if limit_s is None or hands.elapsed_s() <= limit_s:
                if result.person:
                    self._note(saga, "job", result.because, hands.now)
                self.waiting[action_id] = result.because
                return False
            because = f"{saga.step} took longer than {limit_s:.0f} s: {result.because}"
            new = saga.new_machine
            result = Failed(because)
            if saga.step == s.RESUME and new:  # the new machine is in place; only its slot is still drained
                result = Done({}, ((new, Lifecycle.DRAINED),), because)
        self.waiting.pop(action_id, None)
        at_ns = snap_ns(self._clock.unix_ns())  # after the call: what it did is done by then
        if isinstance(result, Done):
            after = s.passed(msgspec.structs.replace(saga, **dict(result.changes)), at_ns)
            lines: list[LedgerLine] = [s.step_line(after, saga.step, "done", at_ns, result.because)]
            lines += [self._lifecycle_line(saga, machine, to, at_ns) for machine, to in result.lifecycles]
            for machine in result.repaired:
                self._store.clear_events(machine)
                self._fleet.repaired(machine, self._clock.monotonic_ns())
            self._save(after, lines)
            for machine, to in result.lifecycles:
                self._fleet.set_lifecycle(machine, to, self._clock.monotonic_ns())
            if after.outcome:
                LOG.info("%s %s: %s %s", saga.action.kind, saga.action.slot, after.outcome, after.because)
            self._changed()
            return True
        how = "failed" if isinstance(result, Failed) else "cancelled"
        LOG.warning("%s %s: %s at %s: %s", saga.action.kind, saga.action.slot, how, saga.step, result.because)
        if isinstance(result, Cancelled) and result.hands_off:
            self._people.hold(saga.action.slot, "somebody", result.because)
            saga = msgspec.structs.replace(saga, drained=False)  # that drain is no longer ours to lift
        if isinstance(result, Failed):
            saga = msgspec.structs.replace(saga, **dict(result.changes))
        after = s.undo(saga, how, result.because, at_ns)
        self._save(after, [s.step_line(saga, saga.step, how, at_ns, result.because)])
        self._changed()
        return True

    def _lifecycle_line(self, saga: Saga, machine: str, to: Lifecycle, at_ns: int) -> LifecycleChanged:
        return LifecycleChanged(
            at_unix_ns=at_ns,
            machine=machine,
            slot=saga.action.slot,
            lifecycle=str(to),
            because=saga.action.because,
            fault=None if to is Lifecycle.IN_SERVICE else saga.action.fault,
        )

    def _hold(self, saga: Saga, because: str, now: Moment) -> None:
        """Wait without the step's deadline running."""
        self._began[saga.action.action_id] = (saga.step, now)
        self._note(saga, "hands_off", because, now)
        self.waiting[saga.action.action_id] = because

    def _note(self, saga: Saga, reason: str, because: str, now: Moment) -> None:
        """Write down once why it does not go on."""
        action = saga.action
        if self.waiting.get(action.action_id) != because:
            line = HoldNoted(
                at_unix_ns=snap_ns(now.unix_ns),
                slot=action.slot,
                machine=action.machine,
                reason=reason,
                because=because,
                fault=action.fault,
            )
            self._store.append([line])

    def _pause(self, action_id: str, because: str) -> None:
        if self.waiting.get(action_id) != because:
            LOG.warning("action %s: %s", action_id, because)
        self.waiting[action_id] = because
        self._not_before_ns[action_id] = self._clock.monotonic_ns() + int(RETRY_S * 1e9)

    def _save(self, saga: Saga, lines: Sequence[LedgerLine]) -> None:
        row = SagaRow(
            action_id=saga.action.action_id,
            ended=bool(saga.outcome),
            started_unix_ns=saga.started_unix_ns,
            body=_ENCODE.encode(saga),
        )
        self._store.save_saga(row, lines)
        with self._lock:
            self._sagas[saga.action.action_id] = saga

    def _now(self) -> Moment:
        return Moment(self._clock.unix_ns(), self._clock.monotonic_ns())
