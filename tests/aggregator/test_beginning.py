"""Secrets and prices: what is refused, and what is said."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gpuwatch.aggregator import settings
from gpuwatch.aggregator.beginning import price_book, read_secret
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


@pytest.mark.parametrize(("sku", "told"), [("Standard_ND96isr_H100_v5", 0), ("ND96isr_H100_v6", 1), ("", 0)])
def test_a_machine_type_without_a_price_is_said_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sku: str, told: int
) -> None:
    file = tmp_path / "aggregator.toml"
    file.write_text(
        f'[server]\nsecret_file = "secret"\n[pools.p]\nprovider = "azure"\nregion = "eastus"\nsku = "{sku}"\n'
    )
    price_book(settings.load(file))
    assert (
        [record.getMessage() for record in caplog.records].count(
            "pools.p: no price of azure eastus ND96isr_H100_v6 ondemand is known, so its dollars are unknown: "
            "check them, or set usd_per_hour"
        )
        == len(caplog.records)
        == told
    )
