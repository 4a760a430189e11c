"""What the cloud announces to the machine itself, asked of a local metadata service."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.collectors import Unsupported
from gpuwatch.collectors.maintenance import AZURE_TAG, COLLECTOR, Settings, metrics, open_reader, provider
from gpuwatch.errors import ProbeError
from gpuwatch.model.facts.maintenance import MaintenanceFacts, Notice
from tests.arm_server import ImdsServer


@pytest.fixture
def imds() -> Iterator[ImdsServer]:
    made = ImdsServer()
    yield made
    made.stop()


def event(**changes: Any) -> dict[str, Any]:
    usual = {"EventId": "e1", "EventType": "Redeploy", "Resources": ["gpu_3"], "EventStatus": "Scheduled"}
    return usual | {"NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT", "EventSource": "Platform"} | changes


def reader(imds: ImdsServer, **changes: Any) -> Any:
    return open_reader(Settings(provider="azure", base_url=imds.url, timeout_s=2.0, **changes))


def test_only_what_concerns_this_machine_is_told(imds: ImdsServer) -> None:
    imds.events = {"Events": [event(), event(EventId="e2", Resources=["gpu_9"])]}
    facts = reader(imds).read().facts
    assert facts.provider == "azure"
    assert [(notice.id, notice.kind, notice.mine) for notice in facts.notices] == [("e1", "redeploy", True)]


def test_the_time_until_then_is_by_the_services_own_clock(imds: ImdsServer) -> None:
    imds.events, imds.headers = {"Events": [event()]}, {"Date": "Mon, 19 Sep 2016 18:19:47 GMT"}
    (notice,) = reader(imds).read().facts.notices
    assert notice.in_s == 600.0


def test_nothing_announced_is_an_answer_and_asks_for_no_name(imds: ImdsServer) -> None:
    assert reader(imds).read().facts.notices == ()
    assert imds.requests == [("GET", "/metadata/scheduledevents")]


def test_a_new_announcement_and_its_beginning_are_urgent(imds: ImdsServer) -> None:
    source = reader(imds)
    said = []
    for events in ([], [event()], [event()], [event(EventStatus="Started")], []):
        imds.events = {"Events": events}
        said.append(source.read().urgent)
    assert said == [False, True, False, True, False]


def test_a_name_that_cannot_be_read_leaves_it_open_whose_it_is(imds: ImdsServer) -> None:
    imds.events, imds.name_status = {"Events": [event()]}, 500
    assert [notice.mine for notice in reader(imds).read().facts.notices] == [None]


def test_no_proxy_is_ever_asked(imds: ImdsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as proxy:
        proxy.bind(("127.0.0.1", 0))
        proxy.listen()
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        assert reader(imds).read().facts.notices == ()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 No\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\xff\xfe\xff\xfe",
    ],
    ids=["closes", "500", "404", "redirects", "half", "no-http", "no-events", "no-text"],
)
def test_what_is_no_answer_is_an_error_and_never_no_events(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ProbeError):
            open_reader(Settings(provider="azure", base_url=url, timeout_s=2.0)).read()


def test_a_service_that_is_silent_is_an_error(imds: ImdsServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ProbeError, match="does not answer"):
            open_reader(Settings(provider="azure", base_url=url, timeout_s=0.2)).read()
    assert COLLECTOR.deadline_s > Settings().timeout_s


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"chassis_asset_tag": AZURE_TAG + "\n", "sys_vendor": "Microsoft Corporation"}, "azure"),
        ({"sys_vendor": "Microsoft Corporation"}, ""),  # Hyper-V of one's own
        ({"product_name": "Google Compute Engine"}, "gcp"),
        ({"sys_vendor": "Amazon EC2", "chassis_asset_tag": "Amazon EC2"}, "aws"),
        ({"sys_vendor": "Dell Inc."}, ""),
        ({}, ""),
    ],
)
def test_the_firmware_says_which_cloud_it_is(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert provider(tmp_path) == expected


def test_where_there_is_no_cloud_nothing_is_asked(tmp_path: Path, imds: ImdsServer) -> None:
    source = open_reader(Settings(dmi=tmp_path, base_url=imds.url))
    with pytest.raises(Unsupported):
        source.read()
    source.close()
    assert imds.requests == []


def test_numbers_until_the_soonest_of_each_kind() -> None:
    made = [Notice(str(n), "freeze", False, False, True, in_s=float(n)) for n in (70, 30)]
    made += [Notice("r", "reboot", True, True, True, in_s=0.0), Notice("x", "reboot", True, False, True)]
    said = {(s.labels["kind"], s.labels["ends_work"]): s.value for s in metrics(MaintenanceFacts("azure", tuple(made)))}
    assert said == {("freeze", "no"): 30.0, ("reboot", "yes"): 0.0}
    assert list(metrics(MaintenanceFacts("azure"))) == []
