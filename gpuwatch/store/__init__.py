"""SQLite (default): ledger, events, actions, what must survive a restart."""
