"""A real Prometheus that scrapes agents, with the usual rule for a node that is down, and when it fires for each."""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.benchmarks.prometheus import prometheus

LOOK_S = 0.25

CONFIG = """
global: {{scrape_interval: 5s, scrape_timeout: 4s, evaluation_interval: 5s}}
rule_files: [rules.yml]
scrape_configs:
- job_name: gpuwatch
  static_configs: [{{targets: [{targets}]}}]
"""

RULES = """
groups:
- name: nodes
  rules:
  - {alert: NodeDown, expr: up == 0, for: 1m}
"""


class Alerts:
    """`fired`: slot -> monotonic seconds at which its alert was first seen to fire."""

    def __init__(self, url: str, slots: Mapping[int, str]) -> None:
        self._url = url
        self._slots = slots
        self._stopped = threading.Event()
        self.fired: dict[str, float] = {}

    @classmethod
    @contextlib.contextmanager
    def over(cls, slots: Mapping[int, str]) -> Iterator[Alerts]:
        """Scrape these ports, each of one slot's agent, while the context lasts."""
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            (directory / "rules.yml").write_text(RULES)
            config = CONFIG.format(targets=", ".join(f'"127.0.0.1:{port}"' for port in slots))
            with prometheus(directory, config) as (_, url):
                alerts = cls(url, slots)
                thread = threading.Thread(target=alerts._work, name="alerts", daemon=True)
                thread.start()
                yield alerts
                alerts._stopped.set()
                thread.join(5.0)

    def wait(self, slots: set[str], *, until_s: float) -> None:
        """Until all of these have fired, or it is so late."""
        while not slots <= self.fired.keys() and time.monotonic() < until_s:
            time.sleep(LOOK_S)

    def _work(self) -> None:
        while not self._stopped.wait(LOOK_S):
            try:
                with urllib.request.urlopen(f"{self._url}/api/v1/alerts", timeout=5) as answer:
                    found = json.loads(answer.read())["data"]["alerts"]
            except OSError:
                continue
            for alert in found:
                if alert["state"] == "firing":
                    slot = self._slots[int(alert["labels"]["instance"].rpartition(":")[2])]
                    self.fired.setdefault(slot, time.monotonic())
