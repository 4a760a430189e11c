"""The price book: bundled list prices with date and source, user overrides."""
