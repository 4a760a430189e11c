"""Every test's surroundings.

A test marked `needs("promtool")` is left out, or fails, where that component is missing: tests/components.py.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.components import go_without, missing

SLOW = ("integration", "dashboards", "wiring")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")  # the tests speak to this machine alone
AROUND = ("SLURM", "SBATCH", "SACCT", "SINFO", "SQUEUE", "TORCHELASTIC", "KUBERNETES", "AZURE", "NOTIFY", "WATCHDOG",
          "GPUWATCH_BOOT_ID", "GPUWATCH_HEARTBEAT_DIR")  # a job, pod or service in which the tests run  # fmt: skip

for _name in [name for name in os.environ if name.lower() in PROXIES or name.startswith(AROUND)]:
    del os.environ[_name]
os.umask(0o022)  # daemons that run as another user read what the tests write for them

# How fast this machine is at the moment says nothing of the code: what must be quick is measured where it is asserted.
settings.register_profile("gpuwatch", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gpuwatch")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for component in mark.args:
            if why := missing(component):
                go_without(component, why)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the tests, those that wait longest come first: none is left waiting at the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path.parent.name not in SLOW)
