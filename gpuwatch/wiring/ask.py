"""`gpuwatch explain | approve | hold | clear`: a person's questions and orders, put to a running aggregator."""

from __future__ import annotations

import getpass
import http.client
import json
import os
import ssl
import sys
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote, urlsplit

from gpuwatch.errors import GpuwatchError, UsageError

TIMEOUT_S = 10.0


def explain(
    slot: str, *, url: str, as_json: bool = False, ca_file: Path | None = None, out: TextIO | None = None
) -> int:
    """Print what was seen of this slot, by whom, what was concluded and done, and what is held."""
    out = out or sys.stdout
    found = asked("GET", url, f"api/v1/nodes/{quote(slot, safe='')}", ca_file=ca_file)
    if as_json:
        print(json.dumps(found, indent=2), file=out)
        return 0
    print(found.get("sentence", ""), file=out)
    for machine in found.get("machines", []):
        print(f"\nseen of {machine['machine']}:", file=out)
        for word in machine.get("seen", []):
            print(f"  {word['witness']:<18} {word['says']}", file=out)
    for one in found.get("differs", []):
        print(f"\ndiffers: {one['words']}{_since(one.get('since_unix_ns'))}", file=out)
    for incident in found.get("incidents", []):
        print(f"\n{incident['kind']}: {incident['because']}", file=out)
        for entry in incident.get("timeline", []):
            at = datetime.fromtimestamp(entry["at_unix_ns"] / 1e9, UTC)
            print(f"  {at:%Y-%m-%d %H:%M:%S}  {entry['text']}", file=out)
    return 0


def drift(*, url: str, as_json: bool = False, ca_file: Path | None = None, out: TextIO | None = None) -> int:
    """Print which node differs from its pool or run, in what, and since when. 0, whatever there is."""
    out = out or sys.stdout
    found = asked("GET", url, "api/v1/drift", ca_file=ca_file)["drifts"]
    if as_json:
        print(json.dumps(found, indent=2), file=out)
        return 0
    if not found:
        print("no node differs from its pool, nor within a run, as far as their agents have told", file=out)
    for scope, group in groupby(found, key=lambda one: (one["scope"], one["part"], one["usual"], one["usual_count"])):
        name, part, usual, count = scope
        nodes = list(group)
        known = nodes[0]["known_count"]
        most = f"{count} of {known} have {usual}" if usual else f"the {known} nodes do not agree"
        print(f"{name}: {part.replace('_', ' ')}: {most}", file=out)
        for one in nodes:
            print(f"  {one['slot']:<14} {one['value']}{_since(one.get('since_unix_ns'))}", file=out)
    return 0


def _since(unix_ns: int | None) -> str:
    return "" if unix_ns is None else f", since {datetime.fromtimestamp(unix_ns / 1e9, UTC):%Y-%m-%d %H:%M} UTC"


def order(
    what: str,
    name: str,
    *,
    url: str,
    token_file: Path,
    because: str = "",
    who: str = "",
    as_json: bool = False,
    ca_file: Path | None = None,
    out: TextIO | None = None,
) -> int:
    """Give one order: `approve` an action, `hold` a slot, `clear` it. The ledger keeps who gave it and why."""
    try:
        token = token_file.read_text().strip()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the operator's token cannot be read: {getattr(error, 'strerror', None) or error}",
            why=f"{token_file} must hold what the aggregator's server.operator_token_file holds",
            next_step="name the file with --token-file",
        ) from error
    body = json.dumps({"who": who or os.environ.get("SUDO_USER") or _user(), "because": because})
    answer = asked("POST", url, f"api/v1/{what}/{quote(name, safe='')}", body=body, token=token, ca_file=ca_file)
    if as_json:
        print(json.dumps(answer), file=out or sys.stdout)
        return 0
    words = {
        "approve": f"approved: {answer.get('action_id', name)}",
        "hold": f"{name} is held: nothing is done to it until `gpuwatch clear {name}`",
        "clear": f"{name} is cleared" + (", its hold is lifted" if answer.get("hold_lifted") else "; it was not held"),
    }
    print(words[what], file=out or sys.stdout)
    return 0


def _user() -> str:
    """Who runs this; a container's user may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _connection(url: str, ca_file: Path | None) -> tuple[http.client.HTTPConnection, str]:
    """Not opened yet, and the path that stands before ours. `UsageError` for an address or a `ca_file` of no use."""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise UsageError(f"{url!r} is no address", next_step="give one such as http://127.0.0.1:9190 with --url")
    prefix = parts.path.rstrip("/")
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S), prefix
    try:
        trust = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except OSError as error:
        raise UsageError(
            f"{ca_file} holds no certificates",
            why=error.strerror or str(error),
            next_step="name a PEM file of certificates with --ca-file",
        ) from error
    return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=trust), prefix


def asked(
    method: str, url: str, path: str, *, body: str | None = None, token: str = "", ca_file: Path | None = None
) -> dict[str, Any]:
    """What the aggregator answers. Raises `GpuwatchError` where it refuses, or where none answers."""
    connection, prefix = _connection(url, ca_file)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request(method, f"{prefix}/{path}", body, headers)
        answer = connection.getresponse()
        found = json.loads(answer.read() or b"{}")
    except ssl.SSLError as error:
        raise GpuwatchError(
            f"{url} cannot be trusted, or does not speak TLS",
            why=str(error),
            next_step="name who signed its certificate with --ca-file, and the host of its certificate with --url",
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise GpuwatchError(
            f"no aggregator answers at {url}: {error}",
            next_step="start it, or name its address with --url (https:// where it has a certificate)",
        ) from error
    except ValueError as error:
        raise GpuwatchError(
            f"what answers at {url} is no gpuwatch aggregator", why=str(error), next_step="name its address with --url"
        ) from error
    finally:
        connection.close()
    if answer.status != 200 or not isinstance(found, dict):
        told = found if isinstance(found, dict) else {}
        raise GpuwatchError(
            str(told.get("error") or f"the aggregator answered {answer.status}"),
            why=str(told.get("why", "")),
            next_step=str(told.get("next_step", "")),
        )
    return found
