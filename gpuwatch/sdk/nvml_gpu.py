"""The questions of one round to one GPU, and what its answers say of the GPU as a whole.

Four sets, each asked as often as it is worth: quick (each round), calm (each few rounds), slow (counters and links),
seldom (names, limits, modes). Between two askings the answers of a set are kept. What a GPU does not support is not
asked again before the next seldom round.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from gpuwatch.model.facts.nvml import Gpu
from gpuwatch.sdk.nvml_answers import (
    ABSENT,
    CONDEMNS,
    GPU_IS_LOST,
    HARMLESS,
    MIB,
    UNKNOWN,
    Refused,
    positive,
    refused,
    within,
)
from gpuwatch.sdk.nvml_calls import Calls
from gpuwatch.sdk.nvml_fields import Fields, Question
from gpuwatch.sdk.nvml_routine import Routine

CLOCK_SM = 1
RECOVERY_ACTION = (230, 0)  # polled each round: a GPU that was bad before the driver started prints no Xid 154
POWER_AVERAGE, POWER_INSTANT = (185, 0), (186, 0)
MEMORY_TEMPERATURE = (82, 0)
QUICK = (RECOVERY_ACTION, POWER_AVERAGE, POWER_INSTANT, MEMORY_TEMPERATURE)
MOST_MILLIWATTS = 5_000_000
LOST = refused(GPU_IS_LOST)


class Answers:
    """What one set of questions came to."""

    __slots__ = ("codes", "gaps", "values")

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.gaps: dict[str, str] = {}
        self.codes: set[int | None] = set()

    def keep(self, name: str, answer: Any) -> None:
        """A value, or why there is none."""
        if isinstance(answer, Refused):
            self.gaps[name] = answer.why
        else:
            self.values[name] = answer


class Kept(msgspec.Struct, frozen=True):
    """What all sets but the quick one came to, made once: most rounds ask only that one."""

    of: tuple[Answers | None, ...]
    gpu: Gpu
    gaps: dict[str, str]


class Slot(msgspec.Struct):
    """What is kept of one index between rounds."""

    index: int
    handle: Any = None
    named: dict[str, Any] = {}  # uuid, pci, name, serial …: survive the loss of the GPU
    absent: dict[Any, Refused] = {}  # function or field -> the answer that it is not there
    growth: dict[str, Any] = {}
    questions: dict[tuple[Question, ...], tuple[Question, ...]] = {}  # without those that are absent
    links: tuple[int, ...] | None = None  # numbers of the NVLinks; None: not known yet
    calm: Answers | None = None
    slow: Answers | None = None
    seldom: Answers | None = None
    kept: Kept | None = None
    routines: dict[tuple[bool, bool], Routine] = {}  # of rounds with the calm set and with the slow one, and without

    def routine(self, calm: bool, slow: bool) -> Routine:
        """The calls of a round with these sets."""
        found = self.routines.get((calm, slow))
        if found is None:
            found = self.routines[calm, slow] = Routine()
        return found

    def ask_anew(self) -> None:
        """Keep its names and what grew, until another name shows that another board sits there."""
        self.handle, self.links = None, None
        self.absent, self.questions, self.routines = {}, {}, {}
        self.calm = self.slow = self.seldom = None

    def doubt(self) -> None:
        """A kept answer that condemns the GPU is asked again in the next round: it may have been reset since."""
        for name in ("calm", "slow", "seldom"):
            answers: Answers | None = getattr(self, name)
            if answers is not None and not CONDEMNS.isdisjoint(answers.codes):
                setattr(self, name, None)


class Asking:
    """Asks one GPU. Stops at the first word that it is lost."""

    def __init__(self, calls: Calls, fields: Fields, slot: Slot) -> None:
        self.calls = calls
        self.slot = slot
        self.lost = False
        self.answered = False
        self._fields = fields
        self._codes: set[int | None] = set()
        self._asked: list[set[int | None]] = []  # this round's, set by set

    def ask(self, function: str, asked: Any, *arguments: Any) -> Any:
        """`asked(…)` of this GPU, unless it is known to be absent or the GPU is lost. `function` is what it is called
        when it is remembered as absent."""
        if self.lost:
            return LOST
        known = self.slot.absent.get(function)
        if known is not None:
            return known
        answer = asked(*arguments)
        if isinstance(answer, Refused):
            self._note(answer, function)
        else:
            self.answered = True
        return answer

    def number(self, function: str, *arguments: Any) -> Any:
        """One unsigned number of this GPU."""
        return self.ask(function, self.calls.number, function, self.slot.handle, *arguments)

    def fields(self, questions: tuple[Question, ...]) -> dict[Question, Any]:
        """One call for all of them; those known to be absent are answered from memory."""
        slot = self.slot
        if self.lost:
            return dict.fromkeys(questions, LOST)
        left = slot.questions.get(questions)
        if left is None:
            left = slot.questions[questions] = tuple(q for q in questions if q not in slot.absent)
        found = self._fields.ask(slot.handle, left)
        denied = [(question, answer) for question, answer in found.items() if answer.__class__ is Refused]
        for question, answer in denied:
            self._note(answer, question)
        self.answered |= len(denied) < len(found)
        if len(left) != len(questions):
            found |= {q: slot.absent[q] for q in questions if q not in found}
        return found

    def error(self) -> int | None:
        """The code with which the GPU as a whole refused, None if it answers."""
        kept = (answers.codes for answers in (self.slot.calm, self.slot.slow, self.slot.seldom) if answers is not None)
        codes = set[int | None]().union(*self._asked, *kept)
        if not codes:
            return None
        condemned = [code for code in codes if code in CONDEMNS]
        if condemned:
            return GPU_IS_LOST if GPU_IS_LOST in condemned else min(c for c in condemned if c is not None)
        if self.answered:
            return None
        told = set[int | None]().union(*self._asked)
        serious = [UNKNOWN if code is None else code for code in told if code not in HARMLESS]
        return min(serious) if serious else None

    def begin(self) -> Answers:
        """A new set: its codes count until it is asked again."""
        answers = Answers()
        self._codes = answers.codes
        self._asked.append(answers.codes)
        return answers

    def quick(self) -> Answers:
        """What moves within seconds, and what must be known within seconds."""
        answers = self.begin()
        found = self.fields(QUICK)
        answers.keep("recovery_action", within(found[RECOVERY_ACTION], 0, 255, ""))
        power = found[POWER_AVERAGE]
        if isinstance(power, Refused):
            power = found[POWER_INSTANT]
        if isinstance(power, Refused):
            power = self.number("nvmlDeviceGetPowerUsage")
        answers.keep("power_watts", watts(power))
        hottest = found[MEMORY_TEMPERATURE]
        answers.keep("memory_temperature_celsius", positive(hottest, 150, "°C"))
        rates = self.ask("nvmlDeviceGetUtilizationRates", self.calls.rates, self.slot.handle)
        gpu, memory = (rates, rates) if isinstance(rates, Refused) else rates
        answers.keep("utilization_ratio", ratio(gpu))
        answers.keep("memory_utilization_ratio", ratio(memory))
        return answers

    def calm(self) -> Answers:
        """What moves within a minute."""
        answers, handle = self.begin(), self.slot.handle
        memory = self.ask("nvmlDeviceGetMemoryInfo", self.calls.memory, handle)
        total, used = (memory, memory) if isinstance(memory, Refused) else memory
        total = positive(total, 1 << 45, "bytes")
        if not isinstance(total, Refused):
            used = within(used, 0, total, "bytes used of less")
        elif not isinstance(used, Refused):
            used = Refused(None, f"{used / MIB:.0f} MiB of an unknown total")
        answers.keep("memory_total_bytes", total)
        answers.keep("memory_used_bytes", used)
        celsius = self.ask("nvmlDeviceGetTemperature", self.calls.temperature, handle)
        answers.keep("temperature_celsius", positive(celsius, 150, "°C"))
        answers.keep("sm_clock_mhz", positive(self.number("nvmlDeviceGetClockInfo", CLOCK_SM), 10_000, "MHz"))
        mask = self.ask("nvmlDeviceGetCurrentClocksEventReasons", self.calls.clock_events, self.slot.handle)
        answers.keep("clock_event_mask", within(mask, 0, (1 << 32) - 2, ""))
        self._pids(answers)
        return answers

    def _pids(self, answers: Answers) -> None:
        told = self.ask("nvmlDeviceGetComputeRunningProcesses", self.calls.pids, self.slot.handle)
        if isinstance(told, Refused):
            answers.keep("pids", told)
            return
        real = tuple(pid for pid in told if 0 < pid < 1 << 22 and os.path.exists(f"/proc/{pid}"))  # noqa: PTH110
        if len(real) < len(told):  # struct mix-ups of driver 535 gave garbage (XuehaiPan/nvitop#79)
            answers.gaps["pids"] = f"{len(told) - len(real)} of {len(told)} are not in /proc"
        answers.values["pids"] = real

    def _note(self, answer: Refused, name: Any) -> None:
        self._codes.add(answer.code)
        if answer.code == GPU_IS_LOST:
            self.lost = True
        elif answer.code in ABSENT:
            self.slot.absent[name] = answer
            self.slot.questions.clear()


def keep(slot: Slot, sets: tuple[Answers, ...]) -> Kept:
    """These sets as one record."""
    values = dict(slot.named)
    for answers in sets:
        values |= answers.values
    gaps = gaps_of(sets)
    slowdown, celsius = values.get("slowdown_celsius"), values.get("temperature_celsius")
    if "temperature_margin_celsius" not in values and slowdown is not None and celsius is not None:
        values["temperature_margin_celsius"] = slowdown - celsius
    if "temperature_margin_celsius" in values:
        gaps.pop("temperature_margin_celsius", None)
    return Kept(sets, Gpu(index=slot.index, **values), gaps)


def gaps_of(sets: tuple[Answers, ...]) -> dict[str, str]:
    """Why what was asked has no value."""
    gaps: dict[str, str] = {}
    for answers in sets:
        gaps |= answers.gaps
    return gaps


def ratio(percent: Any) -> Any:
    """From NVML's per cent."""
    percent = within(percent, 0, 100, "%")
    return percent if isinstance(percent, Refused) else percent / 100


def watts(milliwatts: Any) -> Any:
    """From NVML's milliwatts."""
    milliwatts = positive(milliwatts, MOST_MILLIWATTS, "mW")
    return milliwatts if isinstance(milliwatts, Refused) else milliwatts / 1000
