"""The boot script of docs/slurm.md reads what gpuwatch really writes on a scale set."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch.aggregator import settings
from gpuwatch.sdk.azure_marks import KEPT, PLACES, Mark, name_of, with_mark

TEXT = (Path(__file__).parents[2] / "docs" / "slurm.md").read_text()


def test_the_settings_of_the_example_are_good(tmp_path: Path) -> None:
    example = next(block for block in TEXT.split("```toml\n")[1:] if block.startswith("[pools.h100]")).partition("```")[
        0
    ]
    file = tmp_path / "aggregator.toml"
    file.write_text(f'[server]\nsecret_file = "secret"\n{example}')
    pool = settings.load(file).pools["h100"]
    assert (pool.policy.replace_order, pool.group) == ("release_first", "gpu")


@pytest.mark.parametrize(
    ("instance", "slot"), [("100", "gpu000000"), ("101", "gpu000001"), ("139", "gpu000039"), ("9", "")]
)
def test_a_machine_finds_its_place_in_the_tags(instance: str, slot: str) -> None:
    """Of 40 that were made the older ones stand in the list of places, the newer ones have a mark."""
    tags = {"owner": "ml=platform team", "empty": ""}
    here = [str(number) for number in range(100, 140)]
    for at, number in enumerate(here):
        mark = Mark(
            slot=f"gpu{at:06d}", after=int(number) - 1, at_unix_s=at, action_id=f"replace {at}", instance=number
        )
        tags = with_mark(tags, name_of(mark.action_id), mark, here)
    assert any(name.startswith(PLACES) for name in tags)
    assert sum(name.startswith("gpuwatch-create-") for name in tags) == KEPT
    (program,) = [part.partition("'")[0] for part in TEXT.split("python3 -c '")[1:]]
    words = [sys.executable, "-c", program, instance]
    done = subprocess.run(words, input=json.dumps(tags), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == slot
    assert subprocess.run(words, input="null", capture_output=True, text=True, check=True).stdout == ""
