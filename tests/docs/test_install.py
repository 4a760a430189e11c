"""Nothing tells anybody to install `gpuwatch` by name: on the public index that is somebody else's package."""

from __future__ import annotations

import re
from pathlib import Path

from gpuwatch.errors import install_extra

ROOT = Path(__file__).parents[2]
BY_NAME = re.compile(r"pip install (?:-\S+ )*['\"]?gpuwatch(?![-./\w])")


def test_every_text_installs_from_the_clone() -> None:
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "gpuwatch").rglob("*.py")]
    named = {str(text.relative_to(ROOT)): found[0] for text in texts if (found := BY_NAME.search(text.read_text()))}
    assert not named
    assert BY_NAME.search("pip install 'gpuwatch[azure]'")  # it would be seen
    assert "pip install '.[hands]'" in install_extra("hands")
