"""Names and versions of what a process runs with, from paths and file heads. Pure."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping

KEY_LIBRARIES = (
    "torch",
    "jax",
    "jaxlib",
    "tensorflow",
    "numpy",
    "transformers",
    "accelerate",
    "deepspeed",
    "lightning",
    "pytorch_lightning",
    "megatron_core",
    "flash_attn",
    "transformer_engine",
    "triton",
    "apex",
    "xformers",
    "nvidia_nccl_cu11",
    "nvidia_nccl_cu12",
    "nvidia_nccl_cu13",
    "nvidia_cudnn_cu12",
    "nvidia_cudnn_cu13",
)
"""Distributions whose versions must agree over a run, in the normal form of a `dist-info` folder's name."""

MAPPED = r"/[^ ]*/(site|dist)-packages/|/[^ ]*/lib(cudart|nccl|cudnn|cublasLt)\.so[.0-9]*|/[^ ]*/libcuda\.so\.[.0-9]+"
"""What to look for in /proc/PID/maps, as an extended regular expression."""

_PYTHON = re.compile(r"/python(\d+\.\d+)t?/(?:site|dist)-packages/$")
_SHARED = re.compile(r"/lib(cudart|nccl|cudnn|cublasLt|cuda)\.so\.([0-9][.0-9]*)$")
_DIST = re.compile(r"^([A-Za-z0-9_.]+?)-([0-9][^-]*)\.(?:dist|egg)-info$")
_DRIVER = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)*)")
SIF_HEAD_BYTES = 64


def fingerprint(parts: Mapping[str, str]) -> str:
    """Twelve hexadecimal digits over all parts and their values; empty where there are none."""
    if not parts:
        return ""
    text = "\0".join(f"{name}={value}" for name, value in sorted(parts.items()))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def packages_folder(paths: Iterable[str]) -> str:
    """Where most of what is mapped comes from: the process's own site-packages. Empty: it has none."""
    folders = Counter(path for path in paths if path.endswith(("/site-packages/", "/dist-packages/")))
    return folders.most_common(1)[0][0] if folders else ""


def of_mapped(paths: Iterable[str]) -> dict[str, str]:
    """Python's version by the folder's name, and of CUDA's own libraries what their file names say."""
    found: dict[str, str] = {}
    paths = tuple(paths)
    python = _PYTHON.search(packages_folder(paths))
    if python is not None:
        found["python"] = python[1]
    for path in paths:
        shared = _SHARED.search(path)
        if shared is not None and "." in shared[2]:  # `libnccl.so.2` says nothing
            found.setdefault(f"lib{shared[1].lower()}", shared[2])
    return found


def of_packages(names: Iterable[str]) -> dict[str, str]:
    """Of the key libraries the versions, from the names in a site-packages folder."""
    found: dict[str, str] = {}
    for name in names:
        match = _DIST.match(name)
        if match is not None:
            library = match[1].replace(".", "_").lower()
            if library in KEY_LIBRARIES:
                found[library] = match[2]
    return found


def sif_id(head: bytes) -> str:
    """The id that Apptainer gave an image when it was built; empty where this is no image.

    Source: the SIF format, header of 32 bytes launch script, `SIF_MAGIC`, version, architecture, then the UUID.
    """
    if len(head) < SIF_HEAD_BYTES or head[32:41] != b"SIF_MAGIC":
        return ""
    digits = head[48:64].hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def driver_parts(version_file: str) -> dict[str, str]:
    """Version and kind of the NVIDIA kernel module, from /proc/driver/nvidia/version."""
    line = version_file.partition("\n")[0]
    found = _DRIVER.search(line)
    if found is None:
        return {}
    return {"driver": found[1], "driver_kind": "open" if "Open Kernel Module" in line else "proprietary"}


def os_release(text: str) -> str:
    """`debian 12`, `ubuntu 22.04`: ID and VERSION_ID of /etc/os-release; empty where there is none."""
    words: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            words[name.strip()] = value.strip().strip("\"'")
    return " ".join(word for word in (words.get("ID", ""), words.get("VERSION_ID", "")) if word)
