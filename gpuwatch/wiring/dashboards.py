"""`gpuwatch dashboards push`: the dashboards' files into a Grafana; what is as it should be is left alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

from gpuwatch.errors import DashboardError, UsageError
from gpuwatch.sdk.grafana import Grafana, Refused, Server

MADE_FOR = (11, 6)
LOOPBACK = ("localhost", "127.0.0.1", "::1")
FOLDER = "dashboards"
ITS_OWN = ("id", "version")  # what Grafana writes into a dashboard


def run(
    folder: Path,
    *,
    url: str,
    token_file: Path,
    into: str = "gpuwatch",
    page: str | None = None,
    runbooks: str | None = None,
    ca_file: Path | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    out: TextIO | None = None,
) -> int:
    """0 where every dashboard is there as in its file; with `dry_run`, where it would be.

    `folder`: of the JSON files. `into`: title of Grafana's folder, "" for none. `page`, `runbooks`: addresses that the
    dashboards link to. Raises `UsageError` and `DashboardError`; those that were pushed before one stay.
    """
    out = out or sys.stdout
    boards = [with_addresses(board, {"page": page, "runbooks": runbooks}) for board in read(folder)]
    if ca_file is not None and not ca_file.is_file():
        raise UsageError(f"{ca_file} is no file", next_step="name a PEM file of certificates with --ca-file")
    grafana = Grafana(url, read_token(token_file), ca_file=ca_file)
    if urlsplit(url).scheme == "http" and urlsplit(url).hostname not in LOOPBACK:
        print("note: the token goes over the network unencrypted: use https", file=sys.stderr)
    for note in notes(grafana.server(), boards):
        print(f"note: {note}", file=sys.stderr)
    folder_uid = grafana.folder_uid(into) if into else ""
    if folder_uid is None:
        print(f"{'would make' if dry_run else 'made'} the folder {into}", file=out)
        folder_uid = None if dry_run else grafana.make_folder(into)
    refused = 0
    for board in boards:
        try:
            print(f"{board['title']}: {_one(grafana, board, folder_uid, overwrite, dry_run)}", file=out)
        except Refused as error:
            refused += 1
            print(f"gpuwatch: {error}", file=sys.stderr)
    return 1 if refused else 0


def _one(grafana: Grafana, board: dict[str, Any], folder_uid: str | None, overwrite: bool, dry_run: bool) -> str:
    """What became of it, in words."""
    there = grafana.dashboard(board["uid"])
    if there is not None and there[1] == folder_uid and plain(there[0]) == plain(board):
        return "is there already"
    if dry_run:
        if there is None:
            return "would be pushed"
        return "would be replaced" if overwrite else "is there and differs: it would need --overwrite"
    address = grafana.push(board, folder_uid=folder_uid or "", overwrite=overwrite)
    return f"{'pushed' if there is None else 'replaced'}, {address}"


def came_with_us() -> Path:
    """The folder of the dashboards that belong to this gpuwatch: of its clone, or installed beside the package."""
    clone = Path(__file__).resolve().parents[2]
    if (clone / "pyproject.toml").is_file() and (clone / FOLDER).is_dir():
        return clone / FOLDER
    try:
        installed = metadata.files("gpuwatch") or ()
    except metadata.PackageNotFoundError:
        installed = ()
    found = [path.locate() for path in installed if path.parts[-4:-1] == ("share", "gpuwatch", FOLDER)]
    return Path(str(found[0])).resolve().parent if found else Path(FOLDER)


def read(folder: Path) -> list[dict[str, Any]]:
    """Every dashboard of a folder, by name."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise UsageError(
            f"{folder} has no dashboards", next_step="name the folder of gpuwatch's dashboards with --from"
        )
    boards = []
    for path in paths:
        try:
            board = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DashboardError(
                f"{path} cannot be read", why=str(error), next_step="copy it from the clone"
            ) from error
        if not isinstance(board, dict) or not board.get("uid") or not board.get("title"):
            raise DashboardError(
                f"{path} is no dashboard of ours",
                why="it has no uid or no title: pushed again, it would be there twice",
                next_step="move it out of the folder, or give it both",
            )
        boards.append(board)
    return boards


def read_token(path: Path) -> str:
    """A service account's token."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the token in {path} cannot be read", why=str(error), next_step="name its file with --token-file"
        ) from error
    if not token or len(token.split()) != 1:
        raise UsageError(
            f"{path} holds no token",
            why="it is empty, or more than one word",
            next_step="Grafana: Administration, Service accounts, Add token; put it into that file alone",
        )
    return token


def with_addresses(board: dict[str, Any], addresses: Mapping[str, str | None]) -> dict[str, Any]:
    """The same dashboard, its links leading there."""
    for variable in board.get("templating", {}).get("list", ()):
        address = addresses.get(variable.get("name", ""))
        if variable.get("type") == "constant" and address is not None:
            if urlsplit(address).scheme not in ("http", "https"):
                raise UsageError(f"{address!r} is no web address", next_step="begin it with https:// or http://")
            address = address.rstrip("/")
            variable |= {"query": address, "current": {"text": address, "value": address}}
    return board


def plain(board: Mapping[str, Any]) -> dict[str, Any]:
    """Without what Grafana adds."""
    return {key: value for key, value in board.items() if key not in ITS_OWN}


def notes(server: Server, boards: list[dict[str, Any]]) -> list[str]:
    """What will not look as it should. Raises `DashboardError` where a panel cannot be drawn at all."""
    if server.panels is not None:
        used = {str(panel["type"]) for board in boards for panel in board.get("panels", ()) if panel["type"] != "row"}
        if missing := sorted(used - server.panels):
            raise DashboardError(
                f"this Grafana has no panel {', '.join(missing)}",
                why=f"Grafana {server.version or 'of unknown version'}, or the plugin was removed or disabled",
                next_step="enable that plugin, or use Grafana 11.6 or newer",
            )
    found = []
    numbers = server.version.split("-")[0].split(".")
    if all(number.isdigit() for number in numbers) and tuple(map(int, numbers)) < MADE_FOR:
        found.append(f"made for Grafana 11.6 or newer; this is {server.version}, and was not tried")
    if server.prometheus_count == 0:
        found.append("it has no Prometheus data source that this token may see: without one the panels stay empty")
    return found
