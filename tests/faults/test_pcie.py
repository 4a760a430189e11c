# ruff: noqa: E501  (log lines are quoted whole)
"""What the kernel says of the PCI Express bus. Forms: drivers/pci/pcie/{aer,err,dpc}.c and drivers/pci/pci.c of Linux."""

from __future__ import annotations

import pytest

from tests.faults_table import check

DEAD = "severity=fatal; action=drain_replace; drain=yes"
SOME = "severity=degraded; action=none; drain=after_count"
GOOD = "severity=info; action=none; drain=no"

LINES = [
    (
        f"event=aer_fatal; pci=0000:03:00.0; via=0000:00:03.0; {DEAD}",
        "pcieport 0000:00:03.0: AER: Uncorrected (Fatal) error received: 0000:03:00.0\n"
        "nvidia 0000:03:00.0: AER: can't recover (no error_detected callback)\n"
        "pcieport 0000:00:03.0: AER: device recovery failed",
    ),
    (
        f"event=aer_fatal; pci=0000:80:01.0; {DEAD}",
        "pcieport 0000:80:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
    ),
    (
        f"event=aer_fatal; pci=0000:80:01.0; {DEAD}",
        "pcieport 0000:80:01.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Receiver ID)",
    ),
    (
        f"event=aer_fatal; pci=0000:80:01.0; {DEAD}",
        "pcieport 0000:80:01.0: AER: Multiple Uncorrectable (Fatal) error message received from 0000:80:01.0",
    ),
    (
        f"event=aer_nonfatal; pci=0000:41:00.0; device=mlx5_core; {SOME}",
        "mlx5_core 0000:41:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, "
        "(Requester ID)\n"
        "mlx5_core 0000:41:00.0:   device [15b3:1021] error status/mask=00100000/00000000\n"
        "mlx5_core 0000:41:00.0:    [20] UnsupReq               (First)",
    ),
    (
        f"event=aer_nonfatal; pci=0000:3e:00.0; via=0000:00:1d.0; {SOME}",
        "pcieport 0000:00:1d.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)\n"
        "xhci_hcd 0000:3e:00.0: AER: can't recover (no error_detected callback)\n"
        "pcieport 0000:00:1d.0: AER: device recovery failed",
    ),
    (
        f"event=aer_corrected; pci=0000:3b:00.0; device=nvidia; {GOOD}",
        "nvidia 0000:3b:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
    ),
    (
        f"event=aer_corrected; pci=0000:3b:00.0; device=nvidia; {GOOD}",
        "nvidia 0000:3b:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)",
    ),
    (
        f"event=aer_corrected; pci=0000:00:1c.0; {GOOD}",
        "pcieport 0000:00:1c.0: AER: Multiple Corrected error received: 0000:00:1c.0",
    ),
    (
        f"event=aer_corrected; pci=0000:3b:00.0; {GOOD}",
        "pcieport 0000:3a:00.0: AER: Correctable error message received from 0000:3b:00.0",
    ),
    (
        f"event=aer_fatal; pci=0000:16:01.0; {DEAD}",
        "pcieport 0000:16:01.0: DPC: containment event, status:0x1f01 source:0x0000",
    ),
    (f"event=aer_recovered; pci=0000:16:01.0; {GOOD}", "pcieport 0000:16:01.0: AER: device recovery successful"),
    (
        f"event=aer_fatal; pci=0000:00:1c.0; {DEAD}",
        "dpc 0000:00:1c.0:pcie010: DPC containment event, status:0x1f01 source:0x0000",
    ),
    (f"event=pci_inaccessible; pci=0000:05:00; {DEAD}", "nvidia 0000:05:00.0: not ready 65535ms after FLR; giving up"),
    ("", "nvidia 0000:05:00.0: not ready 1023ms after bus reset; waiting"),
    (
        f"event=pci_inaccessible; pci=0000:05:00; {DEAD}",
        "nvidia 0000:05:00.0: can't change power state from D3cold to D0 (config space inaccessible)",
    ),
    (  # Linux 5.4 and older, a lost GPU (NVIDIA/nvidia-docker#1553); what other devices refuse is no fault
        f"event=pci_inaccessible; pci=0000:09:00; {DEAD}",
        "nvidia 0000:09:00.0: Refused to change power state, currently in D3",
    ),
    ("", "xhci_hcd 0000:09:00.2: Refused to change power state, currently in D3"),
    (  # the port tells of it first, then the device: one error
        f"event=aer_corrected; pci=0000:01:00.0; via=0000:00:01.0; device=nvidia; {GOOD}",
        "pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0\n"
        "nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)\n"
        "nvidia 0000:01:00.0:   device [10de:2330] error status/mask=00001000/0000a000\n"
        "nvidia 0000:01:00.0:    [12] Timeout",
    ),
    (
        f"event=aer_nonfatal; pci=0000:01:00.0; via=0000:00:01.0; device=nvidia; {SOME}",
        "pcieport 0000:00:01.0: AER: Uncorrected (Non-Fatal) error received: 0000:01:00.0\n"
        "nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)",
    ),
    (  # NVIDIA/open-gpu-kernel-modules#1229: not fatal to the port, but the driver gave the GPU up
        f"event=aer_nonfatal; pci=0000:63:00.0; via=0000:00:01.2; device=nvidia; {DEAD}",
        "pcieport 0000:00:01.2: AER: Uncorrectable (Non-Fatal) error received from 0000:63:00.0\n"
        "snd_hda_intel 0000:63:00.1: AER: can't recover (no error_detected callback)\n"
        "nvidia 0000:63:00.0: AER: can't recover (no error_detected callback)\n"
        "pcieport 0000:62:00.0: AER: device recovery failed",
    ),
    (
        f"event=aer_nonfatal; pci=0000:63:00.0; via=0000:00:01.2; device=nvidia; {DEAD}",
        "nvidia 0000:63:00.0: AER: can't recover (no error_detected callback)\n"
        "pcieport 0000:00:01.2: AER: Uncorrectable (Non-Fatal) error received from 0000:63:00.0",
    ),
    (
        f"event=aer_nonfatal; pci=0000:63:00.0; via=0000:62:00.0; device=nvidia; {DEAD}",
        "pcieport 0000:62:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)\n"
        "nvidia 0000:63:00.0: AER: can't recover (no error_detected callback)",
    ),
    (  # two devices behind one port: two errors
        f"event=aer_fatal; pci=0000:01:00.0; via=0000:00:01.0; {DEAD} || "
        f"event=aer_fatal; pci=0000:02:00.0; via=0000:00:01.0; {DEAD}",
        "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0\n"
        "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:02:00.0",
    ),
    (  # and the port's recovery is that of both
        f"event=aer_nonfatal; pci=0000:01:00.0; {SOME} || event=aer_nonfatal; pci=0000:02:00.0; {SOME} || "
        f"event=aer_recovered; pci=0000:01:00.0; via=0000:00:01.0; {GOOD} || event=aer_recovered; pci=0000:02:00.0; {GOOD}",
        "[10.000001] pcieport 0000:00:01.0: AER: Uncorrected (Non-Fatal) error received: 0000:01:00.0\n"
        "[10.000002] pcieport 0000:00:01.0: AER: Uncorrected (Non-Fatal) error received: 0000:02:00.0\n"
        "[11.000001] pcieport 0000:00:01.0: AER: device recovery successful",
    ),
    (  # as kernels before 4.20 said it (wilicc/gpu-burn#1)
        f"event=aer_fatal; pci=0000:02:00.0; via=0000:00:02.0; device=nvidia; {DEAD}",
        "pcieport 0000:00:02.0: AER: Uncorrected (Fatal) error received: id=0010\n"
        "pcieport 0000:00:02.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, id=0010(Receiver ID)\n"
        "pcieport 0000:00:02.0:    [ 5] Surprise Down Error    (First)\n"
        "pcieport 0000:00:02.0: broadcast error_detected message\n"
        "nvidia 0000:02:00.0: device has no AER-aware driver",
    ),
    (
        f"event=aer_fatal; pci=0000:01:00.0; device=nvidia; {DEAD}",
        "nvidia 0000:01:00.0: AER: can't recover (no error_detected callback)",
    ),
    (  # facebookresearch/gcm syslog checks
        f"event=aer_nonfatal; pci=0000:00:02.0; {SOME}",
        "pcieport 0000:00:02.0: AER: Uncorrectable (Non-Fatal) error received",
    ),
    (  # Documentation/PCI/pcieaer-howto.rst; NVIDIA/NVSentinel nic driver checks
        f"event=aer_fatal; pci=0000:50:00.0; {DEAD}",
        "0000:50:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Requester ID)",
    ),
    (
        f"event=aer_fatal; pci=-; {DEAD}",
        "PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Receiver ID)",
    ),
    (
        f"event=aer_fatal; pci=0015:01:00.0; via=0015:00:00.0; {DEAD}",
        "pcieport 0015:00:00.0: DPC: containment event, status:0x200d, ERR_FATAL received from 0015:01:00.0",
    ),
    (
        f"event=aer_fatal; pci=0000:61:00.0; via=0000:60:01.0; {DEAD}",
        "pcieport 0000:60:01.0: DPC: containment event, status:0x1f05 source:0x6100",
    ),
    (  # the port found it by itself: the number says nothing
        f"event=aer_fatal; pci=0000:60:01.0; {DEAD}",
        "pcieport 0000:60:01.0: DPC: containment event, status:0x1f01 source:0x6100",
    ),
    ("", "pcieport 0000:00:1c.0: AER: enabled with IRQ 122"),
    ("", "pcieport 0000:00:1c.0: PME: Signaling with IRQ 122"),
    (
        "event=pcie_width; pci=0000:9c:00.0; now=x4; max=x16; at=0000:97:01.0; severity=degraded; "
        "action=contact_support; drain=after_count",
        "mlx5_core 0000:9c:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x4 link at 0000:97:01.0 "
        "(capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)",
    ),
    (
        "event=pcie_speed; pci=0000:9c:00.0; severity=warn; action=none; drain=no",
        "mlx5_core 0000:9c:00.0: 126.016 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x16 link at 0000:97:01.0 "
        "(capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)",
    ),
    ("", "mlx5_core 0000:9c:00.0: 504.112 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x16 link)"),
    (
        f"event=pci_inaccessible; pci=0000:01:00; {DEAD}",
        "nvidia 0000:01:00.0: Unable to change power state from D3cold to D0, device inaccessible",
    ),
    (
        f"event=pci_inaccessible; pci=0000:81:00.0; {DEAD}",
        "nvme 0000:81:00.0: Unable to change power state from D3cold to D0, device inaccessible",
    ),
    (
        f"event=aer_fatal; pci=10000:01:00.0; {DEAD}",
        "pcieport 10000:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Physical Layer, (Receiver ID)",
    ),
]


@pytest.mark.parametrize(("expected", "text"), LINES)
def test_a_bus_line(expected: str, text: str) -> None:
    check(expected, text)
