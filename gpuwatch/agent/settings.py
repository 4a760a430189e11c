"""The agent's settings file, its own keys and each collector's table, all faults at once."""

from __future__ import annotations

import difflib
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec

from gpuwatch.collectors import Collector
from gpuwatch.config import Fault, convert, read_toml, refuse
from gpuwatch.sdk.trust import why_not

Positive = Annotated[float, msgspec.Meta(gt=0)]
Bytes = Annotated[int, msgspec.Meta(ge=65_536)]


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The top of the file. Every key may be left out."""

    slot: str = ""  # the scheduler's name of this node; default: the host name
    machine: str = ""  # the provider's id of this machine; default: the firmware's UUID, else /etc/machine-id
    aggregator: tuple[str, ...] = ()  # one address, or two of which one leads; none: only /metrics is served
    token_file: str = ""  # this machine's token: `gpuwatch token MACHINE`
    ca_file: str = ""  # who signed the aggregator's certificate; default: the system's list
    state_dir: str = "/var/lib/gpuwatch"  # spool, and what must survive a restart
    interval_s: Annotated[float, msgspec.Meta(ge=0.1, le=3600)] = 5.0  # between two reports
    metrics_listen: str = "127.0.0.1:9101"  # empty: not served
    spool_max_bytes: Bytes = 32 << 20
    spool_max_reports: Annotated[int, msgspec.Meta(ge=1)] = 5_000
    retry_first_s: Positive = 1.0
    retry_most_s: Positive = 15.0
    collectors: dict[str, dict[str, Any]] = {}


NEED_A_RESTART = ("slot", "machine", "state_dir", "metrics_listen")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The file, checked: collectors by name with their own settings records, those that are off left out."""

    agent: AgentSettings
    collectors: dict[str, Any]


def load(path: Path, leaves: Mapping[str, Collector[Any]], *, with_files: bool = False) -> Settings:
    """Read and check. Raises `ConfigError` that lists every fault.

    `with_files`: what is wrong with the files that it names is a fault too. An agent starts all the same: they may come
    later.
    """
    return checked(read_toml(path), leaves, file=str(path), with_files=with_files)


def checked(
    raw: Mapping[str, Any], leaves: Mapping[str, Collector[Any]], *, file: str, with_files: bool = False
) -> Settings:
    """The same for a table that is already read."""
    agent, faults = convert(raw, AgentSettings, file=file)
    tables = raw.get("collectors", {})
    collectors: dict[str, Any] = {}
    if isinstance(tables, dict):
        for name in tables.keys() - leaves.keys():
            near = difflib.get_close_matches(name, leaves, n=1, cutoff=0.4)
            known = f"a collector: one of {', '.join(sorted(leaves))}"
            faults.append(
                Fault(file, f"collectors.{name}", known, "an unknown name", f"collectors.{near[0]}" if near else "")
            )
        for name, leaf in leaves.items():
            table = tables.get(name, {})
            if isinstance(table, dict):
                settings, inner = convert(table, leaf.settings, file=file, at=f"collectors.{name}.")
                faults += inner
                if settings is not None and settings.enabled:
                    collectors[name] = settings
    if agent is not None:
        faults += _places(agent, file)
        if with_files and (why := why_no_trust(agent)):
            faults.append(Fault(file, "ca_file", "a file of certificates in PEM", f"{agent.ca_file!r} ({why})"))
    refuse(faults)
    assert agent is not None
    return Settings(agent=agent, collectors=collectors)


def for_the_running(old: AgentSettings, new: AgentSettings) -> tuple[AgentSettings, tuple[str, ...]]:
    """`new` as far as an agent that runs can take it over, and the keys that wait for its next start."""
    waiting = [key for key in NEED_A_RESTART if getattr(old, key) != getattr(new, key)]
    if bool(old.aggregator) != bool(new.aggregator):
        waiting.append("aggregator")
    return msgspec.structs.replace(new, **{key: getattr(old, key) for key in waiting}), tuple(waiting)


def why_no_trust(agent: AgentSettings) -> str:
    """Why no aggregator's certificate could be trusted; empty: nothing speaks against it."""
    return why_not(agent.ca_file) if any(url.lower().startswith("https:") for url in agent.aggregator) else ""


def listen_address(text: str) -> tuple[str, int] | None:
    """`host:port`, `[::1]:port`; None if it is neither."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    return (host, int(port)) if host and port.isdigit() and int(port) < 65_536 else None


def _places(agent: AgentSettings, file: str) -> list[Fault]:
    faults: list[Fault] = []
    if len(agent.aggregator) > 2:
        faults.append(Fault(file, "aggregator", "at most two addresses", f"{len(agent.aggregator)}"))
    for url in agent.aggregator:
        try:
            parts = urlsplit(url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            good = False
        if not good:
            faults.append(Fault(file, "aggregator", "addresses such as http://127.0.0.1:9190", repr(url)))
    if agent.metrics_listen and listen_address(agent.metrics_listen) is None:
        faults.append(Fault(file, "metrics_listen", "host:port such as 127.0.0.1:9101", repr(agent.metrics_listen)))
    return faults


def host_name() -> str:
    """The default slot."""
    return socket.gethostname()
