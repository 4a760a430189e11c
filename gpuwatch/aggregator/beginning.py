"""What the aggregator begins with: the ledger's file, what an earlier process knew, secrets, prices."""

from __future__ import annotations

import logging
import stat
from datetime import date
from pathlib import Path

from gpuwatch.aggregator.fleet import Fleet
from gpuwatch.aggregator.machine import AgedEvent
from gpuwatch.aggregator.settings import Settings
from gpuwatch.errors import ConfigError, StoreError
from gpuwatch.model.ledger import LifecycleChanged
from gpuwatch.model.moment import Moment
from gpuwatch.model.states import Lifecycle
from gpuwatch.prices.book import PriceBook
from gpuwatch.prices.overrides import PriceOverride, PriceSettings
from gpuwatch.store.records import LastSeen
from gpuwatch.store.sqlite import Store

LOG = logging.getLogger("gpuwatch.aggregator")


def restored_fleet(settings: Settings, store: Store, now: Moment) -> Fleet:
    """The fleet as the last process knew it. The ledger's word on lifecycles is newer than the last-seen rows."""
    fleet = Fleet(settings)
    lifecycles: dict[str, LifecycleChanged] = {}
    for line in store.lines_of("lifecycle"):
        if isinstance(line, LifecycleChanged):
            lifecycles[line.machine] = line
    retired = [name for name, line in lifecycles.items() if line.lifecycle == Lifecycle.RETIRED]
    rows = {row.machine: row for row in store.last_seen()}
    for name, line in lifecycles.items():  # joined, and not yet among the last-seen rows when that process was killed
        rows.setdefault(name, LastSeen(machine=name, slot=line.slot, lifecycle=line.lifecycle))
    fleet.restore(rows.values(), retired, now)
    for record in fleet.machines():
        if record.machine in lifecycles:
            record.lifecycle = Lifecycle(lifecycles[record.machine].lifecycle)
    fleet.seat()
    horizon_ns = max((int(policy.event_expires_s * 1e9) for policy in settings.policies().values()), default=0)
    for item in store.events_since(now.unix_ns - horizon_ns):
        known = fleet.get(item.machine)
        if known is not None:
            age_ns = max(0, now.unix_ns - item.happened_unix_ns)
            known.events = (*known.events, AgedEvent(item.event, now.monotonic_ns - age_ns))
    return fleet


def price_book(settings: Settings) -> PriceBook:
    """The bundled list prices, and the pools' own before them. Raises `PriceError`.

    A pool whose `sku` has no price there is said, not refused: mostly a slip of the pen, and its dollars are unknown.
    """
    own = {
        name: PriceOverride(usd_per_hour=pool.usd_per_hour, source=f"settings: pools.{name}.usd_per_hour")
        for name, pool in settings.pools.items()
        if pool.usd_per_hour is not None
    }
    book = PriceBook.bundled(PriceSettings(pools=own))
    for name, pool in settings.pools.items():
        terms = (pool.provider, pool.region, pool.sku, pool.price_kind)
        if pool.sku and book.price_on(*terms, date.max, pool=name) is None:
            words = "pools.%s: no price of %s is known, so its dollars are unknown: check them, or set usd_per_hour"
            LOG.warning(words, name, " ".join(term for term in terms if term))
    return book


def read_secret(path: Path, key: str) -> bytes:
    """The content of a secret file, without the space around it. Raises `ConfigError`.

    One that every user may read or write is said, not refused: a fleet that is watched badly is still watched.
    """
    try:
        secret = path.read_bytes().strip()
        if path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
            LOG.warning("every user of this machine may read or write the secret %s (%s): chmod o= it", path, key)
    except OSError as error:
        raise ConfigError(
            f"the secret in {path} cannot be read",
            why=f"{error.strerror or error} ({key})",
            next_step=f"create it: (umask 077; head -c 32 /dev/urandom | base64 > {path})",
        ) from error
    if len(secret) < 16:
        raise ConfigError(
            f"the secret in {path} is too short",
            why=f"it has {len(secret)} bytes; fewer than 16 can be guessed ({key})",
            next_step=f"make a longer one: (umask 077; head -c 32 /dev/urandom | base64 > {path})",
        )
    return secret


def open_store(state_dir: Path) -> Store:
    """The ledger in this folder, for this process alone. Raises `StoreError`."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"the folder {state_dir} cannot be made",
            why=str(error.strerror or error),
            next_step="set server.state_dir to a folder that gpuwatch's user may write",
        ) from error
    return Store(state_dir / "ledger.db", sole=True)
