"""Secrets: what is refused, and what is said."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gpuwatch.aggregator.beginning import read_secret
from gpuwatch.errors import ConfigError


@pytest.mark.parametrize(
    ("mode", "said"), [(0o600, False), (0o640, False), (0o400, False), (0o644, True), (0o604, True), (0o602, True)]
)
def test_a_secret_that_every_user_may_read_or_write_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, said: bool
) -> None:
    path = tmp_path / "secret"
    path.write_text("a secret that is long enough\n")
    path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        assert read_secret(path, "server.secret_file") == b"a secret that is long enough"
    assert ("every user of this machine may read or write" in caplog.text) is said


def test_a_secret_that_can_be_guessed_or_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("secret\n")
    for name, words in (("short", "too short"), ("absent", "cannot be read")):
        with pytest.raises(ConfigError, match=words):
            read_secret(tmp_path / name, "server.secret_file")
