"""The aggregator as a process: signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.parametrize(("at_terminal", "ends"), [(False, False), (True, True)])
def test_a_hang_up_ends_it_only_at_a_terminal(tmp_path: Path, at_terminal: bool, ends: bool) -> None:
    (tmp_path / "secret").write_text("a secret that is long enough")
    (tmp_path / "secret").chmod(0o600)
    path = tmp_path / "aggregator.toml"
    path.write_text(f'[server]\nlisten = "127.0.0.1:0"\nsecret_file = "secret"\nstate_dir = "{tmp_path}/state"\n')
    leader, terminal = os.openpty()
    words = [sys.executable, "-m", "gpuwatch.wiring.aggregator", "--config", str(path)]
    process = subprocess.Popen(
        words, stdin=terminal if at_terminal else subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    os.close(terminal)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"gpuwatch aggregator: http://127.0.0.1:")
        process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert (process.poll() is not None) is ends
        if not ends:
            process.send_signal(signal.SIGTERM)
            assert process.wait(15) == 0
    finally:
        process.kill()
        process.communicate()
        os.close(leader)
