"""Whose work is on the GPUs, with real processes in made-up cgroups."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.collectors import Unsupported
from gpuwatch.collectors.attribution import COLLECTOR, MOST_ROWS, Settings, metrics
from gpuwatch.model.facts.attribution import AttributionFacts, GpuProcess
from gpuwatch.model.facts.nvml import Gpu, NvmlFacts

SECRET = "AWS_SECRET_ACCESS_KEY"


class Node:
    """Real processes, whose cgroup is what the test says; everything else of /proc is the kernel's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proc = folder / "proc"
        self.proc.mkdir()
        (self.proc / "stat").write_text("cpu 1 2\nbtime 1700000000\n")
        (folder / "passwd").write_text("root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n")
        self.children: list[subprocess.Popen[bytes]] = []
        self.gpus: dict[int, list[int]] = {index: [] for index in range(4)}

    def process(self, cgroup: str, *gpus: int, uid: int = 1000, **environment: str) -> int:
        child = subprocess.Popen(["sleep", "600"], env={"PATH": os.environ["PATH"], SECRET: "s3cret", **environment})
        self.children.append(child)
        folder = self.proc / str(child.pid)
        folder.mkdir()
        (folder / "cgroup").write_text(cgroup)
        (folder / "comm").write_text("pt_main_thread\n")
        (folder / "status").write_text(f"Name:\tsleep\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (folder / "environ").symlink_to(f"/proc/{child.pid}/environ")
        for index in gpus:
            self.gpus[index].append(child.pid)
        return child.pid

    def end(self, pid: int) -> None:
        child = next(child for child in self.children if child.pid == pid)
        child.kill()
        child.wait()
        for pids in self.gpus.values():
            if pid in pids:
                pids.remove(pid)

    def settings(self, **changes: Any) -> Settings:
        usual: dict[str, Any] = {
            "proc": str(self.proc),
            "cgroup": str(self.folder / "cgroup"),
            "passwd": str(self.folder / "passwd"),
            "kubelet_checkpoint": str(self.folder / "checkpoint"),
            "pod_logs": str(self.folder / "pods"),
        }
        return Settings(**(usual | changes))

    def nvml(self, name: str) -> Any:
        assert name == "nvml"
        return NvmlFacts(
            gpus=tuple(Gpu(index, uuid=f"GPU-{index}", pids=tuple(pids)) for index, pids in self.gpus.items()),
            pci_gpu_count=4,
        )

    def reader(self, latest: Callable[[str], Any] | None = None) -> Any:
        reader: Any = COLLECTOR.open(self.settings())
        reader.meet(latest or self.nvml)
        return reader


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    for child in made.children:
        child.kill()
        child.wait()


def facts_of(reader: Any) -> AttributionFacts:
    facts = reader.read().facts
    assert isinstance(facts, AttributionFacts)
    return facts


def test_a_slurm_job_a_pod_a_batch_task_and_somebody(node: Node) -> None:
    slurm = node.process(
        "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0",
        0,
        1,
        uid=4711,  # of a directory service: not in passwd
        SLURM_JOB_USER="bob",
        SLURM_JOB_ACCOUNT="nlp",
        SLURM_JOB_PARTITION="big",
        SLURM_JOB_ID="1",  # written by the job itself: the kernel's word counts
    )
    uid = "1f2e3d4c-5b6a-7988-9a0b-1c2d3e4f5061"
    (node.folder / "pods" / f"team_trainer-0_{uid}").mkdir(parents=True)
    pod = node.process(f"0::/kubepods/burstable/pod{uid}/{'ab' * 32}", 2)
    batch = node.process("0::/", 3, uid=4242, AZ_BATCH_JOB_ID="j", AZ_BATCH_TASK_ID="t", USER="_azbatch")
    plain = node.process("0::/user.slice", 3)
    found = {process.pid: process for process in facts_of(node.reader()).processes}
    assert list(found) == sorted([slurm, pod, batch, plain])
    said = {pid: (p.gpus, p.workload, p.job, p.step, p.user, p.account) for pid, p in found.items()}
    assert said == {
        slurm: ((0, 1), "slurm", "4711", "0", "bob", "nlp"),
        pod: ((2,), "kubernetes", "team/trainer-0", None, "alice", None),
        batch: ((3,), "azure_batch", "j/t", None, "_azbatch", None),
        plain: ((3,), "none", None, None, "alice", None),
    }
    assert found[pod].container == "ab" * 32
    assert found[slurm].name == "pt_main_thread"
    started = found[slurm].started_unix_ns
    assert started is not None
    assert started > 1_700_000_000 * 10**9


def test_no_secret_of_a_job_comes_along(node: Node) -> None:
    node.process("0::/", 0, USER="eve")
    reader = node.reader()
    reading = reader.read()
    assert "s3cret" not in repr(reading)
    assert "s3cret" not in repr(vars(reader))


def test_a_process_is_looked_at_once_and_forgotten_when_it_ends(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = node.process("0::/", 0)
    reader = node.reader()
    assert len(facts_of(reader).processes) == 1
    monkeypatch.setattr("gpuwatch.sdk.errand._start", lambda *_: pytest.fail("a second look"))
    assert [process.pid for process in facts_of(reader).processes] == [pid]
    node.end(pid)
    assert facts_of(reader).processes == ()


def test_gpus_that_somebody_has_and_does_not_use(node: Node) -> None:
    used = node.process(
        "0::/system.slice/slurmstepd.scope/job_5/step_0/user/task_0", 0, SLURM_JOB_ID="5", SLURM_JOB_GPUS="0,1"
    )
    tasks = node.folder / "cgroup/system.slice/slurmstepd.scope/job_5/step_0/user/task_0"
    tasks.mkdir(parents=True)
    (tasks / "cgroup.procs").write_text(f"{used}\n")
    facts = facts_of(node.reader())
    assert [(a.workload, a.job, a.gpus) for a in facts.allocations] == [("slurm", "5", (0, 1))]
    assert facts.idle_allocated == (1,)
    (node.folder / "checkpoint").write_text(
        '{"Data": {"PodDeviceEntries": [{"PodUID": "u", "ResourceName": "nvidia.com/gpu", '
        '"DeviceIDs": ["GPU-3", "GPU-9"]}]}}'
    )
    assert facts_of(node.reader()).idle_allocated == (1, 3)
    lost = NvmlFacts(gpus=(Gpu(1, error=15), Gpu(3, uuid="GPU-3")), pci_gpu_count=4)
    assert facts_of(node.reader(lambda _: lost)).idle_allocated == (3,)


def test_without_nvmls_word_nothing_is_claimed(node: Node) -> None:
    reader = node.reader(lambda _: None)
    reading = reader.read()
    assert (reading.facts.processes, reading.facts.idle_allocated) == ((), None)
    assert reading.gaps["processes"] == "NVML has not answered"
    with pytest.raises(Unsupported):
        node.reader(lambda _: NvmlFacts(pci_gpu_count=0)).read()


def test_an_environment_that_cannot_be_read_is_a_gap(node: Node) -> None:
    pid = node.process("0::/system.slice/slurmstepd.scope/job_5/step_0", 0)
    (node.proc / str(pid) / "environ").unlink()
    reading = node.reader().read()
    assert reading.gaps == {f"processes[{pid}].user": "No such file or directory"}
    assert (reading.facts.processes[0].job, reading.facts.processes[0].user) == ("5", "alice")


def test_an_environment_that_hangs_costs_its_deadline_alone(node: Node) -> None:
    pid = node.process("0::/", 0)
    (node.proc / str(pid) / "environ").unlink()
    os.mkfifo(node.proc / str(pid) / "environ")  # `grep` waits for a writer
    reader: Any = COLLECTOR.open(node.settings(deadline_s=0.2))
    reader.meet(node.nvml)
    begun_s = time.monotonic()
    reading = reader.read()
    assert time.monotonic() - begun_s < 2
    assert reading.gaps[f"processes[{pid}].user"].startswith("no answer for more than 0.2 s")


def test_one_info_series_a_gpu_and_job(node: Node) -> None:
    for rank in range(2):
        node.process(
            "0::/system.slice/slurmstepd.scope/job_5/step_0", 0, uid=5000, SLURM_JOB_USER='a"b', RANK=str(rank)
        )
    samples = list(metrics(facts_of(node.reader())))
    assert [(s.name, s.labels) for s in samples] == [
        ("gpuwatch_gpu_job_info", {"gpu": "0", "workload": "slurm", "job": "5", "user": 'a"b', "account": ""}),
        ("gpuwatch_gpus_allocated_idle", {}),
    ]


@pytest.mark.parametrize(
    ("uid", "user"), [(1000, "alice"), (0, "bob"), (5000, "bob")], ids=["liar", "root-for-a-job", "not-in-passwd"]
)
def test_whose_a_process_is_says_the_kernel_first(uid: int, user: str, node: Node) -> None:
    node.process("0::/system.slice/slurmstepd.scope/job_5/step_0", 0, uid=uid, SLURM_JOB_USER="bob")
    assert facts_of(node.reader()).processes[0].user == user


def test_what_a_process_says_of_itself_stays_small_and_printable(node: Node) -> None:
    words = {"AZ_BATCH_JOB_ID": "j\x1b[2J\n" + "x" * 10_000, "AZ_BATCH_ACCOUNT_NAME": "a\u202e"}
    pid = node.process("0::/", 0, uid=5000, USER="\x07e" * 200, **words)
    (node.proc / str(pid) / "comm").write_text("\x1b[31mred\n")
    (process,) = facts_of(node.reader()).processes
    said = [process.name, process.user or "", process.account or "", *(process.job or "").split("/")]
    assert all(word.isprintable() and 0 < len(word) <= 200 for word in said), said


def test_many_names_make_no_many_series(node: Node) -> None:
    facts = AttributionFacts(
        processes=tuple(
            GpuProcess(pid=n, gpus=(0,), name="p", uid=1, user=str(n), workload="none", job=None) for n in range(3_000)
        )
    )
    assert len(list(metrics(facts))) <= MOST_ROWS + 1


def test_this_machine() -> None:
    reader: Any = COLLECTOR.open(Settings())
    assert reader.read().facts.processes == ()
