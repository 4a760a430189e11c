"""What runs on the node: driver, firmware, kernel, and the libraries of its training processes, as fingerprints."""

from __future__ import annotations

import msgspec


class Program(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Training processes that run with the same software."""

    pids: tuple[int, ...]
    parts: dict[str, str]  # python, torch, nccl, …; `image` of a container
    fingerprint: str = ""


class EnvironmentFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The node's own parts, and those of the programs on its GPUs."""

    fingerprint: str = ""  # of `parts`: equal on two nodes if and only if all their parts are
    parts: dict[str, str] = {}  # driver, kernel, os, gpu_vbios, nic_firmware, …; a part that is not known is not here
    since_unix_ns: dict[str, int] = {}  # part -> since when this node has this value, as far as its agents have seen
    programs: tuple[Program, ...] = ()


FACTS = EnvironmentFacts
