"""What an agent sends: one report, a few envelopes, each with facts as raw msgpack.

Version policy: an aggregator of wire version N accepts N-1, N and N+1. Records are arrays that only grow at the end.
Facts stay raw (`msgspec.Raw`) until somebody asks for them: an unknown collector's facts are kept and counted, never a
reason to refuse the report.
"""

from __future__ import annotations

from typing import Literal

import msgspec

WIRE_VERSION = 2
MAX_REPORT_BYTES = 1 << 20
NO_FACTS = msgspec.Raw(b"\xc0")  # msgpack's nil: an empty `Raw` would encode to nothing at all and break the report

Status = Literal["ok", "failed", "hung", "unsupported"]


class Envelope(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One source's latest answer. `facts` is nil unless the status is `ok`."""

    collector: str
    at_unix_ns: int  # when the reading began, on the node's clock
    took_s: float
    status: Status
    reason: str | None = None  # for failed, hung and unsupported: why, in words; a hung source names its wait channel
    since_unix_ns: int | None = None  # hung since
    facts: msgspec.Raw = NO_FACTS
    gaps: dict[str, str] = {}  # field name -> why it is None
    abandoned_count: int = 0  # children that could not be killed, left-overs of an earlier agent included


class Goodbye(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A clean stop says so, so that silence means something."""

    reason: str
    expected_back_unix_ns: int | None = None


class Report(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One agent's report. Its identity is (machine, boot_id, agent_id, sequence)."""

    version: int
    slot: str
    machine: str
    boot_id: str
    agent_id: str  # new at each start of the agent
    sequence: int
    sent_unix_ns: int
    envelopes: tuple[Envelope, ...] = ()
    goodbye: Goodbye | None = None
    agent_version: str = ""
    interval_s: float = 5.0

    def report_id(self) -> str:
        """The same id means the same report; the same id with another body is refused."""
        return f"{self.boot_id}/{self.agent_id}/{self.sequence}"


class Ack(msgspec.Struct, frozen=True):
    """The answer to a report, as JSON."""

    ok: bool
    repeated: bool = False  # seen before: acknowledged again, counted once
    error: str = ""
    next_step: str = ""
    order: str = ""  # a signed order for this machine's hands (model.order), which the agent passes on as it is
