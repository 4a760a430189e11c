"""What disks and file systems say in the kernel log. Forms: drivers/nvme/host/{pci,core,multipath}.c, block/blk-core.c,
fs/buffer.c, fs/ext4/super.c, fs/xfs/xfs_fsops.c, fs/btrfs/messages.c, drivers/md of the Linux kernel; lines of
leptonai/gpud tests."""

from __future__ import annotations

import pytest

from tests.faults_table import check

DEAD = "severity=fatal; action=drain_replace; drain=yes"
WARN = "severity=warn; action=none; drain=after_count"
BAD = "severity=degraded; action=contact_support; drain=after_count"

LINES = [
    ("event=fs_error; drain=after_count", "I/O error while writing superblock"),
    (f"event=nvme_lost; dev=nvme0; {DEAD}", "nvme nvme0: Disabling device after reset failure: -5"),
    (f"event=nvme_lost; dev=nvme0; {DEAD}", "nvme nvme0: Removing after probe failure status: -19"),
    (f"event=nvme_lost; dev=nvme11; {DEAD}", "[9.1] nvme nvme11: Disabling device after reset failure: -19"),
    (f"event=nvme_lost; dev=nvme2; {DEAD}", "nvme nvme2: Device not ready; aborting reset, CSTS=0x1"),
    (
        f"event=nvme_lost; dev=nvme2; {DEAD}",
        "nvme nvme2: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff\n"
        "nvme nvme2: Removing after probe failure status: -19",
    ),
    (
        f"event=nvme_timeout; pci=0000:81:00.0; {WARN}",
        "nvme 0000:81:00.0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff",
    ),
    (
        f"event=nvme_timeout; dev=nvme0; {WARN}",
        "nvme nvme0: controller is down; will reset: CSTS=0x3, PCI_STATUS=0x10",
    ),
    (
        f"event=nvme_timeout; dev=nvme0; {WARN}",
        "nvme nvme0: I/O tag 10 (1234) opcode 0x1 (Read) QID 1 timeout, reset controller",
    ),
    (f"event=nvme_timeout; dev=nvme0; {WARN}", "nvme nvme0: I/O 12 QID 3 timeout, aborting"),
    (f"event=nvme_timeout; dev=nvme0; {WARN}", "nvme nvme0: I/O 12 (Write) QID 5 timeout, completion polled"),
    (f"event=nvme_timeout; dev=nvme1; {WARN}", "nvme nvme1: I/O 832 QID 12 timeout, disable controller"),
    ("", "nvme nvme0: 64/0/0 default/read/poll queues"),
    ("", "nvme nvme0: Shutdown timeout set to 8 seconds"),
    (f"event=nvme_no_path; dev=nvme2n1; {DEAD}", "block nvme2n1: no available path - failing I/O"),
    ("", "block nvme2n1: no usable path - requeuing I/O"),
    (
        f"event=disk_io_error; dev=nvme0n1; {BAD}",
        "nvme0n1: I/O Cmd(0x2) @ LBA 123456, 8 blocks, I/O Error (sct 0x2 / sc 0x81) MORE DNR",
    ),
    (
        f"event=disk_io_error; dev=nvme0n1; {BAD}",
        "critical medium error, dev nvme0n1, sector 3125627392 op 0x0:(READ) flags 0x80700 phys_seg 4 prio class 2",
    ),
    (f"event=disk_io_error; dev=sda; {BAD}", "blk_update_request: I/O error, dev sda, sector 2048 op 0x0:(READ)"),
    (f"event=disk_io_error; dev=sdb; {BAD}", "print_req_error: I/O error, dev sdb, sector 83968"),
    (f"event=disk_io_error; dev=sdb; {BAD}", "end_request: I/O error, dev sdb, sector 83968"),
    (f"event=disk_io_error; dev=nvme1n1; {BAD}", "I/O error, dev nvme1n1, sector 9 op 0x1:(WRITE) flags 0x0"),
    (
        f"event=disk_io_error; dev=nvme0n1p1; {BAD}",
        "Buffer I/O error on dev nvme0n1p1, logical block 789012, lost sync page write",
    ),
    (f"event=disk_io_error; dev=sda1; {BAD}", "Buffer I/O error on device sda1, logical block 123456"),
    ("", "blk_update_request: I/O error, dev sr0, sector 0 op 0x0:(READ) flags 0x80700"),
    ("", "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0"),
    ("", "blk_update_request: I/O error, dev loop3, sector 0 op 0x0:(READ) flags 0x0"),
    (f"event=disk_beyond_end; dev=-; {WARN}", "kworker/u100:0: attempt to access beyond end of device"),
    (f"event=fs_read_only; dev=sda1; {DEAD}", "EXT4-fs (sda1): Remounting filesystem read-only"),
    (f"event=fs_read_only; dev=dm-6; {DEAD}", "EXT3-fs (dm-6): Remounting filesystem read-only"),
    (f"event=fs_read_only; dev=nvme0n1p1; {DEAD}", "XFS (nvme0n1p1): Remounting filesystem read-only"),
    (f"event=fs_read_only; dev=-; {DEAD}", "kernel: BTRFS: Remounting filesystem read-only"),
    (f"event=fs_read_only; dev=-; {DEAD}", "Remounting filesystem read-only"),
    (f"event=fs_read_only; dev=sda1; {DEAD}", "BTRFS info (device sda1: state E): forced readonly"),
    (f"event=fs_read_only; dev=sdc; {DEAD}", "BTRFS info (device sdc): forced readonly"),
    ("", "EXT4-fs (sda1): mounted filesystem with ordered data mode. Opts: (null)"),
    ("", "EXT4-fs (nvme0n1p1): re-mounted 7d54b0b8-26b0-4d13-8f0c-2a6fc4a3e5a1 ro. Quota mode: none."),
    ("", "EXT4-fs: Remounting filesystem read-write"),
    (
        f"event=fs_shutdown; dev=md0; {DEAD}",
        "XFS (md0): Log I/O Error Detected.  Shutting down filesystem",
    ),
    (
        f"event=fs_shutdown; dev=nvme1n1; {DEAD}",
        "XFS (nvme1n1): Corruption of in-memory data (0x8) detected at xfs_defer_finish_noroll+0x2f1/0x4c0 [xfs] "
        "(fs/xfs/libxfs/xfs_defer.c:573).  Shutting down filesystem.\n"
        "XFS (nvme1n1): Please unmount the filesystem and rectify the problem(s)",
    ),
    (
        f"event=fs_shutdown; dev=dm-0; {DEAD}",
        "XFS (dm-0): xfs_do_force_shutdown(0x2) called from line 1196 of file x.c",
    ),
    (f"event=fs_shutdown; dev=sdb1; {DEAD}", "XFS (sdb1): Filesystem has been shut down due to log error (0x2)."),
    (
        f"event=fs_error; dev=sdb1; {BAD}",
        'XFS (sdb1): metadata I/O error in "xfs_trans_read_buf_map" at daddr 0x2 len 1 error 5',
    ),
    (
        f"event=fs_error; dev=sda1; {BAD}",
        "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls: reading directory lblock 0",
    ),
    (f"event=fs_error; dev=dm-0; {BAD}", "EXT4-fs (dm-0): I/O error while writing superblock"),
    (f"event=fs_error; dev=md0; {BAD}", "Aborting journal on device md0-8."),
    (
        f"event=fs_error; dev=sda1; {BAD}",
        "BTRFS: error (device sda1) in btrfs_commit_transaction:2236: errno=-5 IO failure",
    ),
    ("", "EXT4-fs (dm-0): metadata_csum_seed is not necessary"),
    ("", "XFS (nvme1n1): Mounting V5 Filesystem"),
    ("", "EXT4-fs error (device loop0): ext4_mark_recovery_complete:6229: comm mount: Orphan file not empty"),
    (f"event=fs_error; dev=sda1; {BAD}", "EXT4-fs error (device sda1) in ext4_reserve_inode_write:4735: Out of memory"),
    (
        f"event=fs_shutdown; dev=sdb1; {DEAD}",
        "XFS (sdb1): Log I/O Error (0x2) detected at xlog_ioend_work+0x6e/0x70 [xfs] "
        "(fs/xfs/xfs_log.c:1378).  Shutting down filesystem.",
    ),
    ("", "XFS (nvme1n1): Ending clean mount"),
    (
        f"event=raid_failed; dev=sda1; array=md1; {DEAD}",
        "md/raid1:md1: Disk failure on sda1 detected, failing array",
    ),
    (
        f"event=raid_failed; dev=nvme2n1p1; array=md2; {DEAD}",
        "md/raid10:md2: Disk failure on nvme2n1p1 detected, failing array",
    ),
    (f"event=raid_failed; array=md5; {DEAD}", "md/raid:md5: Cannot continue operation (2/4 failed)."),
    (
        f"event=raid_degraded; dev=sda1; array=md0; {BAD}",
        "md/raid1:md0: Disk failure on sda1, disabling device.\nmd/raid1:md0: Operation continuing on 1 devices.",
    ),
    ("", "md: raid1 personality registered for level 1"),
    ("", "md/raid0: Disk failure detected"),
    ("", "md/raid1:md0: active with 2 out of 2 mirrors"),
    (f"event=nfs_not_responding; server=10.0.0.5; {WARN}", "nfs: server 10.0.0.5 not responding, still trying"),
    ("", "nfs: server 10.0.0.5 OK"),
]


@pytest.mark.parametrize(("expected", "text"), LINES)
def test_a_disk_line(expected: str, text: str) -> None:
    check(expected, text)


def test_one_dead_disk_is_one_event_and_what_follows_from_it_is_none() -> None:
    check(
        "event=nvme_lost; dev=nvme4; severity=fatal",
        "[100.0] nvme nvme4: I/O tag 22 (2016) opcode 0x2 (Admin Cmd) QID 0 timeout, reset controller\n"
        "[160.0] nvme nvme4: Disabling device after reset failure: -19\n"
        "[161.0] kworker/u203:1: attempt to access beyond end of device\n"
        "[161.1] dm-0: rw=34817, sector=10464788600, nr_sectors = 8 limit=0\n"
        "[161.2] Buffer I/O error on dev dm-0, logical block 1308098575, lost async page write",
    )


def test_two_dead_disks_are_two_events() -> None:
    check(
        "event=nvme_lost; dev=nvme4 || event=nvme_lost; dev=nvme5",
        "nvme nvme4: Disabling device after reset failure: -19\nnvme nvme5: Disabling device after reset failure: -19",
    )
