"""What names this machine, and whose word is taken for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuwatch.sdk.machine_id import HANDED, SOURCES, machine_ids

FIRMWARE, SYSTEM = "4C4C4544-0043-4410-8058-C4C04F4D3732", "6b4f0f3de5a94c7b8f7d1f5b5a4d2c10"


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_the_firmware_is_asked_first_then_what_root_copied_of_it_then_the_system() -> None:
    assert SOURCES == ("/sys/class/dmi/id/product_uuid", HANDED, "/etc/machine-id")


@pytest.mark.parametrize(
    ("text", "id_"),
    [
        (FIRMWARE + "\n", FIRMWARE.lower()),
        ("Not Settable\n", SYSTEM),
        ("00000000-0000-0000-0000-000000000000\n", SYSTEM),
        ("", SYSTEM),
        ("\xff", SYSTEM),
    ],
)
def test_a_firmware_that_says_nothing_is_passed_over(tmp_path: Path, text: str, id_: str) -> None:
    (tmp_path / "uuid").write_bytes(text.encode("latin-1"))
    sources = (str(tmp_path / "uuid"), written(tmp_path, "machine-id", SYSTEM + "\n"))
    assert machine_ids(sources)[0] == id_


def test_the_copy_names_the_same_machine_once(tmp_path: Path) -> None:
    sources = tuple(written(tmp_path, name, FIRMWARE) for name in ("uuid", "copy"))
    assert machine_ids(sources, roots_alone="") == (FIRMWARE.lower(),)


@pytest.mark.needs("root")
def test_a_copy_that_root_did_not_write_is_not_believed(tmp_path: Path) -> None:
    copy, system = written(tmp_path, "copy", FIRMWARE), written(tmp_path, "machine-id", SYSTEM)
    assert machine_ids((copy, system), roots_alone=copy) == (FIRMWARE.lower(), SYSTEM)
    os.chown(copy, 65534, 65534)
    assert machine_ids((copy, system), roots_alone=copy) == (SYSTEM,)
    Path(copy).unlink()
    os.mkfifo(copy)
    assert machine_ids((copy, system), roots_alone=copy) == (SYSTEM,)
