"""The hands' own settings: what may be ordered on this node at all. Whoever can write this file can reboot the node."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from gpuwatch.config import Fault, convert, read_toml, refuse
from gpuwatch.errors import ConfigError
from gpuwatch.sdk.ed25519 import is_public_key
from gpuwatch.training.heartbeat import DEFAULT_DIRECTORIES

Seconds = Annotated[float, msgspec.Meta(gt=0)]
UNIT = re.compile(r"^[A-Za-z0-9:_@][A-Za-z0-9:_.@\\-]*\.(service|socket|timer|target)$")


class RestartService(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which services may be restarted, and how."""

    units: tuple[str, ...] = ()  # none: no service may be restarted
    command: tuple[str, ...] = ("/usr/bin/systemctl", "restart", "{unit}")
    deadline_s: Seconds = 90.0


class ResetGpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether GPUs may be reset, and how."""

    allowed: bool = False
    command: tuple[str, ...] = ("/usr/bin/nvidia-smi", "--gpu-reset", "--id={gpu}")
    deadline_s: Seconds = 120.0
    release: tuple[str, ...] = (  # the agent lets go of the driver, and takes it again by itself; empty: not asked
        "/opt/gpuwatch/bin/gpuwatch",
        "agent",
        "release",
        "--minutes=15",
        "--because=a GPU is reset",
    )
    release_deadline_s: Seconds = 45.0  # the agent looks every 20 s at the latest, and is waited for 30 s
    resume: tuple[str, ...] = ("/opt/gpuwatch/bin/gpuwatch", "agent", "resume")  # afterwards; empty: not told


class Reboot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether the node may be rebooted, and what follows where that does not happen."""

    allowed: bool = False
    command: tuple[str, ...] = ("/usr/bin/systemctl", "reboot")
    deadline_s: Seconds = 300.0  # a shutdown waits 90 s for a unit that does not stop
    force: tuple[str, ...] = ("/usr/bin/systemctl", "reboot", "--force")
    force_deadline_s: Seconds = 240.0  # systemd waits 90 s for all to end, then 90 s for what it killed
    sysrq: Path = Path("/proc/sysrq-trigger")  # the last: sync, remount read-only, boot
    sysrq_wait_s: Seconds = 2.0  # after each letter: the kernel does not wait for its own sync
    window_s: Annotated[float, msgspec.Meta(ge=600)] = 21_600.0  # one reboot in so much time of the node's own running


class Work(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What counts as a job that runs here."""

    proc: Path = Path("/proc")  # the host's, for hands that run in a container
    pods: Literal["gpu", "any"] = "gpu"  # a pod counts if it holds a GPU; or every one, those of the system too
    heartbeat_directories: tuple[str, ...] = DEFAULT_DIRECTORIES
    heartbeat_fresh_s: Seconds = 120.0  # of a process in a container, of which nothing else can be told
    gpu_friends: tuple[str, ...] = (  # programs of system users that hold GPUs and do no work on them
        "nvidia-persistenced",
        "nv-hostengine",
        "nv-fabricmanager",
        "dcgm-exporter",
        "nvidia-device-plugin",
        "nvidia-imex",
    )
    agent_unit: str = "gpuwatch-agent.service"  # whose probe holds every GPU, and lets go when asked


class HandsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file. Without any key nothing is allowed."""

    machine: str = ""  # as in agent.toml; left out: the firmware's UUID or /etc/machine-id
    public_keys: tuple[str, ...] = ()  # whose orders are taken; two while one replaces the other
    state_dir: Path = Path("/var/lib/gpuwatch-hands")
    order_file: Path = Path("/run/gpuwatch/hands/order")  # the agent writes it
    status_file: Path = Path("/run/gpuwatch-hands/status")  # the agent reads it
    hold_file: Path = Path("/etc/gpuwatch/HOLD")  # while it is there, every order is refused
    nonce_valid_s: Annotated[float, msgspec.Meta(ge=10, le=3600)] = 300.0
    look_every_s: Annotated[float, msgspec.Meta(ge=0.05, le=10)] = 1.0
    restart_service: RestartService = RestartService()
    reset_gpu: ResetGpu = ResetGpu()
    reboot: Reboot = Reboot()
    work: Work = Work()


def load(path: Path) -> HandsSettings:
    """Read and check, the file's owner and mode too. Raises `ConfigError` that lists every fault."""
    _only_root_writes(path)
    return checked(path)


def checked(path: Path) -> HandsSettings:
    """The same without a look at who may write the file."""
    settings, faults = convert(read_toml(path), HandsSettings, file=str(path))
    if settings is not None:
        faults += _faults(settings, str(path))
    refuse(faults)
    assert settings is not None
    return settings


def _faults(settings: HandsSettings, file: str) -> list[Fault]:
    faults = [
        Fault(file, "public_keys", "64 hex digits each, as `gpuwatch hands keygen` prints", repr(key[:80]))
        for key in settings.public_keys
        if not is_public_key(key)
    ]
    faults += [
        Fault(file, "restart_service.units", "whole unit names such as slurmd.service", repr(unit))
        for unit in settings.restart_service.units
        if not UNIT.match(unit)
    ]
    for key, command, place in (
        ("restart_service.command", settings.restart_service.command, "{unit}"),
        ("reset_gpu.command", settings.reset_gpu.command, "{gpu}"),
        ("reset_gpu.release", settings.reset_gpu.release, ""),
        ("reset_gpu.resume", settings.reset_gpu.resume, ""),
        ("reboot.command", settings.reboot.command, ""),
        ("reboot.force", settings.reboot.force, ""),
    ):
        if not command and key in ("reset_gpu.release", "reset_gpu.resume"):
            continue
        if not command or not command[0].startswith("/"):
            faults.append(Fault(file, key, "a program by its whole path, and its words", repr(list(command))))
        elif not any(place in word for word in command[1:]) and place:
            faults.append(Fault(file, key, f"{place} among its words", repr(list(command))))
    return faults


def _only_root_writes(path: Path) -> None:
    """Its owner is root (or who runs this), and nobody else may write it, or put another in its place: neither at its
    own name nor, where that is a link, where it leads to."""
    real = Path(os.path.realpath(path))
    for place in (real, *real.parents, *path.absolute().parents):
        try:
            found = os.stat(place)  # noqa: PTH116
        except OSError as error:
            raise ConfigError(
                f"{place} cannot be read", why=str(error), next_step="create it, see docs/hands.md"
            ) from None
        sticky = found.st_mode & stat.S_ISVTX and place not in (real, real.parent)  # there nobody moves others' files
        if found.st_uid not in (0, os.geteuid()) or (stat.S_IMODE(found.st_mode) & 0o022 and not sticky):
            raise ConfigError(
                f"{place} can be written by others than root",
                why=f"owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}: they could order a reboot",
                next_step=f"chown root {place} && chmod go-w {place}",
            )
