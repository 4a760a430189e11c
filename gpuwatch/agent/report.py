"""Makes reports: the latest answer of every source, so that each report stands for itself, and new events once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpuwatch import __version__
from gpuwatch.agent.answers import Source
from gpuwatch.agent.identity import Identity
from gpuwatch.agent.sender import Parcel
from gpuwatch.clock import Clock
from gpuwatch.model.wire import MAX_REPORT_BYTES, NO_FACTS, WIRE_VERSION, Envelope, Goodbye, Report

_encoder = msgspec.msgpack.Encoder()


class Reporter:
    """Numbers the reports of one agent."""

    def __init__(self, identity: Identity, interval_s: float, clock: Clock) -> None:
        self._identity = identity
        self._interval_s = interval_s
        self._clock = clock
        self.sequence = 0

    def make(self, sources: Sequence[Source], goodbye: Goodbye | None = None) -> Parcel:
        """One report, encoded."""
        taken = [found for source in sources if (found := source.take()) is not None]
        envelopes = tuple(envelope for envelope, _ in taken)
        self.sequence += 1
        data = self._encoded(envelopes, goodbye)
        if len(data) > MAX_REPORT_BYTES:
            data = self._encoded(_shortened(envelopes), goodbye)
        return Parcel(data, events=goodbye is not None or any(events for _, events in taken))

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


def _shortened(envelopes: tuple[Envelope, ...]) -> tuple[Envelope, ...]:
    """Too large to be accepted: the largest facts stay at home, and the envelope says so."""
    largest = max(envelopes, key=lambda envelope: len(bytes(envelope.facts)))
    size = len(bytes(largest.facts))
    said = msgspec.structs.replace(
        largest, status="failed", reason=f"its facts take {size} bytes, more than a report may have", gaps={},
        facts=NO_FACTS,
    )  # fmt: skip
    return tuple(said if envelope is largest else envelope for envelope in envelopes)
