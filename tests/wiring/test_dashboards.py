"""`gpuwatch dashboards push` through the real client, against a local server that checks what a Grafana checks."""

from __future__ import annotations

import io
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from gpuwatch.errors import DashboardError, GpuwatchError, UsageError
from gpuwatch.wiring import dashboards
from tests.grafana_server import TOKEN, GrafanaServer

ROOT = Path(__file__).resolve().parents[2]
FLEET = "gpuwatch-fleet"


@pytest.fixture
def grafana() -> Iterator[GrafanaServer]:
    server = GrafanaServer()
    yield server
    server.close()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


def push(grafana: GrafanaServer, token: Path, **words: Any) -> tuple[int, str]:
    out = io.StringIO()
    code = dashboards.run(ROOT / "dashboards", url=words.pop("url", grafana.url), token_file=token, out=out, **words)
    return code, out.getvalue()


def test_it_makes_the_folder_and_all_four(grafana: GrafanaServer, token: Path) -> None:
    code, said = push(grafana, token)
    assert code == 0
    assert list(grafana.folders.values()) == ["gpuwatch"]
    assert set(grafana.boards) == {FLEET, "gpuwatch-node", "gpuwatch-runs", "gpuwatch-money"}
    assert {board["folderUid"] for board in grafana.boards.values()} == set(grafana.folders)
    assert all(message.startswith("gpuwatch ") for message in grafana.messages)
    assert f"{grafana.url}/d/{FLEET}/slug" in said


def test_a_second_push_changes_nothing(grafana: GrafanaServer, token: Path) -> None:
    push(grafana, token)
    grafana.asked.clear()
    code, said = push(grafana, token)
    assert (code, grafana.changes()) == (0, [])
    assert said.count("is there already") == 4


def test_a_dry_run_changes_nothing(grafana: GrafanaServer, token: Path) -> None:
    code, said = push(grafana, token, dry_run=True)
    assert (code, grafana.changes()) == (0, [])
    assert "would make the folder gpuwatch" in said
    assert said.count("would be pushed") == 4


def test_what_was_edited_in_grafana_is_kept_unless_told_otherwise(
    grafana: GrafanaServer, token: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    push(grafana, token)
    edited = grafana.boards[FLEET]["dashboard"]
    edited |= {"refresh": "5s", "version": 2}
    code, said = push(grafana, token)
    assert code == 1
    assert said.count("is there already") == 3
    assert grafana.boards[FLEET]["dashboard"]["refresh"] == "5s"
    words = capsys.readouterr().err
    assert "edited in Grafana" in words
    assert "next: --overwrite replaces it" in words
    assert "it would need --overwrite" in push(grafana, token, dry_run=True)[1]
    code, said = push(grafana, token, overwrite=True)
    assert code == 0
    assert "replaced" in said
    assert grafana.boards[FLEET]["dashboard"]["refresh"] == "30s"
    assert grafana.boards[FLEET]["dashboard"]["version"] == 3


def test_an_old_folder_is_used_and_none_may_be(grafana: GrafanaServer, token: Path) -> None:
    grafana.folders["abc"] = "GPU"
    push(grafana, token, into="GPU")
    assert grafana.boards[FLEET]["folderUid"] == "abc"
    assert grafana.folders == {"abc": "GPU"}
    push(grafana, token, into="", overwrite=True)
    assert grafana.boards[FLEET]["folderUid"] == ""


def test_a_title_and_a_plugin_in_the_way_stop_only_their_own(
    grafana: GrafanaServer, token: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grafana.folders["abc"] = "gpuwatch"
    grafana.boards["other"] = {"dashboard": {"title": "gpuwatch / Money", "version": 1}, "folderUid": "abc"}
    grafana.plugin_boards.add("gpuwatch-runs")
    code, _ = push(grafana, token)
    assert code == 1
    assert {FLEET, "gpuwatch-node"} == set(grafana.boards) - {"other"}
    words = capsys.readouterr().err
    assert "rename or delete that one" in words
    assert "belongs to a plugin" in words


def test_it_works_under_a_path_and_says_the_addresses(token: Path) -> None:
    server = GrafanaServer(prefix="/grafana")
    try:
        code, said = push(server, token, url=f"{server.url}/")
        assert code == 0
        assert f"{server.url}/d/{FLEET}/slug" in said
    finally:
        server.close()


def test_the_links_lead_where_they_are_told_to(grafana: GrafanaServer, token: Path) -> None:
    push(grafana, token, page="https://gpu.my.org/", runbooks="https://wiki.my.org/books")
    variables = {one["name"]: one for one in grafana.boards[FLEET]["dashboard"]["templating"]["list"]}
    assert variables["page"]["query"] == "https://gpu.my.org"
    assert variables["runbooks"]["current"]["value"] == "https://wiki.my.org/books"
    with pytest.raises(UsageError):
        push(grafana, token, page="javascript:alert(1)")


SETTINGS, FOLDERS, SAVE = "GET /frontend/settings", "GET /folders", "POST /dashboards/db"
DENIED = {"message": "You'll need additional permissions to perform this action", "accessErrorId": "ACE1"}


@pytest.mark.parametrize(
    ("line", "answer", "why", "next_step"),
    [
        pytest.param(FOLDERS, (401, {"message": "Invalid API key"}), "Unauthorized|Invalid", "new token", id="401"),
        pytest.param(SAVE, (403, DENIED), "additional permissions", "dashboards:write", id="403"),
        pytest.param("POST /folders", (403, DENIED), "additional permissions", "folders:create", id="403-folder"),
        pytest.param(SETTINGS, (404, {"message": "Not found"}), "404", "under a path", id="404"),
        pytest.param(SAVE, (400, {"message": "bad request data"}), "bad request data", "11.6", id="400"),
        pytest.param(SAVE, (400, {"message": "Cannot save provisioned dashboard"}), "provisioned", "files", id="files"),
        pytest.param(SAVE, (429, {"message": "slow down"}), "slow down", "wait", id="429"),
        pytest.param(SAVE, (500, {"message": "database is locked"}), "database is locked", "Grafana's log", id="500"),
        pytest.param(SAVE, (503, b"<html>no upstream</html>"), "no upstream", "Grafana's log", id="503-html"),
        pytest.param(SETTINGS, (200, b"<html>Log in</html>"), "Log in", "log-in page", id="login-page"),
        pytest.param(FOLDERS, (200, b"<html>Log in</html>"), "Log in", "log-in page", id="login-page-later"),
        pytest.param(SETTINGS, (302, b""), "redirect", "address that it leads to", id="redirect"),
        pytest.param(SAVE, (307, b""), "redirect", "address that it leads to", id="redirect-of-a-post"),
        pytest.param(SAVE, (200, []), r"\[\]", "proxy", id="no-object"),
        pytest.param(SETTINGS, (200, {"buildInfo": [1]}), "another shape", "proxy", id="odd-settings"),
        pytest.param(SETTINGS, (200, {"panels": {"stat": 1}, "buildInfo": "12"}), "another", "proxy", id="odd-version"),
        pytest.param(FOLDERS, (200, [{"title": "gpuwatch"}]), "uid", "proxy", id="folder-without-uid"),
        pytest.param(FOLDERS, (200, [1, None]), "another shape", "proxy", id="no-folders"),
        pytest.param("POST /folders", (200, {"id": 3}), "uid", "proxy", id="new-folder-without-uid"),
        pytest.param(f"GET /dashboards/uid/{FLEET}", (200, {"meta": {}}), "dashboard", "proxy", id="no-dashboard"),
        pytest.param(SAVE, (412, {"message": "?"}), None, None, id="412-without-status"),
    ],
)
def test_a_refusal_says_what_why_and_what_next(
    grafana: GrafanaServer,
    token: Path,
    capsys: pytest.CaptureFixture[str],
    line: str,
    answer: tuple[int, Any],
    why: str | None,
    next_step: str | None,
) -> None:
    grafana.answers[line] = answer
    if why is None or next_step is None:
        assert push(grafana, token)[0] == 1
        assert "HTTP 412: ?" in capsys.readouterr().err
        return
    with pytest.raises(DashboardError) as caught:
        push(grafana, token)
    assert re.search(why, caught.value.why), caught.value.why
    assert next_step in caught.value.next_step
    assert TOKEN not in str(caught.value)


def test_a_certificate_is_checked_and_its_authority_may_be_named(token: Path, tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    server = GrafanaServer(tls=context)
    try:
        with pytest.raises(DashboardError, match="certificate is not trusted"):
            push(server, token)
        assert push(server, token, ca_file=tmp_path / "ca.pem")[0] == 0
        with pytest.raises(UsageError):
            push(server, token, ca_file=tmp_path / "none.pem")
    finally:
        server.close()


def test_https_where_only_http_is_spoken_is_told_as_that(grafana: GrafanaServer, token: Path) -> None:
    with pytest.raises(DashboardError, match="speaks no TLS"):
        push(grafana, token, url=grafana.url.replace("http:", "https:"))


def test_a_wrong_token_and_a_grafana_that_is_not_there(grafana: GrafanaServer, token: Path) -> None:
    token.write_text("glsa_other")
    with pytest.raises(DashboardError, match="401"):
        push(grafana, token)
    with pytest.raises(DashboardError, match="Connection refused") as caught:
        push(grafana, token, url="http://127.0.0.1:1")
    assert "object at" not in caught.value.why


def test_a_panel_that_this_grafana_cannot_draw_is_told_before_anything_is_pushed(
    grafana: GrafanaServer, token: Path
) -> None:
    grafana.panels.remove("state-timeline")
    with pytest.raises(DashboardError, match="no panel state-timeline"):
        push(grafana, token)
    assert grafana.changes() == []


def test_an_old_grafana_and_one_without_prometheus_are_told(
    grafana: GrafanaServer, token: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grafana.version = "10.4.1-pre"
    grafana.sources = {"-- Grafana --": {"type": "grafana"}}
    assert push(grafana, token)[0] == 0
    words = capsys.readouterr().err
    assert "this is 10.4.1-pre" in words
    assert "no Prometheus data source" in words


@pytest.mark.parametrize(
    "url",
    [
        "grafana.my.org",
        "ftp://grafana",
        "http://",
        "http://x:y@127.0.0.1",
        "http://127.0.0.1:99999",
        "http://h/?verify=0",
    ],
)
def test_an_address_that_is_none(grafana: GrafanaServer, token: Path, url: str) -> None:
    with pytest.raises(UsageError):
        push(grafana, token, url=url)


@pytest.mark.parametrize("content", ["", "\n", "two words", "tokén"])
def test_a_token_that_is_none(grafana: GrafanaServer, token: Path, content: str) -> None:
    token.write_text(content)
    with pytest.raises(UsageError):
        push(grafana, token)


def test_files_that_are_no_dashboards(grafana: GrafanaServer, token: Path, tmp_path: Path) -> None:
    def run() -> None:
        dashboards.run(tmp_path / "boards", url=grafana.url, token_file=token)

    with pytest.raises(UsageError, match="no dashboards"):
        run()
    (tmp_path / "boards").mkdir()
    for content in ("{", "[]", '{"title": "no uid"}'):
        (tmp_path / "boards" / "x.json").write_text(content)
        with pytest.raises(GpuwatchError):
            run()
    assert grafana.asked == []
