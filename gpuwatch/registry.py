"""Finds the leaf in each room, checks that it offers what the door asks, and names the file of one that does not.

A leaf is a module of the room whose name does not begin with `_`; it ends in one typed line, for example
`RULE = Rule(...)`. No central list: adding a leaf is that file plus its test.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import TypeVar

from gpuwatch.errors import RegistryError

L = TypeVar("L")


def leaves(room: ModuleType, line: str, *doors: type[L]) -> dict[str, L]:
    """Every leaf of a room by its file name, for example `leaves(gpuwatch.rules, "RULE", Rule, FleetRule)`.

    Raises `RegistryError` naming the file that lacks its line or offers something else.
    """
    found: dict[str, L] = {}
    for module in pkgutil.iter_modules(room.__path__):
        if module.name.startswith("_"):
            continue
        file = f"{room.__name__.replace('.', '/')}/{module.name}.py"
        leaf = getattr(importlib.import_module(f"{room.__name__}.{module.name}"), line, None)
        wanted = " or ".join(door.__name__ for door in doors)
        if leaf is None:
            raise RegistryError(
                f"{file} has no line `{line} = {wanted}(...)`",
                why="a leaf ends in one typed line by which the registry finds it",
                next_step=f"read the door: {room.__name__.replace('.', '/')}/__init__.py",
            )
        if not isinstance(leaf, doors):
            raise RegistryError(
                f"{file}: {line} is a {type(leaf).__name__}, not a {wanted}",
                why="the room's callers rely on its door",
                next_step=f"read the door: {room.__name__.replace('.', '/')}/__init__.py",
            )
        found[module.name] = leaf
    return found
