"""What an agent says of its parts before it uses them: the token's file, a port that is taken, a second agent."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

import pytest

from gpuwatch.agent.metrics import EventCounts, Page
from gpuwatch.agent.settings import AgentSettings
from gpuwatch.errors import UsageError
from gpuwatch.wiring.agent_parts import exporter, lines, only_one


@pytest.mark.parametrize(
    ("mode", "said"), [(0o600, ""), (0o640, ""), (0o644, "every user"), (0o602, "every user"), (None, "cannot be read")]
)
def test_the_tokens_file(tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int | None, said: str) -> None:
    path = tmp_path / "token"
    if mode is not None:
        path.write_text("token")
        path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        (line,) = lines(AgentSettings(aggregator=("http://a:1",), token_file=str(path)), lambda _: None)
    assert line.url == "http://a:1"
    assert said in caplog.text if said else not caplog.text


@pytest.mark.parametrize(
    ("url", "text", "said"),
    [
        ("https://a:1", None, "No such file or directory; no report can be sent"),
        ("https://a:1", "x", "holds no certificates in PEM; no report can be sent"),
        ("http://a:1", None, ""),
    ],
)
def test_the_certificates_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, url: str, text: str | None, said: str
) -> None:
    token, path = tmp_path / "token", tmp_path / "ca.pem"
    token.write_text("token")
    token.chmod(0o600)
    if text is not None:
        path.write_text(text)
    lines(AgentSettings(aggregator=(url,), token_file=str(token), ca_file=str(path)), lambda _: None)
    assert f"ca_file {path}: {said}" in caplog.text if said else not caplog.text


def test_a_port_that_is_taken_blinds_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        assert exporter(AgentSettings(metrics_listen=where), Page([], {}, EventCounts(), None)) is None
    assert f"/metrics cannot be served on {where}" in caplog.text


def test_one_agent_a_state_directory(tmp_path: Path) -> None:
    lock = only_one(tmp_path)
    assert lock is not None
    with pytest.raises(UsageError, match="another agent uses"):
        only_one(tmp_path)
    os.close(lock)
    again = only_one(tmp_path)
    assert again is not None
    os.close(again)


def test_a_state_directory_that_cannot_be_made_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    assert only_one(tmp_path / "file") is None
    assert "nothing will survive a restart" in caplog.text
