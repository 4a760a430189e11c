"""EVIDENCE -> VERDICT -> PLAN. Pure: values in, values out, no clock, no log.

In: the fleet as its witnesses tell it, findings of the rules, the last judgement, policies, memory, the moment.
Out: a judgement, a plan (actions and holds, each with its because), the inspector's objections to it.

    ask the rules .......................... assess.py
    condemn, or not ........................ judge.py, with witnesses.py (silence), strongest.py, stalls.py (runs)
    what to do ............................. planner.py, with wanted.py (which action for a sick node), returning.py
                                             (a well one that we drained) and stalled_runs.py
    how much may be out, and when .......... limits.py
    now or at the next checkpoint .......... drain_timing.py
    read the finished plan again ........... inspector.py (shares no code with the planner)
"""
