"""A real aggregator of four slots, in this process, for tests that ask it something."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from gpuwatch.aggregator import settings as settings_file
from gpuwatch.wiring.aggregator import Aggregator

TOML = """
[server]
listen = "127.0.0.1:0"
secret_file = "secret"
operator_token_file = "operator"
state_dir = "state"
hold_file = "HOLD"
tick_s = 0.2

[pools.p]
nodes = ["gpu[01-04]"]
gpus = 8
"""


@contextlib.contextmanager
def running_in(folder: Path) -> Iterator[Aggregator]:
    """It serves until the end; an operator's token lies in `operator`."""
    (folder / "secret").write_text("a secret of the tests, long enough")
    (folder / "operator").write_text("an operator of the tests\n")
    (folder / "aggregator.toml").write_text(TOML)
    made = Aggregator(settings_file.load(folder / "aggregator.toml"))
    made.start()
    yield made
    made.stop()
