"""LEDGER -> MONEY. Pure: every billed node-second in exactly one category, priced exactly."""
