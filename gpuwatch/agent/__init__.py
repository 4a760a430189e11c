"""The node process: loop, probe (child process), exporter, sender, spool. Imports nothing of the aggregator."""
