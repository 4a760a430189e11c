"""The heartbeat: what is in the file, what it costs a training run (nothing), and who else can write and import it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import pytest

from gpuwatch.training import Heartbeat
from gpuwatch.training import heartbeat as module
from tests.components import old_pythons

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _fresh_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_warned", set())
    for name in ("GPUWATCH_HEARTBEAT_DIR", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


def record(heartbeat: Heartbeat) -> dict[str, int]:
    """The record as docs/heartbeat.md lays it out, its checksum tried."""
    data = Path(heartbeat.path).read_bytes()
    assert len(data) == module.FILE_BYTES
    assert zlib.crc32(data[512:584]) == int.from_bytes(data[584:588], "little")
    names = ("phase", "zero", "sequence", "step", "end", "step_ns", "phase_start", "saved_step", "saved_at", "tokens")
    return dict(zip(names, module.RECORD.unpack_from(data, 512)[1:], strict=True))


def test_the_header_says_who_it_is(tmp_path: Path) -> None:
    with Heartbeat(
        "opt-175b", rank=3, world_size=128, attempt="77.1", team="pre", user="ada", directory=tmp_path
    ) as hb:
        data = Path(hb.path).read_bytes()
    assert data[:4] == b"GWHB"
    assert zlib.crc32(data[:508]) == int.from_bytes(data[508:512], "little")
    _, version, offset, pid, rank, world, gpu, ticks, opened, boot, run, attempt, team, user, namespace = (
        module.HEADER.unpack_from(data)
    )
    assert (version, offset, pid, rank, world, gpu) == (1, 512, os.getpid(), 3, 128, -1)
    assert ticks == module.start_ticks(os.getpid())
    assert namespace == Path("/proc/self/ns/pid").stat().st_ino
    assert opened > 1_700_000_000 * 10**9
    assert boot.hex() == Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    words = [text.rstrip(b"\0").decode() for text in (run, attempt, team, user)]
    assert words == ["opt-175b", "77.1", "pre", "ada"]


def test_a_run_from_init_to_done(tmp_path: Path) -> None:
    hb = Heartbeat("r", rank=0, world_size=1, directory=tmp_path)
    assert record(hb)["phase"] == 0
    assert (record(hb)["step"], record(hb)["end"], record(hb)["tokens"]) == (-1, 0, -1)
    hb.phase("train")
    hb.step(1, tokens=10)
    first = record(hb)
    assert (first["phase"], first["step"], first["tokens"]) == (1, 1, 10)
    assert first["step_ns"] > 0
    with hb.checkpoint(1):
        assert record(hb)["phase"] == 2
        assert record(hb)["saved_step"] == -1
    saved = record(hb)
    assert (saved["phase"], saved["saved_step"]) == (1, 1)
    assert saved["saved_at"] >= first["end"]
    with hb.evaluate():
        assert record(hb)["phase"] == 3
    with hb.data_wait():
        assert record(hb)["phase"] == 4
    path = hb.path
    hb.close()
    assert not hb.on
    hb.step(2)
    hb.path = path
    assert record(hb)["phase"] == 5
    assert record(hb)["step"] == 1


def test_the_sequence_grows_at_each_write(tmp_path: Path) -> None:
    hb = Heartbeat("r", directory=tmp_path)
    seen = [record(hb)["sequence"]]
    for step in range(3):
        hb.step(step)
        seen.append(record(hb)["sequence"])
    assert seen == [1, 2, 3, 4]


def test_a_step_that_ends_another_phase_has_no_duration(tmp_path: Path) -> None:
    hb = Heartbeat("r", directory=tmp_path)
    hb.step(1)
    assert record(hb)["step_ns"] == 0  # it began somewhere in init
    hb.step(2)
    assert record(hb)["step_ns"] > 0


def test_a_failed_checkpoint_is_not_durable(tmp_path: Path) -> None:
    hb = Heartbeat("r", directory=tmp_path)
    with pytest.raises(RuntimeError), hb.checkpoint(5):
        raise RuntimeError("the disk is full")
    assert record(hb)["saved_step"] == -1


def test_a_process_that_fails_leaves_no_done_behind(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), Heartbeat("r", directory=tmp_path) as hb:
        raise RuntimeError("out of memory")
    assert record(hb)["phase"] == 0


@pytest.mark.parametrize(("step", "tokens", "written"), [(7, 4.2e6, (7, 4_200_000)), (7.0, -1, (7, -1))])
def test_numbers_that_are_no_integers_are_taken_as_such(
    tmp_path: Path, step: int, tokens: int, written: tuple[int, int]
) -> None:
    hb = Heartbeat("r", directory=tmp_path)
    hb.step(step, tokens=tokens)
    assert (record(hb)["step"], record(hb)["tokens"]) == written


def test_nothing_raises_into_the_training_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hb = Heartbeat("r", directory=tmp_path)
    hb.step("three")  # type: ignore[arg-type]
    hb.phase("lunch")
    hb.step(2**80)
    os.close(hb._file)
    hb.step(1)
    hb.checkpoint_saved(1)
    hb.close()
    assert "lunch" in capsys.readouterr().err


def test_a_long_name_is_cut_and_never_in_the_middle_of_a_character(tmp_path: Path) -> None:
    hb = Heartbeat("ü" * 100, rank=1, directory=tmp_path)
    run = module.HEADER.unpack_from(Path(hb.path).read_bytes())[10].rstrip(b"\0")
    assert run.decode() == "ü" * 63
    assert Path(hb.path).name.startswith("_" * 80 + ".1.")


def test_the_file_of_an_earlier_process_of_the_same_rank_goes(tmp_path: Path) -> None:
    old = tmp_path / "r.0.999999999.beat"
    other = tmp_path / "r.1.999999999.beat"
    old.write_bytes(b"x")
    other.write_bytes(b"x")
    Heartbeat("r", rank=0, directory=tmp_path)
    assert not old.exists()
    assert other.exists()


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs", "ceph", "cifs", "beegfs", "gpfs", "brandnewfs", "9p"])
def test_off_with_one_warning_on_a_file_system_not_known_to_be_local(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "read_mounts", lambda text: [("/", "ext4"), (str(tmp_path), kind)])
    beats = [Heartbeat("r", rank=rank, directory=tmp_path / "deep") for rank in range(3)]
    assert not any(hb.on for hb in beats)
    for hb in beats:
        hb.step(1)
    assert capsys.readouterr().err.count(f"is on {kind}") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_link_into_a_remote_file_system_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = tmp_path / "remote"
    (tmp_path / "link").symlink_to(remote)
    monkeypatch.setattr(module, "read_mounts", lambda text: [("/", "ext4"), (str(remote), "nfs")])
    assert not Heartbeat("r", directory=tmp_path / "link").on


def test_off_where_the_folder_is_not_writable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert not Heartbeat("r", directory=tmp_path / "file" / "beats").on
    assert capsys.readouterr().err.startswith("gpuwatch: heartbeat is off")


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUWATCH_HEARTBEAT_DIR", str(tmp_path / "beats"))
    assert Path(Heartbeat("r").path).parent == tmp_path / "beats"


def test_the_agent_may_read_it_whatever_the_jobs_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with Heartbeat("r", directory=tmp_path / "beats") as heartbeat:
            modes = [Path(path).stat().st_mode & 0o777 for path in (heartbeat.path, tmp_path / "beats")]
    finally:
        os.umask(before)
    assert modes == [0o644, 0o755]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param({}, {"run": "unnamed", "attempt": "", "rank": 0, "world_size": 1, "gpu_index": -1}, id="nothing"),
        pytest.param(
            {"SLURM_JOB_ID": "812", "SLURM_RESTART_COUNT": "2", "SLURM_JOB_NAME": "opt", "SLURM_PROCID": "9",
             "SLURM_NTASKS": "16", "SLURM_LOCALID": "1", "SLURM_JOB_ACCOUNT": "pre", "SLURM_JOB_USER": "ada"},
            {"run": "opt", "attempt": "812.2", "rank": 9, "world_size": 16, "gpu_index": 1, "team": "pre",
             "user": "ada"},
            id="slurm",
        ),
        pytest.param(
            {"TORCHELASTIC_RUN_ID": "abc", "TORCHELASTIC_RESTART_COUNT": "1", "RANK": "3", "WORLD_SIZE": "8",
             "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "4,6"},
            {"run": "abc", "attempt": "abc.1", "rank": 3, "world_size": 8, "gpu_index": 6},
            id="torchrun-with-some-gpus",
        ),
        pytest.param(
            {"SLURM_JOB_ID": "812", "TORCHELASTIC_RUN_ID": "abc", "RANK": "3", "GPUWATCH_ATTEMPT": "mine"},
            {"attempt": "mine", "rank": 3},
            id="ours-first",
        ),
        pytest.param({"CUDA_VISIBLE_DEVICES": "GPU-1b2c", "LOCAL_RANK": "0"}, {"gpu_index": -1}, id="uuid-is-no-index"),
    ],
)  # fmt: skip
def test_what_the_launcher_says(environment: dict[str, str], expected: dict[str, object]) -> None:
    found = module.described_by(environment)
    assert {key: found[key] for key in expected} == expected


def test_the_last_mount_on_a_point_is_the_one_that_counts() -> None:
    text = textwrap.dedent(
        """\
        21 1 8:1 / / rw - ext4 /dev/sda1 rw
        22 21 0:5 / /home rw - autofs systemd-1 rw
        23 21 0:6 / /home rw,relatime shared:1 - nfs4 server:/home rw
        24 21 0:7 / /mnt/two\\040words rw - tmpfs tmpfs rw
        broken line
        """
    )
    mounts = module.read_mounts(text)
    assert module.mount_type("/home/ada", mounts) == "nfs4"
    assert module.mount_type("/homes", mounts) == "ext4"
    assert module.mount_type("/mnt/two words/x", mounts) == "tmpfs"
    assert module.mount_type("/", []) == "unknown"


C_WRITER = r"""
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
static uint32_t crc32(const unsigned char *p, int n) {
  uint32_t c = ~0u;
  while (n--) { c ^= *p++; for (int k = 0; k < 8; k++) c = c >> 1 ^ (0xEDB88320u & -(c & 1)); }
  return ~c;
}
#define PUT(at, type, value) do { type v = (value); memcpy(b + (at), &v, sizeof v); } while (0)
int main(int argc, char **argv) {
  unsigned char b[588] = {0};
  memcpy(b, "GWHB", 4); PUT(4, uint16_t, 1); PUT(6, uint16_t, 512); PUT(8, uint32_t, getppid());
  PUT(12, uint32_t, 5); PUT(16, uint32_t, 64); PUT(20, int32_t, 5);
  strcpy((char *)b + 56, "from-c"); strcpy((char *)b + 184, "9.0");
  PUT(508, uint32_t, crc32(b, 508));
  memcpy(b + 512, "GWBT", 4); PUT(516, uint16_t, 1); PUT(520, uint64_t, 1); PUT(528, int64_t, 41);
  PUT(536, int64_t, 1800000000000000000); PUT(544, int64_t, 3200000000); PUT(552, int64_t, 1790000000000000000);
  PUT(560, int64_t, 40); PUT(568, int64_t, 1795000000000000000); PUT(576, int64_t, -1);
  PUT(584, uint32_t, crc32(b + 512, 72));
  int file = open(argv[1], O_RDWR | O_CREAT | O_EXCL, 0644);
  return pwrite(file, b, sizeof b, 0) != sizeof b;
}
"""


@pytest.mark.needs("gcc")
def test_a_c_program_can_write_it_from_the_page_alone(tmp_path: Path) -> None:
    from gpuwatch.collectors import training

    (tmp_path / "writer.c").write_text(C_WRITER)
    subprocess.run(["gcc", "-O1", "-Wall", "-o", tmp_path / "writer", tmp_path / "writer.c"], check=True)
    beats = tmp_path / "beats"
    beats.mkdir()
    subprocess.run([tmp_path / "writer", beats / "from-c.5.1.beat"], check=True)
    facts = training.COLLECTOR.open(training.Settings(directories=(str(beats),))).read().facts
    assert facts.unreadable_count == 0
    (beat,) = facts.beats
    assert (beat.run, beat.attempt, beat.rank, beat.world_size, beat.step, beat.step_s) == (
        "from-c",
        "9.0",
        5,
        64,
        41,
        3.2,
    )
    assert (beat.checkpoint_step, beat.phase, beat.tokens, beat.alive) == (40, "train", None, True)


def test_it_is_written_in_the_words_of_python_38() -> None:
    """Also where no such Python is at hand to run it."""
    words = ["check", "--isolated", "--target-version=py38", "--select=E9", str(ROOT / "gpuwatch" / "training")]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "--quiet", *words], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip()) == (0, "")


@pytest.mark.needs("python3.8")
@pytest.mark.parametrize("how", ["imported", "copied"])
def test_it_works_on_python_38(tmp_path: Path, how: str) -> None:
    script = "from gpuwatch.training import Heartbeat" if how == "imported" else "from heartbeat import Heartbeat"
    if how == "copied":
        shutil.copy(ROOT / "gpuwatch" / "training" / "heartbeat.py", tmp_path / "heartbeat.py")
    script += "\nhb = Heartbeat('old', rank=1, world_size=2, directory='beats')\nassert hb.on\nhb.step(4)\nhb.close()\n"
    path = str(ROOT) if how == "imported" else str(tmp_path)
    words = [old_pythons()[0], "-c", script]
    subprocess.run(words, check=True, cwd=tmp_path, env={"PYTHONPATH": path, "PATH": "/usr/bin"})
    (file,) = (tmp_path / "beats").iterdir()
    assert module.RECORD.unpack_from(file.read_bytes(), 512)[4] == 4


def test_it_imports_nothing_but_the_standard_library() -> None:
    script = (
        "import sys; before = set(sys.modules); import gpuwatch.training; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "assert new <= set(sys.stdlib_module_names) | {'gpuwatch'}, new"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
