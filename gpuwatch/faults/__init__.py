"""The fault catalogue and the grammar of kernel lines. Pure; used by collectors, rules and `gpuwatch decode`."""
