"""The price book: bundled list prices with date and source, user overrides.

`PriceBook.bundled(overrides)` is what a process builds; `price_on` answers one question, `steps` gives the whole step
function of time of one kind of machine. A price always carries its source, its day of observation and its kind; what
has no price is `None`, never 0.
"""
