"""Slurm's answers, release by release: what its words mean, and what is no answer. Recorded shapes, shortened."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.errors import SchedulerError
from gpuwatch.schedulers.slurm import _job_fact, _node_fact
from gpuwatch.sdk import slurm_history, slurm_jobs, slurm_nodes, slurm_values
from gpuwatch.sdk.slurm_history import SEPARATOR
from gpuwatch.sdk.slurm_jobs import Job
from gpuwatch.sdk.slurm_nodes import Node
from gpuwatch.sdk.slurm_tries import Tries
from gpuwatch.training.heartbeat import described_by

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


@pytest.mark.parametrize(
    ("state", "jobs", "word", "owner"),
    [
        ("IDLE", [], "idle", ""),
        ("MIXED", ["7.0"], "allocated", ""),
        ("ALLOCATED", ["7.0"], "allocated", ""),
        ("ALLOCATED*", ["7.0"], "allocated", ""),
        ("ALLOCATED+COMPLETING", ["7.0"], "allocated", ""),
        ("IDLE+COMPLETING", ["7.0"], "allocated", ""),
        ("IDLE*", [], "unknown", ""),
        ("IDLE+NOT_RESPONDING", [], "unknown", ""),
        ("IDLE+PLANNED", [], "idle", ""),
        ("IDLE-", [], "idle", ""),
        ("PLANNED", [], "idle", ""),
        ("RESERVED", [], "idle", ""),
        ("IDLE+RESERVED", [], "idle", ""),
        ("MAINT", [], "idle", ""),
        ("IDLE$", [], "idle", ""),
        ("IDLE+MAINTENANCE", [], "idle", ""),
        ("IDLE+CLOUD", [], "idle", ""),
        ("MIXED+DRAIN", ["7.0"], "draining", "foreign"),
        ("IDLE+DRAIN", [], "drained", "foreign"),
        ("IDLE+COMPLETING+DRAIN", [], "draining", "foreign"),
        ("ALLOCATED+DRAIN", [], "draining", "foreign"),
        ("DRAINED", [], "drained", "foreign"),
        ("DRAINING", [], "draining", "foreign"),
        ("IDLE+DRAIN+NOT_RESPONDING", [], "drained", "foreign"),
        ("IDLE+FAIL", [], "drained", "foreign"),
        ("DOWN", [], "down", ""),
        ("DOWN*", [], "down", ""),
        ("DOWN+NOT_RESPONDING", [], "down", ""),
        ("DOWN*+DRAIN", [], "down", "foreign"),
        ("IDLE~", [], "unknown", ""),
        ("IDLE+CLOUD+POWERED_DOWN", [], "unknown", ""),
        ("DOWN+POWERED_DOWN", [], "unknown", ""),
        ("ALLOCATED#", ["7.0"], "unknown", ""),
        ("IDLE+POWERING_DOWN", [], "unknown", ""),
        ("IDLE%", [], "unknown", ""),
        ("INVAL", [], "unknown", ""),
        ("IDLE+INVALID_REG", [], "unknown", ""),
        ("DOWN+REBOOT_ISSUED", [], "unknown", ""),
        ("DOWN^", [], "unknown", ""),
        ("IDLE@", [], "idle", ""),
        ("UNKNOWN", [], "unknown", ""),
        ("ERROR", [], "unknown", ""),
        ("A_WORD_OF_A_LATER_RELEASE", [], "unknown", ""),
    ],
)
def test_what_each_state_means(state: str, jobs: list[str], word: str, owner: str) -> None:
    fact = _node_fact(node_text(state), jobs)
    assert (fact.state, fact.drain_owner) == (word, owner)
    old = {"name": "gpu1", "state": state.split("+")[0].lower(), "state_flags": state.split("+")[1:], "reason": ""}
    new = {"name": "gpu1", "state": state.split("+"), "reason": "", "reason_changed_at": {"set": False, "number": 0}}
    for item in (old, new):
        (found,) = slurm_nodes.from_json(json.dumps({"nodes": [item], "errors": []}))
        assert _node_fact(found, jobs) == fact


def test_a_node_that_says_it_holds_a_job_is_not_empty_though_none_is_listed() -> None:
    assert _node_fact(node_text("MIXED+DRAIN"), []).jobs == ("unlisted",)
    assert _node_fact(node_text("IDLE+COMPLETING+DRAIN"), []).jobs == ("unlisted",)
    assert _node_fact(node_text("IDLE+DRAIN"), []).jobs == ()


def test_a_node_of_the_future_is_none() -> None:
    both = NODE_22.format(state="FUTURE", reason="") + "\n" + NODE_22.format(state="IDLE", reason="") + "\n"
    assert [node.state for node in slurm_nodes.from_text(both)] == [("IDLE",)]


@pytest.mark.parametrize(
    ("written", "reason", "by"),
    [
        ("Reason=gpuwatch: xid 79 [a/drain] [root@1796055867]", "gpuwatch: xid 79 [a/drain]", "root"),
        ('Reason=xid = "bad" State=IDLE [bob@2026-11-30T16:20:00]', 'xid = "bad" State=IDLE', "bob"),
        ("Reason=Not responding [slurm@1796055867]", "Not responding", "slurm"),
        ("Reason=mail ops@example.com [x] [bob@1796055867] Comment=rack 7", "mail ops@example.com [x]", "bob"),
        ("Reason=no stamp at all", "no stamp at all", ""),
        ("Reason=no stamp at all Comment=rack 7", "no stamp at all", ""),
        ("Reason=xid 79 [bob@1] seen [bob@1796055867]", "xid 79 [bob@1] seen", "bob"),
        ("Reason=fan [bob@1796055867] Comment=a\nb Extra=x Reason=y", "fan", "bob"),
        ("Reason=fan [bob@1796055867] Extra=x=1 InstanceId=i-1 InstanceType=nd96", "fan", "bob"),
        ("Reason=gpuwatch: x [a/drain] [root@1796055867] InstanceId=i-1 ", "gpuwatch: x [a/drain]", "root"),
        ("Reason=fan [bob@1796055867] ReservationName=maint", "fan", "bob"),
        (
            'Reason=fan [bob@1796055867]        its "tray"        é\u2028\x85z Comment=x',
            'fan\nits "tray"\né\u2028\x85z',
            "bob",
        ),
        ("Reason=unknown [bob@1796055867]", "unknown", "bob"),
        ("Comment=rack 7 Reason=gpuwatch: x [a/drain] [root@1796055867]", "", ""),
        ("Comment=rack 7", "", ""),
        ("", "", ""),
    ],
)
def test_a_reason_with_anything_in_it(written: str, reason: str, by: str) -> None:
    found = node_text("IDLE+DRAIN", written)
    assert (found.state, found.reason, found.reason_by) == (("IDLE", "DRAIN"), reason, by)


@pytest.mark.parametrize(
    ("reason", "owner"),
    [
        ("Not responding", ""),
        ("Node unexpectedly rebooted", ""),
        ("Low RealMemory (reported:1 < 100.00% of configured:2)", ""),
        ("gres/gpu count reported lower than configured (7 < 8)", ""),
        ("", ""),
        ("PSU is out, bob", "foreign"),
        ("gpuwatch: xid 79 [a/drain]", "gpuwatch"),
        ("gpuwatch: xid 79 [a/drain], gres/gpu count reported lower than configured (7 < 8)", "gpuwatch"),
        ("gpuwatch: xid 79 [a/drain] : Not responding", "gpuwatch"),
        ("gpuwatch: xid 79 [a/drain] bob looks at it", "foreign"),
        ("gpuwatch: xid 79 [a/drain], keep out [bob]", "foreign"),
        ("gpuwatch: I drain it for gpuwatch, bob", "foreign"),
        ("low priority repair, bob", "foreign"),
        ("unknown", "foreign"),
    ],
)
def test_whose_word_it_is_that_a_node_is_down(reason: str, owner: str) -> None:
    fact = _node_fact(Node(name="gpu1", state=("DOWN", "NOT_RESPONDING"), reason=reason), [])
    assert (fact.state, fact.drain_owner) == ("down", owner)


def test_a_new_machine_is_not_down_because_our_drain_keeps_slurm_from_letting_it_return() -> None:
    ours = Node(name="gpu1", state=("DOWN", "DRAIN"), reason="gpuwatch: dead [a/drain]")
    assert _node_fact(ours, []).state == "drained"
    assert _node_fact(Node(name="gpu1", state=("DOWN", "DRAIN"), reason="bob"), []).state == "down"


def test_a_reboot_that_slurm_knows_of_is_told() -> None:
    assert _node_fact(Node(name="gpu1", state=("DOWN", "REBOOT_ISSUED"), reason="new kernel"), []).reason == (
        "reboot ordered: new kernel"
    )


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "\n",
        "slurm_load_node error: Unable to contact slurm controller",
        "NodeName=gpu1 Arch=x86",
        NODE_22.format(state="IDLE", reason="") + "\nNodeName=gpu2 Arch=x86_64 Cor",
        NODE_22.format(state="IDLE", reason="") + "\nNodeName=gpu2 Arch=x86_64 Cor\n",
        NODE_22.format(state="IDLE", reason="") + "\nNodeN",
        NODE_22.format(state="IDLE", reason="") + "\nSegmentation fault\n",
        NODE_22.format(state="IDLE", reason="") + "\n" + NODE_22.format(state="IDLE", reason=""),
    ],
)
def test_no_answer_about_nodes_is_never_an_empty_one(answer: str) -> None:
    with pytest.raises(SchedulerError) as caught:
        slurm_nodes.from_text(answer)
    assert caught.value.retry


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "{}",
        "[]",
        "null",
        '{"nodes": []}',
        '{"nodes": null, "jobs": null}',
        '{"nodes": [7], "jobs": [7]}',
        '{"nodes": [{"name": "gpu1"}], "jobs": [{"job_id": 7}]}',
        '{"nodes": [{"name": "gpu1", "state": "idle"}], "errors": [{"error": "x"}], "jobs": []}',
        '{"nodes": [{"name": "gpu1", "state": "idle"}',
    ],
)
def test_no_json_answer_is_never_an_empty_one(answer: str) -> None:
    with pytest.raises(SchedulerError) as caught:
        slurm_nodes.from_json(answer)
    assert caught.value.retry
    if answer != '{"nodes": []}':
        with pytest.raises(SchedulerError):
            slurm_jobs.from_json(answer)


def test_no_jobs_is_an_answer_and_silence_is_none() -> None:
    assert slurm_jobs.from_text("No jobs in the system\n") == ()
    assert slurm_jobs.from_json('{"jobs": [], "errors": []}') == ()
    for answer in (
        "",
        "\n",
        "Segmentation fault",
        "JobId=7",
        "JobId=7 JobName=opt UserId=ada(1) JobState=RUNNING NodeList=gpu[",
    ):
        with pytest.raises(SchedulerError):
            slurm_jobs.from_text(answer)


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


def test_text_old_json_and_new_json_tell_the_same_of_a_job() -> None:
    expected = job_text()
    assert expected.gpus_per_node == 8
    for item in (JSON_22, JSON_24):
        (found,) = slurm_jobs.from_json(json.dumps({"jobs": [item], "errors": [], "warnings": []}))
        assert found == expected
    fact = _job_fact(Tries(by_name=True).attempts([expected], [])[0])
    assert (fact.run, fact.job, fact.state, fact.slots) == ("opt", "7.0", "running", ("gpu1", "gpu2", "gpu3"))
    assert (fact.team, fact.user, fact.gpus_per_slot, fact.may_requeue) == ("pretraining", "ada", 8, True)
    assert (fact.started_unix_ns, fact.ended_unix_ns) == (1796055847 * 10**9, None)


@pytest.mark.parametrize(
    ("state", "written", "raw", "cause", "planned", "code"),
    [
        ("COMPLETED", "0:0", 0, "completed", False, 0),
        ("FAILED", "3:0", 768, "failed", False, 3),
        ("FAILED", "0:9", 9, "failed", False, 137),
        ("CANCELLED", "0:15", 15, "cancelled", True, 143),
        ("NODE_FAIL", "0:0", 0, "node_failed", False, 0),
        ("TIMEOUT", "0:0", 0, "time_limit", False, 0),
        ("PREEMPTED", "0:0", 0, "preempted", False, 0),
        ("OUT_OF_MEMORY", "0:125", 125, "out_of_memory", False, 253),
    ],
)
def test_how_a_job_ended(state: str, written: str, raw: int, cause: str, planned: bool, code: int) -> None:
    said = job_text(state=state, exit=written, end=1796055900)
    old = JSON_22 | {"job_state": state, "exit_code": raw, "end_time": 1796055900}
    signal = {"id": set_number(raw), "name": ""} if raw < 256 and raw else {"id": {"set": False, "number": 0}}
    new = JSON_24 | {
        "job_state": [state, "COMPLETING"],
        "exit_code": {"status": ["X"], "return_code": set_number(raw >> 8), "signal": signal},
        "end_time": set_number(1796055900),
    }
    jobs = [said, *slurm_jobs.from_json(json.dumps({"jobs": [old, new], "errors": []}))]
    for job in jobs:
        (fact,) = Tries(by_name=True).attempts([job], [])
        assert (fact.state, fact.cause, fact.planned, fact.exit_code) == ("ended", cause, planned, code)
        assert fact.ended_unix_ns == 1796055900 * 10**9


def test_an_attempt_is_called_as_its_heartbeat_calls_it() -> None:
    environment = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2", "SLURM_JOB_NAME": "opt"}
    told = described_by(environment)
    found = Tries(by_name=True).attempts([job_text(restarts=2)], [])
    assert (told["run"], told["attempt"]) in [(fact.run, fact.attempt) for fact in found]
    assert described_by({"SLURM_JOB_ID": "7"})["attempt"] == job_text().attempt


def test_a_task_of_an_array_is_called_by_its_number_and_never_takes_the_array_with_it() -> None:
    task = job_text(id=2, more="ArrayJobId=2 ArrayTaskId=3 ArrayTaskThrottle=2 ")
    assert (task.attempt, task.address) == ("2.0", "2_3")
    waiting = job_text(id=2, more="ArrayJobId=2 ArrayTaskId=1-3%2 ", state="PENDING", nodes="(null)")
    assert waiting.address == "2"
    assert job_text().address == "7"


def test_components_of_a_heterogeneous_job_are_one_attempt() -> None:
    first = job_text(id=4, more="HetJobId=4 HetJobOffset=0 ", het="HetJobIdSet=4-5 ", nodes="gpu1")
    second = job_text(id=5, more="HetJobId=4 HetJobOffset=1 ", het="HetJobIdSet=4-5 ", nodes="cpu1")
    (fact,) = Tries(by_name=True).attempts([first, second], [])
    assert (fact.attempt, fact.run, fact.nodes) == ("4.0", "opt", ("gpu1", "cpu1"))
    assert second.address == "4"


@pytest.mark.parametrize(
    "name",
    ["my job", "a=b", "JobState=COMPLETED", "x NodeList=none Restarts=9", "a\nb", "", "(null)", "UserId=", "ü | é"],
)
def test_a_name_can_pretend_nothing(name: str) -> None:
    one = job_text(name=name)
    assert (one.id, one.state, one.nodes, one.restarts) == (7, ("RUNNING",), ("gpu1", "gpu2", "gpu3"), 0)
    two = slurm_jobs.from_text(
        JOB_22.format(**(USUAL | {"name": name})) + "\n" + JOB_22.format(**(USUAL | {"id": 8})) + "\n"
    )
    assert [job.id for job in two] == [7, 8]


def test_a_name_leads_no_order_to_the_job_of_another() -> None:
    name = "x UserId=ada(1) JobState=RUNNING ArrayJobId=77 ArrayTaskId=3 HetJobId=78 y"
    assert (job_text(name=name).address, job_text(name=name).attempt) == ("7", "7.0")
    assert job_text(more="ArrayJobId=5 ArrayTaskId=2 ", name=name).address == "5_2"


@pytest.mark.parametrize("name", ["None", "unknown", "n/a", " opt  x ", "a\nb"])
def test_a_run_is_called_as_its_processes_call_it(name: str) -> None:
    answer = json.dumps({"jobs": [{"job_id": 7, "job_state": "RUNNING", "name": name}], "errors": []})
    (by_json,) = Tries(by_name=True).attempts(slurm_jobs.from_json(answer), [])
    (by_text,) = Tries(by_name=True).attempts([job_text(name=name)], [])
    assert by_json.run == by_text.run == described_by({"SLURM_JOB_NAME": name})["run"] == name


@pytest.mark.parametrize("note", ['cost centre=12, "keep" é', "a\nb", "JobState=FAILED", "x"])
def test_a_note_of_somebody_is_read_whole(note: str) -> None:
    assert job_text(note=note).note == note


def test_a_list_of_jobs_that_is_cut_off_is_no_answer() -> None:
    whole = JOB_22.format(**USUAL) + "\n"
    for at in (20, 200, len(whole) // 2, len(whole) - 1):
        with pytest.raises(SchedulerError):
            slurm_jobs.from_text(whole + whole[:at])


class TestTries:
    """A requeued job shows only its present try: the one before is told from the restart count."""

    def test_a_requeue_by_somebody_is_planned(self) -> None:
        tries = Tries(by_name=True)
        tries.learn([job_text()], [node_text("MIXED")])
        again = [job_text(state="PENDING", restarts=1, nodes="(null)")]
        assert tries.learn(again, [node_text("IDLE")])
        waiting, before = tries.attempts(again, [])
        assert (waiting.attempt, waiting.state, waiting.started_unix_ns) == ("7.1", "pending", None)
        assert (before.attempt, before.state, before.cause, before.planned) == ("7.0", "ended", "requeued", True)
        assert before.nodes == ("gpu1", "gpu2", "gpu3")
        assert before.ended_unix_ns == 1796055845 * 10**9

    def test_a_requeue_because_a_node_died_is_not(self) -> None:
        tries = Tries(by_name=True)
        tries.learn([job_text()], [node_text("MIXED")])
        again = [job_text(state="PENDING", restarts=1, nodes="(null)")]
        tries.learn(again, [node_text("DOWN*")])
        before = tries.attempts(again, [])[1]
        assert (before.cause, before.planned) == ("node_failed", False)

    def test_our_own_order_is_planned_though_the_node_is_down(self) -> None:
        tries = Tries(by_name=True)
        tries.learn([job_text()], [node_text("MIXED")])
        tries.ordered("7.0")
        again = [job_text(state="PENDING", restarts=1, nodes="(null)")]
        tries.learn(again, [node_text("DOWN*")])
        assert tries.attempts(again, [])[1].planned

    def test_a_leaf_that_has_just_begun_claims_no_more_than_it_knows(self) -> None:
        again = [job_text(restarts=5)]
        tries = Tries(by_name=True)
        tries.learn(again, [node_text("MIXED")])
        now, *before = tries.attempts(again, [])
        assert (now.attempt, now.state) == ("7.5", "running")
        assert [(fact.attempt, fact.nodes, fact.planned) for fact in before] == [
            ("7.2", (), False),
            ("7.3", (), False),
            ("7.4", (), False),
        ]
        assert [fact.ended_unix_ns for fact in before] == [None, None, 1796055845 * 10**9]

    def test_what_leaves_its_nodes_is_neither_running_nor_ended_until_slurm_says_which(self) -> None:
        (fact,) = Tries(by_name=True).attempts([job_text(state="COMPLETING", restarts=0)], [])
        assert fact.state == "pending"

    def test_a_requeued_job_that_is_still_leaving_its_nodes_says_nothing_of_its_end_yet(self) -> None:
        (job,) = slurm_jobs.from_json(
            json.dumps({"jobs": [JSON_24 | {"job_state": ["PENDING", "COMPLETING"], "restart_cnt": set_number(1)}]})
        )
        (fact,) = Tries(by_name=True).attempts([job], [])
        assert (fact.attempt, fact.state, job.leaving) == ("7.1", "pending", True)

    def test_by_job_id(self) -> None:
        assert Tries(by_name=False).attempts([job_text()], [])[0].run == "7"


def sacct_row(**changes: str) -> str:
    row = {
        "JobIDRaw": "7",
        "JobID": "7",
        "User": "ada",
        "Account": "pretraining",
        "State": "COMPLETED",
        "ExitCode": "0:0",
        "Submit": "1796055000",
        "Start": "1796055100",
        "End": "1796055200",
        "NNodes": "3",
        "AllocTRES": "billing=24,cpu=24,gres/gpu=24,node=3",
        "NodeList": "gpu[1-3]",
        "JobName": "opt",
    } | changes
    return SEPARATOR.join(row[name] for name in slurm_history.FIELDS)


def test_the_database_tells_each_try_and_why_it_ended() -> None:
    answer = "\n".join(
        [
            sacct_row(State="NODE_FAIL"),
            sacct_row(State="REQUEUED", Start="1796055300", End="1796055400"),
            sacct_row(State="CANCELLED by 1000", Start="1796055500", End="1796055600", ExitCode="0:15"),
            sacct_row(JobIDRaw="9", JobID="8+1", State="COMPLETED", NodeList="gpu4", NNodes="1"),
            sacct_row(JobIDRaw="10", Start="Unknown", State="CANCELLED by 0"),
            "half a li",
            sacct_row(JobIDRaw="11", State="OF_A_LATER_RELEASE"),
        ]
    )
    tries = slurm_history.numbered(slurm_history.from_sacct(answer), {})
    assert [(t.job.attempt, t.cause, t.planned) for t in sorted(tries, key=lambda t: t.job.attempt)] == [
        ("7.0", "node_failed", False),
        ("7.1", "requeued", True),
        ("7.2", "cancelled", True),
        ("8.0", "completed", False),
    ]
    assert tries[0].job.gpus_per_node == 8


def test_a_name_invents_no_try_of_another_job() -> None:
    forged = "x\n" + "\x1f".join(["9", "9", "bob", "a", "NODE_FAIL", "0:0", "1", "2", "3", "1", "", "gpu1", "b"])
    (only,) = slurm_history.from_sacct(sacct_row(JobName=forged) + "\n")
    assert (only.job.id, only.job.name) == (7, forged)


@pytest.mark.parametrize(
    ("newest", "expected"), [({}, ["7.0", "7.1"]), ({7: (6, True)}, ["7.5", "7.6"]), ({7: (6, False)}, ["7.4", "7.5"])]
)
def test_tries_are_counted_back_from_what_the_controller_says(
    newest: dict[int, tuple[int, bool]], expected: list[str]
) -> None:
    answer = "\n".join([sacct_row(State="REQUEUED"), sacct_row(Start="1796055300", End="1796055400")])
    assert [t.job.attempt for t in slurm_history.numbered(slurm_history.from_sacct(answer), newest)] == expected


def test_what_the_database_says_counts_before_what_we_guess() -> None:
    tries = Tries(by_name=True)
    jobs = [job_text(restarts=1)]
    tries.learn(jobs, [node_text("MIXED")])
    history = slurm_history.numbered(slurm_history.from_sacct(sacct_row(State="NODE_FAIL")), tries.newest)
    facts = {fact.attempt: fact for fact in tries.attempts(jobs, history)}
    assert (facts["7.0"].cause, facts["7.1"].state) == ("node_failed", "running")


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[08-10,12]", ["gpu08", "gpu09", "gpu10", "gpu12"]),
        ("r[1-2]n[1-2],login1", ["r1n1", "r1n2", "r2n1", "r2n2", "login1"]),
        ("gpu[1-2]-ib0", ["gpu1-ib0", "gpu2-ib0"]),
        ("(null)", []),
        ("None assigned", []),
        ("", []),
    ],
)
def test_node_lists(listed: str, names: list[str]) -> None:
    assert list(slurm_values.names(listed)) == names


@pytest.mark.parametrize("listed", ["gpu[3-1]", "gpu[a-b]", "gpu[1-999999999]", "gpu[1-2000]n[1-2000]"])
def test_what_is_no_node_list(listed: str) -> None:
    with pytest.raises(ValueError):
        slurm_values.names(listed)


@pytest.mark.parametrize(
    ("tres", "asked", "nodes", "gpus"),
    [
        ("cpu=3,gres/gpu=24,gres/gpu:h100=24", "", 3, 8),
        ("cpu=3,gres/gpu:h100=16", "gres:gpu:8", 2, 8),
        ("cpu=3,gres/gpu=7", "", 3, None),
        ("cpu=3", "gres:gpu:8", 3, 8),
        ("cpu=3", "gres/gpu:h100:4", 3, 4),
        ("cpu=3", "gpu", 3, 1),
        ("cpu=3", "", 3, None),
        ("", "", 0, None),
    ],
)
def test_gpus_of_a_job_on_each_node(tres: str, asked: str, nodes: int, gpus: int | None) -> None:
    assert slurm_values.gpus_per_node(tres, asked, nodes) == gpus


@given(st.text(max_size=200))
def test_any_text_is_a_list_or_a_scheduler_error(answer: str) -> None:
    for read in (slurm_nodes.from_text, slurm_nodes.from_json, slurm_jobs.from_text, slurm_jobs.from_json):
        try:
            read(answer)
        except SchedulerError:
            continue
    slurm_history.from_sacct(answer)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from(sorted(JSON_24)),
)
def test_any_json_is_a_list_or_a_scheduler_error(value: Any, key: str) -> None:
    item = JSON_24 | {key: value, "name": "gpu1", "state": value}
    answer = json.dumps({"nodes": [item], "jobs": [JSON_24 | {key: value}], "errors": []})
    for read in (slurm_nodes.from_json, slurm_jobs.from_json):
        try:
            read(answer)
        except SchedulerError:
            continue
