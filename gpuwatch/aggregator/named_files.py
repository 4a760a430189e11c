"""The files that the settings name: can they be used? Those over which a start ends, and those that may come later."""

from __future__ import annotations

import ssl
from pathlib import Path

from gpuwatch.aggregator.beginning import read_secret
from gpuwatch.aggregator.settings import Settings
from gpuwatch.config import Fault
from gpuwatch.errors import ConfigError
from gpuwatch.sdk.ed25519 import Signer
from gpuwatch.sdk.trust import why_not

PEM = "a file of certificates in PEM"


def faults_of(settings: Settings, file: str) -> list[Fault]:
    """Whatever is wrong with any of them, as the user sees it that asks."""
    return [*_needed(settings, file), *faults_of_later(settings, file)]


def faults_of_later(settings: Settings, file: str) -> list[Fault]:
    """Those with which an aggregator starts all the same: alerts or the cloud wait until they are mended."""
    faults: list[Fault] = []
    alerts = settings.alertmanager
    for key, path in (("token_file", alerts.token_file), ("password_file", alerts.password_file)):
        if alerts.urls and path is not None and (why := _unreadable(path)):
            faults.append(Fault(file, f"alertmanager.{key}", "a file that can be read", f"{str(path)!r} ({why})"))
    trusts = [("alertmanager.ca_file", alerts.ca_file)] if any(_is_https(url) for url in alerts.urls) else []
    if settings.cloud is not None:
        trusts.append((f"cloud.{settings.cloud.kind}.ca_file", getattr(settings.cloud.settings, "ca_file", None)))
    for key, path in trusts:
        if path is not None and (why := why_not(path)):
            faults.append(Fault(file, key, PEM, f"{str(path)!r} ({why})"))
    return faults


def _needed(settings: Settings, file: str) -> list[Fault]:
    faults: list[Fault] = []
    server = settings.server
    for key, path in (("secret_file", server.secret_file), ("operator_token_file", server.operator_token_file)):
        try:
            if path is not None:
                read_secret(path, f"server.{key}")
        except ConfigError as error:
            faults.append(Fault(file, f"server.{key}", "a secret of 16 bytes or more", _words(error, path)))
    if server.tls_cert_file is not None and server.tls_key_file is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(server.tls_cert_file, server.tls_key_file)
        except OSError as error:
            both = f"{str(server.tls_cert_file)!r} and {str(server.tls_key_file)!r}"
            why = next(filter(None, map(_unreadable, (server.tls_cert_file, server.tls_key_file))), error.strerror)
            faults.append(Fault(file, "server.tls_cert_file", "a certificate and its key in PEM", f"{both} ({why})"))
    try:
        if settings.order_key_file is not None:
            Signer(settings.order_key_file)
    except ConfigError as error:
        faults.append(
            Fault(file, "hands.key_file", "a key of `gpuwatch hands keygen`", _words(error, settings.order_key_file))
        )
    if server.state_dir.exists() and not server.state_dir.is_dir():
        faults.append(Fault(file, "server.state_dir", "a folder", f"{str(server.state_dir)!r}, which is none"))
    return faults


def _words(error: ConfigError, path: Path | None) -> str:
    why = "" if path is None else _unreadable(path)
    return f"{str(path)!r} ({why})" if why else error.what


def _unreadable(path: Path) -> str:
    try:
        path.read_bytes()
    except OSError as error:
        return error.strerror or type(error).__name__
    return ""


def _is_https(url: str) -> bool:
    return url.lower().startswith("https:")
