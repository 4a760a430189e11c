"""The cloud on this machine: nodes are processes, dead means that the process is gone, create starts a new one.

The embedded default of the demo and of trials. Each machine is a folder; its process holds the folder's lock for as
long as it lives, so that no crash of ours can make two processes of one machine: a second start finds the lock taken.
The provider's meter runs from the machine's creation to its release, whether its process lives or not, as clouds bill.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import psutil

from gpuwatch.clock import Clock, SystemClock
from gpuwatch.clouds import CloudGroup, CloudLeaf, CloudMachine, CloudSnapshot, MachineState, Receipt
from gpuwatch.errors import CloudError
from gpuwatch.model.ledger import TICK_NS, snap_ns
from gpuwatch.model.money import BillRow
from gpuwatch.model.token import machine_token
from gpuwatch.sdk.local_files import locked, read_json, try_lock, write_json

RELEASE_WAIT_S = 3.0  # SIGTERM, then SIGKILL


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[cloud.local]`."""

    directory: Path
    command: tuple[str, ...]  # `{slot}`, `{machine}` and `{directory}` (the machine's own) are filled in
    group: str = "local"
    target_count: int | None = None
    secret_file: Path | None = None  # the cluster secret: new machines get their token from it
    gpu_count: int = 8
    provider: str = "local"
    region: str = "local"
    sku: str = "local"
    price_kind: str = "ondemand"
    usd_per_hour: Decimal | None = None  # what the meter charges; None: it keeps no bill


class LocalCloud:
    """See the module. Thread-safe by a file lock; safe against `kill -9` at every line."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._root = settings.directory / "machines"
        self._root.mkdir(parents=True, exist_ok=True)

    def snapshot(self) -> CloudSnapshot:
        machines = tuple(self._machine(folder, record) for folder, record in self._records())
        settings = self._settings
        group = CloudGroup(name=settings.group, owner="gpuwatch", target_count=settings.target_count, reimages=True)
        return CloudSnapshot(machines=machines, groups=(group,))

    def create(self, *, slot: str, group: str, action_id: str) -> Receipt:
        if group != self._settings.group:
            raise CloudError(
                f"the local cloud has no group {group!r}",
                why=f"its only group is {self._settings.group!r}",
                next_step="name that group in the pool, or set cloud.local.group",
            )
        machine = f"local-{slot}-{hashlib.sha256(action_id.encode()).hexdigest()[:8]}"
        folder = self._root / machine
        with locked(self._settings.directory / "cloud.lock"):
            record = read_json(folder / "machine.json")
            if record is None:
                record = {
                    "machine": machine,
                    "slot": slot,
                    "action_id": action_id,
                    "started_unix_ns": snap_ns(self._clock.unix_ns()),
                }
                write_json(folder / "machine.json", record)
            if "ended_unix_ns" not in record:
                self._start(folder, record)
        return Receipt(action_id=action_id, state="done", machine=machine)

    def release(self, machine: str, *, action_id: str) -> Receipt:
        folder = self._root / machine
        with locked(self._settings.directory / "cloud.lock"):
            record = self._known(folder)
            if "ended_unix_ns" in record:
                return Receipt(action_id=action_id, state="done", machine=machine, because="was released before")
            if not self._stop(folder):
                return Receipt(action_id=action_id, state="pending", machine=machine, because="its process still lives")
            write_json(folder / "machine.json", record | {"ended_unix_ns": snap_ns(self._clock.unix_ns())})
        return Receipt(action_id=action_id, state="done", machine=machine)

    def reimage(self, machine: str, *, action_id: str) -> Receipt:
        """Its process ends, its folder is emptied, its process starts anew. Cut off in between, it is done again."""
        folder = self._root / machine
        with locked(self._settings.directory / "cloud.lock"):
            record = self._known(folder)
            if "ended_unix_ns" in record:
                raise CloudError(f"machine {machine} cannot be reimaged", why="it was released", next_step="nothing")
            if record.get("reimaged_by") != action_id:
                if not self._stop(folder):
                    because = "its process still lives"
                    return Receipt(action_id=action_id, state="pending", machine=machine, because=because)
                _wipe(folder)
                self._start(folder, record)
                write_json(folder / "machine.json", record | {"reimaged_by": action_id})
        return Receipt(action_id=action_id, state="done", machine=machine)

    def bill(self) -> tuple[BillRow, ...]:
        price = self._settings.usd_per_hour
        if price is None:
            return ()
        now = snap_ns(self._clock.unix_ns())
        rows = []
        for _, record in self._records():
            start = record["started_unix_ns"]
            end = max(start, record.get("ended_unix_ns", now))
            ticks = (end - start) // TICK_NS
            rows.append(
                BillRow(
                    machine=record["machine"],
                    period_start_unix_ns=start,
                    period_end_unix_ns=end,
                    quantity_ticks=ticks,
                    cost_usd=_exact_usd(ticks, price),
                    provider=self._settings.provider,
                    sku=self._settings.sku,
                )
            )
        return tuple(rows)

    def _known(self, folder: Path) -> dict[str, Any]:
        record = read_json(folder / "machine.json")
        if record is None:
            raise CloudError(
                f"the local cloud knows no machine {folder.name!r}",
                why=f"there is no {folder / 'machine.json'}",
                next_step="look at its list: the id must be one of the machines that it started",
            )
        return record

    def _records(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        for folder in sorted(self._root.iterdir()):
            record = read_json(folder / "machine.json")
            if record is not None:
                yield folder, record

    def _machine(self, folder: Path, record: dict[str, Any]) -> CloudMachine:
        ended = record.get("ended_unix_ns")
        state: MachineState
        if ended is not None:
            state, because = "gone", "it was released"
        elif _runs(folder):
            state, because = "running", ""
        elif _pid(folder) is not None:
            state, because = "failed", "its process is gone"
        else:
            state, because = "starting", ""
        settings = self._settings
        return CloudMachine(
            machine=record["machine"],
            slot=record["slot"],
            group=settings.group,
            state=state,
            because=because,
            provider=settings.provider,
            region=settings.region,
            sku=settings.sku,
            price_kind=settings.price_kind,
            gpu_count=settings.gpu_count,
            started_unix_ns=record["started_unix_ns"],
            ended_unix_ns=ended,
            action_id=record["action_id"],
            absent_because="surplus" if ended is not None else "",
        )

    def _start(self, folder: Path, record: dict[str, Any]) -> None:
        if _pid(folder) is not None:
            return  # it was started before; if it died since, it is a dead machine, not one to start again
        with locked(folder / "probe.lock"):
            lock = try_lock(folder / "lock")
        if lock is None:  # our own earlier start, cut off before it wrote the pid; the lock says that it lives
            _find_pid(folder)
            return
        try:
            if self._settings.secret_file is not None:
                token = machine_token(self._settings.secret_file.read_bytes().strip(), record["machine"])
                (folder / "token").write_text(token)
                (folder / "token").chmod(0o600)
            words = {"slot": record["slot"], "machine": record["machine"], "directory": str(folder)}
            with (folder / "log").open("ab") as log:
                process = subprocess.Popen(
                    [part.format(**words) for part in self._settings.command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=(lock,),
                )
        except OSError as error:
            raise CloudError(
                f"machine {record['machine']} could not be started",
                why=str(error),
                next_step="check cloud.local.command and cloud.local.secret_file",
            ) from error
        finally:
            os.close(lock)
        _write_pid(folder, process.pid)

    def _stop(self, folder: Path) -> bool:
        if not _runs(folder):
            return True
        pid = _pid(folder) or _find_pid(folder)
        if pid is None:
            return not _runs(folder)
        for ending, patience_s in ((signal.SIGTERM, RELEASE_WAIT_S), (signal.SIGKILL, RELEASE_WAIT_S)):
            for process in _family(pid):
                try:
                    process.send_signal(ending)
                except psutil.NoSuchProcess:
                    continue
            until = time.monotonic() + patience_s
            while time.monotonic() < until:
                if not _runs(folder):
                    return True
                time.sleep(0.02)
        return not _runs(folder)


def _wipe(folder: Path) -> None:
    """What the machine has written; its record, its log and its locks are the cloud's."""
    for path in folder.iterdir():
        if path.name in ("machine.json", "log", "lock", "probe.lock"):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _runs(folder: Path) -> bool:
    """Whether the machine's process holds its lock. Asking takes it for an instant, so askers take turns."""
    with locked(folder / "probe.lock"):
        lock = try_lock(folder / "lock")
        if lock is not None:
            os.close(lock)
    return lock is None


def _pid(folder: Path) -> int | None:
    """The machine's process as it was written down at its start."""
    try:
        return int((folder / "pid").read_text())
    except FileNotFoundError:
        return None


def _write_pid(folder: Path, pid: int) -> None:
    """Whole or not at all: half a number would be somebody else's."""
    (folder / "pid.new").write_text(str(pid))
    (folder / "pid.new").rename(folder / "pid")


def _find_pid(folder: Path) -> int | None:
    """The machine's process by the lock that it holds, where a kill of ours came between its start and its pid.

    Askers of the lock open it too, so they wait outside meanwhile.
    """
    lock = str((folder / "lock").resolve())
    with locked(folder / "probe.lock"):
        for process in psutil.process_iter():
            try:
                holds = process.pid != os.getpid() and any(file.path == lock for file in process.open_files())
            except (psutil.Error, OSError):
                continue
            if holds:
                _write_pid(folder, process.pid)
                return process.pid
    return None


def _family(pid: int) -> list[psutil.Process]:
    try:
        head = psutil.Process(pid)
        return [*head.children(recursive=True), head]
    except psutil.NoSuchProcess:
        return []


def _exact_usd(ticks: int, usd_per_hour: Decimal) -> Decimal:
    """ticks of 10^-9 h times a decimal price is a finite decimal: no rounding."""
    amount = Fraction(usd_per_hour) * Fraction(ticks, 10**9)
    digits = 9 + max(0, -int(usd_per_hour.as_tuple().exponent))
    return Decimal(int(amount * 10**digits)).scaleb(-digits)


def _open(settings: Settings) -> LocalCloud:
    return LocalCloud(settings, SystemClock())


CLOUD = CloudLeaf(settings=Settings, open=_open)
