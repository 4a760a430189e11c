"""What network cards say: mlx5 (InfiniBand and RoCE), EFA, and the kernel's watchdog over fabric cards.

Cards that carry no training traffic (management, virtual machines' own) are left out on purpose: i40e, ena, virtio_net.
Forms: drivers/net/ethernet/mellanox/mlx5/core/{health,cmd,events,en_main}.c, drivers/infiniband/hw/efa/efa_com.c,
net/sched/sch_generic.c of the Linux kernel.
"""

from __future__ import annotations

import re

from gpuwatch.faults.event import Event
from gpuwatch.faults.named import ADDRESS, function_address, named

HEADS = ("mlx5_", "infiniband ", "efa ", "NETDEV WATCHDOG")
WORDS = ("NETDEV WATCHDOG: ",)
FABRIC_DRIVERS = frozenset(
    {"mlx4_core", "mlx4_en", "mlx5_core", "bnxt_en", "ionic", "mana", "efa", "hfi1", "gve", "idpf", "irdma"}
)

_MLX5 = re.compile(
    rf"mlx5_core(?: (?P<pci>{ADDRESS}))?(?: (?P<dev>[\w.-]{{1,32}}))?:\s+(?:INFO: )?"
    r"(?:\w+:\d+:\s?)?(?:\(pid \d+\):\s?)?(?P<said>.*)",
    re.DOTALL,
)
_BARE = re.compile(r"mlx5_\w+:\d+:\s?(?:\(pid \d+\):\s?)?(?P<said>.*)", re.DOTALL)  # where the card's name was cut off
_COMMAND = re.compile(
    r"(?:cmd\[-?\d+\]: |\w+\[\d+\]: )?(?P<command>[A-Z][A-Z0-9_]*)\(0x[0-9a-f]+\) (?P<how>.*)", re.DOTALL
)
_HEALTH = re.compile(r"Health issue observed, (?P<what>.*), severity\((?P<level>\d)\)")
_MODULE = re.compile(r"Port module event(?P<error>\[error\])?: module (?P<module>\d+), (?P<what>.*)", re.DOTALL)
_WATTS = re.compile(r"Detected insufficient power on the PCIe slot \((\d+)W\)")
_PORT = re.compile(r"Port: (?P<port>\d+) Link (?P<state>[A-Z]+)")
_WATCHDOG = re.compile(
    rf"(?:(?P<driver>[\w-]+) (?P<pci>{ADDRESS}|\S+) (?P<dev>[^\s:]+): )?NETDEV WATCHDOG: "
    r"(?:(?P<old>[^\s(]+) \((?P<module>[\w-]+)\)|CPU: \d+): "
    r"transmit queue (?:(?P<queue>\d+) )?timed out(?: (?P<ms>\d+) ms)?"
)
_EFA = re.compile(
    rf"(?:infiniband (?P<dev>(?:rdmap|efa)[\w-]*)|efa (?P<pci>{ADDRESS})(?: \S+)?): (?P<said>.*)", re.DOTALL
)

_DEAD = (
    "device's health compromised - reached miss count",
    "FW is unable to respond to initialization segment reads",
    "health recovery flow aborted",
)
_BROKEN = ("unrecoverable hardware error", "Fatal error ")
_ADMIN = (
    "Wait for completion (polling) timeout",
    "The device didn't send any completion for admin",
    "The device sent a completion but the driver didn't receive any MSI-X interrupt for admin",
    "Admin queue is closed",
)
_RESET = (
    "Reset indication didn't turn",
    "Device isn't ready, can't reset device",
    "Device isn't ready, abort com init",
)
_REFUSED = ("Failed to process command", "Failed to submit command")
_ERROR_LEVEL = 3  # of the card's own scale, 0 is an emergency; from 4 on it is a warning


def read(message: str) -> Event | None:
    """The event of a network card's message, None if it is none."""
    if "NETDEV WATCHDOG: " in message:
        return _watchdog(message)
    found = _EFA.match(message)
    if found is not None:
        return _efa(message, found)
    found = _MLX5.match(message)
    if found is not None:
        return _mlx5(message, found["said"], function_address(found["pci"]), found["dev"])
    found = _BARE.match(message)
    return _mlx5(message, found["said"], None, None) if found is not None else None


def _mlx5(text: str, said: str, pci: str | None, dev: str | None) -> Event | None:
    subject = pci or ""
    if dev is not None:
        return _link(text, said, pci, dev)
    if said.startswith(_DEAD) or (said.startswith("Firmware over ") and "aborting" in said):
        return named("nic_fw_dead", text, pci=pci, subject=subject)
    health = _HEALTH.match(said)
    if health is not None:
        what, level = health["what"], int(health["level"])
        if "temperature" in what.lower():
            return named("nic_hot", text, pci=pci, subject=subject)
        kind = "nic_hw_error" if level <= _ERROR_LEVEL else "nic_health"
        return named(kind, text, pci=pci, subject=subject, details={"what": what})
    if said.startswith("health recovery succeeded"):
        return named("nic_recovered", text, pci=pci, subject=subject)
    if (said.startswith("synd 0x") and _BROKEN[0] in said) or re.match(r"Fatal error \d+ detected", said):
        return named("nic_hw_error", text, pci=pci, subject=subject)
    module = _MODULE.match(said)
    if module is not None:
        return _module(text, pci, module)
    if said.startswith("High temperature on sensors"):
        return named("nic_hot", text, pci=pci, subject=subject)
    watts = _WATTS.match(said)
    if watts is not None:
        return named("nic_power", text, pci=pci, subject=subject, details={"watts": int(watts[1])})
    command = _COMMAND.match(said)
    if command is None:
        return None
    details = {"command": command["command"]}
    if "No done completion" in command["how"] or "timeout. Will cause a leak" in command["how"]:
        return named("nic_cmd_timeout", text, pci=pci, subject=subject, details=details)
    if "failed" not in command["how"]:
        return None
    if command["command"] == "ACCESS_REG":
        return named("nic_access_reg", text, pci=pci, subject=subject)
    return named("nic_cmd_failed", text, pci=pci, subject=f"{subject} {command['command']}", details=details)


def _module(text: str, pci: str | None, module: re.Match[str]) -> Event | None:
    number = int(module["module"])
    subject = f"{pci or ''} module {number}"
    if "High Temperature" in module["what"]:
        return named("nic_hot", text, pci=pci, subject=subject, details={"module": number})
    if module["error"] is not None:
        return named("nic_module_error", text, pci=pci, subject=subject, details={"module": number})
    if module["what"].startswith("Cable unplugged"):
        return named("nic_unplugged", text, pci=pci, subject=subject, details={"module": number})
    return None


def _link(text: str, said: str, pci: str | None, dev: str) -> Event | None:
    port = _PORT.match(said)
    if port is not None:  # INIT comes before ACTIVE: no news by itself
        kind = {"ACTIVE": "ib_link_up", "DOWN": "ib_link_down"}.get(port["state"])
        number = int(port["port"])
        if kind is None:
            return None
        return named(kind, text, pci=pci, subject=f"{dev}/{number}", details={"dev": dev, "port": number})
    if said in ("Link down", "Link up"):
        return named(f"nic_link_{said[5:]}", text, pci=pci, subject=dev, details={"dev": dev})
    if said.startswith(("TX timeout detected", "RX timeout on channel")):
        return named("nic_tx_timeout", text, pci=pci, subject=dev, details={"dev": dev})
    return None


def _watchdog(message: str) -> Event | None:
    found = _WATCHDOG.match(message)
    if found is None or (found["driver"] or found["module"]) not in FABRIC_DRIVERS:
        return None
    dev = found["dev"] or found["old"]
    return named(
        "nic_tx_timeout",
        message,
        pci=function_address(found["pci"]),
        subject=dev,
        details={
            "dev": dev,
            "queue": int(found["queue"]) if found["queue"] else None,
            "ms": int(found["ms"]) if found["ms"] else None,
        },
    )


def _efa(text: str, found: re.Match[str]) -> Event | None:
    said, pci = found["said"], function_address(found["pci"])
    if said.startswith(_ADMIN):  # all adapters of a node fail together: one fault, several names
        return named("efa_admin_timeout", text, pci=pci, details={"dev": found["dev"]})
    if said.startswith(_RESET):
        return named("efa_reset_failed", text, pci=pci, subject=pci or found["dev"], details={"dev": found["dev"]})
    if said.startswith(_REFUSED):
        return named("efa_cmd_failed", text, pci=pci, subject=pci or found["dev"], details={"dev": found["dev"]})
    return None
