"""The agent process: settings in, sources, sender and exporter built and joined. Imports nothing of the aggregator."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

import msgspec

import gpuwatch.collectors
from gpuwatch import logs
from gpuwatch.agent.answers import Source
from gpuwatch.agent.backoff import BackOff
from gpuwatch.agent.book import Book
from gpuwatch.agent.child import System
from gpuwatch.agent.identity import identify
from gpuwatch.agent.inline import Inline
from gpuwatch.agent.loop import Loop
from gpuwatch.agent.memory import one_arena, tidy, tidy_at
from gpuwatch.agent.metrics import EventCounts, Page
from gpuwatch.agent.orders import OrderFile
from gpuwatch.agent.release import ReleaseFile
from gpuwatch.agent.report import Reporter
from gpuwatch.agent.sender import Parcel, Sender
from gpuwatch.agent.settings import AgentSettings, Settings, for_the_running, load
from gpuwatch.agent.spool import Spool
from gpuwatch.agent.supervise import Probe
from gpuwatch.clock import SystemClock
from gpuwatch.collectors import Collector
from gpuwatch.errors import GpuwatchError
from gpuwatch.notify import ServiceManager
from gpuwatch.registry import leaves
from gpuwatch.wiring.agent_parts import exporter, lines, only_one

log = logging.getLogger("gpuwatch.agent")

WELL = ("ok", "unsupported")  # a node without InfiniBand is no fault
GOODBYE_WITHIN_S = 1.2  # a stop takes less than two seconds, whoever is away


def run(config: Path) -> int:
    """Watch this node until SIGTERM. Raises `GpuwatchError` where it cannot begin."""
    doors = leaves(gpuwatch.collectors, "COLLECTOR", Collector)
    return _Agent(config, load(config, doors), doors).run()


class _Agent:
    def __init__(self, config: Path, settings: Settings, doors: dict[str, Collector[Any]]) -> None:
        agent = settings.agent
        self._config = config
        self._settings = settings
        self._refused = False  # the settings file, at the last look
        self._doors = doors
        self._identity = identify(agent)
        self._state_dir = Path(agent.state_dir)
        self._lock = only_one(self._state_dir)
        self._release = ReleaseFile(self._state_dir)
        self._clock = SystemClock()
        self._manager = ServiceManager()
        self._counts = EventCounts()
        self._spool = Spool(
            self._state_dir / "spool", max_bytes=agent.spool_max_bytes, max_reports=agent.spool_max_reports
        )
        self._orders: OrderFile | None = None
        self._sender = self._make_sender(agent)
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
            reload=self._reload,
        )
        for name, its_settings in settings.collectors.items():
            self._sources.append(self._source(name, its_settings))
        names = {"slot": self._identity.slot, "machine": self._identity.machine}
        self._exporter = exporter(agent, Page(self._sources, doors, self._counts, self._sender, names))

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
        self._loop.crew.send_off()  # to close their readers
        if self._exporter is not None:
            self._exporter.stop()
        last = self._reporter.make(self._sources, goodbye)
        if self._sender is not None and not self._sender.finish(last, GOODBYE_WITHIN_S):
            log.warning("%d reports wait in the spool for the next agent", self._sender.waiting_count())
        logging.shutdown()
        return 0

    def _make_sender(self, agent: AgentSettings) -> Sender | None:
        if not agent.aggregator:
            log.warning("no aggregator is set: nothing is sent, only /metrics is served")
            return None
        return Sender(lines(agent, self._pass_on), self._spool, _back_off(agent), self._clock)

    def _pass_on(self, order: str) -> None:
        """To this node's hands, if it has any; in the sender's thread."""
        hands = self._settings.collectors.get("hands")
        if hands is None:
            log.warning("an order came for hands that are not switched on here: collectors.hands.enabled")
            return
        if self._orders is None or self._orders.path != Path(hands.order_file):
            self._orders = OrderFile(Path(hands.order_file))
        self._orders.put(order)

    def _source(self, name: str, settings: Any) -> Source:
        door = self._doors[name]
        if door.can_hang:
            return Probe(
                name,
                door,
                settings,
                boot_id=self._identity.boot_id,
                book=Book(self._state_dir, name),
                processes=System(),
                released=self._release.reason,
            )
        source = Inline(
            name,
            door,
            settings,
            clock=self._clock,
            wake=self._loop.wake,
            state_dir=self._state_dir,
            crew=self._loop.crew,
        )
        source.on_facts = self._counts.add
        source.meet(self._facts_of)
        source.on_ask = self._hurry
        return source

    def _facts_of(self, name: str) -> Any:
        """What another source said last; None where it has said nothing, or not well. Asked by the sources' threads."""
        latest = next((source.latest() for source in tuple(self._sources) if source.name == name), None)
        if latest is None or latest.status != "ok" or latest.facts is None:
            return None
        if isinstance(latest.facts, msgspec.Raw):
            return msgspec.msgpack.decode(latest.facts, type=self._doors[name].facts)
        return latest.facts

    def _hurry(self, names: tuple[str, ...]) -> None:
        """Another source was blind for a moment: these may know what it missed."""
        for source in self._sources:
            if source.name in names and isinstance(source, Probe):
                source.hurry()

    def _reload(self) -> None:
        """Take over what the settings file says now; all of it or nothing."""
        try:
            new = load(self._config, self._doors)
        except GpuwatchError as error:
            self._refused = True
            log.error("%s is refused, the settings before it stay in force: %s", self._config, error)
            return
        self._refused = False
        agent, waiting = for_the_running(self._settings.agent, new.agent)
        if waiting:
            log.warning("a new value of %s waits for a restart of the agent", ", ".join(waiting))
        self._loop.change(agent.interval_s)
        self._reporter.change(agent.interval_s)
        self._spool.change(max_bytes=agent.spool_max_bytes, max_reports=agent.spool_max_reports)
        if self._sender is not None and _about_sending(agent) != _about_sending(self._settings.agent):
            self._sender.change(lines(agent, self._pass_on), _back_off(agent))
        self._change_sources(new.collectors)
        self._settings = Settings(agent=agent, collectors=new.collectors)
        log.info("%s is taken over", self._config)
        tidy()

    def _change_sources(self, wanted: dict[str, Any]) -> None:
        before = self._settings.collectors
        for source in [source for source in self._sources if source.name not in wanted]:
            if source.has_more():
                self._put(self._reporter.make(self._sources))
            self._sources.remove(source)
            source.close()
            log.info("%s: off", source.name)
        for source in self._sources:
            if wanted[source.name] != before[source.name]:
                source.change(wanted[source.name])
                log.info("%s: other settings", source.name)
        for name in wanted.keys() - before.keys():
            self._sources.append(self._source(name, wanted[name]))
            log.info("%s: on", name)

    def _put(self, parcel: Parcel) -> None:
        tidy_at(self._reporter.sequence)
        if self._sender is not None:
            self._sender.put(parcel)

    def _status(self) -> str:
        troubled = [source.name for source in self._sources if (at := source.latest()) and at.status not in WELL]
        words = f"{len(self._sources)} sources"
        if troubled:
            words += f", not ok: {' '.join(troubled)}"
        if self._sender is not None:
            words += f", {self._sender.waiting_count()} reports wait"
            words += f", {self._sender.last_trouble}" if self._sender.last_trouble else ""
        words += ", the settings file is refused" if self._refused else ""
        return words


def _back_off(agent: AgentSettings) -> BackOff:
    return BackOff(agent.retry_first_s, agent.retry_most_s)


def _about_sending(agent: AgentSettings) -> tuple[object, ...]:
    return agent.aggregator, agent.token_file, agent.ca_file, agent.retry_first_s, agent.retry_most_s


def main(argv: list[str] | None = None) -> int:
    """The command line of `python -m gpuwatch.wiring.agent`."""
    one_arena()
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
