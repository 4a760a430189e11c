# ruff: noqa: E501  (log lines are quoted whole)
"""Output of tools that a person pastes: nvidia-smi, lspci, ibstat, the content of files below /sys."""

from __future__ import annotations

import pytest

from tests.faults_table import check

LOST = "severity=fatal; action=drain_replace; drain=yes"
LINES = [
    (
        f"event=no_handle; pci=0000:0b:00; {LOST}",
        "Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error",
    ),
    (
        f"event=no_handle; pci=0000:3b:00; {LOST}",
        "Unable to determine the device handle for GPU2: 0000:3B:00.0: Unknown Error\nNo devices were found",
    ),
    (
        f"event=gpu_lost; pci=0000:3b:00; {LOST}",
        "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU",
    ),
    (
        "event=driver_mismatch; severity=degraded; action=reboot; drain=yes",
        "Failed to initialize NVML: Driver/library version mismatch",
    ),
    (
        "event=driver_not_loaded; severity=fatal; action=reboot; drain=yes",
        "Failed to initialize NVML: Driver Not Loaded",
    ),
    ("event=nvml_unknown_error; severity=warn; action=none; drain=no", "Failed to initialize NVML: Unknown Error"),
    (
        "event=nvml_no_permission; severity=warn; action=none; drain=no",
        "Failed to initialize NVML: Insufficient Permissions",
    ),
    (
        "event=nvml_no_permission; severity=warn; action=none; drain=no",
        "Failed to initialize NVML: GPU access blocked by the operating system",
    ),
    (
        "event=driver_library_missing; severity=warn; action=contact_support; drain=no",
        "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display Driver "
        "is properly installed and present in your system.",
    ),
    ("event=no_devices; severity=fatal; action=reboot; drain=yes", "No devices were found"),
    ("", "| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |"),
    (
        "event=err_field; index=3; pci=0000:1b:00; severity=degraded; action=reset_gpu; drain=yes",
        "|   3  Tesla V100-SXM2...  On   | 00000000:1B:00.0 Off |                    0 |\n"
        "| N/A   34C    P0   ERR! / 300W |      0MiB / 32510MiB |    ERR!      Default |",
    ),
    (
        "event=ecc_uncorrected; pci=0000:43:00; errors=2; severity=warn; action=none; drain=no",
        "|   1  NVIDIA H100 80GB HBM3          On  |   00000000:43:00.0 Off |                    2 |\n"
        "| N/A   88C    P0            650W /  700W |   71000MiB /  81559MiB |    100%      Default |",
    ),
    ("", "|   1  NVIDIA GeForce RTX 4090        On  |   00000000:43:00.0 Off |                  Off |"),
    (
        "event=err_field; index=0; pci=0000:05:00; drain=yes",
        "|   0  ERR!                Off  | 00000000:05:00.0 Off |                 ERR! |\n"
        "|ERR!  ERR! ERR!    ERR! / ERR! |  ERR!               |    ERR!      ERR!    |",
    ),
    (
        "",
        "|   3  Tesla V100-SXM2...  On   | 00000000:1B:00.0 Off |                    0 |\n"
        "| N/A   34C    P0    56W / 300W |      0MiB / 32510MiB |      0%      Default |",
    ),
    (
        "event=row_remap_pending; pci=0000:3b:00; uncorrectable=2; severity=warn; action=none; drain=no; "
        "plan=reset when idle",
        "GPU 00000000:3B:00.0\n    Product Name                          : NVIDIA H100\n    Remapped Rows\n"
        "        Correctable Error                 : 0\n        Uncorrectable Error               : 2\n"
        "        Pending                           : Yes\n        Remapping Failure Occurred        : No",
    ),
    (
        f"event=row_remap_failed; pci=0000:3b:00; {LOST}",
        "GPU 00000000:3B:00.0\n    Remapped Rows\n        Correctable Error                 : 0\n"
        "        Uncorrectable Error               : 8\n        Pending                           : No\n"
        "        Remapping Failure Occurred        : Yes",
    ),
    (
        "",
        "    Remapped Rows\n        Correctable Error                 : 1\n"
        "        Uncorrectable Error               : 0\n        Pending                           : No\n"
        "        Remapping Failure Occurred        : No",
    ),
    (
        "event=page_retirement_pending; severity=warn; action=none; drain=no",
        "    Retired Pages\n        Single Bit ECC                    : 0\n        Double Bit ECC                    : 2\n"
        "        Pending Page Blacklist            : Yes",
    ),
    (  # the heading as older versions write it; one line found by `grep`
        "event=page_retirement_pending; severity=warn; action=none; drain=no",
        "    Retired pages\n        Double Bit ECC                    : 2\n        Pending                           : Yes",
    ),
    (
        "event=page_retirement_pending; severity=warn; action=none; drain=no",
        "        Pending Page Blacklist            : Yes",
    ),
    (f"event=row_remap_failed; {LOST}", "        Remapping Failure Occurred                : Yes"),
    ("", "        Remapping Failure Occurred                : No"),
    ("", "        Pending                           : Yes"),
    (  # copied from where the text begins (Azure/azhpc-images#506)
        "event=fabric_failed; status=Insufficient Resources; severity=degraded; action=contact_support; drain=yes",
        "Fabric\n    State                             : Completed\n    Status                            : Insufficient Resources",
    ),
    (
        "event=recovery_action; wanted=Reset; severity=fatal; action=reset_gpu; drain=yes",
        "GPU Recovery Action                   : Reset",
    ),
    ("", "Fabric is down\n    State : Completed\n    Status : Insufficient Resources"),
    (  # a quoted block
        f"event=gpu_lost; pci=0000:03:00; {LOST}",
        "        Unable to determine the device handle for GPU 0000:03:00.0: GPU is lost.  Reboot the system to recover this GPU",
    ),
    (
        "event=recovery_action; pci=0000:3b:00; wanted=Reset; severity=fatal; action=reset_gpu; drain=yes",
        "GPU 00000000:3B:00.0\n    GPU Recovery Action                   : Reset",
    ),
    (
        "event=recovery_action; wanted=Reboot; severity=fatal; action=reboot; drain=yes",
        "    GPU Recovery Action                   : Reboot",
    ),
    ("", "    GPU Recovery Action                   : None"),
    (
        "event=gpu_reset_required; pci=0000:3b:00; severity=degraded; action=reset_gpu; drain=yes",
        "GPU 00000000:3B:00.0\n    GPU Reset Status\n        Reset Required                    : Yes\n"
        "        Drain and Reset Recommended       : No",
    ),
    ("", "    GPU Recovery Action                   : N/A"),
    (
        f"event=pci_all_ones; pci=0000:1c:00; {LOST}",
        "1c:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev ff)",
    ),
    (
        f"event=pci_all_ones; pci=0009:01:00; {LOST}",
        "0009:01:00.0 3D controller [0302]: NVIDIA Corporation Device [10de:2941] (rev ff) (prog-if ff)",
    ),
    (
        "event=pci_all_ones; pci=0000:5c:00.0; severity=fatal; action=drain_replace; drain=yes",
        "5c:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7] (rev ff)",
    ),
    ("", "1c:00.1 Audio device: NVIDIA Corporation TU102 High Definition Audio Controller (rev ff)"),
    ("", "1a:00.0 VGA compatible controller: NVIDIA Corporation TU102GL [Quadro RTX 6000/8000] (rev a1)"),
    (
        "event=ib_not_active; dev=mlx5_0; state=down; phys=polling; severity=warn; action=contact_support; drain=no",
        "CA 'mlx5_0'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Polling\n"
        "\t\tRate: 10",
    ),
    ("", "CA 'mlx5_0'\n\tCA type: MT4129\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 400"),
    (
        "event=ib_not_active; dev=mlx5_1; state=initializing; phys=linkup",
        "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n"
        "CA 'mlx5_1'\n\tPort 1:\n\t\tState: Initializing\n\t\tPhysical state: LinkUp",
    ),
    (
        "event=ib_not_active; dev=mlx5_2; state=down; phys=disabled",
        "Infiniband device 'mlx5_2' port 1 status:\n\tdefault gid:\t fe80::1\n\tstate:\t\t 1: DOWN\n"
        "\tphys state:\t 3: Disabled\n\trate:\t\t 10 Gb/sec (4X)\n\tlink_layer:\t InfiniBand",
    ),
    ("event=no_value; value=-; severity=info; action=none; drain=no", "N/A (no PMA)"),
    (
        "event=no_handle; pci=0000:02:00; severity=fatal; action=contact_support; drain=yes",
        "Unable to determine the device handle for GPU 0000:02:00.0: Unable to communicate with GPU because it is "
        "insufficiently powered.\nThis may be because not all required external power cables are attached",
    ),
    (
        "event=driver_mismatch; severity=degraded; action=reboot; drain=yes",
        "Failed to properly shut down NVML: Driver/library version mismatch",
    ),
    (f"event=no_handle; index=2; pci=-; {LOST}", "Unable to determine the device handle for GPU2: Unknown Error"),
    (
        f"event=no_handle; pci=0000:01:00; {LOST}",
        "Unable to determine the device handle for GPU 0000:01:00.0: Not Found",
    ),
    (  # a right that the asker lacks is no fault of the GPU
        "event=nvml_no_permission; pci=0000:01:00; severity=warn; action=none; drain=no",
        "Unable to determine the device handle for GPU 0000:01:00.0: Insufficient Permissions",
    ),
    ("", "Unable to determine the device handle for GPU 00000000:01:00.0: Not Supported"),
    (
        f"event=no_handle; pci=0000:01:00; {LOST}",
        "Unable to determine the device handle for GPU 00000000:01:00.0:",
    ),
    (  # NVIDIA/nvidia-docker#1523
        "event=nvml_no_permission; severity=warn; action=none; drain=no",
        "docker: Error response from daemon: OCI runtime create failed: container_linux.go:367: starting container process "
        "caused: process_linux.go:495: container init caused: Running hook #0:: error running hook: exit status 1, stdout: "
        ", stderr: nvidia-container-cli: initialization error: nvml error: insufficient permissions: unknown.",
    ),
    (
        "event=driver_mismatch; drain=yes",
        "Error response from daemon: failed to create shim task: stderr: Auto-detected mode as 'legacy' "
        "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown",
    ),
    (  # NVIDIA/gpu-operator#679
        "event=nvml_no_permission; drain=no",
        "nvidia-container-cli.real: initialization error: nvml error: insufficient permissions: unknown",
    ),
    (
        "event=driver_library_missing; severity=warn; action=contact_support; drain=no",
        "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object "
        "file: no such file or directory: unknown",
    ),
    ("", "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=11.6, please update your driver"),
    ("", "Error response from daemon: No such container: nvidia-container-cli"),
    (f"event=gpu_lost; code=15; {LOST}", "pynvml.NVMLError_GpuIsLost: GPU is lost"),
    (f"event=gpu_lost; code=15; {LOST}", "pynvml.nvml.NVMLError_GpuIsLost: GPU is lost"),
    (
        "event=driver_mismatch; code=18; drain=yes",
        "pynvml.NVMLError_LibRmVersionMismatch: RM has detected an NVML/RM version mismatch.",
    ),
    ("event=driver_not_loaded; code=9; drain=yes", "pynvml.NVMLError_DriverNotLoaded: Driver Not Loaded"),
    ("event=driver_library_missing; code=12; drain=no", "NVMLError_LibraryNotFound: NVML Shared Library Not Found"),
    ("event=nvml_unknown_error; code=999; drain=no", "pynvml.nvml.NVMLError_Unknown: Unknown Error"),
    ("", "pynvml.NVMLError_NotSupported: Not Supported"),
    (
        "event=driver_mismatch; drain=yes",
        "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch",
    ),
    (
        "event=driver_not_loaded; drain=yes",
        "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown",
    ),
    (f"event=gpu_lost; pci=0000:4f:00; {LOST}", "3, 00000000:4F:00.0, [GPU is lost], [GPU is lost]"),
    (
        f"event=gpu_lost; pci=0000:4f:00; {LOST}",
        "GPU 00000000:4F:00.0\n    Product Name                          : GPU is lost",
    ),
    (
        "event=err_field; pci=0000:4f:00; field=GPU Current Temp; severity=degraded; action=reset_gpu; drain=yes",
        "GPU 00000000:4F:00.0\n    Temperature\n        GPU Current Temp                  : Unknown Error",
    ),
    (
        "event=ecc_threshold; pci=0000:4f:00; severity=degraded; action=drain_replace; drain=yes",
        "GPU 00000000:4F:00.0\n    ECC Errors\n        Aggregate\n            SRAM Threshold Exceeded       : Yes",
    ),
    ("", "    ECC Errors\n        Aggregate\n            SRAM Threshold Exceeded       : No"),
    (
        "event=ecc_uncorrected; pci=0000:4f:00; errors=3; field=SRAM Uncorrectable SEC-DED; drain=no",
        "GPU 00000000:4F:00.0\n    ECC Errors\n        Volatile\n            SRAM Uncorrectable SEC-DED    : 3",
    ),
    (  # before Ampere
        "event=ecc_uncorrected; pci=0000:3b:00; errors=3; field=Double Bit; drain=no",
        "GPU 00000000:3B:00.0\n    ECC Errors\n        Volatile\n            Single Bit            \n"
        "                Device Memory             : 12\n                Total                     : 12\n"
        "            Double Bit            \n                Device Memory             : 3\n"
        "                Total                     : 3\n        Aggregate\n            Double Bit            \n"
        "                Total                     : 44",
    ),
    (
        "",
        "GPU 00000000:3B:00.0\n    ECC Errors\n        Volatile\n            Single Bit            \n"
        "                Total                     : 12\n            Double Bit            \n"
        "                Total                     : 0\n        Aggregate\n            Double Bit            \n"
        "                Total                     : 44",
    ),
    ("", "    ECC Errors\n        Volatile\n            DRAM Correctable              : 7"),
    ("", "    ECC Errors\n        Aggregate\n            DRAM Uncorrectable            : 7"),
    ("", "    ECC Errors\n        Volatile\n            DRAM Uncorrectable            : N/A"),
    (
        "event=pcie_width; pci=0000:4f:00; now=x8; max=x16; severity=degraded; action=contact_support; drain=after_count",
        "GPU 00000000:4F:00.0\n        GPU Link Info\n            Link Width\n                Max                       : 16x\n"
        "                Current                   : 8x",
    ),
    (
        "",
        "            Link Width\n                Max                       : 16x\n                Current                   : 16x",
    ),
    (
        "event=hw_slowdown; pci=0000:4f:00; reason=HW Thermal Slowdown; severity=degraded; action=none; drain=after_count",
        "GPU 00000000:4F:00.0\n    Clocks Event Reasons\n        SW Power Cap                      : Active\n"
        "        HW Slowdown                       : Not Active\n            HW Thermal Slowdown           : Active",
    ),
    (
        "event=fabric_failed; pci=0000:4f:00; status=Insufficient Resources; severity=degraded; action=contact_support; "
        "drain=yes",
        "GPU 00000000:4F:00.0\n    Fabric\n        State                             : Completed\n"
        "        Status                            : Insufficient Resources",
    ),
    (
        "event=fabric_not_ready; state=In Progress; severity=warn; action=none; drain=no",
        "    Fabric\n        State                             : In Progress\n        Status                            : N/A",
    ),
    (
        "",
        "    Fabric\n        State                             : Completed\n        Status                            : Success",
    ),
    (
        "",
        "    Fabric\n        State                             : N/A\n        Status                            : N/A",
    ),
    ("event=aer_fatal; errors=2; severity=fatal; drain=yes", "Undefined 0\nDLP 0\nSDES 2\nTLP 0\nTOTAL_ERR_FATAL 2"),
    ("event=aer_corrected; errors=5; severity=info; drain=no", "RxErr 5\nBadTLP 0\nTOTAL_ERR_COR 5"),
    ("", "DLP 0\nTOTAL_ERR_NONFATAL 0"),
    ("event=ib_not_active; state=down; severity=warn; action=contact_support; drain=no", "1: DOWN"),
    ("event=ib_not_active; state=init; severity=warn", "2: INIT"),
    ("", "4: ACTIVE"),
    ("event=ib_not_active; phys=disabled; severity=warn", "3: Disabled"),
    ("", "5: LinkUp"),
    ("event=no_value; value=-", "Unknown speed"),
    ("event=no_value; value=-", "Unknown"),
    ("", "32.0 GT/s PCIe"),
    ("", "16"),
]


@pytest.mark.parametrize(("expected", "text"), LINES)
def test_a_tools_text(expected: str, text: str) -> None:
    check(expected, text)
