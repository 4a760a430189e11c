"""A node for tests of the hands: its own /proc and driver files in a folder, a key, and orders signed with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuwatch.clock import Clock
from gpuwatch.hands.carry import Hands
from gpuwatch.hands.journal import Journal
from gpuwatch.hands.node import Node
from gpuwatch.hands.settings import HandsSettings, Reboot, ResetGpu, RestartService, Work
from gpuwatch.model.order import Order, SignedOrder, as_text
from gpuwatch.sdk.ed25519 import Signer, make_key
from tests.fakes import FakeClock

NS = 10**9
HOUR_NS = 3600 * NS
MACHINE, BOOT = "m-1", "boot-1"
GPU_UUID, GPU_PCI = "GPU-5a1b2c3d-0000-1111-2222-333344445555", "0000:9b:00"


class HandsNode:
    """One machine with hands. What they did stands in `did`, a line a command."""

    def __init__(
        self, folder: Path, *, clock: Clock | None = None, signer: Signer | None = None, machine: str = MACHINE
    ) -> None:
        self.folder = folder
        self.fake = FakeClock()
        self.clock: Clock = clock or self.fake
        self.machine, self.boot = machine, BOOT
        self.proc, self.driver = folder / "proc", folder / "proc" / "driver" / "nvidia"
        self.proc.mkdir()
        self.gpu()
        self.signer = signer or self.new_key("order")
        self.settings = self.usual()
        self.hands = self.begin()

    def new_key(self, name: str) -> Signer:
        path = self.folder / f"{name}.pem"
        make_key(path)
        return Signer(path)

    def usual(self, **changed: Any) -> HandsSettings:
        """Everything is allowed; each command writes down that it was run."""
        note = ("/bin/sh", "-c", 'echo "$@" >> "$0"', str(self.folder / "did"))
        usual: dict[str, Any] = {
            "machine": self.machine,
            "public_keys": (self.signer.public,),
            "state_dir": self.folder / "state",
            "order_file": self.folder / "order",
            "status_file": self.folder / "told" / "status",
            "hold_file": self.folder / "HOLD",
            "restart_service": RestartService(units=("slurmd.service",), command=(*note, "restart", "{unit}")),
            "reset_gpu": ResetGpu(
                allowed=True,
                command=(*note, "reset", "{gpu}"),
                release=(*note, "release"),
                release_deadline_s=0.5,
                resume=(*note, "resume"),
            ),
            "reboot": Reboot(
                allowed=True,
                command=(*note, "reboot"),
                deadline_s=0.2,
                force=(*note, "force"),
                force_deadline_s=0.2,
                sysrq=self.folder / "sysrq",
                sysrq_wait_s=0.01,
            ),
            "work": self.work(),
        }
        return HandsSettings(**(usual | changed))

    def work(self, **changed: Any) -> Work:
        """Looks at nothing of the machine that the tests run on."""
        return Work(proc=self.proc, heartbeat_directories=(str(self.folder / "beats"),), **changed)

    def begin(self) -> Hands:
        """Hands as they are when their process starts."""
        return Hands(
            self.settings,
            Node(settings=self.settings, clock=self.clock),
            Journal(self.settings.state_dir),
            self.clock,
            machines=(self.machine,),
            boot=self.boot,
        )

    def again(self, *, boot: str = "") -> None:
        """The process, or the whole machine, starts anew."""
        self.hands.close()
        if boot:
            self.boot = boot
            self.fake.monotonic = 20 * NS
        self.hands = self.begin()

    def order(self, kind: str = "restart_service", target: str = "slurmd.service", **changed: Any) -> Order:
        """A good order for now, except for what is changed."""
        self.hands.tick()
        usual: dict[str, Any] = {
            "machine": self.machine,
            "boot_id": self.boot,
            "action_id": "act-1",
            "kind": kind,
            "target": target,
            "nonce": self.hands.facts().nonce,
            "expires_monotonic_ns": self.clock.monotonic_ns() + 60 * NS,
            "because": "Xid 79",
        }
        return Order(**(usual | changed))

    def sign(self, order: Order, signer: Signer | None = None) -> bytes:
        signer = signer or self.signer
        signed = SignedOrder(order=order, key=signer.public, signature=signer.sign(order.signed_bytes()))
        return as_text(signed).encode()

    def answer(self, order: Order) -> tuple[str, str]:
        """Sign and hand it in; its state and reason."""
        return self.hand_in(self.sign(order))

    def hand_in(self, text: bytes) -> tuple[str, str]:
        self.hands.take(text)
        answers = self.hands.facts().answers
        return (answers[-1].state, answers[-1].reason) if answers else ("", "")

    def did(self) -> list[str]:
        """The commands that were run."""
        file = self.folder / "did"
        return file.read_text().splitlines() if file.exists() else []

    # what the node looks like

    def gpu(self, pci: str = "0000:9b:00.0", uuid: str = GPU_UUID, minor: int = 3) -> None:
        place = self.driver / "gpus" / pci
        place.mkdir(parents=True)
        (place / "information").write_text(f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n")

    def mig(self, minor: int = 3) -> None:
        (self.driver / "capabilities" / f"gpu{minor}" / "mig" / "gi7").mkdir(parents=True)

    def process(
        self,
        pid: int,
        *,
        name: str = "python",
        program: str = "/usr/bin/python3",
        uid: int = 2000,
        cgroup: str = "/user.slice",
        cwd: str = "/home/u",
        devices: tuple[str, ...] = (),
        title: bytes = b"",
        state: str = "S (sleeping)",
        pending: int = 0,
    ) -> None:
        place = self.proc / str(pid)
        (place / "fd").mkdir(parents=True)
        words = {"Name": name, "State": state, "Uid": f"{uid}\t{uid}\t{uid}\t{uid}", "ShdPnd": f"{pending:016x}"}
        (place / "status").write_text("".join(f"{key}:\t{value}\n" for key, value in words.items()))
        (place / "cgroup").write_text(f"0::{cgroup}\n")
        (place / "cmdline").write_bytes(title)
        (place / "stat").write_text(f"{pid} ({name}) {state[0]} " + " ".join(["0"] * 18) + " 777 0\n")
        (place / "exe").symlink_to(program)
        (place / "cwd").symlink_to(cwd)
        for number, device in enumerate(("/dev/null", *devices)):
            (place / "fd" / str(number)).symlink_to(device)
