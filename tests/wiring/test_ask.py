"""A person asks a running aggregator, and gives it orders."""

from __future__ import annotations

import io
import json
import os
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from gpuwatch.errors import GpuwatchError, UsageError
from gpuwatch.model.facts.environment import EnvironmentFacts
from gpuwatch.model.token import machine_token
from gpuwatch.model.wire import Envelope, Report
from gpuwatch.wiring import ask
from gpuwatch.wiring.aggregator import Aggregator
from tests.running_aggregator import running_in


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Aggregator]:
    with running_in(tmp_path) as made:
        yield made


def test_a_slot_is_held_explained_and_cleared(centre: Aggregator, tmp_path: Path) -> None:
    token_file = tmp_path / "operator"
    out = io.StringIO()
    ask.order(
        "hold", "gpu01", url=centre.url, token_file=token_file, who="ada", because="burn-in until Friday", out=out
    )
    assert "gpu01 is held" in out.getvalue()
    out = io.StringIO()
    ask.explain("gpu01", url=centre.url, out=out)
    assert "ada" in out.getvalue()
    assert "burn-in until Friday" in out.getvalue()
    out = io.StringIO()
    ask.explain("gpu01", url=centre.url, as_json=True, out=out)
    assert json.loads(out.getvalue())["sentence"]
    out = io.StringIO()
    ask.order("clear", "gpu01", url=centre.url, token_file=token_file, out=out)
    assert out.getvalue() == "gpu01 is cleared, its hold is lifted\n"
    out = io.StringIO()
    ask.order("hold", "gpu01", url=centre.url, token_file=token_file, as_json=True, out=out)
    assert json.loads(out.getvalue()) == {"ok": True, "slot": "gpu01"}


@pytest.mark.parametrize("error", [KeyError, OSError])
def test_a_container_whose_user_has_no_name_gives_orders_too(
    centre: Aggregator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def nameless(_uid: int) -> NoReturn:
        raise error("uid not found")

    for name in ("SUDO_USER", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nameless)
    ask.order("hold", "gpu01", url=centre.url, token_file=tmp_path / "operator", out=io.StringIO())
    out = io.StringIO()
    ask.explain("gpu01", url=centre.url, out=out)
    assert f"uid {os.getuid()}" in out.getvalue()


def test_the_node_that_differs_is_named_with_what_the_others_have(centre: Aggregator) -> None:
    for number in range(1, 5):
        parts = {"driver": "580.95" if number != 3 else "550.54", "kernel": "6.1"}
        facts = EnvironmentFacts("f", parts, dict.fromkeys(parts, 1_790_000_000 * 10**9))
        envelope = Envelope("environment", time.time_ns(), 0.1, "ok", facts=msgspec.Raw(msgspec.msgpack.encode(facts)))
        report = Report(2, f"gpu0{number}", f"m-{number}", "b", "a", 1, time.time_ns(), (envelope,))
        token = machine_token(b"a secret of the tests, long enough", f"m-{number}")
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/msgpack"}
        sent = urllib.request.Request(f"{centre.url}v1/reports", msgspec.msgpack.encode(report), headers)
        urllib.request.urlopen(sent, timeout=10).read()
    until_s = time.monotonic() + 10
    said = ""
    while "gpu03" not in said and time.monotonic() < until_s:
        time.sleep(0.1)  # until the next tick
        out = io.StringIO()
        ask.drift(url=centre.url, out=out)
        said = out.getvalue()
    assert said == "pool p: driver: 3 of 4 have 580.95\n  gpu03          550.54, since 2026-09-21 14:13 UTC\n"
    out = io.StringIO()
    ask.explain("gpu03", url=centre.url, out=out)
    assert "differs: driver 550.54; 3 of 4 of pool p have 580.95, since 2026-09-21 14:13 UTC" in out.getvalue()
    page = urllib.request.urlopen(f"{centre.url}metrics", timeout=10).read().decode()
    assert 'gpuwatch_drifted_nodes{part="driver",pool="p"} 1.0' in page
    assert 'gpuwatch_grants_total{answer="granted"} 0.0' in page


@pytest.mark.parametrize(
    ("what", "name", "says"),
    [
        pytest.param("hold", "gpu99", "there is no slot", id="unknown-slot"),
        pytest.param("approve", "replace-nothing-1", "waits for approval", id="unknown-action"),
    ],
)
def test_a_refused_order_is_told_with_a_next_step(
    centre: Aggregator, tmp_path: Path, what: str, name: str, says: str
) -> None:
    with pytest.raises(GpuwatchError, match=says) as caught:
        ask.order(what, name, url=centre.url, token_file=tmp_path / "operator")
    assert caught.value.next_step


def test_a_wrong_token_orders_nothing(centre: Aggregator, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("guess")
    with pytest.raises(GpuwatchError, match="missing or wrong"):
        ask.order("hold", "gpu01", url=centre.url, token_file=tmp_path / "wrong")


def test_a_missing_token_file_is_a_usage_error(centre: Aggregator, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        ask.order("hold", "gpu01", url=centre.url, token_file=tmp_path / "absent")


def test_nobody_at_the_address_is_said_plainly() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(GpuwatchError, match="no aggregator answers"):
        ask.explain("gpu01", url=f"http://127.0.0.1:{port}")


@pytest.mark.parametrize("url", ["ftp://x", "http://[::1", "http://x:99999", "https://"])
def test_what_is_no_address_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        ask.explain("gpu01", url=url)


@pytest.mark.parametrize("name", ["empty.pem", "absent.pem"])
def test_a_file_without_certificates_is_a_usage_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty.pem").write_text("no certificate")
    with pytest.raises(UsageError, match="holds no certificates"):
        ask.explain("gpu01", url="https://127.0.0.1:1", ca_file=tmp_path / name)


def test_a_server_without_tls_is_told_from_nobody_at_all(centre: Aggregator) -> None:
    with pytest.raises(GpuwatchError, match="does not speak TLS"):
        ask.explain("gpu01", url=centre.url.replace("http://", "https://"))
