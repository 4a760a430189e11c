"""EVIDENCE. What one rule concludes from facts, about one named subject."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpuwatch.model.states import Health

SubjectKind = Literal[
    "gpu", "machine", "link", "switch", "nvlink_domain", "file_system", "driver_version", "run", "domain", "pool", "us"
]
Path = Literal["agent", "scheduler", "cloud", "peer"]
Rung = Literal[
    "none", "restart_app", "check_app", "restart_job", "reset_gpu", "reboot", "drain_replace", "contact_support"
]


class Subject(msgspec.Struct, frozen=True):
    """What the evidence is about."""

    kind: SubjectKind
    id: str


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One rule argues for one state of one subject."""

    rule: str  # the rule file's own name
    subject: Subject
    argues_for: Health
    because: str
    path: Path = "agent"  # over which wire the witness spoke: two witnesses on one wire are one
    conclusive: bool = False  # may condemn without a second witness
    onset_unix_ns: int | None = None  # earliest proof of the failure; None: not known
    event_id: str | None = None
    action: Rung = "none"  # first rung of the repair ladder
    soft: bool = False  # cordon and let the jobs end: the work is not in danger
    data_suspect: bool = False  # results since the onset may be wrong: stop now
    cause: str = ""  # groups the same fault over nodes, e.g. `xid_79`, `driver_mismatch`; empty: the rule's name
    kind: str = ""  # incident kind, e.g. `gpu_lost`; empty: from the health, else the rule's name
    must_last: float | Literal["driver_grace_s"] = 0.0
    """Only a suspicion until it has been seen for so many seconds on end, or for that time of the pool's policy."""
    software: bool = False  # of what is installed, as far as is known: a reimage or a reboot may cure it
    due_monotonic_ns: int | None = None  # what a note announces comes then: DEGRADED when the policy acts on it
    service: str = ""  # a unit of this node whose restart may cure it
    note: bool = False  # told to people and counts for nothing: a node with notes alone is healthy

    def cause_key(self) -> str:
        """What makes two nodes' evidence the same fault for the shared-cause rule."""
        return self.cause or self.rule


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """The check could not run. Never unhealthy, never healthy."""

    rule: str
    subject: Subject
    because: str


Finding = Evidence | Unknown


class SharedCause(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet rule's finding: one shared thing explains many nodes; all of them are held."""

    rule: str
    subject: Subject
    slots: tuple[str, ...]
    because: str
    cause: str = ""  # what their evidence has in common, see Evidence.cause_key; empty: no fault of a node's own
