"""Slurm's answers about one node and one job, as text and as JSON of two releases. Recorded shapes, shortened."""

from __future__ import annotations

from typing import Any

from gpuwatch.sdk import slurm_jobs, slurm_nodes
from gpuwatch.sdk.slurm_jobs import Job
from gpuwatch.sdk.slurm_nodes import Node

NODE_22 = (  # slurm-wlm 22.05.8, SLURM_TIME_FORMAT=%s
    "NodeName=gpu1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=1 CPUEfctv=2 CPUTot=2 CPULoad=3.80 AvailableFeatures=(null) "
    "ActiveFeatures=(null) Gres=gpu:8 NodeAddr=127.0.0.1 NodeHostName=vm Port=27001 Version=22.05.8 OS=Linux 6.1 #1 "
    "SMP PREEMPT_DYNAMIC @0  RealMemory=2000 AllocMem=0 FreeMem=20905 Sockets=2 Boards=1 State={state} "
    "ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=main  BootTime=1796049572 "
    "SlurmdStartTime=1796055844 LastBusyTime=1796055845 CfgTRES=cpu=2,mem=2000M,billing=2 AllocTRES=cpu=1 "
    "CapWatts=n/a CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s {reason}"
)
JOB_22 = (
    "JobId={id} {more}JobName={name} {het}UserId=ada(1000) GroupId=ml(1000) MCS_label=N/A Priority=4294901759 Nice=0 "
    "Account={account} QOS=(null) JobState={state} Reason=None Dependency=(null) Requeue={requeue} Restarts={restarts} "
    "BatchFlag=1 Reboot=0 ExitCode={exit} RunTime=00:00:00 TimeLimit=UNLIMITED TimeMin=N/A SubmitTime=1796055845 "
    "EligibleTime=1796055845 AccrueTime=1796055845 StartTime=1796055847 EndTime={end} Deadline=N/A SuspendTime=None "
    "SecsPreSuspend=0 LastSchedEval=1796055847 Scheduler=Main Partition=main AllocNode:Sid=localhost:28877 "
    "ReqNodeList=(null) ExcNodeList=(null) NodeList={nodes} BatchHost=gpu1 NumNodes=3 NumCPUs=3 NumTasks=3 CPUs/Task=1 "
    "ReqB:S:C:T=0:0:*:* TRES=cpu=3,node=3,billing=3{tres} Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* "
    "MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0 Features=(null) DelayBoot=00:00:00 OverSubscribe=OK Contiguous=0 "
    "Licenses=(null) Network=(null) Command=/home/ada/train.sh WorkDir=/home/ada AdminComment={note}  StdErr=/dev/null "
    "StdIn=/dev/null StdOut=/dev/null Power= TresPerNode=gres:gpu:8 "
)
USUAL = {
    "id": 7,
    "more": "",
    "name": "opt",
    "het": "",
    "account": "pretraining",
    "state": "RUNNING",
    "requeue": 1,
    "restarts": 0,
    "exit": "0:0",
    "end": "Unknown",
    "nodes": "gpu[1-3]",
    "tres": "",
    "note": "(null)",
}


def node_text(state: str, reason: str = "") -> Node:
    (found,) = slurm_nodes.from_text(NODE_22.format(state=state, reason=reason) + "\n")
    return found


def job_text(**changes: Any) -> Job:
    (found,) = slurm_jobs.from_text(JOB_22.format(**(USUAL | changes)) + "\n")
    return found


JSON_22 = {
    "job_id": 7,
    "name": "opt",
    "job_state": "RUNNING",
    "restart_cnt": 0,
    "nodes": "gpu[1-3]",
    "exit_code": 0,
    "end_time": 1827591847,
    "start_time": 1796055847,
    "submit_time": 1796055845,
    "array_job_id": 0,
    "array_task_id": None,
    "het_job_id": 0,
    "requeue": True,
    "batch_flag": True,
    "account": "pretraining",
    "user_name": "ada",
    "tres_alloc_str": "cpu=3,node=3,billing=3",
    "tres_per_node": "gres:gpu:8",
    "admin_comment": "",
}


def set_number(value: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": value}


JSON_24 = JSON_22 | {
    "job_state": ["RUNNING"],
    "end_time": set_number(1827591847),
    "start_time": set_number(1796055847),
    "submit_time": set_number(1796055845),
    "array_job_id": set_number(0),
    "array_task_id": {"set": False, "infinite": False, "number": 0},
    "het_job_id": set_number(0),
    "exit_code": {
        "status": ["SUCCESS"],
        "return_code": set_number(0),
        "signal": {"id": {"set": False, "infinite": False, "number": 0}, "name": ""},
    },
    "tres_alloc_str": "cpu=3,node=3,billing=3,gres/gpu=24",
}
