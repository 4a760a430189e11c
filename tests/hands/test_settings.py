"""What may be ordered stands in one file, and only root can write it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from gpuwatch.errors import ConfigError
from gpuwatch.hands.settings import HandsSettings, checked, load

EXAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "hands.toml"
KEY = "ab" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "hands.toml"
    found.write_text("")
    found.chmod(0o600)
    tmp_path.chmod(0o755)
    return found


def test_an_empty_file_allows_nothing(path: Path) -> None:
    settings = load(path)
    assert settings == HandsSettings()
    assert not settings.restart_service.units
    assert not settings.reset_gpu.allowed
    assert not settings.reboot.allowed
    assert not settings.public_keys


def test_the_example_holds_the_usual_values() -> None:
    assert checked(EXAMPLE) == HandsSettings()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(ConfigError, match="can be written by others than root"):
        load(path)


def test_a_folder_in_which_others_may_put_another_file_is_refused(path: Path) -> None:
    path.parent.chmod(0o777)
    with pytest.raises(ConfigError, match="can be written by others than root"):
        load(path)


@pytest.mark.needs("root")
def test_a_file_of_another_user_is_refused(path: Path) -> None:
    os.chown(path, 12345, -1)
    with pytest.raises(ConfigError, match="owner 12345"):
        load(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "hands.toml")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('public_keys = ["abc"]', "public_keys: expected 64 hex digits each"),
        (f'public_keys = ["{KEY.upper()}"]', "public_keys: expected 64 hex digits each"),
        ('[restart_service]\nunits = ["slurmd"]', "restart_service.units: expected whole unit names"),
        ('[restart_service]\nunits = ["--now.service"]', "restart_service.units: expected whole unit names"),
        ('[restart_service]\nunits = ["a b.service"]', "restart_service.units: expected whole unit names"),
        ('[restart_service]\ncommand = ["systemctl", "restart", "{unit}"]', "a program by its whole path"),
        ('[restart_service]\ncommand = ["/usr/bin/systemctl"]', "{unit} among its words"),
        ('[reset_gpu]\ncommand = ["/usr/bin/nvidia-smi", "-r"]', "{gpu} among its words"),
        ('[reset_gpu]\nrelease = ["gpuwatch"]', "reset_gpu.release: expected a program by its whole path"),
        ("[reboot]\nforce = []", "reboot.force: expected a program by its whole path"),
        ("[reboot]\nallow = true", "did you mean `reboot.allowed`?"),
        ("[reboot]\nwindow_s = 10.0", "window_s"),
        ('[reboot]\nallowed = "yes"', "reboot.allowed: expected true or false"),
    ],
)
def test_every_fault_is_named(path: Path, text: str, fault: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load(path)
    assert fault in str(error.value)


def test_a_release_may_be_left_out(path: Path) -> None:
    path.write_text("[reset_gpu]\nrelease = []\nresume = []")
    assert msgspec.structs.replace(load(path).reset_gpu, allowed=True).release == ()


def test_a_link_into_a_folder_of_others_is_refused(path: Path) -> None:
    theirs = path.parent / "theirs"
    theirs.mkdir()
    path.rename(theirs / "hands.toml")
    path.symlink_to(theirs / "hands.toml")
    assert load(path) == HandsSettings()
    theirs.chmod(0o777)
    with pytest.raises(ConfigError, match="theirs can be written by others than root"):
        load(path)


def test_a_folder_that_others_can_move_away_is_refused(path: Path) -> None:
    inner = path.parent / "etc"
    inner.mkdir(mode=0o755)
    path.rename(inner / "hands.toml")
    assert load(inner / "hands.toml") == HandsSettings()
    path.parent.chmod(0o777)
    with pytest.raises(ConfigError, match="can be written by others than root"):
        load(inner / "hands.toml")
