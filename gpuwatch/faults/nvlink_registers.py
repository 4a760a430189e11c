"""Xid 74: an NVLink error up to Hopper. Seven registers say whether cable, memory or the other end is to blame.

`NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)`
Source: NVIDIA's workflow NVLINK_ERR, quoted in NVIDIA/NVSentinel#364 and #516.
"""

from __future__ import annotations

import re

from gpuwatch.faults.event import Detail

_LINK = re.compile(r"\blink\s*#?\s*(\d{1,4})\b", re.IGNORECASE)
_BRACKET = re.compile(r"\(\s*((?:0x[0-9a-fA-F]*|,|\s)+)(\))?")

HARMLESS = frozenset({0, 23, 30})
SYMPATHETIC = frozenset({1, 20})
ECC = frozenset({4, 5})
CONNECTION = frozenset({8, 9, 12, 16, 17, 24, 28})
SIGNAL = frozenset({21, 22})
THIRD_WHEN_REPEATED = frozenset({0, 1, 2, 6, 16, 19})
THIRD_AT_ONCE = frozenset({13})
REGISTERS = 7


def read(text: str) -> tuple[dict[str, Detail], bool]:
    """Link, registers and what to check; and whether every bit that is set is one that NVIDIA says to ignore."""
    details: dict[str, Detail] = {}
    link = _LINK.search(text)
    if link is not None:
        details["link"] = int(link[1])
    bracket = _BRACKET.search(text)
    words = re.findall(r"0x[0-9a-fA-F]{1,16}", bracket[1]) if bracket else []
    if bracket is not None and bracket[2] is None and words:
        words.pop()  # cut inside the last one
    if words:
        details["reg"] = tuple(word.lower() for word in words)
    if len(words) < REGISTERS or bracket is None or bracket[2] is None:
        details["registers_incomplete"] = True
        if not words:
            return details, False
    first, third = _bits(words[0]), _bits(words[2]) if len(words) > 2 else ()
    if first:
        details["reg0_bit"] = first if len(first) > 1 else first[0]
    if third:
        details["reg2_bit"] = third if len(third) > 1 else third[0]
    others = [word for place, word in enumerate(words) if place != 0 and int(word, 16)]
    harmless = bool(first) and set(first) <= HARMLESS and not others and len(words) >= REGISTERS
    advice = _advice(set(first), set(third))
    if harmless:
        advice = "NVIDIA says that these bits can be ignored"
    if advice:
        details["check"] = advice
    return details, harmless


def _bits(word: str) -> tuple[int, ...]:
    value = int(word, 16)
    return tuple(bit for bit in range(value.bit_length()) if value >> bit & 1)


def _advice(first: set[int], third: set[int]) -> str:
    if third & THIRD_AT_ONCE:
        return "hardware: report it at once (third register, bit 13)"
    if first & ECC:
        return "ECC or parity on the link: hardware if it comes more than twice on the same link"
    if first & CONNECTION:
        return "the link's connection: reseat, then diagnostics"
    if first & SIGNAL:
        return "marginal signal on the link: the connection, then diagnostics"
    if third & THIRD_WHEN_REPEATED:
        return "hardware only if it repeats on the same link (third register)"
    if first & SYMPATHETIC:
        return "follows an error elsewhere: look at the other end of the link and at other Xids and SXids first"
    return ""
