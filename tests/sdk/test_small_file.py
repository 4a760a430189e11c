"""Whatever lies in a small file's place: its bytes or an error, at once, and never a full memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.sdk.small_file import from_json, small_file, small_json
from tests.strange_files import STRANGE


def test_a_file_and_a_link_to_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"[1]")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert small_file(tmp_path / "link") == b"[1]"
    assert small_json(tmp_path / "file", list[int]) == [1]
    assert small_file(tmp_path / "file", 3) == b"[1]"
    with pytest.raises(ValueError, match="larger than 2"):
        small_file(tmp_path / "file", 2)


def test_whose_it_may_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    assert small_file(tmp_path / "file", owners=(os.geteuid(),)) == b"x"
    with pytest.raises(ValueError, match="belongs to user"):
        small_file(tmp_path / "file", owners=(os.geteuid() + 1,))
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(OSError, match="Too many levels"):
        small_file(tmp_path / "link", owners=(os.geteuid(),))


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in STRANGE.items()])
@pytest.mark.parametrize("kind", [dict[str, tuple[str, int]], list[int]])
def test_whatever_lies_there(tmp_path: Path, make: Callable[[Path], Any], kind: Any) -> None:
    make(tmp_path / "file")
    begun_s = time.monotonic()
    with pytest.raises((OSError, ValueError)):
        small_json(tmp_path / "file", kind)
    assert time.monotonic() - begun_s < 1.0


def test_brackets_within_brackets_are_no_json_of_ours() -> None:
    for text in (b"[" * 100_000, b'{"unknown":' * 100_000, b'{"x":' + b"[" * 100_000):
        with pytest.raises(ValueError):
            from_json(text, dict[str, Any])
