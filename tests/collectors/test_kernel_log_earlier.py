"""The journal of the boot before may lie on a disk that answers nobody: then it is not looked at without end."""

from __future__ import annotations

import json
import time
from pathlib import Path

from gpuwatch.collectors import kernel_log
from gpuwatch.collectors.kernel_log import EARLIER_AFTER_NS, EARLIER_SILENT_NS
from gpuwatch.model.facts.kernel_log import KernelEvent
from tests.fakes import FakeClock

NS = 10**9
BOOT = "11111111-2222-3333-4444-555555555555"
ENTRY = {
    "MESSAGE": "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "_TRANSPORT": "kernel",
    "_BOOT_ID": "9" * 32,
    "_SOURCE_MONOTONIC_TIMESTAMP": "49000000000",
    "__REALTIME_TIMESTAMP": "1789999000000000",
}


def test_a_journal_that_says_nothing_is_looked_at_with_the_others_and_heard_when_it_speaks(tmp_path: Path) -> None:
    command, clock = tmp_path / "journalctl", FakeClock()
    command.write_text(f"#!/bin/sh\nwhile [ ! -e {tmp_path}/go ]; do sleep 0.02; done\ncat {tmp_path}/earlier\n")
    command.chmod(0o755)
    (tmp_path / "ring").touch()
    (tmp_path / "earlier").write_text(json.dumps(ENTRY) + "\n")
    settings = kernel_log.Settings(
        source="kmsg", path=tmp_path / "ring", journalctl=command, cursor=tmp_path / "cursor", fabric_manager_log=None
    )
    reader = kernel_log.open_reader(settings, clock, BOOT)
    try:
        clock.pass_s(EARLIER_AFTER_NS / NS)
        assert reader.read().more, "it may speak at once"
        clock.pass_s(EARLIER_SILENT_NS / NS)
        reading = reader.read()
        assert not reading.more
        (tmp_path / "go").touch()
        events: list[KernelEvent] = []
        until = time.monotonic() + 20
        while time.monotonic() < until and not events:
            reading = reader.read()
            events += reading.facts.events
            time.sleep(0.01)
        assert [event.xid for event in events] == [79]
        while time.monotonic() < until and reading.more:
            reading = reader.read()
        assert not reading.more
        assert reader._earlier is None, "its end was heard"
    finally:
        reader.close()
