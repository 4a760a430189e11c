"""gpuwatch: facts come up from the nodes, thought happens in the middle without touching anything, and actions go down
through one narrow door.

    NODE FACTS --> EVIDENCE --> VERDICT --> PLAN --> ACTION --> LEDGER --> REPORT

Which room?

    read one more number from the node .............. collectors/
    recognise one more fault ......................... rules/
    change how sure we must be, or how long we wait .. decide/judge.py
    change how many nodes may be out, or when ........ decide/limits.py
    know why a node was not replaced ................. the Hold in the plan, made in decide/planner.py
    support another cloud or scheduler ............... clouds/, schedulers/
    ask why the bill says what it says ............... cost/, then the ledger lines it cites
    print the report another way ..................... reports/
    learn what a word means .......................... model/: one file per word of the arrow
    know why it was built so ......................... docs/decisions.md
"""

__version__ = "0.1.0"
