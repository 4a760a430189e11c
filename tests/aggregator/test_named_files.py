"""Files that the settings name: each that is of no use is one line of the check; nothing is started, nothing made."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import trustme

from gpuwatch.aggregator import settings
from gpuwatch.aggregator.named_files import faults_of, faults_of_later
from gpuwatch.errors import ConfigError
from gpuwatch.sdk.ed25519 import make_key
from gpuwatch.wiring.aggregator_check import check

FILE = """
[server]
secret_file = "secret"
operator_token_file = "operator"
tls_cert_file = "cert.pem"
tls_key_file = "key.pem"
state_dir = "state"
[hands]
key_file = "order-key"
[pools.h100]
nodes = ["gpu[01-04]"]
gpus = 8
[alertmanager]
urls = ["https://127.0.0.1:9093"]
token_file = "am-token"
ca_file = "am-ca.pem"
"""
NAMES = ("secret", "operator", "cert.pem", "key.pem", "order-key", "am-token", "am-ca.pem")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Settings of which every file is good."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "am-ca.pem"))
    make_key(tmp_path / "order-key")
    for name in ("secret", "operator", "am-token"):
        (tmp_path / name).write_text("a secret that is long enough")
        (tmp_path / name).chmod(stat.S_IRUSR)
    (tmp_path / "aggregator.toml").write_text(FILE)
    return tmp_path / "aggregator.toml"


def test_good_files_are_good_and_nothing_is_made(config: Path) -> None:
    before, said = sorted(config.parent.iterdir()), list[str]()
    assert check(config, said.append) == 0
    assert said[0] == f"{config}: good"
    assert "pool h100: 4 slots with 8 GPUs, mode observe" in said
    assert "scheduler: none" in said
    assert sorted(config.parent.iterdir()) == before


def test_all_that_are_missing_are_told_at_once_with_what_else_is_wrong(config: Path) -> None:
    for name in NAMES:
        (config.parent / name).unlink()
    config.write_text(FILE.replace("gpu[01-04]", "gpu[04-01]"))
    with pytest.raises(ConfigError) as refused:
        check(config)
    said = str(refused.value)
    assert refused.value.exit_code == 2
    assert said.startswith("7 faults in the settings")  # certificate and key are one
    for name in NAMES:
        assert f"{str(config.parent / name)!r}" in said
    assert said.count("(No such file or directory)") == 6
    for key in (
        "server.secret_file",
        "server.tls_cert_file",
        "hands.key_file",
        "alertmanager.ca_file",
        "pools.h100.nodes",
    ):
        assert f"{config}: {key}: expected" in said


@pytest.mark.parametrize(
    ("name", "text", "fault", "later"),
    [
        ("secret", "short", "server.secret_file: expected a secret of 16 bytes", False),
        ("key.pem", "x", "server.tls_cert_file: expected a certificate and its key", False),
        ("order-key", "x", "hands.key_file: expected a key of `gpuwatch hands keygen`", False),
        ("state", "", "server.state_dir: expected a folder", False),
        ("am-ca.pem", "x", "alertmanager.ca_file: expected a file of certificates in PEM", True),
    ],
)
def test_a_file_with_something_else_in_it(config: Path, name: str, text: str, fault: str, later: bool) -> None:
    (config.parent / name).unlink(missing_ok=True)
    (config.parent / name).write_text(text)
    (config.parent / name).chmod(0o600)
    read = settings.load(config)
    (found,) = faults_of(read, "x")
    assert str(found).startswith(f"x: {fault}")
    assert str(config.parent / name) in str(found)
    assert faults_of_later(read, "x") == ([found] if later else [])
