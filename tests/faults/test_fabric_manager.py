# ruff: noqa: E501  (log lines are quoted whole)
"""What the fabric manager, the network daemon and Slurm say in their own logs; and that nobody speaks in their place.
Lines: leptonai/gpud, facebookresearch/gcm, data-infra/cube-studio#29, LSSI-ETH/plmfit#40."""

from __future__ import annotations

import json

import pytest

from tests.faults_table import check

LINES = [
    (
        "event=fm_nvswitch_fatal; sxid=20034; pci=0000:86:00.0; port=33; severity=fatal; action=reset_gpu; drain=yes",
        "[Jul 23 2024 07:53:55] [ERROR] [tid 841] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id "
        "00000000:86:00.0 physical id 3 port 33",
    ),
    (
        "event=fm_nvswitch_nonfatal; sxid=12028; pci=0000:86:00.0; severity=degraded; action=none; drain=after_count",
        "[Jul 09 2024 18:14:07] [ERROR] [tid 12727] detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus "
        "id 00000000:86:00.0 physical id 3 port 61",
    ),
    (
        "event=fm_nvswitch_nonfatal; sxid=12028; pci=0000:86:00.0; drain=after_count",
        "Jul  9 18:14:07 host1 nv-fabricmanager[1929729]: detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci "
        "bus id 00000000:86:00.0 physical id 3 port 61",
    ),
    (
        "event=fm_gpu_handle_missing; severity=degraded; action=contact_support; drain=after_count",
        "[Sep 17 2024 06:01:46] [ERROR] [tid 7] failed to find the GPU handle 54 in the multicast team request setup 61.",
    ),
    (
        "event=fm_gpu_handle_missing; drain=after_count",
        "[Sep 17 2024 06:01:46] [ERROR] [tid 7] failed to find the GPU handle 54 in the multicast team release 61.",
    ),
    (  # scitix/sichek
        "event=fm_gpu_handle_missing; drain=after_count",
        "[Sep 17 2024 06:01:46] [ERROR] [tid 7] failed to find the member GPU handle 10 in partition -1 in the multicast "
        "team setup request id 1.",
    ),
    (
        "event=fm_topology_mismatch; severity=fatal; action=contact_support; drain=yes",
        "Nov  3 10:00:00 host1 nv-fabricmanager[99]: detected number of NVSwitches don't match with any supported system "
        "topology, aborting fabric manager",
    ),
    (
        "event=fm_topology_mismatch; drain=yes",
        "[Nov 03 2024 10:00:00] [ERROR] [tid 99] detected number of NVSwitches don't match with any supported system "
        "topology, aborting fabric manager",
    ),
    (
        "event=fm_nothing_to_do; severity=info; action=none; drain=no",
        "2025-09-18T03:19:01+00:00 host1 nvidia-fabricmanager-start.sh[4756]: request to query NVSwitch device information "
        "from NVSwitch driver failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]",
    ),
    (  # without a thread, and as `journalctl -o cat` prints it
        "event=fm_topology_mismatch; severity=fatal; action=contact_support; drain=yes",
        "[Sep 08 2025 23:21:50] [ERROR] detected number of NVSwitches don't match with any supported system topology, "
        "aborting fabric manager",
    ),
    (
        "event=fm_topology_mismatch; drain=yes",
        "detected number of NVSwitches don't match with any supported system topology, aborting fabric manager",
    ),
    (
        "event=fm_nothing_to_do; drain=no",
        "request to query NVSwitch device information from NVSwitch driver failed with error:WARNING Nothing to do "
        "[NV_WARN_NOTHING_TO_DO]",
    ),
    ("", "[Jul 09 2024 18:14:07] [INFO] [tid 12727] Fabric Manager version : 550.54.15"),
    ("", "[Feb 27 2025 14:10:02] [INFO] [tid 1808] multicast group 1 is allocated."),
    ("", "[Jul 09 2024 18:14:07] [INFO] [tid 12727] Dumping all the detected NVLink connections"),
    (
        "event=ib_link_down; dev=ib0; severity=degraded; action=none; drain=after_count",
        "Dec 06 19:25:33 host1 systemd-networkd[2385]: ib0: Lost carrier",
    ),
    ("event=ib_link_down; dev=ibp12s0; drain=after_count", "systemd-networkd[2385]: ibp12s0: Lost carrier"),
    ("event=ib_link_up; dev=ib0; drain=no", "Dec  6 19:25:39 host1 systemd-networkd[2385]: ib0: Gained carrier"),
    ("", "Dec  6 19:25:33 host1 systemd-networkd[2385]: cali01234567: Lost carrier"),
    ("", "Dec  6 19:25:33 host1 systemd-networkd[2385]: docker0: Lost carrier"),
    (
        "event=gpu_lost; code=15; severity=fatal; action=drain_replace; drain=yes",
        "slurmd: error: NVML: Failed to get memory info(15): GPU is lost",
    ),
    (
        "event=gpu_lost; code=15; drain=yes",
        "[2024-11-03T10:00:00.123] error: NVML: Failed to get usage(15): GPU is lost",
    ),
    (
        "event=driver_not_loaded; code=9; drain=yes",
        "Nov  3 10:00:00 host1 slurmd[812]: error: NVML: Failed to initialize(9): Driver Not Loaded",
    ),
    (
        "event=nvml_unknown_error; code=999; severity=warn; action=none; drain=no",
        "slurmstepd: error: NVML: Failed to get usage(999): Unknown Error",
    ),
    ("", "slurmstepd: error: NVML: Failed to get usage(3): Not Supported"),
    ("event=driver_not_loaded; drain=yes", "slurmd: error: Failed to initialize NVML: Driver Not Loaded"),
    (
        "event=driver_mismatch; drain=yes",
        "slurmd[7]: error: Failed to initialize NVML: Driver/library version mismatch",
    ),
    ("", "slurmd: error: Failed to initialize NVML: Not Supported"),
    (
        "event=fm_gpu_handle_missing; drain=after_count",
        "[Sep 17 2024 06:01:46] [ERROR] [tid 7] failed to find the member GPU handle 54 in the multicast team setup request "
        "id 61.",
    ),
    (
        "event=fm_version_mismatch; interface=550.127.05; driver=550.120; severity=fatal; action=contact_support; drain=yes",
        "Nov 05 13:55:26 node1 nv-fabricmanager[104230]: fabric manager NVIDIA GPU driver interface version 550.127.05 don't "
        "match with driver version 550.120. Please update with matching NVIDIA driver package.",
    ),
    (
        "event=fm_version_mismatch; driver=570.124.06",
        "nv-fabricmanager[131760]: fabric manager NVIDIA GPU driver interface version 570.86.15 doesn't match with driver "
        "version 570.124.06. Please update with matching NVIDIA driver package.",
    ),
    (
        "",
        "Mar 25 02:10:15 host1 nv-fabricmanager[2116]: Successfully configured all the available NVSwitches to route GPU "
        "NVLink traffic. NVLink Peer-to-Peer support will be enabled once the GPUs are succ",
    ),
    (
        "event=gpu_lost; code=15; drain=yes",
        "slurmstepd-gypsum-gpu182: error: NVML: Failed to get Compute running process count(15): GPU is lost",
    ),
    # nobody speaks in another's place
    (
        "",
        "Nov  3 10:00:00 host1 gpud[812]: detected number of NVSwitches don't match with any supported system topology,"
        " aborting fabric manager",
    ),
    ("", "Nov  3 10:00:00 host1 bash[812]: slurmstepd: error: NVML: Failed to get usage(15): GPU is lost"),
    ("", "Nov  3 10:00:00 host1 systemd-networkd[1]: EXT4-fs (md0): Remounting filesystem read-only"),
    (
        "",
        "Nov  3 10:00:00 host1 nv-fabricmanager[1]: NVRM: Xid (PCI:0000:05:00): 79, pid=1, name=x, GPU has fallen off",
    ),
    (
        "",
        "Nov  3 10:00:00 host1 kernel: detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id "
        "00000000:86:00.0 physical id 3 port 33",
    ),
    ("", "Nov  3 10:00:00 host1 sshd[1]: x#012NVRM: Xid (PCI:0000:05:00): 79, pid=1, name=x, GPU has fallen off"),
    ("", "2025-09-18T03:19:01+00:00 host1 sshd[1]: x#012EXT4-fs (md0): Remounting filesystem read-only"),
    ("", "gpud: Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error"),
    ("", '"3, 00000000:4F:00.0, [GPU is lost]", said the health check'),
    ("", '    "python3[7]: segfault at 0 ip 0 sp 0 error 14"'),
    ("", 'time="2024-01-01" msg="Failed to initialize NVML: Driver/library version mismatch"'),
]


@pytest.mark.parametrize(("expected", "text"), LINES)
def test_a_line_of_a_daemon(expected: str, text: str) -> None:
    check(expected, text)


FABRIC = {"_TRANSPORT": "stdout", "_SYSTEMD_UNIT": "nvidia-fabricmanager.service", "_COMM": "nv-fabricmanage"}
ABORT = "detected number of NVSwitches don't match with any supported system topology, aborting fabric manager"
LOST = "error: NVML: Failed to get usage(15): GPU is lost"


@pytest.mark.parametrize(
    ("expected", "entry"),
    [
        pytest.param("event=fm_topology_mismatch; drain=yes", FABRIC | {"MESSAGE": ABORT}, id="the-unit-itself"),
        pytest.param(
            "",
            {
                "_TRANSPORT": "syslog",
                "SYSLOG_IDENTIFIER": "nv-fabricmanager",
                "_COMM": "logger",
                "_SYSTEMD_UNIT": "session-3.scope",
                "MESSAGE": ABORT,
            },
            id="logger-with-its-name",
        ),
        pytest.param("", FABRIC | {"_SYSTEMD_UNIT": "user@1000.service", "MESSAGE": ABORT}, id="a-users-unit"),
        pytest.param(
            "event=ib_link_down; dev=ib1",
            {
                "_TRANSPORT": "journal",
                "_COMM": "systemd-network",
                "_SYSTEMD_UNIT": "systemd-networkd.service",
                "MESSAGE": "ib1: Lost carrier",
            },
            id="networkd",
        ),
        pytest.param(
            "event=gpu_lost; code=15",
            {
                "_TRANSPORT": "syslog",
                "_COMM": "slurmstepd",
                "_UID": "0",
                "_SYSTEMD_UNIT": "slurmd.service",
                "MESSAGE": LOST,
            },
            id="slurmstepd",
        ),
        pytest.param(
            "",
            {
                "_TRANSPORT": "syslog",
                "_COMM": "slurmstepd",
                "_UID": "1000",
                "_SYSTEMD_UNIT": "slurmd.service",
                "MESSAGE": LOST,
            },
            id="a-job-in-slurms-cgroup",
        ),
        pytest.param("", FABRIC | {"MESSAGE": "EXT4-fs (md0): Remounting filesystem read-only"}, id="not-its-subject"),
    ],
)
def test_in_the_journal_only_what_cannot_be_forged_counts(expected: str, entry: dict[str, str]) -> None:
    check(expected, json.dumps(entry | {"_BOOT_ID": "0" * 32}))
