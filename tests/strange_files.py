"""What may lie where a program of ours keeps a small file of JSON: none of it is one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _of_three_gigabytes(path: Path) -> None:
    path.touch()
    os.truncate(path, 3 << 30)


STRANGE: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 20),
    "half": lambda path: path.write_bytes(b'{"pid": 12, "start_'),
    "nothing": lambda path: path.write_bytes(b"null"),
    "brackets": lambda path: path.write_bytes(b'{"unknown": ' + b"[" * 100_000),
    "numbers": lambda path: path.write_bytes(b'{"pid": 1e999, "x": [99999999999999999999999999, -1]}'),
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/ptmx"),
    "itself": lambda path: path.symlink_to(path),
    "nowhere": lambda path: path.symlink_to("/nonexistent"),
    "sparse": _of_three_gigabytes,
}
