"""SQLite (default): the ledger, and what must survive a restart.

In: ledger lines, events, actions' steps, people's orders. Out: the same, in order. `append` and every `save_…` return
only when the data is on the disk. Everything that goes wrong is a `StoreError` with the next step.
One aggregator writes (`Store(path, sole=True)` takes a lock); reports and imports may open the same file beside it.
"""
