"""HEARTBEATS -> RUNS. Pure: attempts, progress, hangs, lost work.

In: sightings (a rank's record as the aggregator received it), the scheduler's word on jobs, the moment. Out: the next
book, the ledger lines that are new, and each live attempt as the thinking rooms see it.

    take in what was seen, give lines ...... track.py: new_book, absorb, views
    begin again after a restart ............ rebuilt.py: from_ledger
    one rank's record ...................... ranks.py
    which attempt, when it began and ended . attempts.py
    steps and phases of the gang ........... progress.py
    its checkpoints ........................ saves.py
    usual lengths .......................... learned.py
    ranks that stand out ................... standouts.py
"""
