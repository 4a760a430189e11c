"""Which image a container was made from, as its runtime has written it down on this node. No runtime is asked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gpuwatch.sdk.small_file import small_json

_ID = re.compile(r"^[0-9a-f]{64}$")
_CONTAINERD = "run/containerd/io.containerd.runtime.v2.task"
_ANNOTATIONS = ("io.kubernetes.cri.image-name", "io.kubernetes.cri-o.ImageName", "io.kubernetes.cri-o.Image")


def image_of(container: str, root: str) -> str:
    """Name and, where it is written there, digest of the image; empty where nothing readable says it."""
    if not _ID.match(container):
        return ""
    for space in ("k8s.io", "moby", "default"):
        annotations = _json(Path(f"{root}/{_CONTAINERD}/{space}/{container}/config.json")).get("annotations")
        if isinstance(annotations, dict):
            name = next((str(annotations[key]) for key in _ANNOTATIONS if annotations.get(key)), "")
            if name:
                return name[:300]
    docker = _json(Path(f"{root}/var/lib/docker/containers/{container}/config.v2.json"))
    config = docker.get("Config")
    name = str(config.get("Image", "")) if isinstance(config, dict) else ""
    return " ".join(word for word in (name, str(docker.get("Image", ""))) if word)[:300]


def _json(path: Path) -> dict[str, Any]:
    try:
        return small_json(path, dict[str, Any])
    except (OSError, ValueError):
        return {}
