"""Xids as NVML tells them: the second-best source, listened to only while the kernel log cannot be read.

NVML does not deliver the worst ones (79, 119, 120: NVIDIA/DCGM#162), nor the text that 74, 144 to 150 and 154 need. It
is asked without waiting, once a round; a GPU that refuses to be listened to does not keep the others from it.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterable

from gpuwatch.model.facts.nvml import Xid
from gpuwatch.sdk.nvml_answers import SUCCESS
from gpuwatch.sdk.nvml_calls import Calls
from gpuwatch.sdk.nvml_gpu import Slot

XID_EVENT = 0x8  # nvmlEventTypeXidCriticalError
MOST_A_ROUND = 64  # a storm is folded by the kernel log's reader; here the rest waits in the driver
KEPT_NS = 600 * 10**9  # so long an Xid is in every report: one report may be lost
MOST_KEPT = 64


class _Event(ctypes.Structure):
    """nvmlEventData_t."""

    _fields_ = (
        ("device", ctypes.c_void_p),
        ("eventType", ctypes.c_ulonglong),
        ("eventData", ctypes.c_ulonglong),
        ("gpuInstanceId", ctypes.c_uint),
        ("computeInstanceId", ctypes.c_uint),
    )


class Xids:
    """What was heard of late. `fresh` says whether the last look heard anything new."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._set: ctypes.c_void_p | None = None
        self._places: dict[int, str | None] = {}  # handle -> PCI address
        self._listening: set[int] = set()
        self._kept: deque[Xid] = deque(maxlen=MOST_KEPT)
        self._count = 0
        self.fresh = False

    def forget(self) -> None:
        """The library was ended: its event set and handles went with it."""
        self._set = None
        self._listening.clear()
        self._places.clear()

    def look(self, slots: Iterable[Slot], now_unix_ns: int) -> tuple[Xid, ...]:
        """The Xids of the last ten minutes."""
        self.fresh = False
        if self._set is None:
            made = ctypes.c_void_p()
            if self._calls.code("nvmlEventSetCreate", ctypes.byref(made)) != SUCCESS:
                return tuple(self._kept)
            self._set = made
        for slot in slots:
            self._listen(slot)
        for _ in range(MOST_A_ROUND):
            event = _Event()
            if self._calls.code("nvmlEventSetWait_v2", self._set, ctypes.byref(event), 0) != SUCCESS:
                break  # nothing more; or a GPU is lost, which its own answers tell
            if event.eventType == XID_EVENT and event.eventData < 1 << 31:
                self._keep(event, now_unix_ns)
        while self._kept and now_unix_ns - self._kept[0].at_unix_ns > KEPT_NS:
            self._kept.popleft()
        return tuple(self._kept)

    def _listen(self, slot: Slot) -> None:
        place = ctypes.cast(slot.handle, ctypes.c_void_p).value if slot.handle is not None else None
        if place is None:
            return
        self._places[place] = slot.named.get("pci")
        if place not in self._listening:
            self._listening.add(place)  # asked once, whatever it answers
            self._calls.code("nvmlDeviceRegisterEvents", slot.handle, ctypes.c_ulonglong(XID_EVENT), self._set)

    def _keep(self, event: _Event, now_unix_ns: int) -> None:
        self._count += 1
        pci = self._places.get(event.device or 0)
        self._kept.append(Xid(f"nvml/{now_unix_ns}/{self._count}", now_unix_ns, pci, int(event.eventData)))
        self.fresh = True
