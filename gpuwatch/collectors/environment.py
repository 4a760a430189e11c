"""What runs here, as one fingerprint with parts: two nodes of a pool that differ in one of them cost days to find.

Of the node: driver and its kind, GPU models, VBIOS and firmware, kernel, system, firmware of network cards, BIOS. Of
each training process (those on GPUs and those with a heartbeat), once it has run for `settle_s`: Python, CUDA's
libraries, key packages, image of its container. A process's memory map and its packages may lie on what hangs: they are
read through errands, once a process. Since when a part has its value is kept in the agent's state folder.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from gpuwatch.collectors import Collector, Reading, Sample
from gpuwatch.model.facts.environment import EnvironmentFacts, Program
from gpuwatch.model.facts.nvml import NvmlFacts
from gpuwatch.model.facts.training import TrainingFacts
from gpuwatch.sdk import software
from gpuwatch.sdk.containers import image_of
from gpuwatch.sdk.errand import Errands
from gpuwatch.sdk.file_look import head_of_file, look
from gpuwatch.sdk.process_words import mapped, shown, variables
from gpuwatch.sdk.processes import start_ticks
from gpuwatch.sdk.small_file import kernel_file, small_json
from gpuwatch.sdk.workloads import place_of

MOST_BYTES = 1024  # of a file that names a version
MOST_NEW = 16  # processes looked at for the first time in one round
MOST_PROGRAMS = 32  # different ones: a run has one, a hostile user as many as he likes
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
IMAGE_VARIABLES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often, and where the node's own view is."""

    enabled: bool = True
    interval_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    deadline_s: Annotated[float, msgspec.Meta(gt=0)] = 3.0  # of one look that may hang
    settle_s: Annotated[float, msgspec.Meta(ge=0)] = 60.0  # a younger process has not loaded everything yet
    root: str = "/"


class _Reader:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._root = settings.root.rstrip("/")
        self._errands = Errands("environment")
        self._latest: Callable[[str], Any] = lambda _: None
        self._programs: dict[tuple[int, int], dict[str, str]] = {}  # pid and start -> parts
        self._tried: dict[int, int] = {}  # pid that could not be read yet -> how often
        self._since: dict[str, tuple[str, int]] = {}  # part -> value, since
        self._file: Path | None = None
        self._unsaved = False

    def meet(self, latest: Callable[[str], Any]) -> None:
        """`latest(name)`: the last facts of another source, or None."""
        self._latest = latest

    def keep(self, folder: Path, *, ours: bool = True) -> None:
        """Where it is remembered since when each part has its value. Not `ours`: read and never written."""
        self._errands.keep(folder, ours=ours)
        file = folder / "environment.json"
        try:
            self._since = small_json(file, dict[str, tuple[str, int]])
        except (OSError, ValueError):
            self._since = {}
        self._file = file if ours else None

    def read(self) -> Reading:
        """One round."""
        gaps: dict[str, str] = {}
        parts = self._node(gaps)
        programs = self._of_processes(gaps)
        return Reading(
            facts=EnvironmentFacts(
                fingerprint=software.fingerprint(parts),
                parts=parts,
                since_unix_ns=self._noted(parts),
                programs=programs,
            ),
            gaps=gaps,
            abandoned_count=self._errands.abandoned_count,
        )

    def close(self) -> None:
        pass

    def _node(self, gaps: dict[str, str]) -> dict[str, str]:
        root = self._root
        firmware = sorted(str(path) for path in Path(f"{root}/sys/class/infiniband").glob("*/fw_ver"))
        driver = f"{root}/proc/driver/nvidia/version"
        files = {"driver": [driver] if os.path.lexists(driver) else [], "nic_firmware": firmware}  # these call a driver
        found = look(self._errands, files, deadline_s=self._settings.deadline_s, most_bytes=MOST_BYTES)
        gaps |= {name: seen.hung for name, seen in found.items() if seen.hung}
        said = {
            path: text.decode("utf-8", "replace").strip()
            for seen in found.values()
            for path, text in seen.contents.items()
        }
        parts = software.driver_parts(said.get(driver, ""))
        release, bios, kernel = (
            _text(f"{root}/{path}")
            for path in ("etc/os-release", "sys/class/dmi/id/bios_version", "proc/sys/kernel/osrelease")
        )
        cards = {Path(path).parent.name: said[path] for path in firmware if said.get(path)}
        parts |= {"kernel": kernel, "os": software.os_release(release), "bios": bios, "nic_firmware": _each(cards)}
        parts |= _gpu_parts(self._latest("nvml"))
        return {name: value[:400] for name, value in parts.items() if value}

    def _of_processes(self, gaps: dict[str, str]) -> tuple[Program, ...]:
        ids = {pid: ticks for pid in self._pids() if (ticks := start_ticks(pid)) is not None}
        settled = {pid: ticks for pid, ticks in ids.items() if _age_s(ticks) >= self._settings.settle_s}
        fresh = [pid for pid, ticks in settled.items() if (pid, ticks) not in self._programs]
        self._tried = {pid: self._tried.get(pid, 0) for pid in fresh}
        fresh = sorted(fresh, key=lambda pid: self._tried[pid])[:MOST_NEW]  # who cannot be read keeps nobody waiting
        for pid in fresh:
            self._tried[pid] += 1
        for pid, parts in self._look_at(fresh, gaps).items():
            self._programs[pid, ids[pid]] = parts
        self._programs = {key: parts for key, parts in self._programs.items() if ids.get(key[0]) == key[1]}
        alike: dict[str, tuple[list[int], dict[str, str]]] = {}
        for (pid, _), parts in sorted(self._programs.items()):
            if parts:
                alike.setdefault(software.fingerprint(parts), ([], parts))[0].append(pid)
        return tuple(Program(tuple(pids), parts, name) for name, (pids, parts) in sorted(alike.items())[:MOST_PROGRAMS])

    def _look_at(self, pids: list[int], gaps: dict[str, str]) -> dict[int, dict[str, str]]:
        if not pids:
            return {}
        proc, deadline_s = f"{self._root}/proc", self._settings.deadline_s
        maps = mapped(self._errands, pids, software.MAPPED, proc=proc, deadline_s=deadline_s)
        folders = {pid: software.packages_folder(paths) for pid, paths in maps.items() if not isinstance(paths, str)}
        listings = self._errands.ask(
            {
                f"packages-{pid}": ["ls", "-1", f"{proc}/{pid}/root{folder}"]
                for pid, folder in folders.items()
                if folder
            },
            deadline_s=deadline_s,
        )
        images = variables(self._errands, pids, IMAGE_VARIABLES, proc=proc, deadline_s=deadline_s)
        found: dict[int, dict[str, str]] = {}
        for pid, paths in maps.items():
            if isinstance(paths, str):
                gaps[f"programs[{pid}]"] = paths
                continue  # looked at again in the next round
            parts = software.of_mapped(paths)
            listing = listings.get(f"packages-{pid}")
            if listing is not None and listing.answered:
                parts |= software.of_packages(listing.out.decode("utf-8", "replace").splitlines())
            elif listing is not None:
                gaps[f"programs[{pid}].packages"] = listing.reason
            parts |= self._image(pid, images.get(pid, {}))
            found[pid] = {name: shown(value) for name, value in parts.items()}
        return found

    def _image(self, pid: int, words: Mapping[str, str] | str) -> dict[str, str]:
        path = "" if isinstance(words, str) else next(filter(None, map(words.get, IMAGE_VARIABLES)), "")
        if path:
            head = head_of_file(self._errands, path, deadline_s=self._settings.deadline_s)
            return {"image": f"{shown(Path(path).name)} {software.sif_id(head)}".strip()}
        try:
            place = place_of(Path(f"{self._root}/proc/{pid}/cgroup").read_text(errors="replace"))
        except OSError:
            return {}
        image = image_of(place.container, self._root) if place.container else ""
        return {"image": image} if image else {}

    def _pids(self) -> set[int]:
        nvml, training = self._latest("nvml"), self._latest("training")
        pids = {pid for gpu in nvml.gpus for pid in gpu.pids} if isinstance(nvml, NvmlFacts) else set()
        if isinstance(training, TrainingFacts):
            pids |= {beat.pid for beat in training.beats if beat.alive}
        return pids

    def _noted(self, parts: Mapping[str, str]) -> dict[str, int]:
        """Since when each part has its value. A part that is not known right now keeps its past."""
        now_ns = time.time_ns()
        for name, value in parts.items():
            if self._since.get(name, ("", 0))[0] != value:
                self._since[name] = (value, now_ns)
                self._unsaved = True
        if self._file is not None and self._unsaved:
            new = self._file.with_suffix(".new")
            try:
                new.write_bytes(msgspec.json.encode(self._since))
                new.replace(self._file)
                self._unsaved = False
            except OSError:
                pass  # a full disk costs this memory alone, until the next round
        return {name: self._since[name][1] for name in parts}


def _text(path: str) -> str:
    try:
        return kernel_file(path, MOST_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _gpu_parts(nvml: Any) -> dict[str, str]:
    """Each different value once: a node whose GPUs differ among themselves shows it."""
    if not isinstance(nvml, NvmlFacts):
        return {}
    values = {"gpu_model": "name", "gpu_vbios": "vbios_version", "gpu_inforom": "inforom_version"}
    cuda = getattr(nvml, "cuda_version", None)
    return {"cuda": cuda or ""} | {
        part: ", ".join(sorted({str(value) for gpu in nvml.gpus if (value := getattr(gpu, field, None))}))
        for part, field in values.items()
    }


def _each(cards: Mapping[str, str]) -> str:
    """`28.39.1002`, or where cards differ which has what."""
    versions = sorted(set(cards.values()))
    if len(versions) <= 1:
        return "".join(versions)
    return ", ".join(f"{card} {version}" for card, version in sorted(cards.items()))


def _age_s(ticks: int) -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / TICKS_PER_S


def metrics(facts: EnvironmentFacts) -> Iterable[Sample]:
    """One `info` series: the fingerprint and the parts that are short."""
    text = "What runs on this node; equal fingerprints are equal nodes."
    labels = {"fingerprint": facts.fingerprint}
    labels |= {name: facts.parts.get(name, "") for name in ("driver", "kernel", "os", "gpu_vbios", "nic_firmware")}
    yield Sample(name="gpuwatch_environment_info", help=text, value=1, labels=labels)


def open_reader(settings: Settings) -> _Reader:
    """A reader of this machine."""
    return _Reader(settings)


COLLECTOR = Collector(facts=EnvironmentFacts, settings=Settings, open=open_reader, metrics=metrics)
