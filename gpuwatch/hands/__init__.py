"""ORDERS -> THE NODE. A process of its own, off by default, with no port and no network: `gpuwatch-hands`.

In: one file with the present order, which the agent wrote as it came in the reply to a report. Out: one file with the
nonce for the next order and what became of the last ones, which the agent reports. Whatever the order says, the hands
decide by themselves whether it is ours (`paper`), whether the node is free for it (`work`, `gpus`), and write each step
down before it is done (`journal`): nothing is ever done twice, and nothing is done that cannot be written down.
"""
