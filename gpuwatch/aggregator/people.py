"""What people ordered: approvals that expire, and slots that they want left alone. A person's act always wins."""

from __future__ import annotations

import threading

from gpuwatch.clock import Clock
from gpuwatch.model.ledger import HumanAct, snap_ns
from gpuwatch.store.records import Approval, HumanHold
from gpuwatch.store.sqlite import Store


class People:
    """Kept in the store, so that a restart forgets no order."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._approvals = {row.action_id: row for row in store.approvals()}
        self._holds = {row.slot: row for row in store.human_holds()}

    def approved(self) -> tuple[str, ...]:
        """Actions that somebody approved and whose approval has not expired.

        None from the future counts: after a step of the clock back it would live on for as long.
        """
        now_ns = self._clock.unix_ns()
        with self._lock:
            rows = tuple(self._approvals.values())
        return tuple(row.action_id for row in rows if row.approved_unix_ns <= now_ns < row.expires_unix_ns)

    def holds(self) -> dict[str, str]:
        """Slot -> who wants hands off it, and why."""
        with self._lock:
            return {slot: f"{row.who}: {row.because}" for slot, row in self._holds.items()}

    def approve(self, action_id: str, who: str, expires_s: float) -> Approval:
        """Let this one action happen, within so many seconds."""
        now_ns = self._clock.unix_ns()
        row = Approval(
            action_id=action_id,
            who=who,
            approved_unix_ns=now_ns,
            expires_unix_ns=now_ns + int(expires_s * 1e9),
        )
        self._store.save_approval(row, [self._act(who, "approve", action_id)])
        with self._lock:
            self._approvals[action_id] = row
        return row

    def hold(self, slot: str, who: str, because: str) -> None:
        """Hands off this slot until `lift`."""
        row = HumanHold(slot=slot, who=who, because=because, at_unix_ns=self._clock.unix_ns())
        self._store.save_human_hold(row, [self._act(who, f"hold: {because}", slot)])
        with self._lock:
            self._holds[slot] = row

    def lift(self, slot: str, who: str) -> bool:
        """The slot may be acted on again. False if nobody held it."""
        with self._lock:
            if slot not in self._holds:
                return False
        self._store.drop_human_hold(slot, [self._act(who, "lift the hold", slot)])
        with self._lock:
            self._holds.pop(slot, None)
        return True

    def _act(self, who: str, what: str, subject: str) -> HumanAct:
        return HumanAct(at_unix_ns=snap_ns(self._clock.unix_ns()), who=who, what=what, subject=subject)
