"""Ed25519 keys and signatures for orders: the aggregator signs, a node's hands verify.

The private key is a PEM file (PKCS 8) such as `openssl genpkey -algorithm ed25519` makes; the public key is written as
64 hex digits. The library is imported when it is needed: nothing else of gpuwatch pays for it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.errors import ConfigError, GpuwatchError, install_extra

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_DIGITS = 64


class Signer:
    """A private key that was read once."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` where the file cannot be read, may be read by others, or holds no such key."""
        require_library()
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            if path.stat().st_mode & 0o077:
                raise ConfigError(
                    f"{path} can be read by others",
                    why="whoever has this key can restart, reset and reboot nodes",
                    next_step=f"chmod 600 {path}; if others may have seen it, make a new one",
                )
            data = path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be read", why=str(error), next_step="make one: gpuwatch hands keygen"
            ) from error
        try:
            key = load_pem_private_key(data, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ConfigError(
                f"{path} holds no private key", why=str(error), next_step="make one: gpuwatch hands keygen"
            ) from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError(f"{path} holds another kind of key", next_step="make one: gpuwatch hands keygen")
        self._key = key
        self.public = _public(key)

    def sign(self, data: bytes) -> str:
        """The signature as 128 hex digits; the same for the same data."""
        return self._key.sign(data).hex()


def make_key(path: Path) -> str:
    """Write a new private key, readable by its owner alone; returns the public key. Raises `GpuwatchError`."""
    require_library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise GpuwatchError(
            f"{path} cannot be made", why=str(error), next_step="a key is never overwritten: name another file"
        ) from error
    with os.fdopen(file, "wb") as out:
        out.write(pem)
        out.flush()
        os.fsync(out.fileno())
    return _public(key)


def is_public_key(text: str) -> bool:
    """Whether it is written as a public key is: 64 hex digits."""
    return len(text) == KEY_DIGITS and all(digit in "0123456789abcdef" for digit in text)


def verifies(public: str, signature: str, data: bytes) -> bool:
    """Whether this key signed this data. False for anything that is no key or no signature."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature), data)
    except (InvalidSignature, ValueError):
        return False
    return True


def _public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


def require_library() -> None:
    """Raise `GpuwatchError` where it is missing: at the start, not at the first order."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise GpuwatchError(
            "the library for signatures is not installed",
            why=str(error),
            next_step=install_extra("hands"),
        ) from error
