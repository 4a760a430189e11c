"""The agent process: settings in, sources, sender and exporter built and joined. Imports nothing of the aggregator."""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import sys
from pathlib import Path
from typing import Any

import gpuwatch.collectors
from gpuwatch import logs
from gpuwatch.agent.answers import Source
from gpuwatch.agent.backoff import BackOff
from gpuwatch.agent.book import Book
from gpuwatch.agent.child import System
from gpuwatch.agent.exporter import Exporter
from gpuwatch.agent.identity import identify
from gpuwatch.agent.inline import Inline
from gpuwatch.agent.loop import Loop
from gpuwatch.agent.metrics import EventCounts, Page
from gpuwatch.agent.report import Reporter
from gpuwatch.agent.sender import Parcel, Sender
from gpuwatch.agent.settings import AgentSettings, Settings, listen_address, load
from gpuwatch.agent.spool import Spool
from gpuwatch.agent.supervise import Probe
from gpuwatch.agent.wire_client import Line
from gpuwatch.clock import SystemClock
from gpuwatch.collectors import Collector
from gpuwatch.errors import GpuwatchError, UsageError
from gpuwatch.notify import ServiceManager
from gpuwatch.registry import leaves

log = logging.getLogger("gpuwatch.agent")

GOODBYE_WITHIN_S = 1.2  # a stop takes less than two seconds, whoever is away


def run(config: Path) -> int:
    """Watch this node until SIGTERM. Raises `GpuwatchError` where it cannot begin."""
    doors = leaves(gpuwatch.collectors, "COLLECTOR", Collector)
    return _Agent(load(config, doors), doors).run()


class _Agent:
    def __init__(self, settings: Settings, doors: dict[str, Collector[Any]]) -> None:
        agent = settings.agent
        self._identity = identify(agent)
        self._state_dir = Path(agent.state_dir)
        self._lock = _only_one(self._state_dir)
        self._clock = SystemClock()
        self._manager = ServiceManager()
        self._counts = EventCounts()
        self._sender = _sender(agent, self._state_dir, self._clock)
        self._sources: list[Source] = []
        self._reporter = Reporter(self._identity, agent.interval_s, self._clock)
        self._loop = Loop(
            self._sources,
            self._reporter,
            self._put,
            interval_s=agent.interval_s,
            clock=self._clock,
            manager=self._manager,
            status=self._status,
        )
        for name, its_settings in settings.collectors.items():
            self._sources.append(self._source(name, doors[name], its_settings))
        names = {"slot": self._identity.slot, "machine": self._identity.machine}
        self._exporter = _exporter(agent, Page(self._sources, doors, self._counts, self._sender, names))

    def run(self) -> int:
        """From first report to goodbye."""
        if self._sender is not None:
            self._sender.start()
        if self._exporter is not None:
            self._exporter.start()
            log.info("metrics on port %d", self._exporter.port)
        log.info("watching %s (machine %s)", self._identity.slot, self._identity.machine)
        goodbye = self._loop.run()
        self._manager.stopping(goodbye.reason)
        for source in self._sources:
            source.close()
        if self._exporter is not None:
            self._exporter.stop()
        last = self._reporter.make(self._sources, goodbye)
        if self._sender is not None and not self._sender.finish(last, GOODBYE_WITHIN_S):
            log.warning("%d reports wait in the spool for the next agent", self._sender.waiting_count())
        logging.shutdown()
        return 0

    def _source(self, name: str, door: Collector[Any], settings: Any) -> Source:
        if door.can_hang:
            return Probe(
                name,
                door,
                settings,
                boot_id=self._identity.boot_id,
                book=Book(self._state_dir, name),
                processes=System(),
            )
        source = Inline(name, door, settings, clock=self._clock, wake=self._loop.wake, state_dir=self._state_dir)
        source.on_facts = self._counts.add
        return source

    def _put(self, parcel: Parcel) -> None:
        if self._sender is not None:
            self._sender.put(parcel)

    def _status(self) -> str:
        troubled = [source.name for source in self._sources if (at := source.latest()) and at.status != "ok"]
        words = f"{len(self._sources)} sources"
        if troubled:
            words += f", not ok: {' '.join(troubled)}"
        if self._sender is not None:
            words += f", {self._sender.waiting_count()} reports wait"
            words += f", {self._sender.last_trouble}" if self._sender.last_trouble else ""
        return words


def _only_one(state_dir: Path) -> int | None:
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


def _sender(agent: AgentSettings, state_dir: Path, clock: SystemClock) -> Sender | None:
    if not agent.aggregator:
        log.warning("no aggregator is set: nothing is sent, only /metrics is served")
        return None
    if not agent.token_file or not os.access(agent.token_file, os.R_OK):
        log.warning("the token file %r cannot be read: the aggregator will refuse reports", agent.token_file)
    lines = [Line(url, token_file=agent.token_file, ca_file=agent.ca_file) for url in agent.aggregator]
    spool = Spool(state_dir / "spool", max_bytes=agent.spool_max_bytes, max_reports=agent.spool_max_reports)
    return Sender(lines, spool, BackOff(agent.retry_first_s, agent.retry_most_s), clock)


def _exporter(agent: AgentSettings, page: Page) -> Exporter | None:
    where = listen_address(agent.metrics_listen)
    if where is None:
        return None
    try:
        return Exporter(*where, page)
    except OSError as error:  # a taken port must not blind the fleet
        log.error("/metrics cannot be served on %s: %s", agent.metrics_listen, error)
        return None


def main(argv: list[str] | None = None) -> int:
    """The command line of `python -m gpuwatch.wiring.agent`."""
    parser = argparse.ArgumentParser(prog="gpuwatch agent", description="Watch this node and report to the aggregator.")
    parser.add_argument("--config", "-c", type=Path, default=Path("/etc/gpuwatch/agent.toml"))
    parser.add_argument("--verbose", "-v", action="store_true")
    args = parser.parse_args(argv)
    level = logging.DEBUG if args.verbose else logging.INFO
    logs.set_up(level, "%(levelname)s %(message)s")
    try:
        return run(args.config)
    except GpuwatchError as error:
        print(f"gpuwatch: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
