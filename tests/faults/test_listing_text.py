# ruff: noqa: E501  (lines are quoted whole)
"""Output of more tools that a person pastes: rows and XML of nvidia-smi, its links, lspci's, ports of every lister."""

from __future__ import annotations

import pytest

from tests.faults_table import check

LOST = "severity=fatal; action=drain_replace; drain=yes"
RESET = "severity=degraded; action=reset_gpu; drain=yes"
NARROW = "severity=degraded; action=contact_support; drain=after_count"
PORT = "severity=warn; action=contact_support; drain=no"
UUID = "GPU-00000000-0000-0000-0000-000000000003"
H100 = "9b:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)\n"

LINES = [
    # rows of --query-gpu
    (
        f"event=gpu_reset_required; index=0; {RESET}",
        "index, temperature.gpu, utilization.gpu [%], memory.used [MiB]\n0, [GPU requires reset], [GPU requires reset], 0 MiB",
    ),
    (
        f"event=gpu_reset_required; index=0; gpu={UUID}; {RESET}",
        f"0, {UUID}, [GPU requires reset], [GPU requires reset]",
    ),
    (f"event=gpu_lost; index=3; {LOST}", "3, NVIDIA A100-SXM4-80GB, [GPU is lost]"),
    (f"event=gpu_lost; pci=0000:1b:00; {LOST}", "00000000:1B:00.0, [GPU is lost], [Unknown Error]"),
    (f"event=err_field; index=1; confirm=NVML recovery action; {RESET}", "1, [Unknown Error], [N/A], 12 W"),
    ("", "0, NVIDIA A100-SXM4-80GB, [N/A], [Not Supported], 0 %"),
    ("", "a reader, [GPU is lost]"),
    ("", '2026-01-01 app: "0, [GPU is lost], [GPU is lost]"'),
    (
        "event=recovery_action; index=1; wanted=Reset; severity=fatal; action=reset_gpu; drain=yes",
        "0, None\n1, Reset\n2, None",
    ),
    (
        "event=recovery_action; index=1; pci=0000:1b:00; wanted=Drain and Reset; drain=yes",
        "index, pci.bus_id, gpu_recovery_action\n1, 00000000:1B:00.0, Drain and Reset",
    ),
    ("", "a note, Reset"),
    # refusals
    (
        "event=no_handle; index=3; pci=0000:5f:00; drain=yes",
        "Unable to determine the device handle for GPU3: 0000:5F:00.0: Unknown Error",
    ),
    (
        f"event=gpu_reset_required; pci=0000:81:00; {RESET}",
        "Unable to determine the device handle for GPU 0000:81:00.0: GPU requires reset",
    ),
    (f"event=gpu_reset_required; code=16; {RESET}", "pynvml.NVMLError_ResetRequired: GPU requires restart"),
    (
        f"event=gpu_reset_required; code=16; {RESET}",
        "slurmd: error: NVML: Failed to get usage(16): GPU requires restart",
    ),
    # fabric, as NVML sums it up (kubernetes-sigs/dra-driver-nvidia-gpu#626)
    (
        "event=fabric_failed; pci=0008:01:00; health=Unhealthy; severity=degraded; action=contact_support; drain=yes",
        "GPU 00000008:01:00.0\n    Fabric\n        State                             : Completed\n"
        "        Status                            : Success\n        CliqueId                          : 2\n"
        "        Health\n            Summary                       : Unhealthy\n            Bandwidth                     : Full",
    ),
    (
        "event=fabric_failed; health=Limited Capacity; drain=after_count",
        "    Fabric\n        State : Completed\n        Status : Success\n        Health\n            Summary : Limited Capacity",
    ),
    (
        "",
        "    Fabric\n        State : Completed\n        Status : Success\n        Health\n            Summary : Healthy",
    ),
    # links (Azure/azhpc-diagnostics#73, Azure/azurehpc-health-checks#132)
    (
        "event=nvlink_inactive; index=3; links=3,5; due=6; severity=degraded; action=reboot; drain=yes",
        "GPU 3: Tesla V100-SXM2-32GB (UUID: GPU-0)\n\t Link 0: 25.781 GB/s\n\t Link 1: 25.781 GB/s\n\t Link 2: 25.781 GB/s\n"
        "\t Link 3: <inactive>\n\t Link 4: 25.781 GB/s\n\t Link 5: <inactive>\nGPU 4: Tesla V100-SXM2-32GB (UUID: GPU-1)\n"
        + "".join(f"\t Link {link}: 25.781 GB/s\n" for link in range(6)),
    ),
    (
        "event=nvlink_inactive; index=0; links=all; due=18; severity=degraded; action=reboot; drain=yes",
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)\nNVML: Unable to retrieve NVLink information as all links are inActive",
    ),
    (
        "event=nvlink_inactive; index=0; links=all; severity=warn; action=contact_support; drain=no",
        "GPU 0: NVIDIA A100 80GB PCIe (UUID: GPU-0)\nNVML: Unable to retrieve NVLink information as all links are inActive",
    ),
    (  # twelve of eighteen by design
        "",
        "GPU 0: NVIDIA H100 NVL (UUID: GPU-0)\n"
        + "".join(f"\t Link {link}: {'<inactive>' if link > 11 else '26.562 GB/s'}\n" for link in range(18)),
    ),
    ("", "\t Link 3: <inactive>"),
    # lspci
    (f"event=pci_all_ones; pci=0000:9b:00; {LOST}", H100.replace("rev a1", "rev ff")),
    (
        f"event=pcie_width; pci=0000:9b:00; now=x8; max=x16; {NARROW}",
        f"{H100}\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported\n\t\tLnkSta:\tSpeed 32GT/s, Width x8 (downgraded)",
    ),
    (
        f"event=pcie_width; pci=0000:5c:00.0; now=x8; max=x16; {NARROW}",
        "0000:5c:00.0 Infiniband controller [0207]: Mellanox Technologies MT2910 Family [ConnectX-7] [15b3:1021]\n"
        "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported\n\t\tLnkSta:\tSpeed 32GT/s (ok), Width x8 (downgraded)",
    ),
    (  # as lspci before 3.6 printed it
        f"event=pcie_width; pci=0000:9b:00; now=x4; max=x16; {NARROW}",
        f"{H100}\t\tLnkCap:\tPort #0, Speed 8GT/s, Width x16, ASPM L0s\n\t\tLnkSta:\tSpeed 8GT/s, Width x4, TrErr- Train- SlotClk+",
    ),
    (f"event=pcie_width; now=x8; {NARROW}", "\t\tLnkSta:\tSpeed 16GT/s (ok), Width x8 (downgraded)"),
    (  # an idle GPU
        "",
        f"{H100}\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16\n\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x16 (ok)",
    ),
    (  # an empty slot, a slot with a smaller card
        "",
        "97:01.0 PCI bridge: Intel Corporation Device 352a\n\t\tLnkCap:\tPort #5, Speed 32GT/s, Width x16\n"
        "\t\tLnkSta:\tSpeed 32GT/s (ok), Width x8 (downgraded)\n97:02.0 PCI bridge: Intel Corporation Device 352b\n"
        "\t\tLnkCap:\tPort #5, Speed 32GT/s, Width x16\n\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x0 (downgraded)",
    ),
    # ports
    (
        f"event=ib_not_active; dev=mlx5_4; port=1; state=down; {PORT}",
        "hca_id:\tmlx5_4\n\tport:\t1\n\t\tstate:\t\t\tPORT_DOWN (1)\n\t\tmax_mtu:\t\t4096 (5)\nhca_id:\tmlx5_5\n\tport:\t1\n"
        "\t\tstate:\t\t\tPORT_ACTIVE (4)",
    ),
    (
        f"event=ib_not_active; dev=mlx5_4; port=1; state=down; phys=polling; {PORT}",
        "link mlx5_4/1 state DOWN physical_state POLLING netdev ib4\nlink mlx5_5/1 state ACTIVE physical_state LINK_UP netdev ib5",
    ),
    (
        f"event=ib_not_active; dev=mlx5_4; port=1; state=down; phys=polling; {PORT}",
        "/sys/class/infiniband/mlx5_4/ports/1/state:1: DOWN\n/sys/class/infiniband/mlx5_4/ports/1/phys_state:2: Polling\n"
        "/sys/class/infiniband/mlx5_5/ports/1/state:4: ACTIVE",
    ),
    (
        "event=no_value; dev=mlx4_0; port=1; severity=info; drain=no",
        "/sys/class/infiniband/mlx4_0/ports/1/counters/link_downed:N/A (no PMA)",
    ),
    ("", "/sys/class/infiniband/mlx4_0/ports/1/counters/link_downed:0"),
    (
        "event=no_value; severity=info; drain=no",
        "cat: /sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error: Invalid argument",
    ),
    # -q -x
    (
        f"event=gpu_lost; pci=0000:1b:00; {LOST}",
        '<?xml version="1.0" ?>\n<nvidia_smi_log>\n\t<gpu id="00000000:1B:00.0">\n\t\t<product_name>NVIDIA A100</product_name>\n'
        "\t\t<fan_speed>GPU is lost</fan_speed>\n\t</gpu>\n</nvidia_smi_log>",
    ),
    (
        f"event=row_remap_pending; uncorrectable=4; pci=0000:1b:00; drain=no || event=row_remap_failed; pci=0000:1b:00; {LOST}",
        '\t<gpu id="00000000:1B:00.0">\n\t\t<remapped_rows>\n\t\t\t<remapped_row_corr>0</remapped_row_corr>\n'
        "\t\t\t<remapped_row_unc>4</remapped_row_unc>\n\t\t\t<remapped_row_pending>Yes</remapped_row_pending>\n"
        "\t\t\t<remapped_row_failure>Yes</remapped_row_failure>\n\t\t</remapped_rows>",
    ),
    (
        "event=fabric_failed; pci=0000:1b:00; status=Insufficient Resources; drain=yes || event=pcie_width; now=x8; max=x16; "
        "drain=after_count || event=recovery_action; wanted=Reset; action=reset_gpu; drain=yes || "
        "event=hw_slowdown; reason=HW Thermal Slowdown; drain=after_count",
        '\t<gpu id="00000000:1B:00.0">\n\t\t<fabric>\n\t\t\t<state>Completed</state>\n'
        "\t\t\t<status>Insufficient Resources</status>\n\t\t</fabric>\n\t\t\t\t\t<max_link_width>16x</max_link_width>\n"
        "\t\t\t\t\t<current_link_width>8x</current_link_width>\n\t\t<gpu_recovery_action>Reset</gpu_recovery_action>\n"
        "\t\t<clocks_event_reason_hw_thermal_slowdown>Active</clocks_event_reason_hw_thermal_slowdown>",
    ),
    (
        "",
        '\t<gpu id="00000000:1B:00.0">\n\t\t<fabric>\n\t\t\t<state>Completed</state>\n\t\t\t<status>Success</status>\n'
        "\t\t</fabric>\n\t\t<clocks_event_reason_hw_slowdown>Not Active</clocks_event_reason_hw_slowdown>\n"
        "\t\t<gpu_recovery_action>None</gpu_recovery_action>\n\t\t<processes>\n\t\t\t<state>x</state>",
    ),
]


@pytest.mark.parametrize(("expected", "text"), LINES)
def test_line(expected: str, text: str) -> None:
    check(expected, text)
