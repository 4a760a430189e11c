"""Which real components are here: a test marked `needs("promtool")` is skipped with the reason where it is missing.

`GPUWATCH_REQUIRE=promtool,chromium,gcc` (set by CI) turns a missing one into a failure.
"""

from __future__ import annotations

import os
import shutil

import pytest


def _missing(component: str) -> str:
    if component == "root":
        return "" if os.geteuid() == 0 else "needs root"
    return "" if shutil.which(component) else f"{component} is not installed"


def pytest_runtest_setup(item: pytest.Item) -> None:
    required = os.environ.get("GPUWATCH_REQUIRE", "").split(",")
    for mark in item.iter_markers("needs"):
        for component in mark.args:
            why = _missing(component)
            if why and component in required:
                pytest.fail(f"{why}, but GPUWATCH_REQUIRE asks for it", pytrace=False)
            if why:
                pytest.skip(why)
