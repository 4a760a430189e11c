"""The central process: server, fleet, loop, executor, page."""
