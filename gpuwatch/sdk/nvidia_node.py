"""What the node itself says of its NVIDIA GPUs, without the driver's library: PCI functions, module, container."""

from __future__ import annotations

import os
from pathlib import Path

NVIDIA = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")  # VGA and 3D controller; an NVSwitch is a bridge, 0x0680
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")


class PciFunctions:
    """NVIDIA display functions on the PCI bus. A node has hundreds of others: each is looked at once."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._is_gpu: dict[str, bool] = {}

    def count(self) -> int | None:
        """How many there are now; None where the folder cannot be read."""
        try:
            names = os.listdir(self._folder)  # noqa: PTH208  (hundreds of names)
        except OSError:
            return None
        for name in self._is_gpu.keys() - names:
            del self._is_gpu[name]  # it may come back as something else
        for name in names:
            if name not in self._is_gpu:
                self._is_gpu[name] = self._looks_like_gpu(name)
        return sum(self._is_gpu[name] for name in names)

    def _looks_like_gpu(self, name: str) -> bool:
        device = Path(self._folder) / name
        try:
            return (device / "vendor").read_text().strip() == NVIDIA and (device / "class").read_text().startswith(
                DISPLAY_CLASSES
            )
        except OSError:
            return False


def in_container() -> bool:
    """Whether this process sees a container's view, in which a count of GPUs proves nothing."""
    return any(Path(mark).exists() for mark in CONTAINER_MARKS) or "KUBERNETES_SERVICE_HOST" in os.environ
