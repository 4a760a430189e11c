"""Options that several commands share, so that they are called the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[Path, typer.Option("--config", "-c", help="Settings file (TOML).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
