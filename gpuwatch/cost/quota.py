"""Spare or idle: of a pool's healthy free nodes the first `quota`, by resource id, are spare.

By instant, per pool and per price within it. A node that is free in part counts for that part.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from gpuwatch.model.ledger import SpareQuota, snap_ns
from gpuwatch.model.money import Terms

PoolKey = tuple[str, str, str, str, str, int]  # pool, provider, region, sku, kind, capacity


class Free(NamedTuple):
    """A share of a healthy machine that nobody uses or holds, for a while."""

    start: int
    end: int
    machine: str
    gpu_thousandths: int


class Decided(NamedTuple):
    """A part of a free stretch: `spare` or, beyond the quota, idle."""

    free_index: int
    start: int
    end: int
    gpu_thousandths: int
    spare: bool


def pool_key(pool: str, terms: Terms, capacity: int) -> PoolKey:
    """Machines that share one quota: same pool, same price."""
    return pool, terms.provider, terms.region, terms.sku, terms.price_kind, capacity


def quotas_by_pool(lines: Sequence[SpareQuota]) -> dict[str, list[tuple[int, int]]]:
    """(moment, count) a pool, sorted."""
    quotas: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for line in lines:
        quotas[line.pool].append((snap_ns(line.at_unix_ns), line.count))
    return quotas


def decide(free: Sequence[Free], quotas: Sequence[tuple[int, int]], capacity: int) -> list[Decided]:
    """Split every free stretch of one pool and price into spare and idle. O(n log n)."""
    if not quotas:
        return [Decided(i, f.start, f.end, f.gpu_thousandths, False) for i, f in enumerate(free)]
    events: list[tuple[int, int, int]] = []  # moment, kind (0 ends, 1 quota, 2 begins), index or count
    for index, stretch in enumerate(free):
        events.append((stretch.end, 0, index))
        events.append((stretch.start, 2, index))
    events += [(at, 1, count) for at, count in quotas]
    queue = _Queue(free)
    result: list[Decided] = []
    for at, together in groupby(sorted(events), key=lambda event: event[0]):
        for _, kind, value in together:
            if kind == 0:
                queue.leave(value)
            elif kind == 1:
                queue.limit = value * capacity
            else:
                queue.join(value)
        result += queue.settle(at)
    return result


class _Queue:
    """Free machines in order of their id; those inside cover the quota, the last of them perhaps in part."""

    def __init__(self, free: Sequence[Free]) -> None:
        self.free = free
        self.limit = 0
        self.total = 0  # thousandths inside
        self.inside: list[tuple[str, int]] = []
        self.outside: list[tuple[str, int]] = []
        self.since: dict[int, tuple[int, int]] = {}  # index -> (since when, thousandths that are spare)
        self.touched: set[int] = set()
        self.gone: dict[int, tuple[int, int]] = {}
        self.last: int | None = None  # the one that may cover the quota's end in part

    def _key(self, index: int) -> tuple[str, int]:
        return self.free[index].machine, index

    def join(self, index: int) -> None:
        key = self._key(index)
        if self.outside and key > self.outside[0]:
            insort(self.outside, key)
        else:
            insort(self.inside, key)
            self.total += self.free[index].gpu_thousandths
        self.touched.add(index)

    def leave(self, index: int) -> None:
        key = self._key(index)
        place = bisect_left(self.inside, key)
        if place < len(self.inside) and self.inside[place] == key:
            del self.inside[place]
            self.total -= self.free[index].gpu_thousandths
        else:
            del self.outside[bisect_left(self.outside, key)]
        self.touched.discard(index)
        if index in self.since:
            self.gone[index] = self.since.pop(index)

    def settle(self, at: int) -> list[Decided]:
        """After all events of one instant: who is spare now; stretches whose answer changed end here."""
        if self.last is not None and self.last in self.since:
            self.touched.add(self.last)
        while self.total < self.limit and self.outside:
            key = self.outside.pop(0)
            insort(self.inside, key)
            self.total += self.free[key[1]].gpu_thousandths
            self.touched.add(key[1])
        while self.inside and self.total - self.free[self.inside[-1][1]].gpu_thousandths >= self.limit:
            key = self.inside.pop()
            insort(self.outside, key)
            self.total -= self.free[key[1]].gpu_thousandths
            self.touched.add(key[1])
        result: list[Decided] = []
        for index, state in self.gone.items():
            result += self._close(index, state, at)
        self.gone.clear()
        last = self.inside[-1] if self.inside else None
        if last is not None:
            self.touched.add(last[1])
        self.last = last[1] if last is not None else None
        for index in sorted(self.touched):
            key = self._key(index)
            spare = 0
            if last is not None and key <= last:
                whole = self.free[index].gpu_thousandths
                spare = min(whole, whole - (self.total - self.limit)) if key == last else whole
            known = self.since.get(index)
            if known is None:
                self.since[index] = (at, spare)
            elif known[1] != spare:
                result += self._close(index, known, at)
                self.since[index] = (at, spare)
        self.touched.clear()
        return result

    def _close(self, index: int, state: tuple[int, int], at: int) -> list[Decided]:
        since, spare = state
        if since >= at:
            return []
        parts = ((spare, True), (self.free[index].gpu_thousandths - spare, False))
        return [Decided(index, since, at, share, is_spare) for share, is_spare in parts if share]
