"""FACTS. One file per source; each ends in the line `FACTS = SomeFacts`.

A facts record travels as a msgpack array: new fields are only ever added at its end, with a default, so that the wire
versions before and after it still read. A field that is not known is `None`; `Envelope.gaps` says why.
"""
