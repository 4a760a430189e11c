"""The real aggregator process, with one thing added: it kills itself with SIGKILL where a file tells it to.

The file holds `before 7` or `after 7`: before or after it writes down the seventh state of an action. It is taken away
first, so that the next process lives.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gpuwatch.model.ledger import LedgerLine
from gpuwatch.store.records import SagaRow
from gpuwatch.store.sqlite import Store
from gpuwatch.wiring import aggregator


def arm(order: Path) -> None:
    """From now on each state of an action is counted."""
    save, counts = Store.save_saga, Counter[str]()

    def mortal(self: Store, row: SagaRow, lines: Sequence[LedgerLine]) -> None:
        counts[row.action_id] += 1
        side, _, number = order.read_text().partition(" ") if order.exists() else ("", "", "")
        due = bool(side) and counts[row.action_id] == int(number)
        if due and side == "before":
            die()
        save(self, row, lines)
        if due:
            die()

    def die() -> None:
        order.unlink()
        os.kill(os.getpid(), signal.SIGKILL)

    Store.save_saga = mortal  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    arm(Path(os.environ["GPUWATCH_TEST_KILL"]))
    aggregator.main()
