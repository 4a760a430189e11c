"""A test marked `needs("promtool")` is left out, or fails, where that component is missing: tests/components.py."""

from __future__ import annotations

import pytest

from tests.components import go_without, missing


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for component in mark.args:
            if why := missing(component):
                go_without(component, why)
