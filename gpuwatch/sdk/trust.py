"""Whose certificates are trusted: the system's list, or the file that a setting names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


class NoTrust(OSError):
    """The certificates cannot be used. Its text names setting, file and reason."""


def trusted(ca_file: str | Path | None, key: str = "ca_file") -> ssl.SSLContext:
    """What a client needs for `https`. `ca_file`: PEM; empty: the system's list. `key` names it in the settings.

    Raises `NoTrust`: the file may be there later.
    """
    import ssl  # here: who asks over plain http must not pay for it

    if not ca_file:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except ssl.SSLError as error:  # what it says is a code of the library
        raise NoTrust(f"{key} {ca_file}: holds no certificates in PEM") from error
    except OSError as error:
        raise NoTrust(f"{key} {ca_file}: {error.strerror or type(error).__name__}") from error


def why_not(ca_file: str | Path | None) -> str:
    """Why these certificates cannot be used; empty: they can."""
    try:
        trusted(ca_file)
    except NoTrust as error:
        return str(error).removeprefix(f"ca_file {ca_file}: ")
    return ""
