"""`[alertmanager]`: where incidents are pushed to, how we prove who we are, and what their links begin with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from gpuwatch.config import Fault

Severity = Literal["critical", "warning", "info"]
Positive = Annotated[float, msgspec.Meta(gt=0.0)]
MOST = 8  # one thread each
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")  # what Alertmanager takes as a label's name


class AlertmanagerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Without `urls` nothing is pushed. A relative path is relative to the settings file."""

    urls: tuple[
        str, ...
    ] = ()  # of every member of the cluster, not of a balancer before them; a path prefix may follow
    token_file: Path | None = None  # `Authorization: Bearer …`; read anew each time, so that it may be changed
    username: str = ""
    password_file: Path | None = None  # basic auth
    ca_file: Path | None = None  # certificates to trust; left out: the system's
    page_url: str = ""  # what links to our page begin with; empty: the address we listen on
    runbook_url: str = "docs/runbooks"  # where docs/runbooks/ is published
    severities: dict[str, Severity] = {}  # kind of incident -> severity, before our own choice
    labels: dict[str, str] = {}  # added to every alert, to route by
    resend_s: Positive = 60.0  # an open alert is told again so often, with its newest price
    expires_s: Positive = 900.0  # an alert that is not told again for so long is over: we are gone


def resolved(settings: AlertmanagerSettings, folder: Path) -> AlertmanagerSettings:
    """The same, with paths that are relative to the settings file's folder made whole."""
    names = ("token_file", "password_file", "ca_file")
    paths = {name: folder / value for name in names if (value := getattr(settings, name)) is not None}
    return msgspec.structs.replace(settings, **paths)


def faults_of(settings: AlertmanagerSettings, file: str) -> list[Fault]:
    """What the types alone do not find."""
    faults: list[Fault] = []

    def wrong(key: str, expected: str, got: str) -> None:
        faults.append(Fault(file, f"alertmanager.{key}", expected, got))

    for url in settings.urls:
        try:
            parts = urlsplit(url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            good = False
        if not good:
            wrong("urls", "addresses such as http://127.0.0.1:9093", repr(url))
        elif "@" in parts.netloc:
            wrong("urls", "addresses without a password; it belongs into password_file", "user and password in one")
    if len(set(settings.urls)) != len(settings.urls):
        wrong("urls", "each address once", "one twice")
    if len(settings.urls) > MOST:
        wrong("urls", f"at most {MOST} addresses", str(len(settings.urls)))
    if settings.token_file is not None and (settings.username or settings.password_file is not None):
        wrong("token_file", "a token, or a username with a password", "both")
    if bool(settings.username) != (settings.password_file is not None):
        wrong("password_file", "a username and a password_file", "only one of them")
    for name in settings.labels:
        if not _NAME.fullmatch(name):
            wrong(f"labels.{name}", "a name of letters, digits and _", repr(name))
    if settings.expires_s < 3 * settings.resend_s:
        wrong("expires_s", f"at least three times resend_s ({settings.resend_s:g})", f"{settings.expires_s:g}")
    return faults
