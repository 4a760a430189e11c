# ruff: noqa: E501  (log lines are quoted whole)
"""What the kernel says of host memory and its checks. Forms: mm/oom_kill.c, mm/memory-failure.c, drivers/edac/edac_mc.c,
arch/x86/kernel/cpu/mce/core.c, drivers/firmware/efi/cper.c of the Linux kernel."""

from __future__ import annotations

import pytest

from tests.faults_table import check

DEAD = "severity=fatal; action=drain_replace; drain=yes"
NODE = "scope=node; severity=warn; action=none; drain=after_count"
GROUP = "scope=cgroup; severity=warn; action=check_app; drain=no"

LINES = [
    (  # cut before the bank's status
        "event=mce_uncorrected; cpu=0; bank=9; drain=yes",
        "mce: [Hardware Error]: CPU 0: Machine Check Exception: 5 Bank 9",
    ),
    (
        f"event=oom; pid=25315; name=python3; {NODE}",
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,"
        "task_memcg=/user.slice,task=python3,pid=25315,uid=0\n"
        "Out of memory: Killed process 25315 (python3) total-vm:1kB, anon-rss:1kB, file-rss:1kB, shmem-rss:0kB, UID:0\n"
        "oom_reaper: reaped process 25315 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
    ),
    (
        f"event=oom; pid=77; name=pt_data_worker; cgroup=/slurm/uid_1/job_7; {GROUP}",
        "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n"
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=job_7,mems_allowed=0-1,"
        "oom_memcg=/slurm/uid_1/job_7,task_memcg=/slurm/uid_1/job_7/step_0,task=pt_data_worker,pid=77,uid=1\n"
        "Memory cgroup out of memory: Killed process 77 (pt_data_worker) total-vm:1kB, anon-rss:1kB",
    ),
    (
        f"event=oom; pid=77; name=a b,c; {GROUP}",
        "Memory cgroup out of memory: Killed process 77 (a b,c) total-vm:1kB, anon-rss:1kB, file-rss:0kB",
    ),
    (f"event=oom; pid=9; name=java; {NODE}", "Out of memory: Kill process 9 (java) score 912 or sacrifice child"),
    (
        f"event=oom; pid=9; name=java; {NODE}",
        "Out of memory: Kill process 9 (java) score 912 or sacrifice child\n"
        "Killed process 9 (java) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB",
    ),
    (  # found by its last line alone, as `grep -i "killed process"` finds it
        "event=oom; pid=9; name=java; scope=-; severity=warn; action=none; drain=after_count",
        "[5.1] Killed process 9 (java) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB",
    ),
    (  # a child was sacrificed
        f"event=oom; pid=9; name=java; {NODE}",
        "[5.000001] Out of memory: Kill process 9 (java) score 912 or sacrifice child\n"
        "[5.000002] Killed process 10 (java) total-vm:1kB, anon-rss:1kB, file-rss:0kB",
    ),
    ("", "Killed process 9 (java)"),
    (  # before Linux 4.19
        f"event=oom; pid=9; name=java; {GROUP}",
        "[5.000001] Task in /docker/c4 killed as a result of limit of /docker/c4\n"
        "[5.000002] Memory cgroup out of memory: Kill process 9 (java) score 912 or sacrifice child\n"
        "[5.000003] Killed process 9 (java) total-vm:1kB, anon-rss:1kB, file-rss:0kB",
    ),
    (
        f"event=oom; pid=9; name=apache2; cgroup=/docker/c4; {GROUP}",
        "Task in /docker/c4 killed as a result of limit of /docker/c4\nKilled process 9 (apache2)",
    ),
    (
        f"event=oom; pid=-; cgroup=/docker/c4; {GROUP} || event=oom; pid=-; cgroup=/docker/c5; {GROUP}",
        "Task in /docker/c4 killed as a result of limit of /docker/c4\n"
        "Task in /docker/c5 killed as a result of limit of /docker/c5",
    ),
    (f"event=oom; pid=123; name=httpd; {NODE}", "Out of memory: Killed process 123, UID 48, (httpd)."),
    (
        f"event=oom; pid=5; name=x || event=oom; pid=6; name=y; {NODE}",
        "Out of memory: Killed process 5 (x) total-vm:1kB\nOut of memory: Killed process 6 (y) total-vm:1kB",
    ),
    ("", "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0"),
    ("", "Memory cgroup stats for /slurm/uid_1: cache:0KB rss:1KB"),
    (
        f"event=edac_ue; dimm=CPU_SrcID#0_MC#0_Chan#1_DIMM#0; {DEAD}",
        "EDAC MC0: 1 UE memory scrubbing error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x1 offset:0x0)",
    ),
    (
        f"event=edac_ue; dimm=mc#0csrow#3channel#0; {DEAD}",
        "EDAC MC0: 1 UE on mc#0csrow#3channel#0 (csrow:3 channel:0 page:0x0 offset:0x0 grain:64)",
    ),
    (
        "event=edac_ce; dimm=CPU_SrcID#0_Ha#0_Chan#1_DIMM#0; severity=info; action=none; drain=no",
        "EDAC MC0: 5 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x8 offset:0x0 "
        "grain:32 syndrome:0x0)",
    ),
    (
        f"event=edac_ue; dimm=unknown label; {DEAD}",
        "EDAC MC0: 1 UE Unknown on unknown label ( page:0x400a1 offset:0x0 grain:0)",
    ),
    ("", "EDAC MC: Ver: 3.0.0"),
    ("", "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0: DEV 0000:3a:0a.0"),
    (
        f"event=mce_uncorrected; cpu=12; bank=1; {DEAD}",
        "mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 1: be00000000800400",
    ),
    (
        f"event=mce_uncorrected; cpu=3; bank=7; {DEAD}",
        "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: fe00004000010090",
    ),
    (
        "event=mce_corrected; cpu=3; bank=7; severity=info; action=none; drain=no",
        "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: 8c00004000010090",
    ),
    ("event=mce_logged; severity=info; action=none; drain=no", "mce: [Hardware Error]: Machine check events logged"),
    (f"event=mce_uncorrected; {DEAD}", "[Hardware Error]: Uncorrected, software restartable error."),
    (f"event=mce_uncorrected; {DEAD}", "mce: [Hardware Error]: System Fatal error."),
    ("event=mce_corrected; severity=info; drain=no", "[Hardware Error]: Corrected error, no action required."),
    ("event=mce_corrected; severity=info; drain=no", "[Hardware Error]: Deferred error, no action required."),
    (
        f"event=edac_ue; dimm=unknown memory; {DEAD}",
        "EDAC MC0: 1 UE Multi-bit ECC on unknown memory (node:0 card:1 module:71 bank:7 row:0 col:0 page:0x1 offset:0xc00)",
    ),
    ("", "mce: CPU0: Thermal monitoring enabled (TM1)"),
    ("", "mce: [Hardware Error]: TSC 0 ADDR 7d5a2c1000 MISC 200404c24c086"),
    (
        f"event=memory_failure; {DEAD}",
        "mce: Uncorrected hardware memory error in user-access at 7d5a2c1000",
    ),
    (
        f"event=memory_failure; pid=4242; name=python3; {DEAD}",
        "Memory failure: 0x7d5a2c1: Sending SIGBUS to python3:4242 due to hardware memory corruption",
    ),
    (f"event=memory_failure; {DEAD}", "Memory failure: 0x7d5a2c1: recovery action for dirty LRU page: Recovered"),
    (
        "event=cpu_throttled; cpu=12; severity=warn; action=none; drain=no",
        "mce: CPU12: Package temperature above threshold, cpu clock throttled (total events = 3)",
    ),
    ("", "mce: CPU12: Package temperature/speed normal"),
    (f"event=hw_error; {DEAD}", "{1}[Hardware Error]: event severity: fatal"),
    (
        "event=hw_error; severity=degraded; action=contact_support; drain=after_count",
        "{3}[Hardware Error]: event severity: recoverable",
    ),
    ("event=hw_error; severity=info; action=none; drain=no", "{2}[Hardware Error]: event severity: corrected"),
    ("", "{2}[Hardware Error]: It has been corrected by h/w and requires no further action"),
]


@pytest.mark.parametrize(("expected", "text"), LINES)
def test_a_memory_line(expected: str, text: str) -> None:
    check(expected, text)
