"""Which lines are the kernel's own: every prefix that a kernel log writes, and nothing that quotes one."""

from __future__ import annotations

import pytest

from gpuwatch.faults import prefix
from gpuwatch.faults.reader import LogReader
from gpuwatch.faults.story import Story

MESSAGE = "NVRM: Xid (PCI:0000:05:00): 79, pid=1234, name=python3, GPU has fallen off the bus."

KERNEL = [
    pytest.param("", id="no-prefix"),
    pytest.param("   ", id="indented"),
    pytest.param("\t", id="tab"),
    pytest.param("[111111111.111] ", id="uptime"),
    pytest.param("[    5.123456] ", id="uptime-padded"),
    pytest.param("[123] ", id="uptime-without-fraction"),
    pytest.param("[...] ", id="as-in-nvidias-document"),
    pytest.param("[Fri Aug 30 11:43:09 2024] ", id="ctime"),
    pytest.param("[Mon Aug  5 03:54:13 2024] ", id="ctime-padded-day"),
    pytest.param("[pt. sie 30 11:43:09 2024] ", id="ctime-polish"),
    pytest.param("[金 8月 30 11:43:09 2024] ", id="ctime-japanese"),
    pytest.param("[  +0.000844] ", id="difference"),
    pytest.param("[Aug30 11:43] ", id="human-minute"),
    pytest.param("[  966.503025 <    0.000021>] ", id="with-difference"),
    pytest.param("[<    0.000021>] ", id="difference-alone"),
    pytest.param("[Thu Nov  5 10:11:12 2026 <    0.000021>] ", id="clock-with-difference"),
    pytest.param("[12345.678901] [ T1343] ", id="caller-thread"),
    pytest.param("[12345.678901][ T1343] ", id="caller-thread-close"),
    pytest.param("[12345.678901][   C12] ", id="caller-processor"),
    pytest.param("<4>[12345.678901] ", id="priority-and-uptime"),
    pytest.param("<4>", id="priority"),
    pytest.param("<3>[12345.678901][   C12] ", id="priority-uptime-caller"),
    pytest.param("4,1227,437812449932,c;", id="kmsg"),
    pytest.param("4,1227,437812449932,-;", id="kmsg-no-continuation"),
    pytest.param("4,1227,437812449932,c,1,-;", id="kmsg-more-fields"),
    pytest.param("4,1227,437812449932;", id="kmsg-no-flags"),
    pytest.param("2018-06-07T16:01:06.034Z cpu18:67763)", id="esxi"),
    pytest.param("2023-05-04T06:45:12.345Z In(182) vmkernel: cpu40:2099111)", id="esxi-8"),
    pytest.param("2024年 04月 15日 星期一 07:56:59 CST host1 kernel: ", id="chinese-long"),
    pytest.param("[Mon 15 Apr 2024 07:56:59 AM CEST] ", id="ctime-twelve-hours"),
    pytest.param("3,1227,437812449932,-,caller=T1343;", id="kmsg-caller"),
    pytest.param("Nov 22 18:29:55 host1 kernel: [  966.503025] ", id="syslog"),
    pytest.param("Nov  2 18:29:55 host1 kernel: ", id="syslog-padded-day"),
    pytest.param("Nov 22 18:29:55.123456 host1 kernel: ", id="short-precise"),
    pytest.param("kwi 15 07:56:59 host1 kernel: ", id="syslog-polish"),
    pytest.param("4月 15 07:56:59 host1 kernel: ", id="syslog-japanese"),
    pytest.param("4월 15 07:56:59 host1 kernel: ", id="syslog-korean"),
    pytest.param("апр 15 07:56:59 host1 kernel: ", id="syslog-russian"),
    pytest.param("févr. 15 07:56:59 host1 kernel: ", id="syslog-french"),
    pytest.param("15. Apr 07:56:59 host1 kernel: ", id="day-first"),
    pytest.param("Mo 2024-04-15 07:56:59 CEST host1 kernel: ", id="short-full-german"),
    pytest.param("Mon 2024-04-15 07:56:59 UTC host1 kernel: ", id="short-full"),
    pytest.param("2026-09-14T20:30:27-0400 host1 kernel: ", id="short-iso"),
    pytest.param("2026-09-14T20:30:27+02:00 host1 kernel: ", id="short-iso-colon"),
    pytest.param("2026-09-14T20:30:27.123456+02:00 host1 kernel: [12345.678901] ", id="rsyslog-iso"),
    pytest.param("2026-09-14 20:30:27 host1 kernel: ", id="date-and-time-apart"),
    pytest.param("1790428806.570394 ws kernel: ", id="short-unix"),
    pytest.param("[  966.503025] host1 kernel: ", id="short-monotonic"),
    pytest.param("Mar 21 21:42:01 kernel: ", id="no-host"),
    pytest.param("Aug 14 kernel: ", id="no-time"),
    pytest.param("host1 kernel: ", id="host-only"),
    pytest.param("kernel: ", id="tag-only"),
    pytest.param("Nov 22 18:29:55 node-01.cluster.local kernel: ", id="dotted-host"),
    pytest.param("Nov 22 18:29:55 10.0.0.7 kernel: ", id="address-as-host"),
    pytest.param("Nov 22 18:29:55 fd00::7 kernel: ", id="ipv6-as-host"),
    pytest.param("Apr 15 07:56:59 host1 kern.warn kernel: [12.3] ", id="busybox-facility"),
    pytest.param("Mon Apr 15 07:56:59 2024 kern.err kernel: [12.3] ", id="openwrt"),
    pytest.param("Apr 15 07:56:59 host1 kernel: <4>[12.345678] ", id="syslog-with-priority"),
    pytest.param("<4>Apr 15 07:56:59 host1 kernel: [12.345678] ", id="forwarded"),
    pytest.param("<4>1 2026-09-14T20:30:27.123456+02:00 host1 kernel - - - ", id="rfc5424"),
    pytest.param('<4>1 2026-09-14T20:30:27Z host1 kernel - - [meta x="1"] \ufeff[12.3] ', id="rfc5424-data"),
    pytest.param("kern  :warn  : [12345.678901] ", id="columns"),
    pytest.param("kern  :warn  : 2025-01-21T04:41:44,283302+00:00 ", id="columns-iso"),
    pytest.param("kern  :err   : [Fri Aug 30 11:43:09 2024] ", id="columns-ctime"),
    pytest.param("kern  :warn  : ", id="columns-no-time"),
    pytest.param("2025-01-21T04:41:44,283302+00:00 ", id="dmesg-iso"),
    pytest.param("192.0.2.11: kern: warning: [2026-04-22T21:27:51.291660856Z]: ", id="talos"),
    pytest.param("node-1: kern:    info: [2026-04-22T21:27:51Z]: ", id="talos-padded"),
    pytest.param("host1: kern: err: [2026-04-22T21:27:51.291660856Z]: ", id="talos-node-like-a-facility"),
    pytest.param("worker:  kern: warning: [2026-04-22T21:27:51.291660856Z]: ", id="talos-node-of-letters"),
    pytest.param("1234:[  966.503025] ", id="grep-line"),
    pytest.param("1235-Nov 22 18:29:55 host1 kernel: ", id="grep-context"),
    pytest.param("7:2026-09-14T20:30:27-0400 host1 kernel: ", id="grep-line-iso"),
    pytest.param("/var/log/syslog:Nov 22 18:29:55 host1 kernel: [  966.503025] ", id="grep-file"),
    pytest.param("kern.log.1:12:Nov 22 18:29:55 host1 kernel: ", id="grep-file-and-line"),
    pytest.param("\x1b[32m[12345.678901] \x1b[0m\x1b[33m", id="colours"),
    pytest.param("\x1b[32mkern  \x1b[0m:\x1b[33mwarn  \x1b[0m: \x1b[32m[12345.678901] \x1b[0m", id="columns-colours"),
    pytest.param("\ufeff[12345.678901] ", id="byte-order-mark"),
    pytest.param("Nov 22 18:29:55 host1 kernel: message repeated 1 times: [ ", id="repeated-once"),
    pytest.param("Nov 22 18:29:55 host1 kernel: [ 9.1] message repeated 1 times: [ [ 9.1] ", id="repeated-with-uptime"),
]

NOT_KERNEL = [
    pytest.param('[XID found] (32 minutes ago) "', id="quoted-in-a-report"),
    pytest.param('"', id="quotes"),
    pytest.param("`", id="backtick"),
    pytest.param("> ", id="quoted-in-a-mail"),
    pytest.param(
        "host1 | ERROR: nhc: Health check failed: check_gpu_xid: GPU Xid errors detected: [ 3606.832215] ", id="nhc"
    ),
    pytest.param("ERROR: nhc: Health check failed: [ 3606.832215] ", id="nhc-bare"),
    pytest.param("Nov 22 18:29:55 host1 gpud[1234]: ", id="user-process"),
    pytest.param("Nov 22 18:29:55 host1 gpud[1234]: kernel: ", id="user-process-quotes-the-tag"),
    pytest.param(
        "Nov 22 18:29:55 host1 gpud[1234]: Nov 22 18:29:54 host1 kernel: [  966.503025] ", id="user-process-quotes-all"
    ),
    pytest.param("Nov 22 18:29:55 host1 gpud: [  966.503025] ", id="user-process-without-pid"),
    pytest.param("Nov 22 18:29:55 host1 kernel[1234]: ", id="logger-that-calls-itself-kernel"),
    pytest.param("Nov 22 18:29:55 host1 nvidia-kernel: ", id="tag-that-ends-in-kernel"),
    pytest.param("Nov 22 18:29:55 host1 kernel-monitor[12]: ", id="tag-that-begins-with-kernel"),
    pytest.param("Nov 22 18:29:55 host1 kernel: gpud[1234]: ", id="user-writes-to-the-ring"),
    pytest.param("[  966.503025] gpud[1234]: ", id="user-writes-to-the-ring-dmesg"),
    pytest.param("[  966.503025] systemd-journald[411]: ", id="journald-in-the-ring"),
    pytest.param("12,1227,437812449932,-;", id="kmsg-user-facility"),
    pytest.param("11,1227,437812449932,-;", id="kmsg-user-facility-error"),
    pytest.param("30,1227,437812449932,-;", id="kmsg-daemon-facility"),
    pytest.param("<12>[12345.678901] ", id="priority-user"),
    pytest.param("<134>Apr 15 07:56:59 host1 kernel: ", id="priority-local0"),
    pytest.param("user  :notice: [12345.678901] ", id="columns-user"),
    pytest.param("daemon:err   : 2025-01-21T04:41:44,283302+00:00 ", id="columns-daemon"),
    pytest.param("192.0.2.11: user: warning: [2026-04-22T21:27:51.291660856Z]: ", id="talos-user"),
    pytest.param("Apr 15 07:56:59 host1 user.notice kernel: ", id="busybox-user"),
    pytest.param("<12>1 2026-09-14T20:30:27Z host1 kernel - - - ", id="rfc5424-user"),
    pytest.param("<4>1 2026-09-14T20:30:27Z host1 gpud 1234 - - ", id="rfc5424-process"),
    pytest.param("<4>1 2026-09-14T20:30:27Z host1 kernel 1234 - - ", id="rfc5424-process-called-kernel"),
    pytest.param('{"log":"', id="docker-json"),
    pytest.param('{"log":"[  966.503025] ', id="docker-json-uptime"),
    pytest.param("2026-09-14T20:30:27.123456789Z stderr F ", id="cri"),
    pytest.param("2026-09-14T20:30:27.123456789Z stdout F [  966.503025] ", id="cri-uptime"),
    pytest.param("I0915 10:12:13.123456    1234 monitor.go:42] ", id="klog"),
    pytest.param('time="2026-09-14T20:30:27Z" level=error msg="', id="logrus"),
    pytest.param("2020/08/10 19:09:42 ", id="go-log"),
    pytest.param("2020/08/10 19:09:42 found kernel: ", id="go-log-tag"),
    pytest.param("2026-09-14 20:30:27,123 ERROR monitor ", id="python-log"),
    pytest.param("[2026-09-14 20:30:27] [ERROR] [tid 12727] ", id="fabric-manager-log"),
    pytest.param("GPU0: ", id="gpu-tag"),
    pytest.param("[PCI:0000:05:00] ", id="address-in-brackets"),
    pytest.param("error: ", id="error"),
    pytest.param("We saw in the kernel: ", id="prose"),
    pytest.param("At 10:22:33 we saw this in the kernel: ", id="prose-with-a-time"),
    pytest.param("Nov 22 18:29:55 host1 sudo:  root : TTY=pts/0 ; COMMAND=/usr/bin/grep kernel: ", id="sudo"),
    pytest.param("Nov 22 18:29:55 host1 CRON[99]: (root) CMD (echo ", id="cron"),
    pytest.param("Nov 22 18:29:55 host1 audit[1]: EXECVE a1=", id="audit"),
    pytest.param("  Warning  NodeHasXid  3m  kubelet  ", id="kubectl-event"),
    pytest.param("reason: ", id="yaml"),
    pytest.param("1234:", id="number-of-something"),
    pytest.param("1234:gpud[7]: [  966.503025] ", id="grep-line-of-a-monitors-log"),
    pytest.param("user: user: warning: [2026-04-22T21:27:51Z]: ", id="talos-user-of-letters"),
    pytest.param("$ echo ", id="shell"),
    pytest.param("+ dmesg | grep ", id="shell-trace"),
    pytest.param("| 3 | ", id="table"),
    pytest.param("syslog-health-monitor: [  966.503025] ", id="monitor-named-like-a-log"),
]


@pytest.mark.parametrize("before", KERNEL)
def test_a_kernel_prefix_is_taken_off(before: str) -> None:
    records = prefix.split(before + MESSAGE + ("]" if "repeated" in before else ""))
    assert [record.message for record in records] == [MESSAGE]


@pytest.mark.parametrize("before", NOT_KERNEL)
def test_a_quotation_is_no_kernel_message(before: str) -> None:
    assert not any(record.message.startswith("NVRM:") for record in prefix.split(before + MESSAGE))
    story = Story()
    reader = LogReader(story)
    reader.feed((before + MESSAGE + "\n").encode())
    reader.finish()
    assert story.told == []
    assert reader.quoted_count == 1, "what is not taken is said"


@pytest.mark.parametrize(
    ("line", "uptime_us", "stamp", "level", "sequence"),
    [
        ("[  966.503025] ", 966_503_025, "966.503025", None, None),
        ("4,1227,437812449932,c;", 437_812_449_932, "437812.449932", 4, 1227),
        ("<3>[1.5] ", 1_500_000, "1.5", 3, None),
        ("Nov 22 18:29:55 host1 kernel: [  966.503025] ", 966_503_025, "966.503025", None, None),
        ("kwi 15 07:56:59 host1 kernel: ", None, "kwi 15 07:56:59", None, None),
        ("[Fri Aug 30 11:43:09 2024] ", None, "Fri Aug 30 11:43:09 2024", None, None),
        ("kern  :warn  : 2025-01-21T04:41:44,283302+00:00 ", None, "2025-01-21T04:41:44,283302+00:00", 4, None),
        ("2026-09-14T20:30:27-0400 host1 kernel: ", None, "2026-09-14T20:30:27-0400", None, None),
        ("192.0.2.11: kern: warning: [2026-04-22T21:27:51.29Z]: ", None, "2026-04-22T21:27:51.29Z", 4, None),
        ("", None, "", None, None),
    ],
)
def test_what_the_prefix_tells(
    line: str, uptime_us: int | None, stamp: str, level: int | None, sequence: int | None
) -> None:
    (record,) = prefix.split(line + MESSAGE, 7)
    assert (record.uptime_us, record.stamp, record.level, record.sequence, record.line) == (
        uptime_us,
        stamp,
        level,
        sequence,
        7,
    )


@pytest.mark.parametrize("before", KERNEL)
def test_the_usual_forms_are_read_as_all_are(before: str) -> None:
    assert prefix._strip(before + MESSAGE, 7) == prefix._strip_all(before + MESSAGE, 7)


@pytest.mark.parametrize(
    ("line", "stamp"),
    [
        ("10:22:33 host1 kernel: ", "10:22:33"),  # not the tenth line that grep found
        ("2026-09-14 20:30:27 host1 kernel: ", "2026-09-14 20:30:27"),
        ("12:[  966.503025] ", "966.503025"),
    ],
)
def test_a_line_number_is_no_clock(line: str, stamp: str) -> None:
    (record,) = prefix.split(line + MESSAGE)
    assert record.stamp == stamp


@pytest.mark.parametrize("fold", ["#012", "\n"])
def test_folded_newlines_are_several_messages(fold: str) -> None:
    records = prefix.split(f"Jun 30 11:07:05 host1 kernel: NVRM: one{fold}NVRM: two{fold}    NVRM: three")
    assert [record.message for record in records] == ["NVRM: one", "NVRM: two", "NVRM: three"]


def test_the_ring_escapes_what_is_not_printable() -> None:
    records = prefix.split_kmsg(
        "4,7,9,-;NVRM: one\\x0aNVRM: na\\xc3\\xafve\n SUBSYSTEM=pci\n DEVICE=+pci:0000:05:00.0\n"
    )
    assert [record.message for record in records] == ["NVRM: one", "NVRM: naïve"]


@pytest.mark.parametrize(
    ("line", "repeats"),
    [
        ("kernel: message repeated 9 times: [block nvme0n1: x]", 9),
        ("Nov 1 1:02:03 h kernel: message repeated 3 times: [ NVRM: x]", 3),
        ("Nov 1 1:02:03 h kernel: [ 3.3] message repeated 3 times: [ [ 3.1] NVRM: x", 3),
        ("kernel: NVRM: message repeated 9 times: [y]", 1),
    ],
)
def test_a_repeated_message_counts(line: str, repeats: int) -> None:
    (record,) = prefix.split(line)
    assert record.repeats == repeats


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("Nov 22 18:29:55 host1 last message repeated 3 times", 3),
        ("Nov 22 18:29:55 last message repeated 1 time", 1),
        ("Nov 22 18:29:55 host1 gpud[1]: last message repeated 3 times", 0),
        ("Nov 22 18:29:55 host1 kernel: NVRM: x", 0),
    ],
)
def test_the_old_syslogs_words_for_repeats(line: str, count: int) -> None:
    assert prefix.last_repeated(line) == count


def test_a_terminals_padding_is_taken_out() -> None:
    gap = " " * 80
    (record,) = prefix.split(f"[1.5] NVRM: Xid (PCI:0000:05:00): 7{gap}9, GPU has fal{gap}len off the bus.")
    assert record.message == "NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus."
    (record,) = prefix.split(
        "[1.5] nvidia-nvswitch0: SXid (PCI:0004:00:00.0): 26006, SOE HALT data[0] = 0x               0"
    )
    assert record.message.endswith("0x               0")
