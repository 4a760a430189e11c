"""Looks at another process through /proc: the probes' supervision and the errands share it, see `sdk/processes.py`."""

from __future__ import annotations

from gpuwatch.sdk.processes import is_alive, kill_once, start_ticks, thread_waits_for, what_it_waits_for

__all__ = ["is_alive", "kill_once", "start_ticks", "thread_waits_for", "what_it_waits_for"]
