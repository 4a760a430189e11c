"""One order from its paper to its answer: refused with a reason, or done once.

A genuine order takes its nonce back even where the node refuses it, so that it cannot wait in a drawer for a better
moment. Before anything is done it is on the disk that it was begun; an order that was begun is never begun again.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection

from gpuwatch.clock import Clock
from gpuwatch.hands import paper
from gpuwatch.hands.command import run
from gpuwatch.hands.journal import Journal, JournalError, Line
from gpuwatch.hands.memory import Memory
from gpuwatch.hands.node import Node
from gpuwatch.hands.reboot import reboot
from gpuwatch.hands.settings import HandsSettings
from gpuwatch.model.facts.hands import HandsFacts
from gpuwatch.model.order import Answer, Order, SignedOrder, from_text
from gpuwatch.sdk.ed25519 import verifies

log = logging.getLogger(__name__)

NS = 10**9
NONCE_BYTES = 16
SHOWN = 120


class Hands:
    """All that is remembered, and the one thing that is done at a time."""

    def __init__(
        self,
        settings: HandsSettings,
        node: Node,
        journal: Journal,
        clock: Clock,
        *,
        machines: Collection[str],
        boot: str,
        verify: paper.Verify = verifies,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Reads the journal, and ends what an earlier process left open. Raises `JournalError`."""
        self._settings = settings
        self._node = node
        self._journal = journal
        self._clock = clock
        self._machines = frozenset(machines)
        self._boot = boot
        self._verify = verify
        self._meanwhile = meanwhile
        self._memory = Memory(boot)
        self._nonce, self._renew_ns = "", 0
        self._turned_away: Answer | None = None  # the last order that was not genuine or not for here
        self._trouble = ""  # why nothing can be written down
        self.rebooting = False
        self._memory.learn(journal.read())
        left = self._memory.unfinished(*self._now())
        self._memory.learn(left)
        self._write_anew()
        for line in left:
            log.warning("%s (%s %s): %s: %s", line.action_id, line.kind, line.target, line.state, line.text)

    def tick(self) -> None:
        """Give out a nonce where the last one was used or is old."""
        now_ns = self._clock.monotonic_ns()
        self._memory.forget_nonces(now_ns)
        if self._nonce in self._memory.nonces and now_ns < self._renew_ns:
            return
        nonce = secrets.token_hex(NONCE_BYTES)
        until_ns = now_ns + int(self._settings.nonce_valid_s * NS)
        try:
            if self._journal.is_long():
                self._write_anew()
            self._write(self._line("nonce", nonce=nonce, expires_monotonic_ns=until_ns))
        except JournalError as error:
            self._nonce = ""
            self._complain(error)
            return
        self._trouble = ""
        self._nonce, self._renew_ns = nonce, now_ns + int(self._settings.nonce_valid_s / 2 * NS)

    def take(self, text: bytes) -> None:
        """One order as it came. Returns when it is answered; `facts` tells how."""
        signed = from_text(text)
        if signed is None:
            log.warning("what lies where orders lie is no order: %r", text[:SHOWN])
            return
        order = signed.order
        before = self._memory.answer_to(order.action_id)
        if before is not None and self._memory.is_answered(order.action_id, order.nonce):
            log.info("%s comes again; it is %s already", order.action_id[:SHOWN], before.state)
            return
        try:
            refusal = self._paper(signed)
            if refusal:
                self._turn_away(order, refusal)
                return
            refusal = self._node_says(order)
            if refusal:
                log.warning("refused: %s", self._words(order, refusal))
                self._write(self._line("refused", order, text=refusal))
                return
            self._begin(order)
        except JournalError as error:
            self._complain(error)
            self._turn_away(order, f"it cannot be written down, so it is not done: {error.what}: {error.why}")

    def facts(self) -> HandsFacts:
        """What is told now."""
        settings, held = self._settings, self._node.held()
        answers = self._memory.answers()
        if self._turned_away is not None:
            answers = (*answers, self._turned_away)
        return HandsFacts(
            boot_id=self._boot,
            nonce=self._nonce,
            nonce_expires_monotonic_ns=self._memory.nonces.get(self._nonce, 0),
            told_monotonic_ns=self._clock.monotonic_ns(),
            units=settings.restart_service.units,
            may_reset_gpu=settings.reset_gpu.allowed,
            may_reboot=settings.reboot.allowed,
            keys=settings.public_keys,
            refuses=self._trouble or held,
            answers=answers,
            held=held,
        )

    def close(self) -> None:
        """Let go of the journal."""
        self._journal.close()

    # whether

    def _paper(self, signed: SignedOrder) -> str:
        return paper.forged(signed, self._settings, self._verify) or paper.misdirected(
            signed.order,
            machines=self._machines,
            boot=self._boot,
            nonces=self._memory.nonces,
            now_monotonic_ns=self._clock.monotonic_ns(),
        )

    def _node_says(self, order: Order) -> str:
        try:
            return paper.not_allowed(order, self._settings) or self._too_often(order) or self._node.objection(order)
        except Exception as error:  # the nonce is taken back all the same: no order waits for a node that looks better
            log.exception("whether %s may be done met a bug of ours", order.action_id)
            return f"whether it may be done cannot be told: {type(error).__name__}: {error}"

    def _too_often(self, order: Order) -> str:
        if order.kind != "reboot":
            return ""
        ran_ns = self._memory.ran_since_reboot_ns(self._clock.monotonic_ns())
        window_s = self._settings.reboot.window_s
        if ran_ns is None or ran_ns >= window_s * NS:
            return ""
        return f"it was rebooted {ran_ns / 3600e9:.1f} h of running ago; once in {window_s / 3600:g} h is allowed"

    def _turn_away(self, order: Order, refusal: str) -> None:
        log.warning("refused: %s", self._words(order, refusal))
        unix_ns = self._clock.unix_ns()
        self._turned_away = Answer(order.action_id, order.kind, order.target, "refused", refusal, unix_ns)

    # doing

    def _begin(self, order: Order) -> None:
        self._turned_away = None
        self._write(self._line("begun", order))
        log.warning("begun: %s", self._words(order, order.because))
        try:
            trouble, seen = self._carry_out(order)
        except JournalError as error:
            trouble, seen = f"the next step cannot be written down, so it is not done: {error.why}", ""
        except Exception as error:
            log.exception("%s met a bug of ours", order.action_id)
            trouble, seen = f"a bug of ours: {type(error).__name__}: {error}", ""
        state = "failed" if trouble else "done"
        log.warning("%s: %s", state, self._words(order, trouble or seen))
        self._write_if_possible(self._line("ended", order, state=state, text=trouble or seen))

    def _carry_out(self, order: Order) -> tuple[str, str]:
        """What went wrong, and what was seen."""
        if order.kind == "reboot":
            return self._reboot(order), ""
        if order.kind == "restart_service":
            settings = self._settings.restart_service
            return self._run(order, settings.command, settings.deadline_s, unit=order.target)
        reset = self._settings.reset_gpu
        try:
            if reset.release:
                trouble, _ = self._run(order, reset.release, reset.release_deadline_s)
                if trouble:
                    return trouble, ""
            if trouble := self._node.still_ours(order, reset.release_deadline_s, self._meanwhile):
                return trouble, ""
            if trouble := self._node.objection(order):  # that took time, in which somebody may have come
                return trouble, ""
            return self._run(order, reset.command, reset.deadline_s, gpu=order.target)
        finally:
            if reset.resume:  # also where nothing can be written down: the agent shall not stay blind
                self._write_if_possible(self._line("step", order, text=" ".join(reset.resume)))
                run(reset.resume, reset.release_deadline_s, meanwhile=self._meanwhile)

    def _run(self, order: Order, command: tuple[str, ...], within_s: float, **places: str) -> tuple[str, str]:
        words = [_filled(word, places) for word in command]
        self._write(self._line("step", order, text=" ".join(words)))
        outcome = run(words, within_s, meanwhile=self._meanwhile)
        return outcome.trouble, outcome.printed

    def _reboot(self, order: Order) -> str:
        self.rebooting = True
        try:
            return reboot(
                self._settings.reboot,
                note=lambda step: self._note(order, step),
                held=self._node.held,
                meanwhile=self._meanwhile,
            )
        finally:
            self.rebooting = False

    # the journal

    def _note(self, order: Order, step: str) -> None:
        self._write(self._line("step", order, text=step))
        self._journal.rest()

    def _line(self, what: str, order: Order | None = None, **more: object) -> Line:
        unix_ns, monotonic_ns = self._now()
        if order is not None:
            more |= {"action_id": order.action_id, "kind": order.kind, "target": order.target, "nonce": order.nonce}
        return Line(what=what, unix_ns=unix_ns, monotonic_ns=monotonic_ns, boot=self._boot, **more)  # type: ignore[arg-type]

    def _write(self, line: Line) -> None:
        self._journal.write(line)
        self._memory.learn((line,))

    def _write_if_possible(self, line: Line) -> None:
        """What has happened is known here even where the disk does not take it; the next process will not know it."""
        try:
            self._journal.write(line)
        except JournalError as error:
            self._complain(error)
        self._memory.learn((line,))

    def _write_anew(self) -> None:
        self._journal.rewrite(self._memory.lines(*self._now(), window_ns=int(self._settings.reboot.window_s * NS)))

    def _complain(self, error: JournalError) -> None:
        if not self._trouble:
            log.error("%s", error)
        self._trouble = error.what

    def _now(self) -> tuple[int, int]:
        return self._clock.unix_ns(), self._clock.monotonic_ns()

    def _words(self, order: Order, because: str) -> str:
        return f"{order.kind} {order.target[:SHOWN]} ({order.action_id[:SHOWN]}): {because}"


def _filled(word: str, places: dict[str, str]) -> str:
    for name, value in places.items():
        word = word.replace("{" + name + "}", value)
    return word
