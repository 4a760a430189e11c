"""What the test library answers, written so that it notices every change."""

from __future__ import annotations

import os
from pathlib import Path


class State:
    """The state file of answers.c (its head says which keys there are)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written_ns = 0
        self.lines: dict[tuple[int, str], object] = {}
        self.write()

    def all(self, **values: object) -> None:
        """The same for the library and all GPUs; None takes a line away. `field__230` is written `field:230`."""
        self.gpu(-1, **values)

    def gpu(self, index: int, **values: object) -> None:
        """For one GPU."""
        for key, value in values.items():
            place = (index, key.replace("__", ":"))
            if value is None:
                self.lines.pop(place, None)
            else:
                self.lines[place] = value
        self.write()

    def write(self) -> None:
        """Replace the file at once; its time always grows, by a nanosecond if need be."""
        text = "".join(
            f"{f'gpu {index} ' if index >= 0 else ''}{key} {value}\n" for (index, key), value in self.lines.items()
        )
        new = self.path.with_suffix(".new")
        new.write_text(text or "count 8\n")
        self._written_ns = max(self._written_ns + 1, new.stat().st_mtime_ns)
        os.utime(new, ns=(self._written_ns, self._written_ns))
        new.rename(self.path)
