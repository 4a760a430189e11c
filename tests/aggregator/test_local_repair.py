"""A repair by the node's own hands, by a whole centre with real hands: cured, not cured, refused, killed midway."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuwatch.aggregator import settings as settings_file
from gpuwatch.aggregator.scene import Scene
from gpuwatch.errors import ConfigError
from gpuwatch.hands import carry
from gpuwatch.model.facts.hands import HandsFacts
from gpuwatch.model.facts.nvml import Gpu, NvmlFacts
from gpuwatch.model.order import Answer, from_text
from gpuwatch.model.wire import Ack, Envelope, Report
from gpuwatch.sdk.ed25519 import Signer, make_key
from tests.fakes_centre import Centre, _raw
from tests.hands_node import HandsNode

SICK, SLOT = "m-gpu02", "gpu02"
GPU, PCI = "GPU-5a1b2c3d-0000-1111-2222-333344445555", "0000:1d:00"
POLICY = (
    'local_repair = ["reset_gpu", "reboot"]\njoin_deadline_s = 200\nempty_deadline_s = 60\norder_deadline_s = 300\n'
    'max_attempts_per_machine = 3\n[hands]\nkey_file = "order.pem"\n'
)


class Killed(BaseException):
    """The process, or the machine, ends at this instant."""


class Mended(Centre):
    """A centre of which one node has hands. What they do to the node stands in `heals`."""

    def __init__(self, folder: Path, *, policy: str = POLICY) -> None:
        make_key(folder / "order.pem")
        super().__init__(folder, policy=policy)
        (folder / "node").mkdir()
        self.node = HandsNode(folder / "node", clock=self.clock, signer=Signer(folder / "order.pem"), machine=SICK)
        self.node.gpu(pci=f"{PCI}.0", uuid=GPU, minor=9)
        self.node.again(boot=self.agents[SICK].boot)
        self.orders: list[str] = []
        self.heals: tuple[str, ...] = ("reset", "reboot")
        self.wants(0)
        self.settle()

    def second(self) -> Scene:
        self.node.hands.tick()
        facts = self.node.hands.facts()
        if SICK in self.agents:
            said = Envelope("hands", self.clock.unix_ns(), 0.01, "ok", facts=_raw(facts))
            self.agents[SICK].extra = (said,)
        return super().second()

    def send(self, report: Report, token_of: str | None = None) -> bytes:
        answer = super().send(report, token_of)
        order = msgspec.json.decode(answer, type=Ack).order
        if order:
            assert report.machine == SICK
            self.orders.append(order)
            self.carry_out(order)
        return answer

    def carry_out(self, order: str) -> None:
        """As the agent and the hands' process do."""
        before = self.node.did()
        try:
            self.node.hands.take(order.encode())
        except Killed:  # it is the node that went down, and comes up
            self.agents[SICK].reboot("boot-2")
            self.node.again(boot="boot-2")
            if "reboot" in self.heals:
                self.wants(0)
        did = self.node.did()[len(before) :]
        if "reset" in self.heals and any(line.startswith("reset") for line in did):
            self.wants(0)

    def wants(self, value: int) -> None:
        """One GPU's driver says which recovery it wants: 0 none, 1 reset, 2 reboot."""
        gpus = [Gpu(index=n, uuid=f"GPU-{SICK}-{n}", pci=f"0000:{0x1A + n:02x}:00") for n in range(8)]
        gpus[3] = msgspec.structs.replace(gpus[3], uuid=GPU, recovery_action=value)
        facts = NvmlFacts("580.1", tuple(gpus), pci_gpu_count=8, driver_loaded=True)
        self.agents[SICK].nvml = Envelope("nvml", 0, 0.01, "ok", facts=_raw(facts))

    def done(self) -> list[str]:
        """Every step that was done, of every action."""
        return [line.step for line in self.lines("action_step") if line.state == "done"]

    def actions(self) -> list[tuple[str, str]]:
        """Every action with its outcome, oldest first."""
        return [(f"{g.action.kind} {g.action.order}".strip(), g.outcome) for g in self.executor.sagas()]


@pytest.fixture
def reboots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reboot ends the hands' process where it is."""

    def down(*_: object, **__: object) -> str:
        raise Killed

    monkeypatch.setattr(carry, "reboot", down)


@pytest.fixture
def centre(tmp_path: Path, reboots: None) -> Iterator[Mended]:
    made = Mended(tmp_path)
    yield made
    assert made.store is not None
    made.store.close()


def test_a_gpu_is_reset_and_the_node_is_back(centre: Mended) -> None:
    centre.wants(1)
    centre.seconds(90)
    assert centre.actions() == [("repair reset_gpu", "done")]
    assert centre.node.did() == ["release", f"reset {GPU}", "resume"]
    assert centre.done() == ["drain", "end_job", "empty", "sign", "order", "join", "validate", "resume"]
    assert centre.states()[SLOT] == "healthy in_service"
    assert centre.cloud.calls == []
    assert centre.scheduler.drains[SLOT] == ""
    assert len({from_text(order) for order in centre.orders}) == 1
    assert centre.ingest._replies == {}
    lifecycles = [line.lifecycle for line in centre.lines("lifecycle") if line.machine == SICK]
    assert lifecycles[-4:] == ["draining", "repairing", "validating", "in_service"]
    assert centre.book.open == {}


def test_an_xid_that_wants_a_reset_is_history_after_it(centre: Mended) -> None:
    centre.agents[SICK].xid(48, pci=PCI)
    (event,) = centre.agents[SICK].events
    centre.agents[SICK].events = (msgspec.structs.replace(event, action="reset_gpu"),)
    centre.seconds(90)
    assert centre.actions() == [("repair reset_gpu", "done")]
    assert centre.states()[SLOT] == "healthy in_service"
    centre.boot()
    centre.seconds(90)
    assert centre.states()[SLOT] == "healthy in_service"


def test_a_reboot_is_known_as_ours(centre: Mended) -> None:
    centre.wants(2)
    centre.seconds(120)
    assert centre.actions() == [("repair reboot", "done")]
    assert centre.states()[SLOT] == "healthy in_service"
    assert centre.agents[SICK].boot == "boot-2"
    centre.seconds(60)
    assert centre.states()[SLOT] == "healthy in_service"


def test_what_a_reset_does_not_cure_is_rebooted_then_replaced(centre: Mended) -> None:
    centre.heals = ()
    centre.wants(1)
    centre.seconds(400)
    assert centre.actions()[:3] == [("repair reset_gpu", "failed"), ("repair reboot", "failed"), ("replace", "done")]
    assert centre.states()[SLOT] == "healthy in_service"
    assert SICK not in centre.agents
    (opened,) = centre.opened()
    assert opened.slot == SLOT


def test_what_the_hands_refuse_is_the_next_rung(centre: Mended) -> None:
    centre.node.process(60, name="jupyter", devices=("/dev/nvidia9",))
    centre.wants(1)
    centre.seconds(300)
    kinds = [kind for kind, _ in centre.actions()]
    assert kinds == ["repair reset_gpu", "repair reboot", "replace"]
    assert centre.node.did() == []
    failed = [line.because for line in centre.lines("action_step") if line.state == "failed"]
    assert failed == ["its hands say refused: a GPU is in use: jupyter (60)"] * 2


def test_hold_on_the_aggregator_takes_the_order_back(centre: Mended) -> None:
    centre.wants(1)
    while not centre.executor.open() or centre.executor.open()[0].step != "order":
        centre.second()
        assert centre.orders == []
    (centre.folder / "HOLD").touch()
    centre.seconds(60)
    assert centre.orders == []
    assert centre.node.did() == []
    (centre.folder / "HOLD").unlink()
    centre.seconds(90)
    assert centre.actions() == [("repair reset_gpu", "done")]


@pytest.mark.parametrize(
    ("step", "did", "because"),
    [
        *((step, [], "no reset_gpu cures this: Xid 48") for step in ("end_job", "empty", "sign")),
        *(
            (step, ["release", f"reset {GPU}", "resume"], "reset_gpu by its own hands did not cure it: Xid 48")
            for step in ("order", "join")
        ),
    ],
)
@pytest.mark.parametrize(
    ("action", "then"), [("drain_replace", ("replace", "done")), ("reset_gpu", ("repair reboot", "done"))]
)
def test_what_ails_it_besides_is_neither_ordered_over_nor_forgotten(
    centre: Mended, step: str, did: list[str], because: str, action: str, then: tuple[str, str]
) -> None:
    """Another GPU's fault, which the kernel tells once, while the first is being mended."""
    centre.wants(1)
    while not centre.executor.open() or centre.executor.open()[0].step != step:
        centre.second()
    centre.second()
    centre.agents[SICK].xid(48, pci="0000:1f:00")
    (event,) = centre.agents[SICK].events
    centre.agents[SICK].events = (msgspec.structs.replace(event, action=action),)
    centre.seconds(200)
    assert centre.actions() == [("repair reset_gpu", "failed"), then]
    assert centre.node.did() == did
    (failed,) = [line.because for line in centre.lines("action_step") if line.state == "failed"]
    assert failed.startswith(because)


@pytest.mark.parametrize("step", ["", "end_job", "sign", "order"])
def test_hold_on_the_node_keeps_it_from_everything(centre: Mended, step: str) -> None:
    """Whoever works there finds the machine as they left it: no order, and no other machine in its place."""
    hold = centre.node.folder / "HOLD"
    if step:
        centre.wants(1)
        while not centre.executor.open() or centre.executor.open()[0].step != step:
            centre.second()
    hold.touch()
    centre.seconds(6)
    centre.wants(1)
    centre.seconds(900)
    assert (centre.node.did(), centre.cloud.calls) == ([], [])
    assert len(centre.actions()) == (1 if step else 0)
    hold.unlink()
    centre.seconds(300)
    assert centre.states()[SLOT] == "healthy in_service"


def test_what_hands_may_say_is_bounded(centre: Mended, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever speaks in their name may write anything."""
    told = centre.node.hands.facts
    monkeypatch.setattr(centre.node.hands, "facts", lambda: msgspec.structs.replace(told(), nonce="n" * 100_000))
    centre.wants(1)
    centre.seconds(60)
    assert {saga.step for saga in centre.executor.open()} == {"sign"}

    def lies() -> HandsFacts:
        (saga,) = [each for each in centre.executor.sagas() if each.action.order == "reset_gpu"]
        answer = Answer(saga.action.action_id, "reset_gpu", GPU, "failed", "no\n" * 100_000, 0)
        return msgspec.structs.replace(told(), answers=(answer,))

    monkeypatch.setattr(centre.node.hands, "facts", lies)
    centre.seconds(20)
    words = [line.because for line in centre.lines("action_step") if "its hands say failed" in line.because]
    assert words
    assert all(len(because) < 400 and "\n" not in because for because in words)


def test_an_order_that_nobody_saw_is_no_try_of_its_rung(centre: Mended) -> None:
    """Held for longer than the order is good: it is made out anew: a reset that never was is no reason to reboot."""
    centre.wants(1)
    while not centre.executor.open() or centre.executor.open()[0].step != "order":
        centre.second()
    (centre.folder / "HOLD").touch()
    centre.seconds(400)
    (centre.folder / "HOLD").unlink()
    centre.seconds(200)
    assert centre.actions() == [("repair reset_gpu", "failed"), ("repair reset_gpu", "done")]
    assert centre.node.did() == ["release", f"reset {GPU}", "resume"]
    assert centre.states()[SLOT] == "healthy in_service"


def test_without_a_word_of_the_policy_it_is_another_machine(tmp_path: Path, reboots: None) -> None:
    centre = Mended(tmp_path, policy='[hands]\nkey_file = "order.pem"\n')
    centre.wants(1)
    centre.seconds(120)
    assert [kind for kind, _ in centre.actions()] == ["replace"]
    assert centre.orders == []


def test_an_order_of_an_earlier_action_is_not_given_to_the_next(centre: Mended) -> None:
    centre.wants(1)
    centre.seconds(90)
    given = len(centre.orders)
    centre.seconds(30)
    assert len(centre.orders) == given


@pytest.mark.parametrize("at", ["before", "after"])
def test_a_killed_aggregator_gives_the_same_order_again_and_it_is_done_once(
    centre: Mended, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at each write of the action: just before every first, just after every second."""
    for number in itertools.count(1 if at == "before" else 2, 2):
        fresh = Mended(_folder(centre.folder, f"{at}-{number}"))
        count = itertools.count(1)
        assert fresh.store is not None
        save = fresh.store.save_saga

        def mortal(*args, save=save, count=count, number=number, **more):  # type: ignore[no-untyped-def]
            dies = next(count) == number
            if dies and at == "before":
                raise Killed
            save(*args, **more)
            if dies:
                raise Killed

        fresh.store.save_saga = mortal  # type: ignore[method-assign]
        fresh.wants(1)
        killed = False
        for _ in range(200):
            try:
                fresh.second()
            except Killed:
                killed = True
                fresh.boot()
        assert [line for line in fresh.node.did() if line.startswith("reset")] == [f"reset {GPU}"]
        assert fresh.actions()[0] == ("repair reset_gpu", "done")
        assert fresh.states()[SLOT] == "healthy in_service"
        assert fresh.cloud.calls == []
        assert fresh.store is not None
        fresh.store.close()
        if not killed:
            assert number > 10
            return


def _folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder


def test_a_policy_that_orders_needs_a_key(tmp_path: Path) -> None:
    path = tmp_path / "aggregator.toml"
    path.write_text('[server]\nsecret_file = "s"\n[pools.p.policy]\nlocal_repair = ["reboot"]\n')
    with pytest.raises(ConfigError, match=r"pools\.p\.policy\.local_repair: expected \[hands\] with a key_file"):
        settings_file.load(path)
    path.write_text(path.read_text().replace("reboot", "power_off") + '[hands]\nkey_file = "k"\n')
    with pytest.raises(ConfigError, match="local_repair"):
        settings_file.load(path)
