"""What the driver says without a number, in one line or over several."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.faults import driver
from gpuwatch.faults.event import Event
from gpuwatch.faults.reader import LogReader
from gpuwatch.faults.story import Story


def events(*messages: str) -> list[Event]:
    story = Story()
    reader = LogReader(story)
    for message in messages:
        reader.feed(message.encode())
    reader.finish()
    return [told.event for told in story.told]


OLD_MISMATCH = (
    "NVRM: API mismatch: the client has the version 535.54.03, but",
    "NVRM: this kernel module has the version 530.30.02.  Please",
    "NVRM: make sure that this kernel module and all NVIDIA driver",
    "NVRM: components have the same version.",
)


@pytest.mark.parametrize(
    ("messages", "kind", "pci", "action", "details"),
    [
        (
            ("NVRM: GPU 0000:09:00.0: RmInitAdapter failed! (0x22:0x56:894)",),
            "gpu_init_failed",
            "0000:09:00",
            "reboot",
            {"codes": "0x22:0x56:894"},
        ),
        (("NVRM: RmInitAdapter failed! (0x26:0xffff:1375)",), "gpu_init_failed", None, "reboot", {}),
        (
            ("NVRM: GPU 0000:09:00.0: rm_init_adapter failed, device minor number 3",),
            "gpu_init_failed",
            "0000:09:00",
            "reboot",
            {"minor": 3},
        ),
        (
            ("NVRM: rm_init_adapter failed for device bearing minor number 0",),
            "gpu_init_failed",
            None,
            "reboot",
            {"minor": 0},
        ),
        (
            (
                "NVRM: GPU6 _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP",
                "NVRM: GPU6 RmInitAdapter: Cannot initialize GSP firmware RM",
                "NVRM: GPU 0000:a1:00.0: RmInitAdapter failed! (0x62:0x40:2168)",
                "NVRM: GPU 0000:a1:00.0: rm_init_adapter failed, device minor number 7",
            ),
            "gpu_init_failed",
            "0000:a1:00",
            "drain_replace",
            {"minor": 7, "gpu_index": 6, "protected_region_up": True},
        ),
        (
            ("NVRM: GPU6 _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP",),
            "gpu_init_failed",
            None,
            "drain_replace",
            {"gpu_index": 6},
        ),
        (  # R535
            (
                "NVRM: _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP",
                "NVRM: _kgspBootGspRm: (the GPU is likely in a bad state and may need to be reset)",
                "NVRM: RmInitAdapter: Cannot initialize GSP firmware RM",
                "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x40:1860)",
                "NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0",
            ),
            "gpu_init_failed",
            "0000:01:00",
            "drain_replace",
            {"minor": 0, "protected_region_up": True},
        ),
        (
            ("NVRM: kgspInitRm_IMPL: unexpected WPR2 already up, cannot proceed with booting gsp",),
            "gpu_init_failed",
            None,
            "drain_replace",
            {"protected_region_up": True},
        ),
        (  # NVIDIA/gpu-operator#492
            (
                "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:",
                "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:14:00.0)",
                "nvidia: probe of 0000:14:00.0 failed with error -1",
            ),
            "gpu_init_failed",
            "0000:14:00",
            "contact_support",
            {},
        ),
        (  # no reboot connects a cable
            (
                "NVRM: GPU 0000:01:00.0: GPU does not have the necessary power cables connected.",
                "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x24:0x1c:1603)",
                "NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0",
            ),
            "gpu_init_failed",
            "0000:01:00",
            "drain_replace",
            {"minor": 0},
        ),
        (OLD_MISMATCH, "driver_mismatch", None, "reboot", {"client": "535.54.03", "module": "530.30.02"}),
        (OLD_MISMATCH[:1], "driver_mismatch", None, "reboot", {"client": "535.54.03"}),
        (("NVRM: No NVIDIA GPU found.",), "driver_no_device", None, "none", {}),
        (
            ("nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context",),
            "peermem_invalid_context",
            None,
            "none",
            {},
        ),
        (
            ("pcieport 0000:00:01.1: pciehp: Slot(12-1): Card not present",),
            "pcie_link_down",
            "0000:00:01.1",
            "none",
            {"slot": "12-1"},
        ),
    ],
)
def test_one_event(messages: tuple[str, ...], kind: str, pci: str | None, action: str, details: dict[str, Any]) -> None:
    (event,) = events(*messages)
    assert (event.kind, event.xid, event.pci, event.action) == (kind, None, pci, action)
    assert details.items() <= event.details.items()


@pytest.mark.parametrize(
    "message",
    [
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.129.03",
        "NVRM: nvCheckOkFailedNoLog: Check failed: Requested object not found",
        "NVRM: RmInitAdapter: osInitNvMapping failed, bailing out of RmInitAdapter",
        "NVRM: osInitNvMapping: *** Cannot attach gpu",
        "NVRM: krcRcAndNotifyAllChannels_IMPL: RC all channels for critical error 79.",
        "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30).",
        "pcieport 0000:00:01.1: pciehp: Slot(0): Link Up",
        "pcieport 0000:00:01.1: pciehp: Slot(0): Card present",
        "nvidia-peermem nv_get_p2p_free_callback:127 all is well",
        "host1 app[1]: nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context",
    ],
)
def test_noise_is_no_event(message: str) -> None:
    assert events(message) == []


def test_who_is_who() -> None:
    assert driver.identity("NVRM: GPU at PCI:0000:B3:00.0: GPU-12345678-1234") == ("0000:b3:00", "GPU-12345678-1234")
    assert driver.identity("NVRM: GPU at 0000:03:00: GPU-b850") == ("0000:03:00", "GPU-b850")
    assert driver.identity("NVRM: GPU at nowhere: GPU-b850") is None
    assert driver.serial("NVRM: GPU Board Serial Number: 1650000000001") == (None, "1650000000001")
    assert driver.serial("NVRM: GPU 0000:91:00.0: GPU serial number is 165.") == ("0000:91:00", "165")
    assert driver.serial("NVRM: GPU Board Serial Number: ") is None
    assert driver.serial("NVRM: GPU Board Serial Number: 0") is None


def test_the_serial_belongs_to_the_gpu_announced_before_it() -> None:
    story = Story()
    reader = LogReader(story)
    for line in (
        "NVRM: GPU at PCI:0000:05:00: GPU-1",
        "NVRM: GPU Board Serial Number: 77",
        "NVRM: GPU at PCI:0000:06:00: GPU-2",
    ):
        reader.feed(line.encode())
    assert reader.interpreter.uuids == {"0000:05:00": "GPU-1", "0000:06:00": "GPU-2"}
    assert reader.interpreter.serials == {"0000:05:00": "77"}


def test_a_driver_that_wants_a_reset_says_so_without_a_number() -> None:
    reset = (
        "NVRM: rpcRmApiAlloc_GSP: GspRmAlloc failed: hClient=0xc1d00001; hClass=0x2080; paramsStatus=0x0; "
        "status=0x62: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062)"
    )
    event = driver.simple(reset)
    assert event is not None
    assert (event.kind, event.action, event.drain) == ("gpu_reset_required", "reset_gpu", "yes")
    assert driver.simple(reset.replace("RESET_REQUIRED", "OBJECT_NOT_FOUND")) is None
