"""HEARTBEATS -> RUNS. Pure: attempts, progress, hangs, lost work."""
