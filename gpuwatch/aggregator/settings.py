"""The aggregator's settings file, checked as a whole: every fault in every table at once, those of the leaves too."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeVar

import msgspec

import gpuwatch.clouds
import gpuwatch.rules
import gpuwatch.schedulers
from gpuwatch import config, registry
from gpuwatch.aggregator import alert_settings
from gpuwatch.aggregator.alert_settings import AlertmanagerSettings
from gpuwatch.clouds import CloudLeaf
from gpuwatch.config import Fault
from gpuwatch.model.policy import Mode, Policy
from gpuwatch.rules import FleetRule, Rule
from gpuwatch.schedulers import SchedulerLeaf
from gpuwatch.sdk.host_lists import expand

L = TypeVar("L", CloudLeaf[Any], SchedulerLeaf[Any])
Positive = Annotated[float, msgspec.Meta(gt=0.0)]

UNLISTED = "unlisted"
"""The pool of a slot that no `[pools.…]` names: watched, never acted on."""


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[server]`. A relative path is relative to the settings file."""

    secret_file: Path  # the cluster secret, from which each machine's token is derived
    listen: str = "127.0.0.1:9190"
    operator_token_file: Path | None = None  # without it nobody can approve, hold or clear over the API
    state_dir: Path = Path("/var/lib/gpuwatch")
    hold_file: Path = Path("/etc/gpuwatch/HOLD")  # while it exists, nothing new is done to any node
    tick_s: Positive = 1.0
    event_days: Annotated[int, msgspec.Meta(ge=1)] = 90  # kernel events are kept this long
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None


class HandsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[hands]`: how nodes are told to mend themselves. A relative path is relative to the settings file."""

    key_file: Path | None = None  # the private key that signs orders: `gpuwatch hands keygen`


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[cluster]`."""

    name: str = "gpuwatch"


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[pools.NAME]`: like nodes at one price under one policy."""

    nodes: tuple[str, ...] = ()  # slots, `gpu[01-16]`; empty: every slot that no other pool names
    gpus: Annotated[int, msgspec.Meta(ge=0)] | None = None  # a node's GPUs; None: not known, never judged
    group: str = ""  # the cloud's group to grow; empty: that of the machine to be replaced
    provider: str = ""
    region: str = ""
    sku: str = ""
    price_kind: str = "ondemand"
    usd_per_hour: Decimal | None = None  # a node's price, before the price book
    domains: dict[str, tuple[str, ...]] = {}  # failure domain (rack, switch, …) -> slots
    policy: Policy = Policy()


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    server: ServerSettings
    cluster: ClusterSettings = ClusterSettings()
    pools: dict[str, PoolSettings] = {}
    cloud: dict[str, Any] = {}
    scheduler: dict[str, Any] = {}
    rules: dict[str, Any] = {}
    alertmanager: AlertmanagerSettings = AlertmanagerSettings()
    hands: HandsSettings = HandsSettings()


@dataclass(frozen=True, slots=True)
class Hand:
    """A chosen cloud or scheduler leaf with its settings, and how often it is asked."""

    kind: str
    leaf: Any
    settings: Any
    interval_s: float
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Place:
    """Where a slot belongs."""

    pool: str
    domain: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the aggregator was told."""

    server: ServerSettings
    cluster: ClusterSettings
    pools: Mapping[str, PoolSettings]
    places: Mapping[str, Place]  # slot -> where it belongs, every slot that is named
    rest: str  # pool of the slots that are not named
    cloud: Hand | None
    scheduler: Hand | None
    rules: Mapping[str, tuple[Rule[Any], Any]]
    fleet_rules: Mapping[str, tuple[FleetRule[Any], Any]]
    alertmanager: AlertmanagerSettings = field(default_factory=AlertmanagerSettings)
    order_key_file: Path | None = None  # with which orders to the hands of nodes are signed

    def policies(self) -> dict[str, Policy]:
        """Pool name -> its policy."""
        return {name: pool.policy for name, pool in self.pools.items()}

    def place(self, slot: str) -> Place:
        """Where this slot belongs, named or not."""
        return self.places.get(slot) or Place(self.rest)


def load(path: Path, more: Callable[[Settings, str], list[Fault]] | None = None) -> Settings:
    """The settings of one file. Raises `ConfigError` with every fault of every table, and those that `more` finds in
    what was read and the file's name."""
    raw = config.read_toml(path)
    file, faults = config.convert(raw, _File, file=str(path))
    rules, fleet_rules = _rules(raw, str(path), faults)
    cloud = _hand(raw, "cloud", gpuwatch.clouds, "CLOUD", CloudLeaf, str(path), faults)
    scheduler = _hand(raw, "scheduler", gpuwatch.schedulers, "SCHEDULER", SchedulerLeaf, str(path), faults)
    if file is None:
        config.refuse(faults)
        raise AssertionError("convert names a fault or gives a value")
    pools, places, rest = _pools(file.pools, str(path), faults)
    _check_modes(pools, cloud, scheduler, str(path), faults)
    key_file = file.hands.key_file
    faults += [
        Fault(str(path), f"pools.{name}.policy.local_repair", "[hands] with a key_file, to sign orders", "none")
        for name, pool in pools.items()
        if pool.policy.local_repair and key_file is None
    ]
    server = _resolve(file.server, path.parent)
    if (server.tls_cert_file is None) != (server.tls_key_file is None):
        faults.append(Fault(str(path), "server.tls_key_file", "a key and its certificate", "only one of them"))
    host, _, port = server.listen.rpartition(":")
    if not (host.strip("[]") and port.isdigit() and int(port) < 65_536):
        faults.append(Fault(str(path), "server.listen", "address:port such as 127.0.0.1:9190", repr(server.listen)))
    faults += alert_settings.faults_of(file.alertmanager, str(path))
    settings = Settings(
        server=server,
        cluster=file.cluster,
        pools=pools,
        places=places,
        rest=rest,
        cloud=cloud,
        scheduler=scheduler,
        rules=rules,
        fleet_rules=fleet_rules,
        alertmanager=alert_settings.resolved(file.alertmanager, path.parent),
        order_key_file=None if key_file is None else path.parent / key_file,
    )
    config.refuse([*faults, *(more(settings, str(path)) if more else ())])
    return settings


def _table(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = raw.get(key, {})
    return value if isinstance(value, dict) else {}  # a wrong type is named by the first pass


def _rules(
    raw: Mapping[str, Any], file: str, faults: list[Fault]
) -> tuple[dict[str, tuple[Rule[Any], Any]], dict[str, tuple[FleetRule[Any], Any]]]:
    found: dict[str, Rule[Any] | FleetRule[Any]] = registry.leaves(gpuwatch.rules, "RULE", Rule, FleetRule)
    tables = _table(raw, "rules")
    for name in tables.keys() - found.keys():
        near = difflib.get_close_matches(name, found, n=1, cutoff=0.4)
        known = ", ".join(sorted(found))
        hint = f"rules.{near[0]}" if near else ""
        faults.append(Fault(file, f"rules.{name}", f"one of {known}", "an unknown rule", hint))
    node: dict[str, tuple[Rule[Any], Any]] = {}
    fleet: dict[str, tuple[FleetRule[Any], Any]] = {}
    for name, rule in found.items():
        table = tables.get(name, {})
        if not isinstance(table, dict):
            faults.append(Fault(file, f"rules.{name}", "a table", repr(table)))
            continue
        settings, wrong = config.convert(table, rule.settings, file=file, at=f"rules.{name}.")
        faults += wrong
        if isinstance(rule, Rule):
            node[name] = (rule, settings)
        else:
            fleet[name] = (rule, settings)
    return node, fleet


def _hand(
    raw: Mapping[str, Any], key: str, room: ModuleType, line: str, door: type[L], file: str, faults: list[Fault]
) -> Hand | None:
    """`[cloud]` or `[scheduler]`: `kind`, `interval_s`, `deadline_s`, and the table of that kind."""
    table = dict(_table(raw, key))
    if not table:
        return None
    leaves = registry.leaves(room, line, door)
    kind = table.pop("kind", None)
    timing: dict[str, float] = {"interval_s": 5.0, "deadline_s": 60.0}
    for name, usual in tuple(timing.items()):
        value = table.pop(name, usual)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            faults.append(Fault(file, f"{key}.{name}", "a number > 0", repr(value)))
        else:
            timing[name] = float(value)
    if kind not in leaves:
        near = difflib.get_close_matches(str(kind), leaves, n=1, cutoff=0.4)
        got = "nothing" if kind is None else repr(kind)
        faults.append(Fault(file, f"{key}.kind", f"one of {', '.join(sorted(leaves))}", got, near[0] if near else ""))
        return None
    leaf = leaves[kind]
    own = table.pop(kind, {})
    for name in table:
        near = difflib.get_close_matches(name, [kind, "kind", *timing], n=1, cutoff=0.4)
        expected = f"kind, interval_s, deadline_s or the table {kind}"
        faults.append(Fault(file, f"{key}.{name}", expected, "an unknown key", f"{key}.{near[0]}" if near else ""))
    if not isinstance(own, dict):
        faults.append(Fault(file, f"{key}.{kind}", "a table", repr(own)))
        return None
    settings, wrong = config.convert(own, leaf.settings, file=file, at=f"{key}.{kind}.")
    faults += wrong
    return Hand(kind, leaf, settings, timing["interval_s"], timing["deadline_s"])


def _pools(
    given: Mapping[str, PoolSettings], file: str, faults: list[Fault]
) -> tuple[dict[str, PoolSettings], dict[str, Place], str]:
    pools = dict(given)
    owners: dict[str, str] = {}
    places: dict[str, Place] = {}
    rest = ""
    for name, pool in given.items():
        if not pool.nodes:
            if rest:
                faults.append(Fault(file, f"pools.{name}.nodes", "a list of slots", f"nothing, as in pools.{rest}"))
            rest = rest or name
        domains = {
            slot: domain
            for domain, patterns in pool.domains.items()
            for slot in _names(patterns, f"pools.{name}.domains.{domain}", file, faults)
        }
        before = len(faults)
        slots = _names(pool.nodes, f"pools.{name}.nodes", file, faults)
        whole = bool(pool.nodes) and len(faults) == before  # else a slip there would make strangers of its slots below
        for slot in slots:
            if slot in owners:
                faults.append(Fault(file, f"pools.{name}.nodes", "each slot once", f"{slot}, as in {owners[slot]}"))
            owners[slot] = f"pools.{name}"
            places[slot] = Place(name, domains.pop(slot, ""))
        for domain in dict.fromkeys(domains.values()) if whole else ():
            strange = [slot for slot in domains if domains[slot] == domain]
            others = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
            faults.append(Fault(file, f"pools.{name}.domains.{domain}", f"slots of pools.{name}", strange[0] + others))
        if not pool.nodes:
            places |= {slot: Place(name, domain) for slot, domain in domains.items()}
    if not rest:
        rest = UNLISTED
        pools.setdefault(UNLISTED, PoolSettings())
    return pools, places, rest


def _names(patterns: tuple[str, ...], key: str, file: str, faults: list[Fault]) -> list[str]:
    names: list[str] = []
    for pattern in patterns:
        try:
            names += expand(pattern)
        except ValueError as error:
            faults.append(Fault(file, key, "slots such as gpu[01-16]", str(error)))
    return names


_REPLACES = (Mode.APPROVE, Mode.REPLACE)


def _check_modes(
    pools: Mapping[str, PoolSettings], cloud: Hand | None, scheduler: Hand | None, file: str, faults: list[Fault]
) -> None:
    """A mode that acts needs the hand it acts with: better said now than on the night of the first fault."""
    for name, pool in pools.items():
        mode = pool.policy.mode
        needs = [("scheduler", scheduler)] if mode in (Mode.APPROVE, Mode.DRAIN, Mode.REPLACE) else []
        needs += [("cloud", cloud)] if mode is Mode.REPLACE else []
        for word, hand in needs:
            if hand is None and not any(fault.key.startswith(word) for fault in faults):
                key = f"pools.{name}.policy.mode"
                faults.append(Fault(file, key, f"a [{word}] table for this mode", f"{mode.value!r} without one"))
        by_name = scheduler is not None and scheduler.leaf.by_name
        if by_name and cloud is not None and mode in _REPLACES and pool.policy.replace_order == "grow_first":
            # Else the slot is given back while the sick machine still bears its name.
            key = f"pools.{name}.policy.replace_order"
            faults.append(Fault(file, key, "'release_first' with this scheduler", "'grow_first'"))


def _resolve(server: ServerSettings, folder: Path) -> ServerSettings:
    paths = {
        name: folder / value
        for name in ("secret_file", "operator_token_file", "state_dir", "hold_file", "tls_cert_file", "tls_key_file")
        if (value := getattr(server, name)) is not None
    }
    return msgspec.structs.replace(server, **paths)
