"""What an agent is made of, built from its settings. Imports nothing of the aggregator."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

from gpuwatch.agent.exporter import Exporter
from gpuwatch.agent.metrics import Page
from gpuwatch.agent.settings import AgentSettings, listen_address, why_no_trust
from gpuwatch.agent.wire_client import Line
from gpuwatch.errors import UsageError

log = logging.getLogger("gpuwatch.agent")


def only_one(state_dir: Path) -> int | None:
    """A lock on the state directory, held while this process lives. Raises `UsageError` where another agent has it."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(state_dir / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        log.warning("%s cannot be used: %s; nothing will survive a restart of the agent", state_dir, error)
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(
            f"another agent uses {state_dir}",
            why="two agents on one node would start two probes and report twice",
            next_step="stop the other one (systemctl stop gpuwatch-agent), or set another state_dir",
        ) from error
    except OSError as error:  # a network file system without locks
        log.warning("%s cannot be locked: %s; a second agent on this node would not be noticed", state_dir, error)
    return lock


def lines(agent: AgentSettings, on_order: Callable[[str], None]) -> list[Line]:
    """One to each aggregator; says what is wrong with the files of token and certificates."""
    try:
        mode = Path(agent.token_file).stat().st_mode if agent.token_file else 0
    except OSError:
        mode = 0  # said below
    if not agent.token_file or not os.access(agent.token_file, os.R_OK):
        log.warning("the token file %r cannot be read: the aggregator will refuse reports", agent.token_file)
    elif mode & (stat.S_IROTH | stat.S_IWOTH):
        log.warning("every user of this node may read or write the token file %s: chmod o= it", agent.token_file)
    if why := why_no_trust(agent):
        log.error("ca_file %s: %s; no report can be sent over https until it is there", agent.ca_file, why)
    return [
        Line(url, token_file=agent.token_file, ca_file=agent.ca_file, on_order=on_order) for url in agent.aggregator
    ]


def exporter(agent: AgentSettings, page: Page) -> Exporter | None:
    """None: not wanted, or its port is taken, which must not blind the fleet."""
    where = listen_address(agent.metrics_listen)
    if where is None:
        return None
    try:
        return Exporter(*where, page)
    except OSError as error:
        log.error("/metrics cannot be served on %s: %s", agent.metrics_listen, error)
        return None
