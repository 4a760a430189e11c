"""`gpuwatch scan`: what it says and with which exit code, on a node that is well, sick, blind, or has no GPU at all."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import gpuwatch.collectors
from gpuwatch.agent.book import Book, ChildRecord
from gpuwatch.agent.release import ReleaseFile
from gpuwatch.collectors import Collector
from gpuwatch.errors import UsageError
from gpuwatch.model.facts.host import HostFacts
from gpuwatch.model.moment import Moment
from gpuwatch.registry import leaves
from gpuwatch.scan.apart import apart
from gpuwatch.sdk import processes
from gpuwatch.wiring import scan

XID = "{:%b %e %H:%M:%S} gpu-001 kernel: [ 1234.500000] NVRM: Xid (PCI:0000:29:00): {}, pid=1234, name=python\n"


class Machine:
    """A node's files for a scan."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "kernel.log").touch()
        self.gpus(gpu_count=8)
        self.nvml: dict[str, Any] = {
            "preload": "gpuwatch.simulate.nvml:install",
            "preload_argument": str(folder / "gpus.json"),
            "container": "no",
            "deadline_s": 0.3,
        }
        self.host = False
        self.kernel_log: dict[str, Any] = {"source": "file", "path": str(folder / "kernel.log")}

    def gpus(self, **state: Any) -> None:
        (self.folder / "gpus.json").write_text(json.dumps(state))

    def started(self) -> None:
        (self.folder / "started").touch()  # the look is another process: it can only leave a file
        raise OSError("no child in this test")

    def config(self) -> Path:
        path = self.folder / "agent.toml"
        lines = [f'slot = "gpu-001"\nmachine = "m-1"\nstate_dir = "{self.folder}"']
        tables = {"nvml": self.nvml, "kernel_log": self.kernel_log, "training": {"directories": [str(self.folder)]}}
        # What the machine that tests is like is no matter of these tests: its clock, its disks, its stuck processes.
        tables["host"] = {"enabled": self.host, "clock": False}
        tables |= {name: {"enabled": False} for name in ("pcie", "infiniband", "services", "maintenance")}
        for name, table in tables.items():
            lines += [f"[collectors.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
        path.write_text("\n".join(lines) + "\n")
        return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("GPUWATCH_BOOT_ID", "boot-of-the-test")
    return Machine(tmp_path)


def scanned(
    machine: Machine,
    capsys: pytest.CaptureFixture[str],
    *,
    expected_gpus: int | None = 8,
    only: tuple[str, ...] = (),
    deadline_s: float = 8.0,
) -> tuple[int, dict[str, Any]]:
    code = scan.run(
        as_json=True, config=machine.config(), expected_gpus=expected_gpus, only=only, deadline_s=deadline_s
    )
    found = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == code
    return code, found


def test_a_healthy_node(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = scanned(machine, capsys)
    assert (code, found["level"], found["findings"]) == (0, "ok", [])
    assert found["statement"] == "8 of 8 GPUs answer, driver 580.95.05"
    assert len(found["sources"]["nvml"]["facts"]["gpus"]) == 8
    assert scan.run(config=machine.config()) == 0
    text = capsys.readouterr().out
    assert "GPU 0 0000:11:00 NVIDIA H100 80GB HBM3 (simulated): 97 %, 69.3 of 79.6 GiB, 612 W, 61 °C" in text
    assert text.endswith("OK: nothing wrong was found (exit code 0)\n")


def test_while_the_driver_is_released_a_look_does_not_touch_it_either(
    machine: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ReleaseFile(machine.folder).ask(Moment(time.time_ns(), time.monotonic_ns()), because="driver 580.95")
    monkeypatch.setattr("gpuwatch.agent.child._ProcessChild", lambda *_: machine.started())
    code, found = scanned(machine, capsys)
    assert (code, found["sources"]["nvml"]["status"]) == (3, "failed")
    assert "released on request: driver 580.95" in found["sources"]["nvml"]["reason"]
    assert not (machine.folder / "started").exists()
    ReleaseFile(machine.folder).take_back()
    monkeypatch.undo()
    monkeypatch.setenv("GPUWATCH_BOOT_ID", "boot-of-the-test")
    assert scanned(machine, capsys)[0] == 0


def test_a_lost_gpu_is_critical(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.gpus(gpu_count=8, lost=[3])
    code, found = scanned(machine, capsys)
    assert (code, found["level"]) == (2, "critical")
    assert found["findings"][0]["level"] == "critical"
    assert "3" in found["findings"][0]["because"]


def test_a_missing_gpu_is_critical_where_the_number_is_known(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.gpus(gpu_count=7)
    assert scanned(machine, capsys)[0] == 2
    assert scanned(machine, capsys, expected_gpus=None)[0] == 0


@pytest.mark.parametrize(("xid", "code"), [(79, 2), (31, 0), (48, 2)])
@pytest.mark.parametrize("this_boot", [True, False])
def test_the_kernel_log_of_this_boot(
    machine: Machine, capsys: pytest.CaptureFixture[str], this_boot: bool, xid: int, code: int
) -> None:
    first = scanned(machine, capsys)
    assert first[0] == 0
    ago_s = 1.0 if this_boot else time.monotonic() + 7200.0
    at = datetime.fromtimestamp(time.time() - ago_s)
    with (machine.folder / "kernel.log").open("a") as log:
        log.write(f"{at:%b %e %H:%M:%S} gpu-001 kernel: [ 1000.0] Linux version 6.1\n" + XID.format(at, xid))
    machine.kernel_log["path"] = str(machine.folder / "kernel.log")
    got, found = scanned(machine, capsys)
    assert [event["xid"] for event in found["events"]] == [xid]
    assert [event["boot_id"] for event in found["events"]] == ["boot-of-the-test" if this_boot else "earlier"]
    assert got == (code if this_boot else 0)


def test_a_driver_that_does_not_start_is_critical(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.gpus(init_error=9)
    code, found = scanned(machine, capsys)
    assert code == 2
    assert found["statement"] == "the NVIDIA driver refuses to start: nvmlInit: DRIVER_NOT_LOADED (9)"


def test_a_hung_driver_is_critical_within_the_deadline(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.gpus(gpu_count=8, hang=True)
    code, found = scanned(machine, capsys, deadline_s=1.5)
    assert code == 2
    assert [remark["rule"] for remark in found["findings"]] == ["probe_hung"]
    assert re.search(r"in nvml\w+ of GPU 0; child state [SR], wait channel", found["findings"][0]["because"])


def test_a_probe_that_is_stuck_already_gets_no_second_one(
    machine: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = processes.start_ticks(os.getpid())
    assert ticks is not None
    record = ChildRecord(pid=os.getpid(), start_ticks=ticks, boot_id="boot-of-the-test", since_unix_ns=5,
                         reason="child state D, wait channel nvidia_ioctl", killed=True)  # fmt: skip
    Book(machine.folder, "nvml").write(record)
    monkeypatch.setattr("gpuwatch.agent.child.System.start", lambda *_: machine.started())
    code, found = scanned(machine, capsys)
    assert not (machine.folder / "started").exists()
    assert code == 2
    assert "nvidia_ioctl" in found["findings"][0]["because"]


def test_no_gpu_is_said_plainly_and_the_rest_goes_on(
    machine: Machine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "no-pci").mkdir()
    machine.nvml = {"pci_devices": str(tmp_path / "no-pci"), "driver_file": str(tmp_path / "absent")}
    code, found = scanned(machine, capsys, expected_gpus=None)
    if found["sources"]["nvml"]["status"] == "ok":
        pytest.skip("this machine has NVIDIA's library")
    assert found["statement"] == "no NVIDIA GPU or driver on this node"
    assert (code, found["findings"]) == (0, [])
    assert found["sources"]["training"]["status"] == "ok"
    code, found = scanned(machine, capsys, expected_gpus=8)
    assert (code, found["findings"][0]["because"]) == (2, "0 of 8 GPUs: no NVIDIA GPU or driver on this node")
    assert found["findings"][0]["action"] == "check_machine"  # a reboot brings neither
    assert scan.run(config=machine.config(), expected_gpus=8) == 2
    assert "do       see what machine this is" in capsys.readouterr().out


def test_a_driver_that_was_never_installed_is_to_be_installed(
    machine: Machine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    gpu = tmp_path / "pci" / "0000:05:00.0"
    gpu.mkdir(parents=True)
    (gpu / "vendor").write_text("0x10de\n")
    (gpu / "class").write_text("0x030200\n")
    machine.nvml = {"pci_devices": str(gpu.parent), "driver_file": str(tmp_path / "absent"), "container": "no"}
    code, found = scanned(machine, capsys, expected_gpus=1)
    if found["sources"]["nvml"]["facts"]["init_error"] != 12:
        pytest.skip("this machine has NVIDIA's library")
    assert code == 2
    assert [one["action"] for one in found["findings"] if one["rule"] == "driver_not_loaded"] == ["install_driver"]
    scan.run(config=machine.config(), expected_gpus=1)
    assert "do       install the NVIDIA driver" in capsys.readouterr().out


def test_a_source_that_fails_is_unknown(
    machine: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.nvml["preload"] = "gpuwatch.simulate.nvml:no_such_function"
    code, found = scanned(machine, capsys)
    assert (code, found["level"]) == (3, "unknown")
    assert found["findings"][-1]["because"].startswith("failed: AttributeError")


def test_a_kernel_log_that_cannot_be_read_is_unknown(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.kernel_log["path"] = str(machine.folder / "absent.log")
    machine.gpus(gpu_count=8, gpus={"0": {"recovery_action": 250}})
    code, found = scanned(machine, capsys)
    assert code != 0
    unknown = [remark["because"] for remark in found["findings"] if remark["level"] == "unknown"]
    assert any(because.startswith("the kernel log cannot be read") for because in unknown)


def test_one_source_alone_and_a_word_that_is_no_source(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = scanned(machine, capsys, only=("nvml",))
    assert (code, list(found["sources"])) == (0, ["nvml"])
    machine.gpus(gpu_count=8, lost=[3])
    code, found = scanned(machine, capsys, only=("training", "kernel_log"))
    assert (code, sorted(found["sources"])) == (0, ["kernel_log", "training"]), found["findings"]
    with pytest.raises(UsageError, match="there is no source 'nvm'"):
        scan.run(config=machine.config(), only=("nvm",))


def test_findings_are_grouped_and_say_why_it_matters_what_to_do_and_by_whom_it_is_known(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.gpus(gpu_count=8, lost=[2, 3])
    assert scan.run(config=machine.config()) == 2
    text = capsys.readouterr().out
    assert text.count("CRITICAL: A GPU has left the bus") == 1
    assert len(re.findall(r"^  seen     gpu ", text, re.MULTILINE)) == 2
    assert "  matters  every job that uses all GPUs of this node fails or hangs" in text
    assert "  do       replace the machine" in text
    assert "  source   nvml.h, return code 15" in text
    assert text.endswith("worst: critical (exit code 2)\n")


def test_all_that_can_hang_hangs_and_the_look_ends_in_time(
    machine: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.gpus(gpu_count=8, hang=True)
    doors = leaves(gpuwatch.collectors, "COLLECTOR", Collector)
    machine.host = True
    stuck = Collector(facts=HostFacts, settings=doors["host"].settings, open=lambda _: time.sleep(60) or None)  # type: ignore[arg-type,func-returns-value,return-value]
    monkeypatch.setattr("gpuwatch.wiring.scan.leaves", lambda *_: {**doors, "host": stuck})
    begun_s = time.monotonic()
    code, found = scanned(machine, capsys, deadline_s=1.5)
    assert time.monotonic() - begun_s < 3.0
    assert code == 2
    hung = {name: source["reason"] for name, source in found["sources"].items() if source["status"] == "hung"}
    assert sorted(hung) == ["host", "nvml"]
    assert all("wait channel" in reason for reason in hung.values()), hung
    assert re.match(r"no answer for more than [01](\.\d+)? s; ", hung["host"]), "it waited no longer"
    code = scan.run_as("prolog", config=machine.config(), deadline_s=3.0)
    assert (code, capsys.readouterr().out[:36]) == (0, "gpuwatch: ok as far as known: no con")


def _never() -> bytes:
    time.sleep(3)
    return b""


def test_a_look_that_never_ends_is_left_behind() -> None:
    begun_s = time.monotonic()
    assert apart(_never, 0.3) is None
    assert time.monotonic() - begun_s < 1.0
    assert apart(lambda: b"done", 5.0) == b"done"
    assert apart(lambda: b"x" * 3_000_000, 5.0) == b"x" * 3_000_000
    assert apart(lambda: [][1], 5.0) is None


def test_for_a_scheduler_no_file_server_is_asked(
    machine: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: Any) -> Any:
        (machine.folder / "asked").touch()  # the look is another process: it can only leave a file
        return ()

    machine.host = True
    monkeypatch.setattr("gpuwatch.sdk.mount_probe.MountProbe.ask", asked)
    assert scan.run_as("prolog", config=machine.config(), only=("host",)) == 0
    assert not (machine.folder / "asked").exists()
    scan.run(config=machine.config(), only=("host",))
    assert (machine.folder / "asked").exists()
    capsys.readouterr()


@pytest.mark.parametrize("where", ["full", "closed", "no-reader", "no-letters"])
@pytest.mark.parametrize(
    "words", [["--as", "prolog"], ["--as", "prolog", "--json"], []], ids=["role", "json", "person"]
)
def test_a_log_that_cannot_be_written_changes_no_exit_code(machine: Machine, where: str, words: list[str]) -> None:
    machine.gpus(gpu_count=8)
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-c", "from gpuwatch.cli import main; main()", "scan", "-c", str(machine.config())]
    shell = {"full": "exec 1>/dev/full", "closed": "exec 1>&-", "no-reader": f"exec 1>&{write_end}", "no-letters": ":"}
    ended = subprocess.run(
        ["/bin/bash", "-c", f'{shell[where]}; exec "$@"', "bash", *command, *words],
        env={"PYTHONIOENCODING": "ascii"} if where == "no-letters" else {},
        pass_fds=(write_end,),
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(write_end)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_look_that_is_left_behind_holds_nothing_of_its_caller(tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert apart(_never, 0.3) is None
    os.close(lock)
    other = os.open(tmp_path / "lock", os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


def test_for_a_scheduler_nobody_looks_at_whose_work_it_is(
    machine: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[str]] = []
    whole = scan._for_role

    def noting(role: str, settings: Any, *rest: Any) -> Any:
        seen.append(set(settings.collectors))
        return whole(role, settings, *rest)

    monkeypatch.setattr(scan, "_for_role", noting)
    assert scan.run_as("prolog", config=machine.config()) == 0
    assert "nvml" in seen[0]
    assert not seen[0] & {"attribution", "environment"}
    capsys.readouterr()
