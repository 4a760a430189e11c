"""The fault catalogue and the grammar of kernel lines. Pure; used by collectors, rules and `gpuwatch decode`.

In: lines of a kernel log (`reader.LogReader`), or records of the ring and the journal (`prefix.split_kmsg`,
`journal.split`, then `interpreter.Interpreter`). Out: `event.Event`, one fault told once, with the catalogue's verdict.

line -> prefilter (can it matter?) -> prefix (is it the kernel's?) -> interpreter (which grammar: xid, driver, switch,
network, disk, memory, lockup, pcie; `chains` joins what is one fault) -> event -> story (folded, grouped into
incidents, one decision). Beside the kernel `daemons` may speak, each of its own subject; text of tools (`tool_text`
and what it asks) is read by `decode` alone. A new number or name is a row in `data/`; a new form of line is
a row in the table of its grammar's test, or a case in `tests/cases/`.
"""
