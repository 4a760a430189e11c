"""Faults of the PCI bus, the RDMA network and the services, by folders and a program in their places."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from gpuwatch.model.facts.infiniband import InfinibandFacts, RdmaPort
from gpuwatch.model.facts.pcie import PciDevice, PcieFacts
from tests.soak.fault import Fault
from tests.soak.judge import Look
from tests.soak.site import GPUS, NICS, NVME, SPARE_NIC, Site

PCI_RULES = ("pcie_device_gone", "pcie_all_ones", "pcie_link_degraded")
RDMA_RULES = ("ib_port_down", "ib_link_flaps", "ib_rate_low", "ib_errors", "ib_device_hung")
SERVICE_RULES = ("service_down", "service_restarts")


def bus_faults(site: Site, chance: random.Random) -> dict[str, Callable[[], Fault]]:
    """Each makes one fault of its kind."""

    def device(look: Look, address: str) -> PciDevice | None:
        facts = look.facts(PcieFacts)
        return next((one for one in facts.devices if one.pci == address), None) if facts is not None else None

    def fault(kind: str, break_it: Callable[[str], None], rule: str = "") -> Fault:
        address = chance.choice((*GPUS, SPARE_NIC, NVME))

        def well(look: Look) -> bool:
            one = device(look, address)
            return one is not None and (one.width, one.gone) == (16, False) and not look.evidence(PCI_RULES)

        def seen(look: Look) -> bool:
            one = device(look, address)
            if rule:
                return bool(look.evidence([rule], address))
            return one is not None and one.width is None and not one.gone

        rules = (rule,) if rule else ()
        return Fault(kind, lambda: break_it(address), seen, lambda: site.pci(address), rules, address, well)

    ones, noise = b"\xff" * 64, b"\x00\xfe garbage \n\n 16"
    return {
        "pcie_gone": lambda: fault("pcie_gone", site.no_pci, "pcie_device_gone"),
        "pcie_all_ones": lambda: fault("pcie_all_ones", lambda pci: site.pci(pci, config=ones), "pcie_all_ones"),
        "pcie_width_halved": lambda: fault(
            "pcie_width_halved", lambda pci: site.pci(pci, current_link_width=b"8\n"), "pcie_link_degraded"
        ),
        "pcie_garbage": lambda: fault("pcie_garbage", lambda pci: site.pci(pci, current_link_width=noise)),
        "pcie_file_vanished": lambda: fault("pcie_file_vanished", lambda pci: site.pci(pci, current_link_width=None)),
    }


def rdma_faults(site: Site, chance: random.Random) -> dict[str, Callable[[], Fault]]:
    """Each makes one fault of its kind."""
    lost = dict.fromkeys(NICS, 0)
    errors = dict.fromkeys(NICS, 0)

    def port(look: Look, name: str) -> RdmaPort | None:
        facts = look.facts(InfinibandFacts)
        return next((one for one in facts.ports if one.device == name), None) if facts is not None else None

    def set_port(name: str, **changes: bytes | None) -> None:
        counters: dict[str, bytes | None] = {
            "counters__link_downed": f"{lost[name]}\n".encode(),
            "counters__symbol_error": f"{errors[name]}\n".encode(),
        }
        site.port(name, **counters | changes)

    def fault(kind: str, break_it: Callable[[str], None], rule: str = "", more: tuple[str, ...] = ()) -> Fault:
        name = chance.choice(list(NICS))

        def well(look: Look) -> bool:
            one = port(look, name)
            return one is not None and one.state == "active" and not one.gone and not look.evidence(RDMA_RULES, name)

        def seen(look: Look) -> bool:
            one = port(look, name)
            return bool(look.evidence([rule], name)) if rule else one is not None and one.state is None

        rules = (rule, *more) if rule else ()
        return Fault(kind, lambda: break_it(name), seen, lambda: set_port(name), rules, name, well)

    def flap(name: str) -> None:
        for _ in range(chance.randrange(4, 9)):
            lost[name] += 1
            set_port(name, state=b"1: DOWN\n", phys_state=b"2: Polling\n")
            time.sleep(0.02)
            set_port(name)
            time.sleep(0.02)

    def err(name: str) -> None:
        errors[name] += 500
        set_port(name)

    def down(name: str) -> None:
        lost[name] += 1
        set_port(name, state=b"1: DOWN\n", phys_state=b"2: Polling\n")

    half = {"rate": b"200 Gb/sec (2X NDR)\n"}
    noise = b"\xff\xfe 4: AC\x00TIVE"
    return {
        "ib_port_down": lambda: fault("ib_port_down", down, "ib_port_down", ("ib_link_flaps",)),
        "ib_flaps": lambda: fault("ib_flaps", flap, "ib_link_flaps", ("ib_port_down",)),
        "ib_rate_halved": lambda: fault("ib_rate_halved", lambda name: set_port(name, **half), "ib_rate_low"),
        "ib_errors": lambda: fault("ib_errors", err, "ib_errors"),
        "ib_garbage": lambda: fault("ib_garbage", lambda name: set_port(name, state=noise)),
        "ib_file_vanished": lambda: fault("ib_file_vanished", lambda name: set_port(name, state=None)),
    }


def service_faults(site: Site, chance: random.Random) -> dict[str, Callable[[], Fault]]:
    """Each makes one fault of its kind."""
    restarts = [0]

    def well(look: Look) -> bool:
        return look.status("services") == "ok" and not look.evidence(SERVICE_RULES)

    def set_units(**changes: dict[str, str]) -> None:
        usual = {"NRestarts": str(restarts[0])}
        site.units(**{name: usual | changes.get(name, {}) for name in ("slurmd", "nvidia-fabricmanager")})

    def fault(kind: str, inject: Callable[[], None], unit: str, rule: str, more: tuple[str, ...] = ()) -> Fault:
        seen = lambda look: bool(look.evidence([rule], unit))  # noqa: E731
        return Fault(kind, inject, seen, set_units, (rule, *more), "" if more else unit, well)

    def dead(name: str) -> None:
        long_ago_us = time.monotonic_ns() // 1000 - 600 * 10**6
        states = {"ActiveState": "failed", "SubState": "failed", "Result": "exit-code"}
        set_units(**{name: states | {"StateChangeTimestampMonotonic": str(long_ago_us)}})

    def loops() -> None:
        restarts[0] += chance.randrange(4, 9)
        set_units()

    def broken(kind: str, command: str, status: str) -> Fault:
        seen = lambda look: look.status("services") == status  # noqa: E731
        return Fault(kind, lambda: site.systemctl(command), seen, site.systemctl, well=well)

    return {
        "fabric_manager_dead": lambda: fault(
            "fabric_manager_dead", lambda: dead("nvidia-fabricmanager"), "nvidia-fabricmanager", "service_down"
        ),
        "slurmd_dead": lambda: fault("slurmd_dead", lambda: dead("slurmd"), "slurmd", "service_down"),
        "service_restarts": lambda: fault("service_restarts", loops, "slurmd", "service_restarts", ("service_down",)),
        "systemctl_hung": lambda: broken("systemctl_hung", "exec sleep 60", "hung"),
        "systemctl_fails": lambda: broken("systemctl_fails", "echo 'Failed to connect to bus' >&2; exit 1", "failed"),
    }
