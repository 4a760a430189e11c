"""A real aggregator on loopback: what it acknowledges, what it refuses and how, what its pages say."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.aggregator import settings as settings_file
from gpuwatch.errors import ConfigError, GpuwatchError, StoreError
from gpuwatch.model.facts.kernel_log import KernelEvent, KernelLogFacts
from gpuwatch.model.facts.nvml import Gpu, NvmlFacts
from gpuwatch.model.token import machine_token
from gpuwatch.model.wire import MAX_REPORT_BYTES, WIRE_VERSION, Envelope, Goodbye, Report
from gpuwatch.store.sqlite import Store
from gpuwatch.wiring.aggregator import Aggregator

SECRET = b"a secret of the tests, long enough"
OPERATOR = "an operator of the tests"
PACK = msgspec.msgpack.Encoder().encode
TOML = """
[server]
listen = "127.0.0.1:0"
secret_file = "secret"
operator_token_file = "operator"
state_dir = "state"
hold_file = "HOLD"
tick_s = 0.2

[cluster]
name = "<b>alpha</b>"

[pools.p]
nodes = ["gpu[01-04]"]
gpus = 8
"""


def write_files(folder: Path, toml: str = TOML) -> Path:
    (folder / "secret").write_bytes(SECRET + b"\n")
    (folder / "operator").write_text(OPERATOR)
    path = folder / "aggregator.toml"
    path.write_text(toml)
    return path


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Aggregator]:
    made = Aggregator(settings_file.load(write_files(tmp_path)))
    made.start()
    yield made
    made.stop()


def raw(facts: Any) -> msgspec.Raw:
    return msgspec.Raw(PACK(facts))


def report(sequence: int = 1, *, machine: str = "m1", slot: str = "gpu01", **changes: Any) -> Report:
    now = time.time_ns()
    gpus = tuple(Gpu(index=n, uuid=f"GPU-{machine}-{n}", pci=f"0000:{n:02x}:00") for n in range(8))
    nvml = NvmlFacts("580", gpus, pci_gpu_count=8, driver_loaded=True)
    usual: dict[str, Any] = {
        "version": WIRE_VERSION,
        "slot": slot,
        "machine": machine,
        "boot_id": "boot-1",
        "agent_id": "agent-1",
        "sequence": sequence,
        "sent_unix_ns": now,
        "envelopes": (
            Envelope("nvml", now, 0.01, "ok", facts=raw(nvml)),
            Envelope("kernel_log", now, 0.01, "ok", facts=raw(KernelLogFacts(True))),
        ),
    }
    return Report(**(usual | changes))


class Client:
    """One keep-alive connection of one machine."""

    def __init__(self, centre: Aggregator, machine: str = "m1") -> None:
        host, port = centre.url.removeprefix("http://").rstrip("/").split(":")
        self.http = http.client.HTTPConnection(host, int(port), timeout=10)
        self.token = machine_token(SECRET, machine)

    def send(self, body: bytes | Report, token: str | None = None) -> tuple[int, dict[str, Any]]:
        content = body if isinstance(body, bytes) else PACK(body)
        headers = {"Content-Type": "application/msgpack"}
        if token != "":
            headers["Authorization"] = f"Bearer {token or self.token}"
        self.http.request("POST", "/v1/reports", content, headers)
        answer = self.http.getresponse()
        return answer.status, json.loads(answer.read())

    def get(self, path: str) -> tuple[int, bytes, Any]:
        self.http.request("GET", path)
        answer = self.http.getresponse()
        return answer.status, answer.read(), answer.headers

    def order(self, path: str, token: str = OPERATOR, body: str = "{}") -> tuple[int, dict[str, Any]]:
        self.http.request("POST", path, body, {"Authorization": f"Bearer {token}"} if token else {})
        answer = self.http.getresponse()
        return answer.status, json.loads(answer.read())

    def json(self, path: str) -> Any:
        status, body, _ = self.get(path)
        assert status == 200, body
        return json.loads(body)


def until(condition: Any, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def metric(client: Client, name: str) -> float:
    _, page, _ = client.get("/metrics")
    for line in page.decode().splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[-1])
    return 0.0


def test_a_report_is_acknowledged_and_counted_once(centre: Aggregator) -> None:
    client = Client(centre)
    first = report(1)
    assert client.send(first) == (200, {"ok": True, "repeated": False, "error": "", "next_step": "", "order": ""})
    assert client.send(first) == (200, {"ok": True, "repeated": True, "error": "", "next_step": "", "order": ""})
    assert metric(client, 'gpuwatch_reports_taken_total{how="accepted"}') == 1
    assert metric(client, 'gpuwatch_reports_taken_total{how="repeated"}') == 1
    until(lambda: client.json("/api/v1/fleet")["counts"].get("healthy") == 1)


@pytest.mark.parametrize(
    ("reason", "code", "make"),
    [
        pytest.param("garbage", 400, lambda: b"\x00not a report", id="garbage"),
        pytest.param("garbage", 400, lambda: b"", id="empty"),
        pytest.param("garbage", 400, lambda: PACK([2, "gpu01"]), id="half-a-report"),
        pytest.param("garbage", 400, lambda: PACK(report(slot="")), id="no-slot"),
        pytest.param("garbage", 400, lambda: PACK(report(slot="x" * 300)), id="a-very-long-slot"),
        pytest.param("garbage", 400, lambda: PACK(report(interval_s=float("nan"))), id="nan"),
        pytest.param("garbage", 400, lambda: PACK(report(interval_s=-1.0)), id="negative-interval"),
        pytest.param("garbage", 400, lambda: PACK(report(sequence=-1)), id="negative-sequence"),
        pytest.param("version", 400, lambda: PACK(report(version=WIRE_VERSION + 2)), id="version-too-new"),
        pytest.param("version", 400, lambda: PACK(report(version=WIRE_VERSION - 2)), id="version-too-old"),
        pytest.param("version", 400, lambda: PACK([WIRE_VERSION + 7, {"another": "shape"}]), id="a-shape-to-come"),
        pytest.param("other_machine", 403, lambda: PACK(report(machine="m2", slot="gpu02")), id="another-machine"),
        pytest.param("conflict", 409, lambda: PACK(report(1, agent_version="other body")), id="same-id-other-body"),
        pytest.param("too_large", 413, lambda: b"x" * (MAX_REPORT_BYTES + 1), id="oversized"),
    ],
)
def test_what_can_never_be_accepted_is_refused_for_good_and_changes_nothing(
    reason: str, code: int, make: Any, centre: Aggregator
) -> None:
    client = Client(centre)
    assert client.send(report(1))[0] == 200
    until(lambda: client.json("/api/v1/fleet")["counts"].get("healthy") == 1)
    before = client.json("/api/v1/fleet")["nodes"]
    with contextlib.suppress(ConnectionError):  # an oversized body is not read to its end
        status, answer = client.send(make())
        assert status == code
        assert answer["ok"] is False
        assert answer["error"]
        assert answer["next_step"]
    client = Client(centre)
    assert metric(client, f'gpuwatch_reports_refused_total{{reason="{reason}"}}') == 1
    after = client.json("/api/v1/fleet")["nodes"]
    assert [(n["slot"], n["machine"], n["health"]) for n in after] == [
        (n["slot"], n["machine"], n["health"]) for n in before
    ]
    assert client.send(report(2))[0] == 200  # the spool moves on


@pytest.mark.parametrize(("token", "code"), [("", 401), ("0" * 64, 401)])
def test_without_the_right_token_the_agent_tries_again_later(token: str, code: int, centre: Aggregator) -> None:
    client = Client(centre)
    status, answer = client.send(report(), token)
    assert status == code
    assert "gpuwatch token" in answer["next_step"]
    assert client.json("/api/v1/fleet")["nodes"][0]["machine"] is None


@pytest.mark.parametrize("version", [WIRE_VERSION - 1, WIRE_VERSION, WIRE_VERSION + 1])
def test_neighbouring_wire_versions_are_understood(version: int, centre: Aggregator) -> None:
    whole = msgspec.msgpack.decode(PACK(report(version=version)))
    if version < WIRE_VERSION:
        body = whole[:-2]  # version 1 lacks the last two fields
    else:
        body = [*whole, "a field of the future"] if version > WIRE_VERSION else whole
    client = Client(centre)
    assert client.send(PACK(body))[0] == 200
    until(lambda: client.json("/api/v1/fleet")["counts"].get("healthy") == 1)


def test_an_unknown_collector_is_kept_and_counted(centre: Aggregator) -> None:
    client = Client(centre)
    known = report()
    strange = Envelope("telepathy", time.time_ns(), 0.1, "ok", facts=raw({"anything": [1, 2, {"at": "all"}]}))
    assert client.send(msgspec.structs.replace(known, envelopes=(*known.envelopes, strange)))[0] == 200
    assert metric(client, 'gpuwatch_unknown_collector_facts_total{collector="telepathy"}') == 1
    until(lambda: client.json("/api/v1/fleet")["counts"].get("healthy") == 1)
    seen = client.json("/api/v1/nodes/gpu01")["machines"][0]["seen"]
    assert "agent/telepathy" in {item["witness"] for item in seen}


def test_facts_that_do_not_fit_are_missing_not_healthy(centre: Aggregator) -> None:
    client = Client(centre)
    bad = Envelope("nvml", time.time_ns(), 0.1, "ok", facts=raw(["580", [[0, "u", "p", "n", None, 808.0]]]))
    assert client.send(report(envelopes=(bad,)))[0] == 200
    until(lambda: client.json("/api/v1/fleet")["nodes"][0]["health"] not in ("joining", "unseen"))
    assert client.json("/api/v1/fleet")["nodes"][0]["health"] == "unknown"


def test_a_body_without_a_length_is_limited_while_it_is_read(centre: Aggregator) -> None:
    client = Client(centre)
    client.http.connect()
    sock = client.http.sock
    head = f"POST /v1/reports HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {client.token}\r\n"
    sock.sendall((head + "Transfer-Encoding: chunked\r\n\r\n").encode())
    chunk = b"%x\r\n%b\r\n" % (65536, b"x" * 65536)
    answer = b""
    with contextlib.suppress(ConnectionError, TimeoutError):
        for _ in range(40):
            sock.sendall(chunk)
    with contextlib.suppress(ConnectionError, TimeoutError):
        answer = sock.recv(65536)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 413")
    assert metric(Client(centre), 'gpuwatch_reports_refused_total{reason="too_large"}') == 1


def test_an_event_is_on_the_disk_before_it_is_acknowledged(tmp_path: Path) -> None:
    centre = Aggregator(settings_file.load(write_files(tmp_path)))
    centre.start()
    event = KernelEvent(
        id="boot-1/1", at_unix_ns=time.time_ns(), kind="xid", text="NVRM: Xid", xid=31, boot_id="boot-1"
    )
    log = Envelope("kernel_log", time.time_ns(), 0.01, "ok", facts=raw(KernelLogFacts(True, (event,))))
    client = Client(centre)
    assert client.send(report(envelopes=(log,)))[0] == 200
    beside = Store(tmp_path / "state" / "ledger.db")  # another reader of the same file
    assert [item.event.id for item in beside.events_since(0)] == ["boot-1/1"]
    beside.close()
    centre.stop()
    again = Aggregator(settings_file.load(tmp_path / "aggregator.toml"))
    again.start()
    try:
        client = Client(again)
        assert client.send(report(2, envelopes=(log,)))[0] == 200
        assert metric(client, "gpuwatch_kernel_events_total") == 0  # counted by the process before
    finally:
        again.stop()


def test_a_goodbye_survives_a_restart(tmp_path: Path) -> None:
    centre = Aggregator(settings_file.load(write_files(tmp_path)))
    centre.start()
    assert Client(centre).send(report(goodbye=Goodbye("upgrade")))[0] == 200
    centre.stop()
    again = Aggregator(settings_file.load(tmp_path / "aggregator.toml"))
    again.start()
    try:
        client = Client(again)
        seen = client.json("/api/v1/nodes/gpu01")["machines"][0]["seen"]
        until(lambda: client.json("/api/v1/nodes/gpu01")["machines"][0]["seen"] != [])
        seen = client.json("/api/v1/nodes/gpu01")["machines"][0]["seen"]
        assert "it said goodbye: upgrade" in seen[0]["says"]
    finally:
        again.stop()


def test_the_json_pages(centre: Aggregator) -> None:
    client = Client(centre)
    client.send(report())
    until(lambda: client.json("/api/v1/fleet")["counts"].get("healthy") == 1)
    for path in ("overview", "fleet", "incidents", "holds", "plan", "money", "nodes/gpu01"):
        assert client.json(f"/api/v1/{path}")
    status, body, _ = client.get("/api/v1/nodes/nowhere")
    assert status == 404
    assert json.loads(body)["next_step"]
    assert client.json("/healthz") == {"ok": True, "because": ""}
    assert client.json("/readyz")["ok"] is True
    until(lambda: client.json("/api/v1/money")["empty_because"] == "")
    money = client.json("/api/v1/money")
    assert sum(float(row["usd"]) for row in money["categories"]) == float(money["total_usd"])
    assert float(money["unpriced_node_hours"]) > 0  # no price was given: unknown, not 0 dollars
    fleet = client.json("/api/v1/fleet")
    assert [node["health"] for node in fleet["nodes"]] == ["healthy", "unseen", "unseen", "unseen"]
    assert fleet["headline"]["state"] == "None of 4 nodes is sick; 3 not known to be well."


def test_orders_need_the_operators_token_and_are_written_down(centre: Aggregator, tmp_path: Path) -> None:
    client = Client(centre)
    client.send(report())
    assert client.order("/api/v1/hold/gpu01", token="")[0] == 401
    assert client.order("/api/v1/hold/gpu01", token="wrong")[0] == 401
    assert client.order("/api/v1/hold/nowhere")[0] == 404
    assert client.order("/api/v1/hold/gpu01", body="no json")[0] == 400
    assert client.order("/api/v1/hold/gpu01", body="x" * 20_000)[0] == 413
    status, answer = client.order("/api/v1/hold/gpu01", body='{"who": "kim", "because": "looking at it"}')
    assert (status, answer["ok"]) == (200, True)
    assert client.json("/api/v1/holds")["human_holds"] == [{"slot": "gpu01", "because": "kim: looking at it"}]
    assert client.order("/api/v1/clear/gpu01", body='{"who": "kim"}')[1]["hold_lifted"] is True
    assert client.order("/api/v1/approve/replace-nothing-1")[0] == 404
    beside = Store(tmp_path / "state" / "ledger.db")
    acts = [(line.who, line.what) for line in beside.lines_of("human_act")]  # type: ignore[union-attr]
    beside.close()
    assert acts == [("kim", "hold: looking at it"), ("kim", "lift the hold"), ("kim", "clear")]


def test_the_page_says_its_sentence_without_a_script_and_escapes_names(centre: Aggregator) -> None:
    status, body, headers = Client(centre).get("/")
    page = body.decode()
    assert status == 200
    assert "&lt;b&gt;alpha&lt;/b&gt;" in page
    assert "<b>alpha</b>" not in page
    assert "None of 4 nodes is sick; 4 not known to be well." in page
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "http://" not in page.replace("http://www.w3.org", "")  # it asks nobody else
    assert "https://" not in page


@pytest.mark.needs("promtool")
def test_the_metrics_are_as_prometheus_wants_them(centre: Aggregator) -> None:
    client = Client(centre)
    client.send(report())
    client.send(b"garbage")
    until(lambda: client.json("/api/v1/fleet")["counts"].get("healthy") == 1)
    client.json("/api/v1/money")
    until(lambda: client.json("/api/v1/money")["empty_because"] == "")
    _, page, _ = client.get("/metrics")
    checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


CHROMIUM = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=2500",
)


@pytest.mark.needs("chromium")
def test_in_a_browser_names_stay_text_and_the_fleet_is_drawn(centre: Aggregator, tmp_path: Path) -> None:
    evil = "<img src=x onerror=document.title='owned'>"
    hung = Envelope("nvml", time.time_ns(), 0.1, "hung", f"{evil} hangs", since_unix_ns=1)
    Client(centre, "m9").send(report(machine="m9", slot=evil, envelopes=(hung,)))
    client = Client(centre)
    client.send(report())
    until(lambda: client.json("/api/v1/fleet")["counts"].get("healthy") == 1)
    shown = subprocess.run(
        ["chromium", *CHROMIUM, f"--user-data-dir={tmp_path / 'browser'}", "--dump-dom", centre.url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    ).stdout
    assert "<title>owned" not in shown
    assert "<img" not in shown
    assert "&lt;img src=x onerror=document.title='owned'&gt;" in shown
    assert 'class="tile healthy"' in shown
    assert ">gpu01<" in shown


def start(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gpuwatch.wiring.aggregator", "--config", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_process_starts_quickly_says_where_it_is_and_stops_cleanly(tmp_path: Path) -> None:
    begun = time.monotonic()
    process = start(write_files(tmp_path))
    assert process.stdout is not None
    said = process.stdout.readline()
    took_s = time.monotonic() - begun
    assert said.startswith("gpuwatch aggregator: http://127.0.0.1:")
    assert took_s < 8  # about 0.7 s on a quiet machine
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 0


def test_a_faulty_settings_file_is_named_whole_with_exit_code_2(tmp_path: Path) -> None:
    toml = TOML.replace('listen = "127.0.0.1:0"', 'lisen = "127.0.0.1:0"').replace("gpus = 8", 'gpus = "eight"')
    toml = toml.replace("tick_s = 0.2", "tick_s = 0").replace('"gpu[01-04]"', '"gpu[01-04"')
    process = start(write_files(tmp_path, toml + '[cloud]\nkind = "lokal"\n'))
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    for word in (
        "server.lisen",
        "did you mean `server.listen`?",
        "pools.p.gpus",
        "server.tick_s",
        "cloud.kind",
        "`local`",
    ):
        assert word in errors
    assert "Traceback" not in errors


def test_what_cannot_begin_says_why(tmp_path: Path) -> None:
    path = write_files(tmp_path)
    (tmp_path / "secret").write_text("short")
    with pytest.raises(ConfigError, match="too short"):
        Aggregator(settings_file.load(path))
    (tmp_path / "secret").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        Aggregator(settings_file.load(path))
    write_files(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        path.write_text(TOML.replace("127.0.0.1:0", f"127.0.0.1:{port}"))
        with pytest.raises(GpuwatchError, match="cannot listen") as refusal:
            Aggregator(settings_file.load(path))
        assert "free port" in refusal.value.next_step


def test_a_second_aggregator_on_the_same_ledger_is_refused(centre: Aggregator, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="another aggregator") as refusal:
        Aggregator(settings_file.load(tmp_path / "aggregator.toml"))
    assert str(os.getpid()) in refusal.value.why


def test_the_example_settings_are_valid() -> None:
    example = Path(__file__).parents[2] / "docs" / "aggregator.example.toml"
    loaded = settings_file.load(example)
    assert {name: str(policy.mode) for name, policy in loaded.policies().items() if name != settings_file.UNLISTED} == {
        "h100": "observe"
    }
