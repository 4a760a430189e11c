"""How a command that fails says so: in sentences, or as one JSON object where JSON was asked for.

Always on stderr, with the exit code beside it: on stdout stands the whole answer, or nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from gpuwatch.errors import GpuwatchError


def run(app: Callable[..., Any], words: Sequence[str]) -> None:
    """Run the command line. Raises `SystemExit`."""
    as_json = wants_json(words)
    try:
        if not as_json:
            app()
            return
        code = app(standalone_mode=False)  # else words that do not fit are told in a box
    except GpuwatchError as error:
        print(told(error) if as_json else f"gpuwatch: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except typer.Abort:
        sys.exit(130)  # Ctrl-C
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        print(told(error), file=sys.stderr)  # an option that there is not, a value that is none
        sys.exit(getattr(error, "exit_code", 2))
    sys.exit(code)


def wants_json(words: Sequence[str]) -> bool:
    """`--json`, `--format json`, `--format=json`, `-f json`, `-fjson`."""
    pairs = zip(words, [*words, ""][1:], strict=True)
    return any(
        word in ("--json", "--format=json", "-fjson") or (word in ("--format", "-f") and value == "json")
        for word, value in pairs
    )


def told(error: Any, exit_code: int | None = None) -> str:
    """`{"error": {"what", "why", "next", "kind", "exit_code"}}`, in one line."""
    ours = isinstance(error, GpuwatchError)
    parts = {
        "what": error.what if ours else error.format_message(),
        "why": error.why if ours else "",
        "next": error.next_step if ours else "see gpuwatch COMMAND --help",
        "kind": type(error).__name__ if ours else "UsageError",
        "exit_code": getattr(error, "exit_code", 2) if exit_code is None else exit_code,
    }
    return json.dumps({"error": parts}, ensure_ascii=False)
