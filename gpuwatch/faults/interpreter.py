"""From kernel messages to events, one after another: joins the lines of one message and remembers who is who."""

from __future__ import annotations

import msgspec

from gpuwatch.faults import disk, driver, lockup, memory, network, pcie, switch, xid
from gpuwatch.faults.chains import Chains
from gpuwatch.faults.event import Event
from gpuwatch.faults.prefix import Record

MAX_SXIDS = 512  # different errors whose severity word is remembered for their data lines
MAX_UNATTRIBUTED = 100
GRAMMARS = (network, disk, memory, lockup, pcie)
"""Each has `read`, HEADS with which its messages begin, and WORDS for those that begin with a name."""
MAX_LOSSES = 16  # GPUs of a node
PARAGRAPH_LINES = 6  # of the driver's; a message of it has at most five


class Interpreter:
    """Hears the messages of one boot in order. Keeps a few words between them, nothing that grows."""

    def __init__(self) -> None:
        self.uuids: dict[str, str] = {}  # GPU address -> UUID, as announced before its first Xid
        self.serials: dict[str, str] = {}
        self.unattributed: list[Record] = []  # a GPU is lost, but its address cannot be read
        self._paragraph = ""
        self._paragraph_lines = 0
        self._losses: list[list[str]] = []  # lines of lost GPUs whose last line has not come yet, oldest first
        self._announced: str | None = None
        self._left_over: int | None = None
        self._left_over_message = ""
        self._sxid_words: dict[tuple[str, int], str] = {}
        self._chains = Chains()

    def hear(self, record: Record) -> list[Event]:
        """The events that this message completes; mostly none."""
        message = record.message
        if message.startswith("NVRM:"):
            return self._driver(record)
        if message.startswith("nvidia-nvswitch"):
            line = switch.parse(message)
            if line is None:
                return []
            key = (line.pci, line.number)
            if line.word:
                if len(self._sxid_words) >= MAX_SXIDS:
                    self._sxid_words.clear()
                self._sxid_words[key] = line.word
            elif key in self._sxid_words:
                line = msgspec.structs.replace(line, word=self._sxid_words[key])
            return [switch.judge(line)]
        event = driver.simple(message)
        return [event] if event is not None else self._node(record)

    def _node(self, record: Record) -> list[Event]:
        """What is no GPU's: the first grammar that can read it."""
        message = record.message
        for grammar in GRAMMARS:
            if message.startswith(grammar.HEADS) or any(map(message.__contains__, grammar.WORDS)):
                event = grammar.read(message)
                if event is not None:
                    return self._chains.join(event, record)
        victim = pcie.victim(message)
        return self._chains.no_recovery(*victim, record) if victim is not None else []

    def flush(self) -> list[Event]:
        """What was begun and can be told although its end did not come. What says nothing yet may still go on."""
        begun = self._paragraph
        events = self._end_paragraph()
        if not events:
            self._paragraph = begun
        events += self._chains.flush()
        if self._left_over is not None:
            event = driver.init_failed(self._left_over_message, self._left_over)
            self._left_over = None
            if event is not None:
                events.append(event)
        return events

    def _driver(self, record: Record) -> list[Event]:
        message = record.message
        event = xid.read(message)
        if event is not None:
            return [event]
        events: list[Event] = []
        if driver.names_gpu(message) and driver.lost(message) is None:
            self._losses = [*self._losses[-MAX_LOSSES + 1 :], [message]]
            return events
        if driver.begins_paragraph(message):
            events += self._end_paragraph()
            self._paragraph, self._paragraph_lines = message, 1
        elif (event := driver.lost(message) or self._loss(message)) is not None:  # ends no other message
            return [event]
        elif self._paragraph:
            self._paragraph += " " + message.removeprefix("NVRM:").strip()
            self._paragraph_lines += 1
        if self._paragraph:
            if self._complete():
                return events + self._end_paragraph()
            if self._paragraph_lines >= PARAGRAPH_LINES:
                events += self._end_paragraph()
        said = driver.identity(message)
        if said is not None:
            self.uuids[said[0]] = said[1]
            self._announced = said[0]
            return events
        number = driver.serial(message)
        if number is not None:
            pci = number[0] or self._announced
            if pci is not None:
                self.serials[pci] = number[1]
            return events
        left_over = driver.left_over_firmware(message)
        if left_over is not None:
            self._left_over, self._left_over_message = left_over, message
            return events
        event = driver.init_failed(message, None)
        if event is not None and self._left_over is not None:
            event = driver.init_failed(message, self._left_over)
            self._left_over = None
        event = event or driver.simple(message)
        if event is not None:
            return [*events, event]
        if "fallen off the bus" in message and len(self.unattributed) < MAX_UNATTRIBUTED:
            self.unattributed.append(record)
        return events

    def _loss(self, message: str) -> Event | None:
        """The next line of a GPU's three. Several GPUs that are lost at once interleave: each line goes to the GPU that
        has the fewest yet, and the last to the one that has the most."""
        if not self._losses:
            return None
        said = message.removeprefix("NVRM:").strip()
        if "fallen off the bus" in said or "is not supported" in said:
            lines = max(self._losses, key=len)
            self._losses.remove(lines)
            return driver.lost(" ".join([*lines, said]))
        lines = min(self._losses, key=len)
        lines.append(said)
        if len(lines) >= PARAGRAPH_LINES:  # no such message: its end does not come
            self._losses.remove(lines)
        return None

    def _complete(self) -> bool:
        return driver.mismatch_complete(self._paragraph)

    def _end_paragraph(self) -> list[Event]:
        text, self._paragraph = self._paragraph, ""
        event = driver.mismatch(text) if text else None
        return [event] if event is not None else []
