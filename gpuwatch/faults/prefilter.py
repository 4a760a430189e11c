"""Whether a line can have anything to do with a fault, asked of the bytes of every line before anything else.

A storm is 100,000 lines a second, of which hardly one is told. Kernel messages begin with a name that says who speaks,
so in the usual forms of a log four bytes at a known place decide; a line of another form is searched for all the names.
"""

from __future__ import annotations

from gpuwatch.faults.interpreter import GRAMMARS

JSON = (b"{", b"\x1e{", b"data: {")  # journalctl -o json, json-seq, json-sse

_HEADS = tuple(
    head.encode()
    for head in (
        *("NVRM", "nvidia-nvswitch", "nvidia-peermem", "nvidia_peermem", "nv_peer_mem", "Linux version "),
        *(head for grammar in GRAMMARS for head in grammar.HEADS),
    )
)
_FOURS = frozenset(head[:4] for head in _HEADS)
_WORDS = (b" repeated ", b"pciehp", *(word.encode() for grammar in GRAMMARS for word in grammar.WORDS))
_ALL = tuple(dict.fromkeys((*_HEADS, *_WORDS)))
_TAG = b"kernel: "


def matters(raw: bytes) -> bool:
    """False only where no grammar of kernel messages can read anything in this line, whatever stands before it."""
    first = raw[:1]
    if first == b"[":
        at = raw.find(b"] ") + 2
        if _TAG in raw:  # a stamp, then a host and the tag; or a message that holds the word
            return _anywhere(raw)
    elif first.isdigit() and raw.find(b",", 0, 5) > 0:  # /dev/kmsg
        at = raw.find(b";") + 1
    else:
        at = raw.find(_TAG) + len(_TAG)
        if at < len(_TAG):
            return _anywhere(raw)
        if raw[at : at + 1] == b"[":
            at = raw.find(b"] ", at) + 2
    head = raw[at : at + 4]
    if at <= 1 or not head[:1].isalpha():
        return _anywhere(raw)
    return head in _FOURS or any(map(raw.__contains__, _WORDS))


def _anywhere(raw: bytes) -> bool:
    return (
        any(map(raw.__contains__, _ALL))
        or raw.startswith(b"-- ")
        or (raw.startswith(JSON) and (b'"MESSAGE":[' in raw or b'"MESSAGE": [' in raw))  # not UTF-8: as numbers
    )
