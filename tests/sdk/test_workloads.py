"""From a cgroup path to a job; from Slurm's list of GPUs to indices; what schedulers have given away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.sdk.allocations import kubelet_allocations, slurm_jobs
from gpuwatch.sdk.workloads import Place, gpu_indices, place_of

BOX = "0123456789abcdef" * 4
POD = "1f2e3d4c-5b6a-7988-9a0b-1c2d3e4f5061"


@pytest.mark.parametrize(
    ("cgroup", "place"),
    [
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", Place("slurm", "4711", "0")),
        ("0::/system.slice/gpu01_slurmstepd.scope/job_7/step_batch/slurm", Place("slurm", "7", "batch")),
        (
            "9:cpuset:/slurm/uid_1000/job_12/step_extern/task_0\n1:name=systemd:/user.slice",
            Place("slurm", "12", "extern"),
        ),
        ("9:memory:/slurm_gpu01/uid_0/job_12/step_3", Place("slurm", "12", "3")),
        ("9:memory:/slurm/uid_0/job_12", Place("slurm", "12")),
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice/"
            f"cri-containerd-{BOX}.scope",
            Place("kubernetes", POD, None, BOX),
        ),
        (f"11:devices:/kubepods/besteffort/pod{POD}/{BOX}", Place("kubernetes", POD, None, BOX)),
        (f"0::/kubepods/pod{POD}/crio-{BOX}.scope", Place("kubernetes", POD, None, BOX)),
        (f"0::/kubepods/burstable/pod{'ab' * 16}/{BOX}", Place("kubernetes", "ab" * 16, None, BOX)),
        (f"0::/docker/{BOX}", Place(container=BOX)),
        (f"0::/system.slice/docker-{BOX}.scope", Place(container=BOX)),
        ("0::/user.slice/user-1000.slice/session-3.scope", Place()),
        ("0::/", Place()),
        ("", Place()),
        ("garbage", Place()),
        ("0::/user.slice/job_12/step_0", Place()),  # anybody may name a folder so
        ("0::/user.slice/podcast", Place()),
        ("0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_4711/step_0", Place()),
        (f"0::/user.slice/user-1000.slice/user@1000.service/kubepods/pod{POD}/{BOX}", Place()),
        ("0::/system.slice/slurmstepd.scope/job_5/step_0/user/task_0/user.slice", Place("slurm", "5", "0")),
    ],
)
def test_the_job_of_a_process(cgroup: str, place: Place) -> None:
    assert place_of(cgroup) == place


@given(st.text(max_size=300))
def test_no_path_is_too_strange(text: str) -> None:
    place_of(text)
    gpu_indices(text)


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("0", (0,)),
        ("0,1,4-6", (0, 1, 4, 5, 6)),
        ("", ()),
        ("GPU-1234", ()),
        ("3-1", ()),
        ("0-99999999", ()),
        ("1,x", ()),
    ],
)
def test_slurms_list_of_gpus(text: str, indices: tuple[int, ...]) -> None:
    assert gpu_indices(text) == indices


def test_jobs_of_slurms_cgroups(tmp_path: Path) -> None:
    def group(path: str, *pids: int) -> None:
        folder = tmp_path / path
        folder.mkdir(parents=True)
        (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))

    scope = "system.slice/slurmstepd.scope"
    group(f"{scope}/system", 1)
    group(f"{scope}/job_5/step_0/slurm", 10)
    group(f"{scope}/job_5/step_0/user/task_0", 11, 12)
    group(f"{scope}/job_6/step_extern/slurm", 20)
    group(f"{scope}/job_7/step_batch/user/task_special")
    group("user.slice/job_9", 90)
    assert slurm_jobs(str(tmp_path)) == {"5": [11, 12], "6": [20]}
    assert slurm_jobs(str(tmp_path / "absent")) == {}


def test_jobs_of_cgroups_of_version_one_are_counted_once(tmp_path: Path) -> None:
    for hierarchy in ("cpuset", "memory"):
        folder = tmp_path / hierarchy / "slurm/uid_1000/job_8/step_0/task_0"
        folder.mkdir(parents=True)
        (folder / "cgroup.procs").write_text("33\n")
    assert slurm_jobs(str(tmp_path)) == {"8": [33]}


def test_what_the_kubelet_has_given_away(tmp_path: Path) -> None:
    path, gaps = tmp_path / "checkpoint", dict[str, str]()
    assert kubelet_allocations(str(path), gaps) == []
    assert gaps == {}
    entries = [
        {
            "PodUID": "a",
            "ContainerName": "c",
            "ResourceName": "nvidia.com/gpu",
            "DeviceIDs": {"0": ["GPU-1", "GPU-2::1"]},
        },
        {"PodUID": "b", "ResourceName": "nvidia.com/mig-1g.10gb", "DeviceIDs": ["MIG-3"]},
        {"PodUID": "c", "ResourceName": "rdma/hca", "DeviceIDs": {"0": ["mlx5_0"]}},
    ]
    path.write_text(json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1}))
    assert kubelet_allocations(str(path), gaps) == [("a", ("GPU-1", "GPU-2")), ("b", ("MIG-3",))]
    path.write_text(json.dumps({"Data": {"PodDeviceEntries": None}}))
    assert kubelet_allocations(str(path), gaps) == []
    for garbage in ("", "{", "[]", '{"Data": 3}'):
        path.write_text(garbage)
        gaps = {}
        assert kubelet_allocations(str(path), gaps) == []
        assert "allocations" in gaps
