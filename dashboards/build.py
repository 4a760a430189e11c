"""The four dashboards. `python -m dashboards.build` writes them as JSON beside this file.

Each answers, from the top and within seconds: what is sick, what is being done about it, what it costs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from dashboards.fleet import fleet
from dashboards.money import money
from dashboards.node import node
from dashboards.parts import Json
from dashboards.runs import runs

DASHBOARDS: Mapping[str, Callable[[], Json]] = {"fleet": fleet, "node": node, "runs": runs, "money": money}


def text(name: str) -> str:
    """The file's content."""
    return json.dumps(DASHBOARDS[name](), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for one in DASHBOARDS:
        (Path(__file__).parent / f"{one}.json").write_text(text(one))
