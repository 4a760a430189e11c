"""An order for the node's hands, put where they look for it. The agent neither reads it nor does anything itself."""

from __future__ import annotations

import logging
from pathlib import Path

log = logging.getLogger(__name__)


class OrderFile:
    """One file, of which the last order that came is the content."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = ""
        self._complained = False

    def put(self, order: str) -> None:
        """The aggregator repeats an order with each reply until it was answered: the same again changes nothing."""
        if order == self._last:
            return
        new = self.path.with_name(f".{self.path.name}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(order)
            new.replace(self.path)
        except OSError as error:
            if not self._complained:
                log.error("an order for this node's hands cannot be passed on: %s", error)
            self._complained = True
            return
        self._last, self._complained = order, False
        log.info("an order for this node's hands is passed on")
