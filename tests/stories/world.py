"""A played fleet: nodes, gangs, cloud, scheduler and executor, after a script. What thinks about it is real."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

import gpuwatch.rules
from gpuwatch.decide.assess import assess, assess_fleet
from gpuwatch.decide.inspector import inspect
from gpuwatch.decide.judge import judge
from gpuwatch.decide.planner import make_plan
from gpuwatch.model.facts.training import Beat
from gpuwatch.model.ledger import Member
from gpuwatch.model.moment import Moment
from gpuwatch.model.plan import Action, Done, PlanMemory
from gpuwatch.model.policy import Policy
from gpuwatch.model.run import JobFact, Sighting
from gpuwatch.model.states import Lifecycle
from gpuwatch.model.verdict import Judgement
from gpuwatch.model.view import CloudSays, FleetView, GroupView, NodeView, SchedulerSays
from gpuwatch.model.wire import Goodbye
from gpuwatch.registry import leaves
from gpuwatch.rules import FleetRule, Rule
from gpuwatch.runs.track import absorb, new_book, views
from tests.fakes import T0, FakeClock, gpus, later, node_view, nvml, source, xid_event

ALL: dict[str, Rule[Any] | FleetRule[Any]] = leaves(gpuwatch.rules, "RULE", Rule, FleetRule)
TICK_S = 5


@dataclass
class Node:
    """One machine, as it really is."""

    slot: str
    machine: str
    born_s: int = 0
    dead: bool = False
    cut_off: bool = False
    hung_since: Moment | None = None
    xids: list[int] = field(default_factory=list)
    init_error: int | None = None
    goodbye: Moment | None = None
    gone: str = ""  # the cloud's word on why it is not there
    stands: bool = False  # its rank comes back from nothing
    lifecycle: Lifecycle = Lifecycle.IN_SERVICE
    drain_owner: str = ""
    drain_reason: str = ""
    heard: Moment = T0
    faulty_since: Moment | None = None

    def speaks(self) -> bool:
        return not (self.dead or self.cut_off or self.gone or self.goodbye)


@dataclass
class Run:
    """One gang, as it really is."""

    name: str
    slots: list[str]
    step_s: float
    started: Moment
    attempt: int = 1
    progress_s: float = 0.0
    stuck_since: Moment | None = None
    last_end: Moment = T0
    resumes_at: Moment | None = None


class World:
    def __init__(self, script: dict[str, Any]) -> None:
        self.clock = FakeClock()
        self.policy = msgspec.convert({"hold_off_s": 0.0} | script.get("policy", {}), Policy)
        self.cloud_s, self.takes_s = script.get("cloud_delay_s", 20), script.get("replace_s", 60)
        racks = script.get("nodes_per_rack", 0)
        slots = [f"gpu{n:02d}" for n in range(1, script["nodes"] + 1)]
        self.domains = {slot: f"rack{n // racks + 1}" if racks else "" for n, slot in enumerate(slots)}
        self.nodes = {slot: Node(slot, f"{slot}-a") for slot in slots}
        self.runs = [Run(r["name"], r["slots"], r.get("step_s", 10.0), T0) for r in script.get("run", ())]
        self.rules = {n: (r, self._settings(n, script)) for n, r in ALL.items() if isinstance(r, Rule)}
        self.fleet_rules = {n: (r, self._settings(n, script)) for n, r in ALL.items() if isinstance(r, FleetRule)}
        self.script = sorted(script.get("at", ()), key=lambda event: event["s"])
        self.until = script["until_s"]
        self.book = new_book()
        self.judgement: Judgement | None = None
        self.blind = ""
        self.done: list[tuple[Done, Action, Moment]] = []
        self.said: dict[str, str] = {}
        self.lines: list[str] = []

    @staticmethod
    def _settings(name: str, script: dict[str, Any]) -> Any:
        return msgspec.convert(script.get("rules", {}).get(name, {}), ALL[name].settings)

    def play(self) -> str:
        for second in range(0, self.until + 1, TICK_S):
            now = self.clock.moment()
            for event in [e for e in self.script if second - TICK_S < e["s"] <= second]:
                self.happens(event, now, second)
            self.live(now, second)
            self.think(now, second)
            self.clock.pass_s(TICK_S)
        return "\n".join(self.lines) + "\n"

    def tell(self, second: int, key: str, text: str) -> None:
        """One line where something is new."""
        if self.said.get(key) != text:
            self.said[key] = text
            self.lines.append(f"{second // 60:02d}:{second % 60:02d} {text}")

    def happens(self, event: dict[str, Any], now: Moment, second: int) -> None:
        what = event["what"]
        slots = list(self.nodes) if event.get("slots") == "all" else event.get("slots", [])
        where = "all" if event.get("slots") == "all" else ", ".join(slots)
        self.lines.append(f"{second // 60:02d}:{second % 60:02d} -- {what} {event.get('n', '')} {where}".rstrip())
        if what == "the clock steps":
            self.clock.step_wall(event["n"])
        elif what == "we are blind":
            self.blind = event["n"]
        for slot in slots:
            node = self.nodes[slot]
            if what != "drained by bob":
                node.faulty_since = node.faulty_since or now
            match what:
                case "dies":
                    node.dead = True
                case "cut off":
                    node.cut_off = True
                case "back":
                    node.cut_off, node.faulty_since, node.goodbye, node.stands = False, None, None, False
                case "driver hangs":
                    node.hung_since, node.stands = now, True
                case "xid":
                    node.xids.append(event["n"])
                    node.stands = True
                case "driver upgraded":
                    node.init_error = 18
                case "rank hangs":
                    node.stands = True
                case "agent stopped":
                    node.goodbye = now
                case "drained by bob":
                    node.drain_owner, node.drain_reason = "foreign", "bob: new cables"
                case "scaled in" | "evicted" | "vanishes":
                    node.gone = what.replace(" ", "_").replace("vanishes", "unexplained")

    def live(self, now: Moment, second: int) -> None:
        """Reports, steps, and what was ordered."""
        for node in self.nodes.values():
            if node.speaks():
                node.heard = now
        for run in self.runs:
            if run.resumes_at is not None and now.monotonic_ns >= run.resumes_at.monotonic_ns:
                run.attempt, run.progress_s, run.started, run.resumes_at = run.attempt + 1, 0.0, now, None
            members = [self.nodes[slot] for slot in run.slots]
            if run.resumes_at is None and not any(n.dead or n.gone or n.stands for n in members):
                run.progress_s += TICK_S
                run.last_end, run.stuck_since = now, None
            else:
                run.stuck_since = run.stuck_since or now
        for entry in [e for e in self.done if not e[0].ended]:
            self.carry_on(*entry, now, second)

    def carry_on(self, done: Done, action: Action, begun: Moment, now: Moment, second: int) -> None:
        """The executor's part, played: an order takes its time and then has happened."""
        node = self.nodes.get(action.slot)
        needs_s = {"replace": self.takes_s, "drain": 10, "restart_job": 20, "resume": 5}[action.kind]
        if now.age_s(begun.monotonic_ns) < needs_s:
            return
        self.done[self.done.index((done, action, begun))] = (
            msgspec.structs.replace(done, ended=True, outcome="done"), action, begun
        )  # fmt: skip
        self.tell(second, f"done {action.action_id}", f"{action.slot:6} {action.kind} done")
        if action.kind == "replace":
            assert node is not None
            letter = chr(ord(node.machine[-1]) + 1)
            self.nodes[action.slot] = Node(action.slot, f"{action.slot}-{letter}", second, heard=now)
        elif node is not None and action.kind == "drain":
            node.lifecycle, node.drain_owner = Lifecycle.DRAINED, "gpuwatch"
        elif node is not None and action.kind == "resume":
            node.lifecycle, node.drain_owner = Lifecycle.IN_SERVICE, ""
        for run in self.runs:
            if action.kind == "restart_job" and run.name == action.run:
                run.resumes_at = now
                for slot in run.slots:
                    self.nodes[slot].stands = False
            elif action.kind == "replace" and action.slot in run.slots:
                run.resumes_at = later(now, 20)

    def view(self, node: Node, now: Moment) -> NodeView:
        seen = node.heard
        sources = {name: source(name, seen) for name in ("nvml", "kernel_log", "host")}
        base = node_view(node.slot, at=now)
        facts = dict(base.facts) | {
            type(nvml()): nvml(init_error=node.init_error, gpus=() if node.init_error else gpus())
        }
        if node.hung_since is not None and now.age_s(node.hung_since.monotonic_ns) >= 10:
            reason = "nvmlInit, waiting in os_acquire_rwlock_write"
            hung_ns = node.hung_since.unix_ns
            sources["nvml"] = source("nvml", seen, status="hung", reason=reason, since_unix_ns=hung_ns)
            facts = {kind: fact for kind, fact in facts.items() if kind is not type(nvml())}
        known = node.faulty_since is not None and now.age_s(node.faulty_since.monotonic_ns) >= self.cloud_s
        state = "gone" if node.gone and known else "failed" if node.dead and known else "running"
        return replace(
            base,
            machine=node.machine,
            boot=f"boot-{node.machine}",
            lifecycle=node.lifecycle,
            domain=self.domains[node.slot],
            last_report_monotonic_ns=seen.monotonic_ns,
            last_report_unix_ns=seen.unix_ns,
            goodbye=Goodbye("upgrade") if node.goodbye else None,
            goodbye_monotonic_ns=seen.monotonic_ns if node.goodbye else None,
            facts=facts,
            sources=sources,
            events=tuple(
                xid_event(n, boot_id="", at=node.faulty_since or T0, text="GPU has fallen off the bus.")
                for n in node.xids
            ),
            cloud=CloudSays(state=state, received_monotonic_ns=now.monotonic_ns, absent_because=node.gone),
            scheduler=SchedulerSays(
                state="drained" if node.drain_owner else "idle",
                received_monotonic_ns=now.monotonic_ns,
                reason=node.drain_reason,
                drain_owner=node.drain_owner,
            ),
        )

    def beats(self, now: Moment) -> tuple[list[Sighting], list[JobFact]]:
        sightings, jobs = [], []
        for run in self.runs:
            members = [self.nodes[slot] for slot in run.slots]
            attempt = f"{run.name}.{run.attempt}"
            share = tuple(Member(machine=n.machine, gpu_thousandths=8000) for n in members)
            state = "running" if run.resumes_at is None else "ended"
            jobs.append(
                JobFact(
                    run=run.name,
                    attempt=attempt,
                    state=state,
                    members=share,
                    started_unix_ns=run.started.unix_ns,
                    ended="unplanned" if state == "ended" else "",
                )
            )
            step = int(run.progress_s // run.step_s)
            for rank, node in enumerate(members):
                if not node.speaks() or run.resumes_at is not None:
                    continue
                beat = Beat(
                    run=run.name,
                    attempt=attempt,
                    rank=rank,
                    world_size=len(members),
                    pid=run.attempt,
                    phase="data_wait" if node.stands else "train",
                    step=step if step else None,
                    step_end_unix_ns=run.last_end.unix_ns if step else None,
                    phase_start_unix_ns=run.started.unix_ns,
                    checkpoint_step=None,
                    checkpoint_unix_ns=None,
                    alive=True,
                    sequence=step * 2 + node.stands,
                    read_unix_ns=now.unix_ns,
                )
                sightings.append(Sighting(machine=node.machine, slot=node.slot, beat=beat, received=now))
        return sightings, jobs

    def think(self, now: Moment, second: int) -> None:
        sightings, jobs = self.beats(now)
        self.book, _ = absorb(self.book, sightings, jobs, now)
        runs = views(self.book, now)
        member = {machine: run for run in runs for machine in run.machines}
        nodes = tuple(
            replace(view, run=member.get(view.machine))
            for view in (self.view(node, now) for node in self.nodes.values())
        )
        policies = {"h100": self.policy}
        fleet = FleetView(
            nodes=nodes,
            runs=runs,
            groups=(GroupView(name="h100", owner="gpuwatch", target_count=len(nodes)),),
            blind_because=self.blind,
            policies=policies,
        )
        findings = {view.machine: assess(view, now, self.rules) for view in nodes}
        judgement = self.judgement = judge(fleet, findings, self.judgement, policies, now)
        shared = assess_fleet(fleet, judgement.nodes, now, self.fleet_rules)
        memory = PlanMemory(actions=tuple(entry[0] for entry in self.done))
        plan = make_plan(fleet, judgement, shared, policies, memory, now)
        assert inspect(plan, fleet, judgement, shared, policies, memory, now) == ()
        self.report(judgement, shared, second)
        for action in plan.actions:
            self.tell(second, f"plan {action.slot}", f"{action.slot:6} PLAN {action.kind}: {action.because}")
            self.order(action, now)
        held: dict[str, list[str]] = {}
        for hold in plan.holds:
            if self.said.get(f"hold {hold.slot}") != hold.reason:
                self.said[f"hold {hold.slot}"] = hold.reason
                words = "" if hold.reason == "in_progress" else f": {hold.because}"
                held.setdefault(f"HOLD {hold.reason}{words}", []).append(hold.slot)
        self.tell_together(second, held)

    def report(self, judgement: Judgement, shared: Any, second: int) -> None:
        turned: dict[str, list[str]] = {}
        for verdict in judgement.nodes:
            key = f"health {verdict.slot}"
            if self.said.get(key, "healthy") != verdict.health.value:
                self.said[key] = verdict.health.value
                turned.setdefault(f"{verdict.health.value}: {verdict.because}", []).append(verdict.slot)
        self.tell_together(second, turned)
        for run in judgement.runs:
            why = (
                f"explained by {run.explained_by}" if run.explained_by else f"suspects {', '.join(run.suspects) or '-'}"
            )
            if self.said.get(f"run {run.run}") != why:
                self.said[f"run {run.run}"] = why
                self.lines.append(f"{second // 60:02d}:{second % 60:02d} run {run.run} stalled, {why}: {run.because}")
        for name in [run.name for run in self.runs if self.said.get(f"run {run.name}", "moves") != "moves"]:
            if name not in {run.run for run in judgement.runs}:
                self.said[f"run {name}"] = "moves"
                self.lines.append(f"{second // 60:02d}:{second % 60:02d} run {name} moves again")
        for cause in shared:
            self.tell(second, f"shared {cause.rule} {cause.subject.id}", f"SHARED {cause.rule}: {cause.because}")

    def tell_together(self, second: int, said: dict[str, list[str]]) -> None:
        """One line for all of whom the same is said."""
        for words, slots in said.items():
            who = slots[0] if len(slots) == 1 else f"{slots[0]} .. {slots[-1]} ({len(slots)})"
            self.lines.append(f"{second // 60:02d}:{second % 60:02d} {who:6} {words}")

    def order(self, action: Action, now: Moment) -> None:
        node = self.nodes.get(action.slot)
        if node is not None and action.kind in ("replace", "drain"):
            node.lifecycle = Lifecycle.REPLACING if action.kind == "replace" else Lifecycle.DRAINING
        done = Done(
            action_id=action.action_id,
            kind=action.kind,
            slot=action.slot,
            machine=action.machine,
            cause=action.cause,
            fault=action.fault,
            started_unix_ns=now.unix_ns,
            started_monotonic_ns=now.monotonic_ns,
            ended=False,
        )
        if action.kind != "ask_approval":
            self.done.append((done, action, now))
