"""Whatever stands in a log: never an exception; what stands before a message never changes what it means."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.faults import daemons, fabric_manager, listing_text, nvlink_text, prefilter, smi_rows, smi_text
from gpuwatch.faults.catalogue import events as catalogue
from gpuwatch.faults.interpreter import GRAMMARS, Interpreter
from gpuwatch.faults.prefix import Record, split
from tests.faults_table import told

MESSAGES = {
    "NVRM: Xid (PCI:0000:05:00): 79, pid=7, name=a, GPU has fallen off the bus.": "xid",
    "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED]": "gpu_reset_required",
    "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!": "nvlink_driver_stuck",
    "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!": "nvlink_driver_stuck",
    "NVRM: None of the NVIDIA devices were initialized.": "driver_no_device",
    "infiniband rdmap0s6: Failed to submit command REG_MR (opcode 9) err -12": "efa_cmd_failed",
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up": "sxid",
    "mlx5_core 0000:d2:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count": "nic_fw_dead",
    "mlx5_core 0000:03:00.0: wait_func:1195:(pid 9): INIT_HCA(0x102) timeout. Will cause a leak of": "nic_cmd_timeout",
    "mlx5_core 0000:17:00.0: poll_health:785:(pid 0): Fatal error 3 detected": "nic_hw_error",
    "mlx5_core 0000:17:00.0: Health issue observed, internal eq error, severity(5) NOTICE:": "nic_health",
    "mlx5_core 0000:17:00.0: mlx5_health_try_recover:380:(pid 71): health recovery succeeded": "nic_recovered",
    "mlx5_core 0000:17:00.0: temp_warn:164:(pid 0): High temperature on sensors with bit set 0 1": "nic_hot",
    "mlx5_core 0000:5c:00.0: Port module event[error]: module 1, Cable error, Unknown identifier": "nic_module_error",
    "mlx5_core 0000:41:00.1: Port module event: module 1, Cable unplugged": "nic_unplugged",
    "mlx5_core 0000:12:00.0: mlx5_pcie_event:299: Detected insufficient power on the PCIe slot (27W).": "nic_power",
    "mlx5_core 0000:05:00.0: mlx5_cmd_out_err:835:(pid 1): ACCESS_REG(0x805) op_mod(0x1) failed": "nic_access_reg",
    "mlx5_core 0000:05:00.0: mlx5_cmd_out_err:835:(pid 1): CREATE_MKEY(0x200) op_mod(0x1) failed": "nic_cmd_failed",
    "mlx5_core 0000:5e:00.0 ens1: NETDEV WATCHDOG: CPU: 12: transmit queue 3 timed out 5234 ms": "nic_tx_timeout",
    "NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 0 timed out": "nic_tx_timeout",
    "mlx5_core 0000:5e:00.0 ens1np0: Link down": "nic_link_down",
    "mlx5_core 0000:5e:00.0 ens1np0: Link up": "nic_link_up",
    "mlx5_core 0000:ab:00.0 mlx5_0: Port: 1 Link DOWN": "ib_link_down",
    "mlx5_core 0000:ab:00.0 mlx5_0: Port: 1 Link ACTIVE": "ib_link_up",
    "infiniband rdmap0s6: Wait for completion (polling) timeout": "efa_admin_timeout",
    "efa 0000:00:06.0: Reset indication didn't turn off": "efa_reset_failed",
    "pcieport 0000:80:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer": "aer_fatal",
    "nvme 0000:80:01.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer": "aer_nonfatal",
    "pcieport 0000:00:1c.0: AER: Corrected error received: 0000:00:1c.0": "aer_corrected",
    "pcieport 0000:16:01.0: AER: device recovery successful": "aer_recovered",
    "ixgbe 0000:9c:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x4 link at 0000:97:01.0 "
    "(capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)": "pcie_width",
    "ixgbe 0000:9c:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at 0000:97:01.0 "
    "(capable of 126.112 Gb/s with 16.0 GT/s PCIe x8 link)": "pcie_speed",
    "nvidia 0000:01:00.0: Unable to change power state from D3cold to D0, device inaccessible": "pci_inaccessible",
    "nvme nvme0: Disabling device after reset failure: -5": "nvme_lost",
    "nvme nvme0: I/O 12 QID 3 timeout, aborting": "nvme_timeout",
    "block nvme2n1: no available path - failing I/O": "nvme_no_path",
    "blk_update_request: I/O error, dev sda, sector 2048 op 0x0:(READ)": "disk_io_error",
    "Buffer I/O error on dev dm-0, logical block 1308098575, lost async page write": "disk_io_error",
    "kworker/u100:0: attempt to access beyond end of device": "disk_beyond_end",
    "EXT4-fs (sda1): Remounting filesystem read-only": "fs_read_only",
    "XFS (dm-0): Log I/O Error Detected.  Shutting down filesystem": "fs_shutdown",
    "Aborting journal on device md0-8.": "fs_error",
    "md/raid0md0: Disk failure on nvme0n1p1 detected, failing array.": "raid_failed",
    "md/raid1:md0: Disk failure on sda1, disabling device.": "raid_degraded",
    "nfs: server 10.0.0.5 not responding, still trying": "nfs_not_responding",
    "Out of memory: Killed process 9 (java) total-vm:1kB": "oom",
    "EDAC MC0: 1 UE memory read error on DIMM_A1 (channel:0)": "edac_ue",
    "EDAC MC0: 1 CE memory read error on DIMM_A1 (channel:0)": "edac_ce",
    "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: fe00004000010090": "mce_uncorrected",
    "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: 8c00004000010090": "mce_corrected",
    "mce: [Hardware Error]: Machine check events logged": "mce_logged",
    "Memory failure: 0x7d5a2c1: recovery action for dirty LRU page: Recovered": "memory_failure",
    "CPU12: Package temperature above threshold, cpu clock throttled (total events = 3)": "cpu_throttled",
    "{1}[Hardware Error]: event severity: fatal": "hw_error",
    "watchdog: BUG: soft lockup - CPU#6 stuck for 22s! [VM Thread:9]": "soft_lockup",
    "NMI watchdog: Watchdog detected hard LOCKUP on cpu 3": "hard_lockup",
    "rcu: INFO: rcu_sched self-detected stall on CPU": "rcu_stall",
    "INFO: task containerd-shim:931150 blocked for more than 122 seconds.": "hung_task",
    "BUG: workqueue lockup - pool cpus=3 node=0 flags=0x0 nice=0 stuck for 31s!": "workqueue_lockup",
    "Kernel panic - not syncing: Fatal Machine check": "kernel_panic",
    "BUG: kernel NULL pointer dereference, address: 0000000000000008": "kernel_oops",
    "VFS: file-max limit 1000000 reached": "file_max",
    "pt_main_thread[7]: segfault at 0 ip 00007f sp 00007f error 4 in libcuda.so.1[7f+d]": "segfault",
    "traps: python3[7] trap invalid opcode ip:7f1 sp:7f2 error:0 in libtorch_cpu.so[7f0+100]": "app_trap",
}
KERNEL = [
    "",
    "[12345.678901] ",
    "[    5.123456] ",
    "[Mon Aug  5 03:54:13 2024] ",
    "[Thu Aug  8 03:54:13 2024] ",
    "[  +0.000844] ",
    "[12345.678901] [ T1343] ",
    "<4>[12345.678901] ",
    "<0>",
    "4,1227,437812449932,-;",
    "4,1227,437812449932,-,caller=T1343;",
    "Nov 22 18:29:55 host1 kernel: [  966.503025] ",
    "Nov  2 18:29:55 host1 kernel: ",
    "kwi 15 07:56:59 host1 kernel: ",
    "2026-09-14T20:30:27.123456+02:00 host1 kernel: [12345.678901] ",
    "2026-09-14T20:30:27-0400 host1 kernel: ",
    "host1 kernel: ",
    "kernel: ",
    "kern  :warn  : [12345.678901] ",
    "kern  :warn  : 2025-01-21T04:41:44,283302+00:00 ",
    "2025-01-21T04:41:44,283302+00:00 ",
    "192.0.2.11: kern: warning: [2026-04-22T21:27:51.291660856Z]: ",
    "<4>1 2026-09-14T20:30:27.123456+02:00 host1 kernel - - - ",
]
OTHERS = [
    "Nov 22 18:29:55 host1 sshd[812]: ",
    "Nov 22 18:29:55 host1 gpud[812]: [12345.678901] ",
    "2026-09-14T20:30:27.123456+02:00 host1 nhc: ",
    "Nov 22 18:29:55 host1 logger: kernel: ",
    "12,1227,437812449932,-;",
    "<12>",
    '{"msg":"',
    "user  :warn  : ",
    "2024/08/10 19:09:42 ",
]


@pytest.mark.parametrize("prefix", KERNEL)
@pytest.mark.parametrize(("message", "kind"), MESSAGES.items())
def test_what_stands_before_a_message_changes_nothing(prefix: str, message: str, kind: str) -> None:
    line = (prefix + message).encode()
    assert prefilter.matters(line)
    assert prefilter.matters(line + b"\n")
    (bare,) = told(message)
    (event,) = told(prefix + message)
    assert event.kind == kind
    assert event == bare


@pytest.mark.parametrize("prefix", OTHERS)
@pytest.mark.parametrize("message", MESSAGES)
def test_nobody_else_is_believed(prefix: str, message: str) -> None:
    assert told(prefix + message) == []


def test_each_fault_that_the_kernel_tells_is_tried_here() -> None:
    elsewhere = re.compile(
        r"fm_|no_|driver_|nvml_|err_|row_|page_|recovery_action|gpu_lost|pci_all_ones|ib_not_active|ecc_|fabric_|hw_slow|nvlink_inactive"
    )
    assert {kind for kind in catalogue() if not elsewhere.match(kind)} <= set(MESSAGES.values())


@settings(max_examples=300, deadline=None)
@given(lines=st.lists(st.binary(max_size=300), max_size=12))
def test_any_bytes(lines: list[bytes]) -> None:
    told("\n".join(line.decode("latin-1") for line in lines))


@settings(max_examples=600, deadline=None)
@given(
    message=st.sampled_from(sorted(MESSAGES)),
    prefix=st.sampled_from(KERNEL + OTHERS),
    cut=st.integers(0, 400),
    at=st.integers(0, 400),
    put=st.text(max_size=20),
)
def test_spoilt_lines(message: str, prefix: str, cut: int, at: int, put: str) -> None:
    line = prefix + message
    spoilt = (line[: at % len(line)] + put + line[at % len(line) :])[: max(1, cut)]
    told(spoilt)
    for record in split(spoilt):
        Interpreter().hear(record)


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=200), head=st.sampled_from([head for grammar in GRAMMARS for head in grammar.HEADS]))
def test_any_text_after_a_known_beginning(text: str, head: str) -> None:
    for message in (head + text, head + text.replace("a", "0000:01:00.0")):
        Interpreter().hear(Record(message=message))
        daemons.in_text(message)
        daemons.in_journal("systemd-networkd.service", "0", "x", message)
        listing_text.value(message)
        listing_text.at_path("/sys/class/infiniband/mlx5_0/ports/1/state:" + message)
        smi_rows.read("0, [GPU is lost]," + message)
        fabric_manager.read(message)


TOOL_STARTS = [start.decode() for start in (*smi_text.STARTS, *listing_text.STARTS, *nvlink_text.STARTS)]
TOOL_WORDS = [
    *("Remapped Rows", "        Pending : Yes", "            Current : 8x", "            Max : x", "    Link Width"),
    *("| ERR! |", "|   3  x | 00000000:1B:00.0 Off |", "GPU 00000000:1B:00.0", "CA 'mlx5_0'", "\t\tState: Down"),
    *("\t\tPhysical state: Polling", "TOTAL_ERR_FATAL 99", "1c:00.0 3D controller: x (rev ff)", "[GPU is lost]"),
    *(
        "GPU 0: Tesla V100-SXM2 (UUID: GPU-0)",
        "\t Link 3: <inactive>",
        "all links are inActive",
        "\t\tLnkCap: Width x16",
    ),
    *("\t\tLnkSta: Width x8 (downgraded)", '\t<gpu id="00000000:1B:00.0">', "\t\t<fabric>", "\t\t<status>x</status>"),
]


@settings(max_examples=300, deadline=None)
@given(
    lines=st.lists(
        st.one_of(st.sampled_from(TOOL_WORDS), st.tuples(st.sampled_from(TOOL_STARTS), st.text(max_size=60)))
    )
)
def test_any_text_of_tools(lines: list[str | tuple[str, str]]) -> None:
    told("\n".join(line if isinstance(line, str) else "".join(line) for line in lines))


@settings(max_examples=200, deadline=None)
@given(
    messages=st.lists(st.sampled_from(sorted(MESSAGES)), max_size=30),
    stamps=st.lists(st.integers(0, 10**6), min_size=30, max_size=30),
)
def test_any_order_at_any_time(messages: list[str], stamps: list[int]) -> None:
    text = "\n".join(f"[{stamp}.000001] {message}" for stamp, message in zip(stamps, messages, strict=False))
    kinds = {event.kind for event in told(text)}
    swallowed = {"disk_io_error", "disk_beyond_end", "nvme_timeout", "fs_error", "nic_cmd_timeout", "fs_shutdown"}
    swallowed |= {"fs_read_only", "nic_fw_dead", "nic_hw_error", "raid_degraded"}  # one thing that got worse
    assert {MESSAGES[message] for message in messages} - kinds <= swallowed


@settings(max_examples=50, deadline=None)
@given(noise=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=120))
def test_a_line_that_no_word_is_in_is_passed_over(noise: str) -> None:
    line = f"[1.5] usb 1-1: {noise}".encode()
    if not prefilter.matters(line):
        assert told(line.decode("utf-8", "replace").split("\n")[0]) == []


@pytest.mark.parametrize("piece", ["a", "/", ",pid=1", "task=", "(", ") ", "0000:00:00.0 ", "[1] ", " in "])
def test_no_line_takes_long_however_it_is_made(piece: str) -> None:
    """The worst takes 4 ms where it was written; a pattern that tries everything twice takes many times that."""
    beginnings = [head for grammar in GRAMMARS for head in (*grammar.HEADS, *grammar.WORDS)]
    beginnings += [*MESSAGES, "oom-kill:constraint=CONSTRAINT_NONE,", "BTRFS info (device sda", "    Key", "|   3 x | "]
    for beginning in beginnings:
        line = (beginning + piece * 9000)[:8192]
        began = time.process_time()
        told(line)
        assert time.process_time() - began < 0.2, line[:100]
