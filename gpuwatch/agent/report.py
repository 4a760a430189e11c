"""Makes reports: the latest answer of every source, and new events once.

An answer that a slow source gave minutes ago is not said again with each report: it goes out when it is new, and again
each `AGAIN_S`, for an aggregator that has begun anew meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpuwatch import __version__
from gpuwatch.agent.answers import Latest, Source
from gpuwatch.agent.identity import Identity
from gpuwatch.agent.sender import Parcel
from gpuwatch.clock import Clock
from gpuwatch.model.wire import MAX_REPORT_BYTES, NO_FACTS, WIRE_VERSION, Envelope, Goodbye, Report

NS = 10**9
AGAIN_S = 60.0
_encoder = msgspec.msgpack.Encoder()


class Reporter:
    """Numbers the reports of one agent."""

    def __init__(self, identity: Identity, interval_s: float, clock: Clock) -> None:
        self._identity = identity
        self._interval_s = interval_s
        self._clock = clock
        self.sequence = 0
        self._said: dict[str, tuple[int, str, int]] = {}  # source -> its last answer's moment, status; monotonic

    def change(self, interval_s: float) -> None:
        """Another interval is promised from the next report on."""
        self._interval_s = interval_s

    def make(self, sources: Sequence[Source], goodbye: Goodbye | None = None) -> Parcel:
        """One report, encoded."""
        now_ns = self._clock.monotonic_ns()
        taken = []
        for source in sources:  # only what is said is encoded
            if goodbye is not None or source.has_more() or self._is_due(source.latest(), now_ns):
                found = source.take()
                if found is not None:
                    taken.append(found)
        self.sequence += 1
        data = self._encoded(tuple(envelope for envelope, _ in taken), goodbye)
        while len(data) > MAX_REPORT_BYTES and (large := _to_stay(taken, len(data) - MAX_REPORT_BYTES)) is not None:
            taken[large] = (_shortened(taken[large][0]), taken[large][1])
            self._said.pop(taken[large][0].collector, None)  # the next report may have room for it
            data = self._encoded(tuple(envelope for envelope, _ in taken), goodbye)
        return Parcel(data, events=goodbye is not None or any(events for _, events in taken))

    def _is_due(self, latest: Latest | None, now_ns: int) -> bool:
        if latest is None:
            return False
        at_unix_ns, status, said_ns = self._said.get(latest.collector, (0, "", 0))
        if at_unix_ns == latest.at_unix_ns and status == latest.status and now_ns - said_ns < AGAIN_S * NS:
            return latest.status not in ("ok", "unsupported")  # what is wrong is told until it is right
        self._said[latest.collector] = (latest.at_unix_ns, latest.status, now_ns)
        return True

    def _encoded(self, envelopes: tuple[Envelope, ...], goodbye: Goodbye | None) -> bytes:
        return _encoder.encode(
            Report(
                version=WIRE_VERSION,
                slot=self._identity.slot,
                machine=self._identity.machine,
                boot_id=self._identity.boot_id,
                agent_id=self._identity.agent_id,
                sequence=self.sequence,
                sent_unix_ns=self._clock.unix_ns(),
                envelopes=envelopes,
                goodbye=goodbye,
                agent_version=__version__,
                interval_s=self._interval_s,
            )
        )


def _to_stay(taken: list[tuple[Envelope, bool]], over: int) -> int | None:
    """Which facts stay at home where a report is too large by so many bytes: the largest gauges where they are enough,
    else events, which are told once. None: nothing is left that could."""
    sizes = [len(bytes(envelope.facts)) for envelope, _ in taken]
    gauges = [at for at, (_, events) in enumerate(taken) if not events and taken[at][0].status == "ok"]
    others = [at for at, (envelope, events) in enumerate(taken) if events and envelope.status == "ok"]
    choice = gauges if sum(sizes[at] for at in gauges) >= over or not others else others
    return max(choice, key=lambda at: sizes[at], default=None)


def _shortened(large: Envelope) -> Envelope:
    """Without its facts, and saying so."""
    reason = f"its facts take {len(bytes(large.facts))} bytes, more than a report may have"
    return msgspec.structs.replace(large, status="failed", reason=reason, gaps={}, facts=NO_FACTS)
