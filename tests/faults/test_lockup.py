# ruff: noqa: E501  (log lines are quoted whole)
"""What the kernel says of itself when it stands still, and of programs that die. Forms: kernel/watchdog.c,
kernel/hung_task.c, kernel/rcu/tree_stall.h, kernel/panic.c, arch/x86/mm/fault.c, arch/x86/kernel/traps.c of Linux."""

from __future__ import annotations

import pytest

from tests.faults_table import check

SHORT = "severity=degraded; action=none; drain=after_count"
HANG = "severity=fatal; action=reboot; drain=yes"
OOPS = "severity=degraded; action=reboot; drain=after_count"
APP = "severity=info; action=check_app; drain=no"

LINES = [
    (
        f"event=soft_lockup; cpu=6; seconds=22; pid=9; name=python3; {SHORT}",
        "watchdog: BUG: soft lockup - CPU#6 stuck for 22s! [python3:9]",
    ),
    (
        f"event=soft_lockup; cpu=6; seconds=22; pid=9; name=kworker/u9:2; {SHORT}",
        "NMI watchdog: BUG: soft lockup - CPU#6 stuck for 22s! [kworker/u9:2:9]",
    ),
    (
        f"event=soft_lockup; cpu=6; seconds=22; name=swapper/6; pid=-; {SHORT}",
        "BUG: soft lockup - CPU#6 stuck for 22s! [swapper/6:0]",
    ),
    (
        f"event=soft_lockup; cpus=1,2; seconds=26; {SHORT}",
        "[10.0] watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [a:1]\n"
        "[11.0] watchdog: BUG: soft lockup - CPU#2 stuck for 26s! [b:2]",
    ),
    (
        f"event=soft_lockup; cpus=1,2,3; seconds=93; {HANG}",
        "[10.0] watchdog: BUG: soft lockup - CPU#1 stuck for 91s! [a:1]\n"
        "[11.0] watchdog: BUG: soft lockup - CPU#3 stuck for 92s! [a:1]\n"
        "[12.0] watchdog: BUG: soft lockup - CPU#2 stuck for 93s! [b:2]",
    ),
    (
        f"event=soft_lockup; cpu=1; seconds=200; {SHORT}",
        "[10.0] watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [a:1]\n"
        "[190.0] watchdog: BUG: soft lockup - CPU#1 stuck for 200s! [a:1]",
    ),
    ("", "soft lockup - no CPU here"),
    (
        f"event=soft_lockup; cpu=5; seconds=26; {SHORT}",
        "watchdog: BUG: soft lockup - CPU#5 stuck for 26 seconds! [bash:537]",
    ),
    (f"event=soft_lockup; cpu=11; seconds=94; name=-; {SHORT}", "watchdog: BUG: soft lockup - CPU#11 stuck for 94s!"),
    (f"event=hard_lockup; cpu=12; {HANG}", "watchdog: Watchdog detected hard LOCKUP on cpu 12"),
    (f"event=hard_lockup; cpu=3; {HANG}", "NMI watchdog: Watchdog detected hard LOCKUP on cpu 3"),
    (f"event=hard_lockup; cpu=0; {HANG}", "Watchdog detected hard LOCKUP on cpu 0"),
    ("", "NMI watchdog: Enabled. Permanently consumes one hw-PMU counter."),
    (f"event=rcu_stall; {SHORT}", "rcu: INFO: rcu_sched self-detected stall on CPU"),
    (f"event=rcu_stall; {SHORT}", "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:"),
    (
        f"event=rcu_stall; {SHORT}",
        "INFO: rcu_sched detected stalls on CPUs/tasks: { 3} (detected by 0, t=60002 jiffies)",
    ),
    (f"event=rcu_stall; {SHORT}", "rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 13-.... }"),
    ("", "rcu: Hierarchical RCU implementation."),
    (
        "event=hung_task; pid=931150; name=containerd-shim; seconds=122; severity=warn; action=none; drain=after_count",
        "INFO: task containerd-shim:931150 blocked for more than 122 seconds.",
    ),
    (
        "event=hung_task; pid=12; name=kworker/u8:1; seconds=241; drain=after_count",
        "INFO: task kworker/u8:1:12 blocked for more than 241 seconds.",
    ),
    (
        "event=hung_task; pid=12; name=VM Thread; seconds=120; drain=after_count",
        "INFO: task VM Thread:12 blocked in I/O wait for more than 120 seconds.",
    ),
    ("", "INFO: task kworker/0:1:12 is blocked on a mutex likely owned by task b:13."),
    (f"event=kernel_panic; {HANG}", "Kernel panic - not syncing: Fatal Machine check"),
    (f"event=kernel_panic; {HANG}", "Kernel Panic - not syncing: VFS: Unable to mount root fs on unknown-block(8,1)"),
    (f"event=kernel_panic; {HANG}", "---[ end Kernel panic - not syncing: out of memory. panic_on_oom is selected"),
    (
        f"event=kernel_panic; {HANG}",
        "<0>[5.0] Kernel panic - not syncing: softlockup: hung tasks\n"
        "<0>[5.9] ---[ end Kernel panic - not syncing: softlockup: hung tasks ]---",
    ),
    (f"event=kernel_oops; {OOPS}", "BUG: kernel NULL pointer dereference, address: 0000000000000008"),
    (f"event=kernel_oops; {OOPS}", "BUG: unable to handle page fault for address: ffffb0c0c0c0c0c0"),
    (f"event=kernel_oops; {OOPS}", "BUG: unable to handle kernel paging request at ffffb0c0c0c0c0c0"),
    (f"event=kernel_oops; {OOPS}", "kernel BUG at mm/slub.c:305!"),
    (
        f"event=kernel_oops; {OOPS}",
        "general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP NOPTI",
    ),
    (f"event=kernel_oops; {OOPS}", "Oops: 0002 [#1] SMP NOPTI\nOops: 0002 [#2] SMP NOPTI"),
    (
        "event=workqueue_lockup; seconds=31; severity=degraded; action=none; drain=after_count",
        "BUG: workqueue lockup - pool cpus=3 node=0 flags=0x0 nice=0 stuck for 31s!",
    ),
    (
        f"event=app_trap; pid=7; name=python; lib=libnccl.so.2; {APP}",
        "python[7] general protection ip:7f1 sp:7f2 error:0 in libnccl.so.2[7f0+100]",
    ),
    ("event=file_max; severity=warn; action=none; drain=after_count", "VFS: file-max limit 1000000 reached"),
    ("", "VFS: file-max limit 1000000"),
    (
        f"event=segfault; pid=7; name=a b; lib=libcuda.so.1; {APP}",
        "a b[7]: segfault at 0 ip 00007f sp 00007f error 4 in libcuda.so.1[7f7c7ac00000+d3d3000] likely on CPU 3 (core 3)",
    ),
    (f"event=segfault; pid=7; name=python3; lib=-; {APP}", "python3[7]: segfault at 0 ip 0 sp 0 error 14"),
    (  # leptonai/gpud NCCL tests
        f"event=segfault; pid=-; name=-; lib=libnccl.so.2; {APP}",
        "[5.1] segfault at 7f797fe00000 ip 00007f7c7ac69996 sp 00007f7c12fd7c30 error 4 in libnccl.so.2[7f7c7ac00000+d3]",
    ),
    ("", "Jul  1 00:00:01 host1 app[7]: segfault at 0 ip 0 sp 0 error 4 in libnccl.so.2[7f7c7ac00000+d3]"),
    ("", "job: segfault at 0 ip 0 sp 0 error 4 in libnccl.so.2[7f7c7ac00000+d3]"),
    (
        f"event=app_trap; pid=7; name=python3; lib=libtorch_cpu.so; {APP}",
        "traps: python3[7] trap invalid opcode ip:7f1 sp:7f2 error:0 in libtorch_cpu.so[7f0+100]",
    ),
    (
        f"event=app_trap; pid=7; name=x; {APP}",
        "traps: x[7] general protection fault ip:7f1 sp:7f2 error:0 in x[7f0+100]",
    ),
]


@pytest.mark.parametrize(("expected", "text"), LINES)
def test_a_line_of_a_kernel_in_trouble(expected: str, text: str) -> None:
    check(expected, text)
