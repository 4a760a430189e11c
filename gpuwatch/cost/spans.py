"""Half-open stretches of time [start, end) in ns UTC, as plain pairs: cut, subtract, take from the front."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Span = tuple[int, int]


def length_ns(spans: Iterable[Span]) -> int:
    """How long they are together."""
    return sum(end - start for start, end in spans)


def clip(spans: Iterable[Span], start: int, end: int) -> list[Span]:
    """The parts of `spans` that lie inside [start, end)."""
    return [(max(a, start), min(b, end)) for a, b in spans if max(a, start) < min(b, end)]


def united(spans: Iterable[Span]) -> list[Span]:
    """The same time as sorted stretches that neither touch nor overlap."""
    result: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def without(spans: Sequence[Span], holes: Sequence[Span]) -> list[Span]:
    """`spans` less `holes`; both sorted and free of overlap, and so is the result."""
    result: list[Span] = []
    first = 0
    for start, end in spans:
        while first < len(holes) and holes[first][1] <= start:
            first += 1
        cursor = start
        for hole_start, hole_end in holes[first:]:
            if hole_start >= end:
                break
            if hole_start > cursor:
                result.append((cursor, hole_start))
            cursor = max(cursor, hole_end)
        if cursor < end:
            result.append((cursor, end))
    return result


def take(spans: Sequence[Span], amount_ns: int) -> tuple[list[Span], list[Span]]:
    """The first `amount_ns` of the stretches, and the rest."""
    front: list[Span] = []
    for index, (start, end) in enumerate(spans):
        if amount_ns <= 0:
            return front, list(spans[index:])
        if end - start <= amount_ns:
            front.append((start, end))
            amount_ns -= end - start
        else:
            front.append((start, start + amount_ns))
            return front, [(start + amount_ns, end), *spans[index + 1 :]]
    return front, []
