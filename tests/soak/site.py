"""A node of which everything can break: a real agent, the real binding on the C library, and folders in the places of
sysfs, of the services and of the disks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path

from tests.agent_node import Node
from tests.nvml_library.build import BUILDS, build
from tests.nvml_library.state import State

GPUS = [f"0000:{0x1B + 0x10 * index:02x}:00.0" for index in range(8)]  # as answers.c has them
NICS = {"mlx5_0": "0000:1a:00.0", "mlx5_1": "0000:2a:00.0"}
NVME, SPARE_NIC = "0000:05:00.0", "0000:3a:00.0"
UUID = "GPU-00000000-0000-4000-8000-{:012x}"
PORT = {
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
    "rate": "400 Gb/sec (4X NDR)",
    "link_layer": "InfiniBand",
    "lid": "0x1f",
    "counters/link_downed": "0",
    "counters/symbol_error": "0",
    "counters/port_xmit_data": "100",
    "hw_counters/out_of_sequence": "3",
}
UNIT = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "Result": "success",
    "Type": "simple",
    "UnitFileState": "enabled",
    "ConditionResult": "yes",
    "NRestarts": "0",
    "ActiveEnterTimestampMonotonic": "5000000",
    "StateChangeTimestampMonotonic": "5000000",
}
UNITS = ("nvidia-fabricmanager.service", "slurmd.service")
RANK = """
import sys, time
from gpuwatch.training.heartbeat import Heartbeat
beat = Heartbeat("soak", rank=int(sys.argv[1]), world_size=2, attempt="soak.1", directory=sys.argv[2])
step = 0
while True:
    step += 1
    beat.step(step)
    time.sleep(0.5)
"""


class Site(Node):
    """The node. Needs root and gcc."""

    def __init__(self, folder: Path, aggregator_url: str, token: str) -> None:
        self.state = State(folder.parent / "nvml.txt")
        self.clock_file = folder.parent / "clock"
        self.clock_file.write_bytes(bytes(8))
        environment = {
            "LD_LIBRARY_PATH": str(build()),
            "GPUWATCH_TEST_NVML_STATE": str(self.state.path),
            "GPUWATCH_TEST_CLOCK": str(self.clock_file),
            "LD_PRELOAD": str(_stepped_clock()),
        }
        super().__init__(folder, aggregator_url, simulated=False, **environment)
        (folder / "token").write_text(token)
        (folder / "token").chmod(0o600)
        self.sys = folder / "sys"
        self.driver_file = folder / "driver"
        self.driver("580.95.05")
        (folder / "nvidiactl").touch()
        self._bus()
        self._rdma()
        self._services()
        self.scratch, self.state_disk = folder / "scratch", folder / "state"
        _disk(self.scratch, folder / "scratch.img")
        _disk(self.state_disk, folder / "state.img")
        self.top |= {"interval_s": 0.5}
        self.nvml |= {"interval_s": 0.5, "deadline_s": 2.5, "kill_after_s": 4.0, "xids": "no"}
        self.nvml |= {"calm_every": 1, "slow_every": 2, "seldom_every": 4}
        self.nvml |= {"pci_devices": str(self.sys / "bus/pci/devices"), "driver_file": str(self.driver_file)}
        self.nvml |= {"device_file": str(folder / "nvidiactl")}
        self.host |= {"interval_s": 1.0, "processes_every": 2, "mounts_every": 1, "mount_deadline_s": 1.0}
        quick = {"interval_s": 1.0, "deadline_s": 2.0}
        windows = {"flap_window_s": 45.0, "rise_window_s": 45.0, "boot_grace_s": 0.0}
        kmsg = folder / "no-kmsg"
        kmsg.touch()
        self.others = {
            "infiniband": {**quick, **windows, "sys_root": str(self.sys), "kernel_log": str(kmsg)},
            "pcie": {**quick, "sys_root": str(self.sys)},
            "services": {
                **quick,
                "run_root": str(folder / "run"),
                "systemctl": str(folder / "systemctl"),
                "restart_window_s": 45.0,
            },
        }
        self.lost: Counter[str] = Counter()  # why -> reports, by the word of the agents that ended
        self.ranks: dict[int, subprocess.Popen[bytes]] = {}
        for rank in range(2):
            self.train(rank)

    def driver(self, version: str | None) -> None:
        """The kernel module that is loaded; None: no module."""
        if version is None:
            self.driver_file.unlink(missing_ok=True)
        else:
            self.driver_file.write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Release Build\n")

    def step_clock(self, seconds: float) -> None:
        """The agent's wall clock is so far ahead of the machine's; 0: it is right."""
        with self.clock_file.open("r+b", buffering=0) as file:
            file.write(int(seconds * 1e9).to_bytes(8, "little", signed=True))

    def pci(self, address: str, **changes: bytes | None) -> None:
        """A device and what its files say; None: no such file."""
        folder = self.sys / "bus/pci/devices" / address
        folder.mkdir(parents=True, exist_ok=True)
        vendor, device, kind = (
            ("0x10de", "0x2330", "0x030200")
            if address in GPUS
            else ("0x144d", "0xa80a", "0x010802")
            if address == NVME
            else ("0x15b3", "0x1021", "0x020700")
        )
        usual: dict[str, bytes | None] = {
            "vendor": vendor.encode(),
            "device": device.encode(),
            "class": kind.encode(),
            "config": int(vendor, 16).to_bytes(2, "little") + bytes(62),
            "current_link_width": b"16\n",
            "max_link_width": b"16\n",
            "current_link_speed": b"32.0 GT/s PCIe\n",
            "max_link_speed": b"32.0 GT/s PCIe\n",
            "aer_dev_fatal": b"TOTAL_ERR_FATAL 0\n",
        }
        for name, text in (usual | changes).items():
            put(folder / name, text)

    def no_pci(self, address: str) -> None:
        shutil.rmtree(self.sys / "bus/pci/devices" / address)

    def port(self, device: str, **changes: bytes | None) -> None:
        """What a port's files say; a key is a file's name with `__` for a slash."""
        base = self.sys / "class/infiniband" / device / "ports/1"
        for name, text in PORT.items():
            put(base / name, changes.get(name.replace("/", "__"), f"{text}\n".encode()))

    def units(self, **changes: dict[str, str]) -> None:
        """What systemd says of the units; keys are the first letters of a unit's name."""
        blocks = []
        for unit in UNITS:
            says = UNIT | next((values for name, values in changes.items() if unit.startswith(name)), {})
            blocks.append("".join(f"{key}={value}\n" for key, value in ({"Id": unit} | says).items()))
        put(self.folder / "systemctl.says", "\n".join(blocks).encode())

    def systemctl(self, command: str = 'exec cat "$0.says"') -> None:
        put(self.folder / "systemctl", f"#!/bin/sh\n{command}\n".encode(), mode=0o755)

    def train(self, rank: int) -> None:
        """A training process of this rank, anew."""
        words = [sys.executable, "-c", RANK, str(rank), str(self.folder / "beats")]
        self.ranks[rank] = subprocess.Popen(words, stdin=subprocess.DEVNULL)

    def count_lost(self) -> None:
        """Add what the running agent says it lost, before it ends: a full disk may cost reports, which are counted."""
        port = re.findall(r"metrics on port (\d+)", self.log())[-1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10.0) as answer:
            page = answer.read().decode()
        for why, count in re.findall(r'^gpuwatch_reports_lost_total\{.*why="(\w+)".*\} ([0-9.e+]+)$', page, re.M):
            self.lost[why] += int(float(count))

    def own_processes(self) -> list[int]:
        """Every process that was started for this node, the training's left out."""
        ranks = {process.pid for process in self.ranks.values()}
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) not in ranks:
                try:
                    environment = (entry / "environ").read_bytes()
                except OSError:
                    continue
                if str(self.state.path).encode() in environment:
                    found.append(int(entry.name))
        return found

    def end(self) -> None:
        super().end()
        for process in self.ranks.values():
            process.kill()
            process.wait()
        for place in (self.scratch, self.state_disk):
            subprocess.run(["umount", "-l", str(place)], check=False)

    def _bus(self) -> None:
        for address in (*GPUS, *NICS.values(), NVME, SPARE_NIC):
            self.pci(address)

    def _rdma(self) -> None:
        for device, address in NICS.items():
            folder = self.sys / "class/infiniband" / device
            folder.mkdir(parents=True)
            (folder / "device").symlink_to(self.sys / "bus/pci/devices" / address)
            put(folder / "node_guid", b"0c42:a103:0065:b2c8\n")
            put(folder / "board_id", b"MT_0000000838\n")
            self.port(device)

    def _services(self) -> None:
        (self.folder / "run/systemd/system").mkdir(parents=True)
        self.units()
        self.systemctl()


def put(path: Path, text: bytes | None, mode: int = 0o644) -> None:
    """Replace a file at once, as the kernel's files change; None: it is gone."""
    if text is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.new")
    draft.write_bytes(text)
    draft.chmod(mode)
    draft.replace(path)


def _disk(place: Path, image: Path) -> None:
    """A real file system of 24 MB."""
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(24 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)


def _stepped_clock() -> Path:
    source = Path(__file__).with_name("clock.c")
    made = BUILDS.parent / "stepped_clock.so"
    made.parent.mkdir(parents=True, exist_ok=True)
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        draft = made.with_suffix(f".{os.getpid()}")
        words = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-o", str(draft), str(source), "-ldl"]
        subprocess.run(words, check=True)
        draft.rename(made)
    return made
