"""Faults of the node itself: real disks and mounts, processes that really ended, training that dies."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from gpuwatch.model.facts.host import HostFacts
from gpuwatch.model.facts.training import TrainingFacts
from tests.hung_mount import HungMount
from tests.soak.fault import Fault
from tests.soak.judge import Look
from tests.soak.site import Site

DEFUNCT = 500
ENDS_WITH_MANY = f"""
import os, sys
pids = []
for _ in range({DEFUNCT}):
    pid = os.fork()
    if not pid:
        os._exit(0)
    pids.append(pid)
sys.stdin.read()
for pid in pids:
    os.waitpid(pid, 0)
"""
RULES = ("disk_full", "file_system_read_only", "mount_hung")


def host_faults(site: Site) -> dict[str, Callable[[], Fault]]:
    """Each makes one fault of its kind."""
    own = str(site.folder)

    def well(look: Look) -> bool:
        facts = look.facts(HostFacts)
        places = {disk.mount for disk in facts.disks} if facts is not None else set()
        return {str(site.scratch), str(site.state_disk)} <= places and not look.evidence(RULES, own)

    def by_rule(
        kind: str, rule: str, place: Path, inject: Callable[[], None], heal: Callable[[], None], *, note: bool
    ) -> Fault:
        def seen(look: Look) -> bool:
            return any(found.note is note for found in look.evidence([rule], str(place)))

        return Fault(kind, inject, seen, heal, (rule,), str(place), well)

    def read_only() -> Fault:
        def mount(how: str) -> None:
            subprocess.run(["mount", "-o", f"remount,{how}", str(site.scratch)], check=True)

        rule = "file_system_read_only"
        return by_rule(rule, rule, site.scratch, lambda: mount("ro"), lambda: mount("rw"), note=True)

    def full(kind: str, place: Path, *, note: bool) -> Fault:
        filler = place / "filler"

        def inject() -> None:
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
                    while file.write(bytes(size)) == size:
                        pass

        return by_rule(kind, "disk_full", place, inject, filler.unlink, note=note)

    def hung_mount() -> Fault:
        place = site.folder / "data"
        place.mkdir(exist_ok=True)
        mounted: list[HungMount] = []

        def inject() -> None:
            mounted.append(HungMount(place))
            mounted[0].answers = False

        def seen(look: Look) -> bool:
            return any("does not answer" in found.because for found in look.evidence(["mount_hung"], str(place)))

        heal = lambda: mounted[0].end()  # noqa: E731
        return Fault("mount_hung", inject, seen, heal, ("mount_hung",), str(place), well)

    def defunct() -> Fault:
        parents: list[subprocess.Popen[bytes]] = []

        def inject() -> None:
            parents.append(subprocess.Popen([sys.executable, "-S", "-c", ENDS_WITH_MANY], stdin=subprocess.PIPE))

        def heal() -> None:
            parents[0].communicate()

        def count(look: Look) -> int:
            facts = look.facts(HostFacts)
            return -1 if facts is None or facts.zombie_process_count is None else facts.zombie_process_count

        seen = lambda look: count(look) >= DEFUNCT  # noqa: E731
        back = lambda look: 0 <= count(look) < DEFUNCT and well(look)  # noqa: E731
        return Fault("defunct_500", inject, seen, heal, well=back)

    return {
        "file_system_read_only": read_only,
        "scratch_full": lambda: full("scratch_full", site.scratch, note=True),
        "state_disk_full": lambda: full("state_disk_full", site.state_disk, note=False),
        "mount_hung": hung_mount,
        "defunct_500": defunct,
    }


def training_faults(site: Site, chance: random.Random) -> dict[str, Callable[[], Fault]]:
    """A rank dies, and is started again."""

    def alive(look: Look, rank: int, pid: int) -> bool | None:
        facts = look.facts(TrainingFacts)
        beats = facts.beats if facts is not None else ()
        return next((beat.alive for beat in beats if (beat.rank, beat.pid) == (rank, pid)), None)

    def dies() -> Fault:
        rank = chance.randrange(len(site.ranks))
        pid = site.ranks[rank].pid

        def inject() -> None:
            site.ranks[rank].kill()
            site.ranks[rank].wait()

        well = lambda look: alive(look, rank, site.ranks[rank].pid) is True  # noqa: E731
        return Fault(
            "rank_dies", inject, lambda look: alive(look, rank, pid) is False, lambda: site.train(rank), well=well
        )

    return {"rank_dies": dies}
