"""`gpuwatch demo`: a cluster on this machine that is broken four times, and the price of each time."""

from __future__ import annotations

import io
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from gpuwatch.clock import Clock, SystemClock
from gpuwatch.errors import UsageError
from gpuwatch.model.ledger import LifeEnded, LifeStarted
from gpuwatch.simulate.cluster import Cluster, free_port
from gpuwatch.simulate.story import Story
from gpuwatch.wiring import cost_report

BILL_WAIT_S = 15.0
END_WAIT_S = 5.0


def run(*, leave: bool, node_count: int, port: int, directory: Path | None) -> int:
    """Play the story. With `leave`, 0 if all of it happened, else 1; without, the page stays until Ctrl-C."""
    own = directory is None
    home = Path(tempfile.mkdtemp(prefix="gpuwatch-demo-")) if directory is None else directory
    if not own:
        _must_be_new(home)
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - begun:5.1f} s] {text}" if text else "", flush=True)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    usable = _usable(port)
    cluster = Cluster(home.resolve(), node_count=node_count, port=usable)
    story = Story(cluster, say)
    try:
        if port not in (0, usable):
            say(f"port {port} is taken; the page takes another one")
        say(f"a cluster of {node_count} nodes starts on this machine; its page is http://127.0.0.1:{cluster.port}/")
        cluster.start()
        if story.begin(gang=node_count - 1):
            for chapter in story.chapters():
                story.play(chapter)
            story.end()
        good = _tell_the_price(cluster, story)
        if not leave:
            print(f"\nThe page stays at http://127.0.0.1:{cluster.port}/ until Ctrl-C.", flush=True)
            signal.pause()
        return 0 if good else 1
    except KeyboardInterrupt:
        print("\nstopping the cluster …", file=sys.stderr)
        return 130 if leave else 0
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if not own and cluster.ledger.exists():
            _close_the_ledger(cluster)
        cluster.stop()
        if own:
            shutil.rmtree(home, ignore_errors=True)


def _tell_the_price(cluster: Cluster, story: Story) -> bool:
    """The report from the ledger, the four prices, and what of the story did not happen."""
    missed = list(story.score.missed)
    text = io.StringIO()
    billed = _billed_until(cluster)
    code = cost_report.run(cluster.ledger, by="category", out=text, clock=billed)
    print("\n$ gpuwatch cost-report\n\n" + text.getvalue(), flush=True)
    if code != 0 or "The categories sum to the bill, $" not in text.getvalue():
        missed.append("the categories sum to the bill")
    print("What the four faults cost:\n")
    for fault, incident in story.prices().items():
        price = incident.get("price_usd")
        print(f"  {incident['kind']:<14} {_dollars(price):>9}   {story.score.faults[fault]}")
        if not price or float(price) <= 0:
            missed.append(f"a price for {fault}")
    if len(story.prices()) < 4:
        missed.append(f"four incidents ({len(story.prices())} were seen)")
    print()
    if missed:
        print("Not everything happened as it should:")
        print("\n".join(f"  - {what}" for what in missed), flush=True)
        return False
    print("All of it happened: four faults detected, three nodes replaced, one run restarted, and the sum holds.")
    return True


class _BilledUntil:
    """The moment up to which the provider's meter has been read: a report as of then has nothing to estimate."""

    def __init__(self, unix_ns: int) -> None:
        self._unix_ns = unix_ns

    def unix_ns(self) -> int:
        return self._unix_ns

    def monotonic_ns(self) -> int:
        return self._unix_ns


def _billed_until(cluster: Cluster) -> Clock:
    """The next reading of the meter from now on; the present moment if none comes."""
    now = SystemClock().unix_ns()
    until = time.monotonic() + BILL_WAIT_S
    while time.monotonic() < until:
        _, rows = cost_report.read_ledger(cluster.ledger)
        newest = max((row.period_end_unix_ns for row in rows), default=0)
        if newest > now:
            return _BilledUntil(newest)
        time.sleep(0.25)
    return SystemClock()


def _close_the_ledger(cluster: Cluster) -> None:
    """A ledger that is kept must hold the end of every machine: one without an end is billed for ever."""
    cluster.release_machines()
    until = time.monotonic() + END_WAIT_S
    while cluster.alive() and time.monotonic() < until:
        lines, _ = cost_report.read_ledger(cluster.ledger)
        begun = {line.machine for line in lines if isinstance(line, LifeStarted)}
        if begun <= {line.machine for line in lines if isinstance(line, LifeEnded)}:
            return
        time.sleep(0.25)


def _must_be_new(home: Path) -> None:
    """Make the folder, if it can be made and is empty. Raises `UsageError`."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        full = any(home.iterdir())
    except OSError as error:
        raise UsageError(
            f"{home} cannot be the demo's folder", why=str(error), next_step="name a new folder that you may write to"
        ) from error
    if full:
        raise UsageError(
            f"{home} is not empty", why="a demo begins with an empty cluster", next_step="name a new folder"
        )


def _dollars(amount: object) -> str:
    return "unknown $" if amount is None else f"${float(str(amount)):,.2f}"


def _usable(port: int) -> int:
    """The wished port if it is free, else another one."""
    import socket

    if port == 0:
        return free_port()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return free_port()
    return port
