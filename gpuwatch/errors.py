"""The error tree. Every error says what happened, why, and what to do next."""

from __future__ import annotations


class GpuwatchError(Exception):
    """Root of every error that a person may read. The CLI prints the three parts and exits with `exit_code`."""

    exit_code = 1

    def __init__(self, what: str, *, why: str = "", next_step: str = "") -> None:
        self.what = what
        self.why = why
        self.next_step = next_step
        super().__init__(what)

    def __str__(self) -> str:
        parts = [self.what]
        if self.why:
            parts.append(f"why: {self.why}")
        if self.next_step:
            parts.append(f"next: {self.next_step}")
        return "\n".join(parts)


def install_extra(extra: str) -> str:
    """The next step where an optional library is missing. Never by name: another's package has it."""
    return f"in a clone of gpuwatch, with the pip of gpuwatch's own environment: pip install '.[{extra}]'"


class ConfigError(GpuwatchError):
    """A settings file cannot be used. Lists every fault found, not only the first."""

    exit_code = 2


class UsageError(GpuwatchError):
    """A command was called with words that do not fit."""

    exit_code = 2


class RegistryError(GpuwatchError):
    """A leaf does not offer what its door asks."""


class WireError(GpuwatchError):
    """A report cannot be accepted, now or later. `code` is the HTTP status to answer with."""

    def __init__(self, what: str, *, code: int, why: str = "", next_step: str = "") -> None:
        super().__init__(what, why=why, next_step=next_step)
        self.code = code


class StoreError(GpuwatchError):
    """The ledger cannot be read or written."""


class CloudError(GpuwatchError):
    """A cloud call failed. `retry` tells whether the same call may succeed later."""

    def __init__(self, what: str, *, retry: bool = False, why: str = "", next_step: str = "") -> None:
        super().__init__(what, why=why, next_step=next_step)
        self.retry = retry


class SchedulerError(GpuwatchError):
    """A scheduler call failed. `retry` tells whether the same call may succeed later."""

    def __init__(self, what: str, *, retry: bool = False, why: str = "", next_step: str = "") -> None:
        super().__init__(what, why=why, next_step=next_step)
        self.retry = retry


class HistoryError(GpuwatchError):
    """A history from elsewhere (an accounting dump, an export) cannot be read at all."""


class PriceError(GpuwatchError):
    """A price book or price look-up cannot be used."""


class DashboardError(GpuwatchError):
    """Dashboards cannot be read, or a Grafana does not take them."""


class ProbeError(GpuwatchError):
    """A source on this node could not be read."""
