"""The central process: server, fleet, loop, executor, page.

In: reports over HTTP, snapshots of scheduler and cloud, people's orders. Out: ledger lines, calls through the two doors
(`clouds`, `schedulers`), the page, the API, `/metrics`.
HTTP is asynchronous; everything that decides, counts or acts is plain functions in threads that this room owns.

    hear a report .................. ingest.py -> heard.py -> fleet.py
    poll scheduler and cloud ....... witnesses.py
    doubt ourselves ................ blindness.py
    think, once a tick ............. brain.py
    do, step by step ............... saga.py, executor.py
    tell ........................... api.py, metrics.py, page.py
"""
