"""The story breaks four different nodes of the run, however large the cluster is."""

from __future__ import annotations

import http.server
import json
import threading
import urllib.request
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuwatch.simulate.story import Story, victims


@pytest.mark.parametrize("count", range(5, 65))
def test_four_different_nodes_and_never_the_first_spare(count: int) -> None:
    slots = tuple(f"gpu{n:02d}" for n in range(1, count + 1))
    chosen = victims(slots)
    assert len(set(chosen)) == 4
    assert slots[-1] not in chosen


def test_the_usual_cluster_is_broken_as_the_readme_tells() -> None:
    assert victims(tuple(f"gpu{n:02d}" for n in range(1, 17))) == ("gpu05", "gpu09", "gpu03", "gpu02")


class _Aggregator(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"incidents": [{"fault": "f1"}]}).encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


def test_a_proxy_for_the_world_outside_is_not_asked_for_our_own_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one in the environment the demo never saw its aggregator."""
    monkeypatch.setattr(urllib.request, "_opener", None)  # urlopen remembers the environment of its first use
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with http.server.HTTPServer(("127.0.0.1", 0), _Aggregator) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        story = Story(cast("Any", SimpleNamespace(port=server.server_port)), print)
        story.score.faults["f1"] = "a node dies"
        assert story.prices() == {"f1": {"fault": "f1"}}
