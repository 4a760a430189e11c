"""The two state words of a node: how it is (health), and what we are doing with it (lifecycle)."""

from __future__ import annotations

from enum import StrEnum


class Health(StrEnum):
    """How a node is. `UNKNOWN` is an answer: absence of evidence is never healthy."""

    JOINING = "joining"
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    UNKNOWN = "unknown"
    DEGRADED = "degraded"
    DRIVER_FAILED = "driver_failed"
    DEAD = "dead"
    ABSENT = "absent"


class Lifecycle(StrEnum):
    """What is being done with a node."""

    PROVISIONING = "provisioning"  # billed, never yet in service
    IN_SERVICE = "in_service"
    CORDONED = "cordoned"
    DRAINING = "draining"
    DRAINED = "drained"
    REPAIRING = "repairing"
    REPLACING = "replacing"
    VALIDATING = "validating"
    QUARANTINED = "quarantined"
    RETIRED = "retired"


OUT = frozenset(
    {
        Lifecycle.CORDONED,
        Lifecycle.DRAINING,
        Lifecycle.DRAINED,
        Lifecycle.REPAIRING,
        Lifecycle.REPLACING,
        Lifecycle.VALIDATING,
        Lifecycle.QUARANTINED,
    }
)
"""Lifecycles in which a node is out of service: they use up the safety budget."""

SICK = frozenset({Health.DEGRADED, Health.DRIVER_FAILED, Health.DEAD})
"""Healths that ask for an action: each such node is acted on or held with a reason."""
