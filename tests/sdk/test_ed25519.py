"""Keys as files, signatures as text, checked against RFC 8032."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpuwatch.errors import ConfigError, GpuwatchError
from gpuwatch.sdk.ed25519 import Signer, is_public_key, make_key, verifies

# RFC 8032, 7.1, test 2: one byte
PUBLIC = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
SIGNATURE = (
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)


def test_the_standards_own_vector() -> None:
    assert verifies(PUBLIC, SIGNATURE, b"\x72")
    assert not verifies(PUBLIC, SIGNATURE, b"\x73")


@pytest.mark.parametrize(
    ("public", "signature"),
    [("", SIGNATURE), (PUBLIC, ""), ("zz", SIGNATURE), (PUBLIC[:-2], SIGNATURE), ("00" * 32, "")],
)
def test_what_is_none_verifies_nothing(public: str, signature: str) -> None:
    assert not verifies(public, signature, b"\x72")


def test_a_new_key(tmp_path: Path) -> None:
    path = tmp_path / "order.pem"
    public = make_key(path)
    assert is_public_key(public)
    assert path.stat().st_mode & 0o777 == 0o600
    signer = Signer(path)
    assert signer.public == public
    assert verifies(public, signer.sign(b"x"), b"x")
    assert signer.sign(b"x") == signer.sign(b"x")
    with pytest.raises(GpuwatchError, match="cannot be made"):
        make_key(path)  # never overwritten


@pytest.mark.parametrize("text", ["", "x", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_file_without_a_key(tmp_path: Path, text: str) -> None:
    path = tmp_path / "order.pem"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="holds no private key"):
        Signer(path)


def test_a_key_that_others_can_read(tmp_path: Path) -> None:
    path = tmp_path / "order.pem"
    make_key(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="can be read by others"):
        Signer(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Signer(tmp_path / "order.pem")


@pytest.mark.needs("openssl")
@pytest.mark.parametrize(("algorithm", "good"), [("ed25519", True), ("ed448", False)])
def test_a_key_that_openssl_made(tmp_path: Path, algorithm: str, good: bool) -> None:
    path = tmp_path / "order.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", algorithm, "-out", str(path)], check=True)
    path.chmod(0o600)
    if good:
        assert is_public_key(Signer(path).public)
    else:
        with pytest.raises(ConfigError, match="another kind of key"):
            Signer(path)
