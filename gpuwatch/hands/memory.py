"""What the journal's lines mean: which nonces are out, which actions were begun or answered, when it rebooted. Pure.

Time here is the node's own running: the monotonic clock of this boot, and of each boot before it as far as the journal
saw it. No wall clock can be stepped so that an old nonce lives again or six hours are over. A node that was off ran for
no time: it is counted less than it was, never more.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuwatch.hands.journal import Line
from gpuwatch.model.order import Answer

KEPT_ANSWERS = 32
TOLD_ANSWERS = 16
INTERRUPTED = "the hands ended in the middle of it: what it did is not known, and it is not repeated"


class Memory:
    """Built line by line, in order."""

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self.nonces: dict[str, int] = {}  # given out in this boot and not taken back: expiry
        self._answers: dict[str, Answer] = {}
        self._nonce_of: dict[str, str] = {}  # action -> the nonce of the order that was answered last
        self._begun: dict[str, Line] = {}  # actions without an end
        self._reboots: dict[str, Line] = {}  # action -> when it was begun
        self._ran_until: dict[str, int] = {}  # boot, oldest first -> the last that was seen of its monotonic clock

    def learn(self, lines: Iterable[Line]) -> None:
        """Take in what was written."""
        for line in lines:
            self._ran_until[line.boot] = max(line.monotonic_ns, self._ran_until.get(line.boot, 0))
            if line.what == "nonce":
                if line.boot == self._boot:
                    self.nonces[line.nonce] = line.expires_monotonic_ns
            elif line.what == "begun":
                self.nonces.pop(line.nonce, None)
                self._begun[line.action_id] = line
                if line.kind == "reboot":
                    self._reboots.setdefault(line.action_id, line)
                self._answer(line, "begun", "")
            elif line.what == "refused":
                self.nonces.pop(line.nonce, None)
                self._answer(line, "refused", line.text)
            elif line.what == "ended" and line.state:
                self._begun.pop(line.action_id, None)
                self._answer(line, line.state, line.text)

    def answers(self) -> tuple[Answer, ...]:
        """The newest few, oldest first."""
        return tuple(self._answers.values())[-TOLD_ANSWERS:]

    def answer_to(self, action_id: str) -> Answer | None:
        """What became of this action; None: it was never begun and never refused here."""
        return self._answers.get(action_id)

    def is_answered(self, action_id: str, nonce: str) -> bool:
        """It was begun once, however it ended, and is not begun again; or this very order of it was refused."""
        answer = self._answers.get(action_id)
        return answer is not None and (answer.state != "refused" or self._nonce_of.get(action_id) == nonce)

    def forget_nonces(self, now_monotonic_ns: int) -> None:
        """Those that have expired."""
        self.nonces = {nonce: until for nonce, until in self.nonces.items() if until > now_monotonic_ns}

    def unfinished(self, unix_ns: int, monotonic_ns: int) -> list[Line]:
        """How those end that an earlier process, or an earlier boot, left behind: the lines to write."""
        lines = []
        for answer in self._answers.values():
            begun = self._begun.get(answer.action_id)
            rebooted = self._rebooted(answer)
            if begun is None and not rebooted:
                continue
            lines.append(
                Line(
                    what="ended",
                    unix_ns=unix_ns,
                    monotonic_ns=monotonic_ns,
                    boot=self._boot,
                    action_id=answer.action_id,
                    kind=answer.kind,
                    target=answer.target,
                    state="done" if rebooted else "unknown",
                    text=f"it runs as boot {self._boot} now" if rebooted else INTERRUPTED,
                )
            )
        return lines

    def ran_since_reboot_ns(self, now_monotonic_ns: int) -> int | None:
        """How long the node has run since the last reboot that was begun here; None: there was none."""
        return min((self._ran_since_ns(reboot, now_monotonic_ns) for reboot in self._reboots.values()), default=None)

    def lines(self, unix_ns: int, monotonic_ns: int, *, window_ns: int) -> list[Line]:
        """The shortest journal that means the same: no reboot that the window has passed, no old answer."""
        kept: list[Line] = []
        reboots = [each for each in self._reboots.values() if self._ran_since_ns(each, monotonic_ns) < window_ns]
        first = min((list(self._ran_until).index(each.boot) for each in reboots), default=len(self._ran_until))
        for boot, until_ns in list(self._ran_until.items())[first:]:
            kept += [each for each in reboots if each.boot == boot]
            kept.append(Line(what="alive", unix_ns=unix_ns, monotonic_ns=until_ns, boot=boot))
        for answer in tuple(self._answers.values())[-KEPT_ANSWERS:]:
            begun = self._begun.get(answer.action_id)
            nonce = self._nonce_of.get(answer.action_id, "")
            kept.append(begun if begun is not None else _ended(answer, nonce, self._boot))
        for nonce, until in self.nonces.items():
            kept.append(
                Line(
                    what="nonce",
                    unix_ns=unix_ns,
                    monotonic_ns=monotonic_ns,
                    boot=self._boot,
                    nonce=nonce,
                    expires_monotonic_ns=until,
                )
            )
        return kept

    def _answer(self, line: Line, state: str, text: str) -> None:
        before = self._answers.pop(line.action_id, None)  # the newest stands last
        if state == "refused" and before is not None and before.state != "refused":
            self._answers[line.action_id] = before  # that it comes again does not change how it ended
            return
        self._answers[line.action_id] = Answer(
            line.action_id,
            line.kind,
            line.target,
            state,  # type: ignore[arg-type]
            text,
            line.unix_ns,
        )
        if line.nonce:
            self._nonce_of[line.action_id] = line.nonce
        while len(self._answers) > KEPT_ANSWERS:
            oldest = next(iter(self._answers))
            del self._answers[oldest]
            self._nonce_of.pop(oldest, None)

    def _rebooted(self, answer: Answer) -> bool:
        """It was to reboot the node, has not been seen to, and this is another boot."""
        begun = self._reboots.get(answer.action_id)
        return begun is not None and begun.boot != self._boot and answer.state != "done"

    def _ran_since_ns(self, line: Line, now_monotonic_ns: int) -> int:
        boots = list(self._ran_until)
        later = boots[boots.index(line.boot) + 1 :]
        ran_ns = sum(now_monotonic_ns if boot == self._boot else self._ran_until[boot] for boot in later)
        if line.boot == self._boot:
            return now_monotonic_ns - line.monotonic_ns
        if self._boot not in later:
            ran_ns += now_monotonic_ns
        return ran_ns + self._ran_until[line.boot] - line.monotonic_ns


def _ended(answer: Answer, nonce: str, boot: str) -> Line:
    return Line(
        what="refused" if answer.state == "refused" else "ended",
        unix_ns=answer.at_unix_ns,
        monotonic_ns=0,
        boot=boot,
        nonce=nonce,
        action_id=answer.action_id,
        kind=answer.kind,
        target=answer.target,
        state=answer.state,
        text=answer.reason,
    )
