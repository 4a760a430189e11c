"""The aggregator process: `python -m gpuwatch.wiring.aggregator --config FILE`.

Builds every part from the settings, starts them in the order in which they may be needed, and stops them in reverse.
What an earlier process knew is taken from the ledger and the store before the first report is let in.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from gpuwatch import logs
from gpuwatch.aggregator import settings as settings_file
from gpuwatch.aggregator.beginning import open_store, price_book, read_secret
from gpuwatch.aggregator.clockwork import Clockwork
from gpuwatch.aggregator.committer import Committer
from gpuwatch.aggregator.lastseen import LastSeenKeeper
from gpuwatch.aggregator.money import MoneyDesk
from gpuwatch.aggregator.named_files import faults_of_later
from gpuwatch.aggregator.server import Server, tune_interpreter
from gpuwatch.aggregator.settings import Settings
from gpuwatch.clock import Clock, SystemClock
from gpuwatch.errors import GpuwatchError
from gpuwatch.notify import ServiceManager
from gpuwatch.wiring.core import Core, open_hands
from gpuwatch.wiring.voices import Voices

LOG = logging.getLogger("gpuwatch.aggregator")


class Aggregator:
    """Every part, wired. `start` returns when reports are accepted; `stop` keeps what must survive."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        """Raises `GpuwatchError`: a secret or ledger that cannot be used, a port that is taken, a leaf that fails."""
        self.settings = settings
        self._clock = clock or SystemClock()
        server = settings.server
        secret = read_secret(server.secret_file, "server.secret_file")
        token_file = server.operator_token_file
        operator = None if token_file is None else read_secret(token_file, "server.operator_token_file")
        self._store = open_store(server.state_dir)
        try:
            self._build(secret, operator)
        except BaseException:
            self._store.close()
            raise

    def _build(self, secret: bytes, operator: bytes | None) -> None:
        settings, clock, store = self.settings, self._clock, self._store
        self._hands = hands = open_hands(settings, clock)
        self._committer = Committer(store)
        self._core = core = Core(
            settings,
            store,
            hands,
            secret=secret,
            keeper=self._committer,
            clock=clock,
            lag_s=lambda: self._server.lag_s(),
        )
        self._money = MoneyDesk(
            store,
            price_book(settings),
            clock,
            alive=lambda: {record.machine for record in core.fleet.machines()},
            evidence_age_s=lambda: 4 * core.fleet.interval_s(),
        )
        hand = settings.cloud
        self._clockwork = Clockwork(
            store=store,
            clock=clock,
            event_days=settings.server.event_days,
            cloud=hands.cloud,
            provider="" if hand is None else hand.kind,
            bill_every_s=30.0 if hand is None else min(30.0, max(5.0, 6 * hand.interval_s)),
        )
        core.brain.clock_stepped = self._clockwork.clock_stepped
        voices = Voices(settings, store, core, hands, self._money, operator=operator, alive=self.wrong, clock=clock)
        self._pushers = voices.pushers
        server = settings.server
        self._server = Server(
            server.listen, core.ingest, voices.web, tls_cert_file=server.tls_cert_file, tls_key_file=server.tls_key_file
        )
        self._memory = LastSeenKeeper(store, core.fleet)

    @property
    def url(self) -> str:
        """Where the page is."""
        return self._server.url

    def start(self) -> None:
        """Return when reports are accepted."""
        for witness in self._hands.witnesses:
            witness.start()
        self._server.start()
        self._core.brain.start()
        self._core.executor.start()
        self._money.start()
        self._memory.start()
        for pusher in self._pushers:
            pusher.start()
        threading.Thread(target=self._clockwork.start, name="clockwork", daemon=True).start()

    def stop(self) -> None:
        """No new step, no new report; then keep what must survive."""
        for pusher in self._pushers:
            pusher.stop()
        self._core.executor.stop()
        self._server.stop()
        self._core.brain.stop()
        for witness in self._hands.witnesses:
            witness.stop()
        self._clockwork.stop()
        self._money.stop()
        self._committer.close()
        self._memory.stop()
        self._store.close()

    def wrong(self) -> str:
        """Why this process is not well; empty if it is."""
        age_s = (self._clock.monotonic_ns() - self._core.stage.scene.now.monotonic_ns) / 1e9
        limit_s = max(10.0, 5 * self.settings.server.tick_s)
        if age_s > limit_s:
            return f"the last tick was {age_s:.0f} s ago"
        lag_s = self._server.lag_s()
        return f"the server is {lag_s:.0f} s behind" if lag_s > limit_s else ""


def run(config: Path) -> int:
    """Serve until SIGTERM or SIGINT. 0; raises `GpuwatchError` where it cannot begin."""
    logs.set_up(logging.INFO, "%(asctime)s %(levelname)s %(name)s: %(message)s")
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    if not os.isatty(0):  # a service has no terminal that could be closed, and its settings are read when it starts
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    service = ServiceManager()
    settings = settings_file.load(config)
    for fault in faults_of_later(settings, str(config)):
        LOG.error("%s", fault)
    aggregator = Aggregator(settings)
    aggregator.start()
    tune_interpreter()
    if aggregator.url.startswith("http://") and not aggregator.url.startswith(("http://127.", "http://[::1]")):
        LOG.warning("%s is reachable without TLS: tokens travel in the clear; set server.tls_cert_file", aggregator.url)
    print(f"gpuwatch aggregator: {aggregator.url}", flush=True)
    service.ready(f"serving {aggregator.url}")
    beat_s = min(10.0, (service.watchdog_s or 30.0) / 3)
    while not ended.wait(beat_s):
        wrong = aggregator.wrong()
        if not wrong:  # a brain that hangs is ended by the watchdog, and begins again from the ledger
            service.alive(f"serving {aggregator.url}")
    service.stopping("keeping what must survive")
    aggregator.stop()
    return 0


def main() -> None:
    """The module's command line."""
    parser = argparse.ArgumentParser(prog="gpuwatch aggregator")
    parser.add_argument("--config", type=Path, default=Path("/etc/gpuwatch/aggregator.toml"))
    try:
        code = run(parser.parse_args().config)
    except GpuwatchError as error:
        print(f"gpuwatch: {error}", file=sys.stderr)
        code = error.exit_code
    sys.stdout.flush()
    logging.shutdown()
    os._exit(code)  # a cloud call that hangs in a thread must not keep a stopped aggregator alive


if __name__ == "__main__":
    main()
