"""What a port was, where its memory is lost, older than what was told, of another boot, or makes no sense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuwatch.sdk.rdma_files import PortSays
from gpuwatch.sdk.rdma_history import History, PortBefore

NS = 10**9
BEGUN_UNIX_NS = 1_800_000_000 * NS
KEY = "0000:1a:00.0/1"


class Agents:
    """One agent after another on the same node, at moments that the test gives; each looks once a minute."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.now_s = 50_000.0

    def begin(self) -> History:
        history = History(flap_window_s=3600, rise_window_s=600, boot_grace_s=600, since_boot_s=lambda: self.now_s)
        history.keep(self.folder, True)
        return history

    def look(self, history: History, state: str, downed: int | None, *, looks: int = 1) -> PortBefore:
        counters = {} if downed is None else {"link_downed": downed}
        says = PortSays(state, None, 400.0, "infiniband", None, None, False, counters)
        for _ in range(looks):
            self.now_s += 60
            before = history.see(KEY, "mlx5_0", 1, says, self.now_unix_ns())
            history.save()
        return before

    def flaps(self, history: History, downed: int, *, looks: int = 1) -> int:
        return len(self.look(history, "active", downed, looks=looks).flaps_s)

    def now_unix_ns(self) -> int:
        return BEGUN_UNIX_NS + int(self.now_s * NS)


@pytest.fixture
def agents(tmp_path: Path) -> Agents:
    return Agents(tmp_path / "state")


def test_losses_that_the_disk_did_not_take_are_not_told_anew_by_the_next_agent(agents: Agents) -> None:
    first = agents.begin()
    assert agents.flaps(first, 40, looks=3) == 0
    aside = agents.folder.with_name("aside")
    agents.folder.rename(aside)  # from here on nothing can be written
    assert agents.flaps(first, 52) == 12
    assert agents.flaps(first, 52, looks=61) == 0
    aside.rename(agents.folder)
    assert agents.flaps(agents.begin(), 52) == 0


def test_losses_that_the_disk_did_not_take_are_written_when_they_can_be(agents: Agents) -> None:
    first = agents.begin()
    agents.flaps(first, 40)
    aside = agents.folder.with_name("aside")
    agents.folder.rename(aside)
    assert agents.flaps(first, 52) == 12
    aside.rename(agents.folder)
    first._memory._again_s = 0.0  # a minute later
    assert agents.flaps(first, 52) == 12
    assert json.loads((agents.folder / "learned-infiniband.json").read_text())["ports"][KEY]["link_downed"] == 52


@pytest.mark.parametrize(("away_s", "told"), [(1800, 12), (3600, 0), (86_400, 0)])
def test_losses_while_no_agent_ran_are_told_only_where_they_are_surely_fresh(
    agents: Agents, away_s: float, told: int
) -> None:
    agents.flaps(agents.begin(), 40, looks=3)
    agents.now_s += away_s
    second = agents.begin()
    assert agents.flaps(second, 52) == told
    assert agents.flaps(second, 52, looks=61) == 0


@pytest.mark.parametrize(
    ("away_s", "downed", "stays"),
    [(600, 41, True), (600, None, True), (600, 42, False), (86_400, 41, False)],
)
def test_a_port_is_down_for_long_only_where_it_was_not_up_meanwhile(
    agents: Agents, away_s: float, downed: int | None, *, stays: bool
) -> None:
    first = agents.begin()
    agents.look(first, "active", 40)
    since = agents.look(first, "down", 41, looks=10).not_active_since_unix_ns
    agents.now_s += away_s
    again = agents.look(agents.begin(), "down", downed)
    assert again.not_active_since_unix_ns == (since if stays else agents.now_unix_ns())


def test_a_port_that_is_gone_for_days_stays_so_over_a_restart_of_the_agent(agents: Agents) -> None:
    first = agents.begin()
    agents.look(first, "active", 40)
    for _ in range(100):
        agents.now_s += 60
        first.miss(KEY, agents.now_unix_ns())
        first.save()
    since = BEGUN_UNIX_NS + 50_120 * NS
    second = agents.begin()
    ((_, before),) = second.absent(set(), agents.now_unix_ns())
    second.miss(KEY, agents.now_unix_ns())
    assert before.not_active_since_unix_ns == since


def test_what_links_did_while_they_came_up_is_no_flap_though_nobody_looked_until_later(agents: Agents) -> None:
    agents.now_s = 30.0
    agents.look(agents.begin(), "init", 0)
    agents.now_s = 3000.0
    assert agents.flaps(agents.begin(), 3) == 0


@pytest.mark.parametrize("boot_id", ["another", ""])
def test_another_boot_and_one_that_nobody_knows(agents: Agents, monkeypatch: pytest.MonkeyPatch, boot_id: str) -> None:
    monkeypatch.setattr("gpuwatch.sdk.rdma_history.this_boot_id", lambda: "" if not boot_id else "this")
    agents.flaps(agents.begin(), 40, looks=3)
    monkeypatch.setattr("gpuwatch.sdk.rdma_history.this_boot_id", lambda: boot_id)
    second = agents.begin()
    assert agents.flaps(second, 52) == 0
    assert agents.look(second, "active", 52).best_rate_gbps == 400.0


def test_a_memory_of_a_time_to_come_is_none(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwatch.sdk.rdma_history.this_boot_id", lambda: "this")
    late = {"link_downed": 40, "looked_s": 9e9, "counted_s": 9e9, "flaps_s": [9e9] * 20, "was_active": True}
    file = agents.folder / "learned-infiniband.json"
    file.write_text(json.dumps({"boot_id": "this", "ports": {KEY: late}}))
    assert agents.flaps(agents.begin(), 52, looks=2) == 0


def test_looks_alone_are_rarely_written(agents: Agents) -> None:
    history, written = agents.begin(), set[bytes]()
    for _ in range(60):
        agents.flaps(history, 40)
        written.add((agents.folder / "learned-infiniband.json").read_bytes())
    assert len(written) <= 13
