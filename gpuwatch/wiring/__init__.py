"""Builds real objects from settings, one module a process; the only place where everything meets."""
