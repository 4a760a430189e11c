"""Which real components are here, and what happens to the tests of one that is not: skipped, or failed where CI asks.

`GPUWATCH_REQUIRE=promtool,gcc` turns a missing one of these into a failure; `all` means every one that a bare Debian
container can have. What it cannot have is skipped even then, with the reason, and CI's last lines count it. A machine
that can have it asks by name: `GPUWATCH_REQUIRE=all,freezer,python3.8,kmsg make test`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

NOT_IN_A_CONTAINER = {
    "fuse": "its mount needs a privileged machine with /dev/fuse",
    "loop": "its mount needs a privileged machine with loop devices",
    "freezer": "its mount needs a privileged machine whose kernel has cgroup v1",
    "python3.8": "Debian has no package of it; `uv python install 3.8` fetches one",
    "kmsg": "it is the kernel's own, which a container is not shown",
}


def missing(component: str) -> str:
    """Why it cannot be used; empty: it can."""
    if component == "root":
        return "" if os.geteuid() == 0 else "needs root"
    if component == "kmsg":
        return "" if os.access("/dev/kmsg", os.R_OK | os.W_OK) else "no /dev/kmsg to read and write"
    if component == "python3.8":
        return "" if old_pythons() else "no Python 3.8 or 3.9"
    return "" if shutil.which(component) else f"{component} is not installed"


def go_without(component: str, why: str) -> NoReturn:
    """End this test: it cannot be run. The only way in which a test leaves out a component."""
    asked = os.environ.get("GPUWATCH_REQUIRE", "").split(",")
    beyond = NOT_IN_A_CONTAINER.get(component, "")
    if component in asked or ("all" in asked and not beyond):
        pytest.fail(f"{why}, but GPUWATCH_REQUIRE asks for it", pytrace=False)
    pytest.skip(f"{why} (not to be had in a bare container: {beyond})" if beyond else why)


def old_pythons() -> list[str]:
    """Interpreters older than the package itself needs, which the heartbeat's one file must bear."""
    kept = (".pyenv/versions/3.[89].*/bin/python", ".local/share/uv/python/cpython-3.[89].*/bin/python")
    found = [str(path) for pattern in kept for path in sorted(Path.home().glob(pattern))]
    found += [path for name in ("python3.8", "python3.9") if (path := shutil.which(name))]
    runs = [subprocess.run([path, "-c", ""], check=False, capture_output=True).returncode == 0 for path in found]
    return [path for path, well in zip(found, runs, strict=True) if well]
