"""`gpuwatch scan --as …` against a real aggregator: what a scheduler's exit code is in each case."""

from __future__ import annotations

import dataclasses
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuwatch.aggregator import settings as settings_file
from gpuwatch.aggregator.settings import Settings
from gpuwatch.model.policy import Mode
from gpuwatch.model.token import machine_token
from gpuwatch.wiring import scan
from gpuwatch.wiring.aggregator import Aggregator

SECRET = b"a secret of the tests, long enough"
TOML = """
[server]
listen = "127.0.0.1:0"
secret_file = "secret"
state_dir = "state"
hold_file = "HOLD"
tick_s = 0.2

[pools.p]
nodes = ["gpu[01-04]"]
gpus = 8

[pools.p.policy]
hold_off_s = 0
"""
XID_79 = "kernel: [    1.0] NVRM: Xid (PCI:0000:29:00): 79, pid=1234, name=python, GPU has fallen off the bus.\n"


def acting(settings: Settings) -> Settings:
    """A mode that acts needs a scheduler; here only the question is asked."""
    pool = settings.pools["p"]
    policy = msgspec.structs.replace(pool.policy, mode=Mode.DRAIN)
    return dataclasses.replace(settings, pools={"p": msgspec.structs.replace(pool, policy=policy)})


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Aggregator]:
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "aggregator.toml").write_text(TOML)
    made = Aggregator(acting(settings_file.load(tmp_path / "aggregator.toml")))
    made.start()
    yield made
    made.stop()


class Node:
    """A node with an agent that reports for a moment, so that it is known, and then a fault in its kernel log."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.config = folder, folder / "agent.toml"
        (folder / "token").write_text(machine_token(SECRET, "m-1"))
        (folder / "gpus.json").write_text(json.dumps({"gpu_count": 8}))
        self.log = folder / "kernel.log"
        self.log.write_text("kernel: [    0.0] Linux version 6.1\n")
        self.write(url)

    def write(self, url: str) -> None:
        self.config.write_text(
            f"""
slot = "gpu01"
machine = "m-1"
state_dir = "{self.folder}/state-of-agent"
aggregator = ["{url}"]
token_file = "{self.folder}/token"
metrics_listen = ""
interval_s = 0.2
[collectors.nvml]
preload = "gpuwatch.simulate.nvml:install"
preload_argument = "{self.folder}/gpus.json"
container = "no"
[collectors.kernel_log]
source = "file"
path = "{self.log}"
"""
        )

    def report_once(self, centre: Aggregator) -> None:
        words = [sys.executable, "-m", "gpuwatch.wiring.agent", "--config", str(self.config)]
        agent = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        try:
            until_s = time.monotonic() + 20
            while "m-1" not in centre._core.stage.scene.views:
                assert time.monotonic() < until_s
                time.sleep(0.05)
        finally:
            agent.kill()
            agent.wait()

    def breaks(self) -> None:
        with self.log.open("a") as file:
            file.write(XID_79)


def test_a_conclusive_fault_takes_the_node_out_only_where_it_is_granted(
    centre: Aggregator, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "node").mkdir()
    node = Node(tmp_path / "node", centre.url)
    node.report_once(centre)

    def asked(role: str = "prolog") -> tuple[int, str]:
        code = scan.run_as(role, config=node.config)
        return code, capfd.readouterr().out.strip()

    assert asked() == (0, "gpuwatch: ok")
    node.breaks()
    (tmp_path / "HOLD").touch()
    code, line = asked()
    assert (code, "not taken out" in line, "HOLD exists" in line) == (0, True, True)
    (tmp_path / "HOLD").unlink()
    code, line = asked("healthcheck")
    assert code == 10
    assert line.startswith("gpuwatch: gpu ")
    assert "\n" not in line

    node.write("http://127.0.0.1:9")  # nobody there
    code, line = asked()
    assert (code, "gives no answer" in line) == (0, True)
    with socket.socket() as deaf:  # it takes the call and never answers
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        node.write(f"http://127.0.0.1:{deaf.getsockname()[1]}")
        begun_s = time.monotonic()
        code, line = asked()
        assert (code, "no answer" in line, time.monotonic() - begun_s < 6) == (0, True, True)
    (node.folder / "token").unlink()
    assert asked()[0] == 0
    node.config.write_text("slot = [broken")
    code, line = asked("init")
    assert (code, line.startswith("gpuwatch: ok as far as known: ConfigError")) == (0, True)
    assert scan.run_as("prolog", config=tmp_path / "absent.toml") == 0
