"""What tools printed for a person, who pasted it: each line to those that can read it.

It is no log, and the agent never reads it: only `gpuwatch decode` does. A line counts only where the tool begins it.
"""

from __future__ import annotations

from gpuwatch.faults import fabric_manager, listing_text, lspci_text, nvlink_text, smi_rows, smi_text, smi_xml
from gpuwatch.faults.event import Event
from gpuwatch.faults.prefix import clean

_STARTS = tuple(dict.fromkeys((*smi_text.STARTS, *listing_text.STARTS, *nvlink_text.STARTS, *fabric_manager.STARTS)))
MAX_VALUE = 120  # bytes; a file below /sys with its path holds less


class ToolText:
    """Hears the lines in order."""

    def __init__(self) -> None:
        self._smi = smi_text.SmiText()
        self._xml = smi_xml.SmiXml()
        self._ports = listing_text.PortText()
        self._bus = lspci_text.LspciText()
        self._nvlinks = nvlink_text.NvlinkText()
        self._words = ""  # the text, as long as it is one line

    def hear(self, raw: bytes, number: int) -> list[Event]:
        """The events of one line; `number` is its place in the text, from 1."""
        if number == 1:
            self._words = raw[:MAX_VALUE].decode("utf-8", "replace") if len(raw) < MAX_VALUE else ""
        elif self._words and raw.strip():
            self._words = ""
        row = smi_rows.is_row(raw)
        device = lspci_text.is_device(raw)
        if not row and not device and not raw.startswith(_STARTS):
            return []
        text = clean(raw.decode("utf-8", "replace"))
        if device:
            return self._bus.hear(text)
        if text.lstrip().startswith("<"):
            return self._xml.hear(text)
        event = (smi_rows.read(text) if row else None) or listing_text.error_total(text) or listing_text.at_path(text)
        event = event or fabric_manager.read(text)
        if event is not None:
            return [event]
        return [*self._smi.hear(text), *self._ports.hear(text), *self._bus.hear(text), *self._nvlinks.hear(text)]

    def finish(self) -> list[Event]:
        """What was begun, and what one line alone means."""
        value = listing_text.value(self._words) if self._words else None
        return [*self._nvlinks.finish(), *([value] if value is not None else [])]
