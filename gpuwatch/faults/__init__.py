"""The fault catalogue and the grammar of kernel lines. Pure; used by collectors, rules and `gpuwatch decode`.

In: lines of a kernel log (`reader.LogReader`), or records of the ring and the journal (`prefix.split_kmsg`,
`journal.split`, then `interpreter.Interpreter`). Out: `event.Event`, one fault told once, with the catalogue's verdict.

line -> prefix (is it the kernel's?) -> interpreter (which grammar: xid, driver, switch) -> event -> story (folded,
grouped into incidents, one decision). A new number is a row in `data/`; a new form of line is a case in `tests/cases/`.
"""
