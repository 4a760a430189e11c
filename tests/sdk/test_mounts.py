"""mountinfo taken apart, and served mounts that do not answer: in truth, by a file system whose server stands still."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.sdk import mounts
from gpuwatch.sdk.disks import Disks
from gpuwatch.sdk.errand import Errands
from gpuwatch.sdk.mount_probe import MOST_MOUNTS, MountProbe
from gpuwatch.sdk.mounts import Mount, parsed
from tests.components import go_without
from tests.hung_mount import HungMount, alone

LINES = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,discard
31 27 259:2 /srv /srv\040data rw,relatime - ext4 /dev/nvme0n1p2 rw,discard
40 27 259:9 / /scratch rw,relatime - ext4 /dev/md0 ro,errors=remount-ro
41 27 259:8 / /mnt rw - ext4 /dev/sdb rw,emergency_ro
42 27 259:7 / /image ro - ext4 /dev/sdc ro
50 27 0:50 / /home rw shared:2 master:1 - nfs4 nfs1:/home rw,vers=4.2
51 27 0:50 /me /home/me rw - nfs4 nfs1:/home rw
52 27 0:52 / /lustre rw - lustre 10.0.0.1@o2ib:/fs rw
53 27 0:53 / /s3 rw - fuse.s3fs s3fs rw
61 27 0:61 / /blobs rw - fuse.blobfuse2 blobfuse2 rw,user_id=0,group_id=0,allow_other
62 50 0:62 / /home/me/x rw - fuse.sshfs me@box: rw,user_id=1000,group_id=1000,allow_other
54 27 0:54 / /run/lxcfs rw - fuse.lxcfs lxcfs rw
55 27 0:55 / /auto rw - autofs systemd-1 rw
56 27 0:56 / /dev/shm rw - tmpfs tmpfs rw
57 27 0:57 / /run/user/0 rw - tmpfs tmpfs rw
58 27 0:58 / /var/lib/docker/x rw - overlay overlay rw
60 50 0:60 / /home rw - nfs4 nfs2:/newer rw
"""


def by_place(text: str = LINES) -> dict[str, Mount]:
    return {mount.place: mount for mount in parsed(text)}


def test_which_are_local_and_which_are_served() -> None:
    found = by_place()
    local = {"/", "/srv data", "/scratch", "/mnt", "/image", "/dev/shm"}
    assert {place for place, mount in found.items() if mount.local} == local
    assert {place for place, mount in found.items() if mount.served} == {
        "/home",
        "/home/me",
        "/lustre",
        "/s3",
        "/blobs",
    }
    assert found["/home"].source == "nfs2:/newer"  # what was mounted over it is what is seen


def test_each_file_system_once_at_its_shortest_place() -> None:
    once = [mount.place for mount in mounts.once(mount for mount in by_place().values() if mount.local)]
    assert sorted(once) == ["/", "/dev/shm", "/image", "/mnt", "/scratch"]


def test_the_nodes_mounts_are_not_those_of_a_hardened_unit(tmp_path: Path) -> None:
    """ProtectSystem=strict makes all read-only for us, ProtectHome hides /home under a mount of its own."""
    units = LINES.replace(" rw", " ro").replace("0:60 / /home", "0:70 / /home")
    units += "61 60 0:71 / /tmp rw - ext4 x rw\n"
    for pid, text in (("1", LINES), ("self", units)):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "mountinfo").write_text(text)
    found = {mount.place: mount for mount in mounts.read(str(tmp_path))}
    assert [place for place, mount in found.items() if mount.hidden] == ["/home"]
    assert not found["/"].read_only
    assert found["/scratch"].made_read_only
    (home,) = MountProbe(Errands("test"), 1.0).ask([found["/home"]])
    assert (home.answer, home.reason) == ("not_asked", "hidden from the agent by its unit's ProtectHome or the like")
    (tmp_path / "1/mountinfo").unlink()  # hidepid, or ProtectProc: only our own mounts can be read
    ours = {mount.place: mount for mount in mounts.read(str(tmp_path))}
    assert not ours["/tmp"].read_only
    assert ours["/scratch"].read_only
    assert not ours["/scratch"].made_read_only  # who made it so cannot be known


def test_who_made_it_read_only(tmp_path: Path) -> None:
    fstab = tmp_path / "fstab"
    fstab.write_text("# x\n/dev/sdc /image ext4 defaults 0 2\n/dev/sdd /ro ext4 ro,noauto 0 2\nshort\n")
    disks = Disks(str(fstab))
    disks.keep(tmp_path, ours=True)
    found = {disk.mount: (disk.read_only, disk.read_only_by) for disk in disks.look(list(by_place().values()))}
    assert found["/"] == (False, "")
    assert found["/scratch"] == (True, "kernel")
    assert found["/mnt"] == (True, "kernel")
    assert found["/image"] == (True, "fstab")
    later = LINES.replace("/ / rw,relatime", "/ / ro,relatime").replace("/dev/nvme0n1p2 rw", "/dev/nvme0n1p2 ro")
    after = Disks(str(fstab))  # another agent
    after.keep(tmp_path, ours=True)
    again = {disk.mount: disk.read_only_by for disk in after.look([by_place(later)["/"]])}
    assert again == {"/": "remounted"}
    assert Disks(str(tmp_path / "none")).look([by_place()["/image"]])[0].read_only_by == ""


@pytest.fixture
def ext4(tmp_path: Path) -> Iterator[Path]:
    place, image = tmp_path / "disk", tmp_path / "image"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    words = ["mount", "-o", "loop,errors=remount-ro", str(image), str(place)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        go_without("loop", f"nothing can be mounted: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.needs("root", "mkfs.ext4")
def test_a_real_file_system_that_the_kernel_stops_writing(ext4: Path) -> None:
    def now() -> tuple[bool, str]:
        (mount,) = [mount for mount in mounts.read("/proc") if mount.place == str(ext4)]
        (disk,) = Disks("/none").look([mount])
        trigger.append(Path("/sys/fs/ext4") / Path(mount.source).name / "trigger_fs_error")
        return disk.read_only, disk.read_only_by

    trigger: list[Path] = []
    assert now() == (False, "")
    trigger[0].write_text("a test")
    assert now() == (True, "kernel")


def test_what_of_the_system_lies_where(tmp_path: Path) -> None:
    lines = "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 8:2 / /var rw - ext4 /dev/b rw\n"
    disks = Disks("/none")
    assert {disk.mount: disk.roles for disk in disks.look(parsed(lines))} == {"/": ("root", "tmp"), "/var": ("var",)}
    device = tmp_path.stat().st_dev
    disks.keep(tmp_path, ours=True)
    here = f"1 0 {os.major(device)}:{os.minor(device)} / /x rw - ext4 /dev/a rw\n"
    (disk,) = disks.look(parsed(here))
    assert (disk.roles, disk.used_ratio) == (("state",), None)  # nothing is mounted at /x in truth


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=200) | st.lists(st.sampled_from([*LINES.split(" "), "-", "\n", "\\777"])).map(" ".join))
def test_whatever_mountinfo_says(text: str) -> None:
    for mount in parsed(text):
        assert mounts.shown(mount.place).isprintable()
    mounts.meant_writable(text)
    Disks("/none").look([mount for mount in parsed(text) if mount.place == ""])


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[HungMount]:
    place = tmp_path / "hung mount"
    place.mkdir()
    with alone():
        try:
            mount = HungMount(place)
        except OSError as error:
            go_without("fuse", f"nothing can be mounted: {error}")
        yield mount
        mount.end()


def served(place: str, source: str = "server:/export") -> Mount:
    return Mount(place, source, "nfs4", "0:1", frozenset(), frozenset())


def until(errands: Errands, count: int) -> None:
    end_s = time.monotonic() + 10
    while errands.abandoned_count != count:
        assert time.monotonic() < end_s
        time.sleep(0.01)


@pytest.mark.needs("root")
def test_a_mount_whose_server_stands_still(hung: HungMount, tmp_path: Path) -> None:
    assert {mount.place for mount in mounts.read("/proc") if mount.served} >= {str(hung.place)}
    errands = Errands("test")
    errands.keep(tmp_path)
    probe = MountProbe(errands, 0.4)
    both = [served("/"), served(str(hung.place))]
    assert [mount.answer for mount in probe.ask(both)] == ["ok", "ok"]
    hung.answers = False
    begun_s = time.monotonic()
    good, bad = probe.ask(both)
    assert time.monotonic() - begun_s < 2.0
    assert (good.answer, bad.answer) == ("ok", "hung")
    assert "wait channel request_wait_answer" in bad.reason
    assert errands.abandoned_count == 2  # the one for all, and its own
    begun_s = time.monotonic()
    again = probe.ask(both)
    assert time.monotonic() - begun_s < 0.3  # no third one was started
    assert [(mount.answer, mount.since_unix_ns) for mount in again] == [("ok", None), ("hung", bad.since_unix_ns)]
    assert errands.abandoned_count == 2
    hung.die()
    until(errands, 0)
    good, bad = probe.ask(both)
    assert (good.answer, bad.answer, bad.reason) == ("ok", "failed", "Transport endpoint is not connected")


def test_very_many_mounts_are_asked_in_turn(tmp_path: Path) -> None:
    many = []
    for number in range(MOST_MOUNTS * 2 + 3):
        (tmp_path / f"{number:03}").mkdir()
        many.append(served(str(tmp_path / f"{number:03}")))
    probe = MountProbe(Errands("test"), 3.0)
    asked: set[str] = set()
    for _ in range(3):
        answers = probe.ask(many)
        assert len(answers) == len(many)
        asked |= {mount.mount for mount in answers if mount.answer == "ok"}
    assert asked == {mount.place for mount in many}


def test_one_that_vanished_and_one_that_may_not_be_seen_have_answered(tmp_path: Path) -> None:
    (answer,) = MountProbe(Errands("test"), 3.0).ask([served(str(tmp_path / "gone"))])
    assert (answer.answer, answer.reason) == ("ok", "No such file or directory")


def test_a_mount_whose_turn_it_is_not_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a hung one among many would be well each other minute, and its node go back into service."""
    many = [served(str(tmp_path / f"{number:03}")) for number in range(MOST_MOUNTS + 2)]
    monkeypatch.setattr("gpuwatch.sdk.mount_probe._error_of", lambda *_: "Stale file handle")
    probe = MountProbe(Errands("test"), 3.0)
    for _ in range(3):
        answers = probe.ask(many)
    assert {mount.answer for mount in answers} == {"failed"}
    assert {mount.answer for mount in probe.ask(many[:3])} == {"failed"}
    gone = [replace(mount, hidden=True) for mount in many]
    assert {mount.answer for mount in probe.ask(gone)} == {"not_asked"}


def test_a_local_disk_within_what_a_server_serves_is_never_asked_by_ourselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/home/scratch, where the server of /home is dead: whoever goes there waits in the kernel, and cannot be ended."""
    scratch = tmp_path / "home" / "scratch"
    scratch.mkdir(parents=True)
    served, disk = f"1 0 0:9 / {scratch.parent} rw - nfs4 server:/home rw", f"2 1 8:2 / {scratch} rw - xfs /dev/b rw"
    lines = f"{served}\n{disk}\n3 0 8:3 / / rw - xfs /dev/c rw\n"
    for process in ("self", "1"):
        (tmp_path / process).mkdir()
        (tmp_path / process / "mountinfo").write_text(lines)
    local = [mount for mount in mounts.read(str(tmp_path)) if mount.local]
    assert [(mount.place, mount.beneath) for mount in local] == [(str(scratch), True), ("/", False)]
    room, asked = os.statvfs(scratch), list[str]()

    def statvfs(place: str) -> os.statvfs_result:
        asked.append(place)
        return room

    monkeypatch.setattr("gpuwatch.sdk.disks.os.statvfs", statvfs)
    here = {found.mount: found for found in Disks("/none", Errands("test")).look(local)}
    assert here[str(scratch)].total_bytes == here["/"].total_bytes
    silent = {found.mount: found.total_bytes for found in Disks("/none").look(local)}
    assert silent == {str(scratch): None, "/": here["/"].total_bytes}
    assert set(asked) == {"/"}
