"""Many numbers in one call: `nvmlDeviceGetFieldValues`, whose records are made once for each set of questions.

The call as a whole succeeds though single fields fail: each answer carries its own return code.
"""

from __future__ import annotations

import struct
from typing import Any

from gpuwatch.sdk.nvml_answers import SUCCESS, Refused
from gpuwatch.sdk.nvml_calls import Calls

FUNCTION = "nvmlDeviceGetFieldValues"
Question = tuple[int, int]
"""NVML_FI_DEV_* number and its scope, 0 where it has none (a link's number for NVLink)."""

_RECORD = struct.Struct("@24xIIQ")  # past field, scope, moment and latency: the value's type, the return code, the bits
_DOUBLE, _SIGNED, _INT = 0, 4, 5
_WIDTHS = {1: (1 << 32) - 1, 2: (1 << 64) - 1, 3: (1 << 64) - 1, 6: (1 << 16) - 1}  # unsigned: type -> its bits
_KINDS = 7


class Fields:
    """Sets of questions, ready to be asked."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def ask(self, handle: Any, questions: tuple[Question, ...]) -> dict[Question, Any]:
        """A value or a `Refused` for each; all refused alike where the whole call is."""
        if not questions:
            return {}
        batch, ref = self._calls.record(questions, lambda: self._made(questions))
        code = self._calls.code(FUNCTION, handle, len(questions), ref)
        if code != SUCCESS:
            return dict.fromkeys(questions, self._calls.refused(code, FUNCTION))
        return {
            question: self._calls.refused(code, f"field {question[0]}")
            if code
            else (bits & _WIDTHS[kind] if kind in _WIDTHS else _value(question, kind, bits))
            for question, (kind, code, bits) in zip(questions, _RECORD.iter_unpack(batch), strict=True)
        }

    def _made(self, questions: tuple[Question, ...]) -> Any:
        batch = (self._calls.binding.field * len(questions))()
        for record, (number, scope) in zip(batch, questions, strict=True):
            record.fieldId, record.scopeId = number, scope
        return batch


def _value(question: Question, kind: int, bits: int) -> Any:
    if kind == _INT:
        low = bits & 0xFFFFFFFF
        return low - (1 << 32) if low >> 31 else low
    if kind == _SIGNED:
        return bits - (1 << 64) if bits >> 63 else bits
    if kind == _DOUBLE:
        return struct.unpack("=d", struct.pack("=Q", bits))[0]
    return bits if kind < _KINDS else Refused(None, f"field {question[0]}: value type {kind} is not known")
