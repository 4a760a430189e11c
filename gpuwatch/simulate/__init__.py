"""A simulated cluster that speaks the real protocols: GPUs, nodes, a training gang, faults."""
