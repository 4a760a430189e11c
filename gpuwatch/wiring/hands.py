"""The hands' process and the commands about it: run, keygen, check. Imports nothing of agent or aggregator."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from gpuwatch import logs
from gpuwatch.clock import SystemClock
from gpuwatch.errors import ConfigError, GpuwatchError
from gpuwatch.hands.carry import Hands
from gpuwatch.hands.gpus import gpus
from gpuwatch.hands.journal import Journal
from gpuwatch.hands.node import Node
from gpuwatch.hands.settings import HandsSettings, load
from gpuwatch.hands.watch import Watch
from gpuwatch.model.order import Order
from gpuwatch.notify import ServiceManager
from gpuwatch.sdk.ed25519 import make_key, require_library
from gpuwatch.sdk.machine_id import boot_id, machine_ids

log = logging.getLogger("gpuwatch.hands")

CONFIG = Path("/etc/gpuwatch/hands.toml")


def run(config: Path) -> int:
    """Take orders until SIGTERM. Raises `GpuwatchError` where it cannot begin."""
    settings = load(config)
    require_library()
    clock = SystemClock()
    watch = Watch(settings, clock, ServiceManager())
    hands = Hands(
        settings,
        Node(settings=settings, clock=clock),
        Journal(settings.state_dir),
        clock,
        machines=_names(settings),
        boot=boot_id(),
        meanwhile=watch.meanwhile,
    )
    log.info("hands of %s: %s", " or ".join(_names(settings)), "; ".join(_allowed(settings)))
    watch.run(hands)
    hands.close()
    logging.shutdown()
    return 0


def keygen(private: Path, say: Callable[[str], None] = print) -> int:
    """A new pair of keys: the private one into the file, the public one printed."""
    public = make_key(private)
    say(f"{private} holds the private key: it belongs on the aggregator, and nowhere else.")
    say("Every node's hands.toml takes the public one:")
    say(f'public_keys = ["{public}"]')
    return 0


def check(config: Path, say: Callable[[str], None] = print) -> int:
    """Explain the settings, and what each order would meet now. Exit code 0: something is allowed, and may be done."""
    settings = load(config)
    require_library()
    node = Node(settings=settings, clock=SystemClock())
    say(f"{config} is in order.")
    say(f"This machine: {' or '.join(_names(settings))}")
    say(f"Orders are taken that are signed by: {', '.join(settings.public_keys) or 'nobody; set public_keys'}")
    for words in _allowed(settings):
        say(f"Allowed: {words}")
    free = bool(settings.public_keys)
    for order in _tries(settings, node):
        objection = node.objection(order)
        free = free and not objection
        say(f"{order.kind} {order.target}".rstrip() + f" now: {objection or 'would be done'}")
    return 0 if free and _allows_anything(settings) else 1


def _names(settings: HandsSettings) -> tuple[str, ...]:
    names = (settings.machine,) if settings.machine else machine_ids()
    if not names:
        raise ConfigError("this machine has no id", next_step="set `machine` as in the agent's settings")
    return names


def _allows_anything(settings: HandsSettings) -> bool:
    return bool(settings.restart_service.units) or settings.reset_gpu.allowed or settings.reboot.allowed


def _allowed(settings: HandsSettings) -> list[str]:
    found = [f"restart {unit}" for unit in settings.restart_service.units]
    if settings.reset_gpu.allowed:
        found.append("reset a GPU")
    if settings.reboot.allowed:
        found.append(f"reboot, once in {settings.reboot.window_s / 3600:g} h")
    return found or ["nothing"]


def _tries(settings: HandsSettings, node: Node) -> list[Order]:
    """One order of each kind that is allowed, to nobody."""
    asked: list[tuple[str, str]] = [("restart_service", unit) for unit in settings.restart_service.units[:1]]
    if settings.reset_gpu.allowed:
        asked += [("reset_gpu", gpu.pci) for gpu in gpus(node.driver)]
    if settings.reboot.allowed:
        asked.append(("reboot", ""))
    return [
        Order(machine="", boot_id="", action_id="", kind=kind, target=target, nonce="", expires_monotonic_ns=0)  # type: ignore[arg-type]
        for kind, target in asked
    ]


def main(argv: list[str] | None = None) -> int:
    """The command line of `python -m gpuwatch.wiring.hands`."""
    parser = argparse.ArgumentParser(prog="gpuwatch hands run", description="Take signed orders for this node.")
    parser.add_argument("--config", "-c", type=Path, default=CONFIG)
    args = parser.parse_args(argv)
    logs.set_up(logging.INFO, "%(levelname)s %(message)s")
    try:
        return run(args.config)
    except GpuwatchError as error:
        print(f"gpuwatch: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
