"""Facts travel raw and are decoded when somebody asks, by the collector's name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

import gpuwatch.model.facts
from gpuwatch import registry
from gpuwatch.model.wire import Envelope

KINDS: Mapping[str, type] = registry.leaves(gpuwatch.model.facts, "FACTS", type)
"""Collector name -> its fact record. A collector that is not here is kept and counted, never decoded."""

_DECODERS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    name: msgspec.msgpack.Decoder(kind) for name, kind in KINDS.items()
}
_COLLECTOR_OF = {kind: name for name, kind in KINDS.items()}


def decoded(envelope: Envelope) -> Any:
    """The fact record of one envelope; None where the status is not `ok` or the collector is unknown.

    Raises `msgspec.MsgspecError` where the facts do not fit the record, `RecursionError` where they nest without end.
    """
    decoder = _DECODERS.get(envelope.collector)
    if decoder is None or envelope.status != "ok" or not envelope.facts:
        return None
    return decoder.decode(envelope.facts)


class LazyFacts(Mapping[type, Any]):
    """Fact records by type, decoded at the first look: most looks at a node need none of them.

    A record that does not fit its type is as if it were not there: missing, never a default.
    """

    __slots__ = ("_envelopes", "_found")

    def __init__(self, envelopes: Mapping[str, Envelope]) -> None:
        self._envelopes = envelopes
        self._found: dict[type, Any] = {}

    def get(self, kind: type, default: Any = None) -> Any:
        """Written out: each rule asks, mostly for what is not there, and `Mapping` would raise and catch for that."""
        try:
            found = self._found[kind]
        except KeyError:
            found = self._found[kind] = self._look(kind)
        return default if found is None else found

    def __getitem__(self, kind: type) -> Any:
        found = self.get(kind)
        if found is None:
            raise KeyError(kind)
        return found

    def _look(self, kind: type) -> Any:
        envelope = self._envelopes.get(_COLLECTOR_OF.get(kind, ""))
        try:
            return None if envelope is None else decoded(envelope)
        except (msgspec.MsgspecError, RecursionError):
            return None

    def __iter__(self) -> Iterator[type]:
        return (kind for kind in _COLLECTOR_OF if self.get(kind) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)
