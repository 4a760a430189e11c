"""A real agent and real hands: an order comes with a reply, is done once, and is answered in a report."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gpuwatch.model.facts.hands import HandsFacts
from gpuwatch.model.order import Answer, Order, SignedOrder, as_text
from gpuwatch.model.wire import Report
from gpuwatch.sdk.ed25519 import Signer, make_key
from gpuwatch.sdk.machine_id import boot_id
from tests.agent_node import Aggregator, Node, envelope_of, facts_of, status_is
from tests.hands_process import HandsProcess

BOOT = "boot-of-the-test"


@pytest.fixture
def aggregator() -> Iterator[Aggregator]:
    made = Aggregator()
    yield made
    made.close()


@pytest.fixture
def node(tmp_path: Path, aggregator: Aggregator) -> Iterator[Node]:
    made = Node(tmp_path / "node", aggregator.url, GPUWATCH_BOOT_ID=BOOT)
    yield made
    made.end()


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    make_key(tmp_path / "order.pem")
    return Signer(tmp_path / "order.pem")


@pytest.fixture
def hands(node: Node, signer: Signer) -> Iterator[HandsProcess]:
    made = HandsProcess(node.folder / "hands", "m-1", signer.public, boot=BOOT)
    node.hands |= made.collector
    yield made
    made.end()


def signed(signer: Signer, facts: HandsFacts, **changed: object) -> str:
    """An order as the aggregator makes it from what the hands said last."""
    order = Order(
        machine="m-1",
        boot_id=facts.boot_id,
        action_id="act-1",
        kind="restart_service",
        target="slurmd.service",
        nonce=facts.nonce,
        expires_monotonic_ns=min(facts.nonce_expires_monotonic_ns, facts.told_monotonic_ns + 60 * 10**9),
    )
    order = msgspec.structs.replace(order, **changed)
    return as_text(SignedOrder(order=order, key=signer.public, signature=signer.sign(order.signed_bytes())))


def told(report: Report) -> HandsFacts | None:
    envelope = envelope_of(report, "hands")
    return facts_of(report, "hands") if envelope is not None and envelope.status == "ok" else None


def answered(action_id: str, state: str) -> Callable[[Report], bool]:
    def true(report: Report) -> bool:
        facts = told(report)
        found = () if facts is None else facts.answers
        return any((answer.action_id, answer.state) == (action_id, state) for answer in found)

    return true


def last_answer(report: Report) -> Answer:
    facts = told(report)
    assert facts is not None
    return facts.answers[-1]


def latest(aggregator: Aggregator) -> HandsFacts:
    """What the hands say in a report that is still to come."""
    seen = len(aggregator.reports)
    _, report = aggregator.wait(
        lambda report: told(report) is not None and _new(aggregator, report, seen),
        "the hands' word",
    )
    facts = told(report)
    assert facts is not None
    return facts


def test_an_order_is_done_once_and_its_answer_reported(
    node: Node, hands: HandsProcess, aggregator: Aggregator, signer: Signer
) -> None:
    hands.start()
    node.start()
    facts = latest(aggregator)
    assert (facts.boot_id, facts.units, facts.keys) == (BOOT, ("slurmd.service",), (signer.public,))
    aggregator.order = signed(signer, facts)
    aggregator.wait(answered("act-1", "done"), "the answer")
    after = latest(aggregator)
    assert after.nonce != facts.nonce  # each reply brought the order again meanwhile
    assert hands.did() == ["restart slurmd.service"]

    aggregator.order = signed(signer, facts, action_id="act-2")  # a replay under another name
    _, report = aggregator.wait(answered("act-2", "refused"), "the refusal of the replay")
    assert last_answer(report).reason.startswith("its nonce was used already")

    tampered = json.loads(signed(signer, after, action_id="act-3"))
    tampered["order"] |= {"kind": "reboot", "target": ""}
    aggregator.order = json.dumps(tampered)
    _, report = aggregator.wait(answered("act-3", "refused"), "the refusal of what was changed")
    assert last_answer(report).reason == "the signature is not one of this order: somebody changed it"

    aggregator.order = signed(signer, after, action_id="act-4", machine="m-2")
    _, report = aggregator.wait(answered("act-4", "refused"), "the refusal of another machine's")
    assert last_answer(report).reason == "it is for the machine 'm-2'"

    aggregator.order = "not an order at all"
    time.sleep(0.5)
    assert node.stop() < 2.0
    assert hands.stop() == 0
    assert hands.did() == ["restart slurmd.service"]
    assert not (hands.folder / "told" / "status").exists()


def test_kill_9_in_the_middle_repeats_nothing(
    node: Node, hands: HandsProcess, aggregator: Aggregator, signer: Signer
) -> None:
    hands.note_and("sleep 5")
    hands.start()
    node.start()
    aggregator.order = signed(signer, latest(aggregator))
    aggregator.wait(answered("act-1", "begun"), "the word that it was begun")
    hands.kill()
    hands.start()
    _, report = aggregator.wait(answered("act-1", "unknown"), "the word that nobody knows")
    assert "it is not repeated" in last_answer(report).reason
    aggregator.order = signed(signer, latest(aggregator))  # the same action, signed anew
    time.sleep(1.0)
    assert hands.did() == ["restart slurmd.service"]


def test_a_reboot_is_reported_by_the_boot_after_it(
    node: Node, hands: HandsProcess, aggregator: Aggregator, signer: Signer
) -> None:
    hands.start()
    node.start()
    aggregator.order = signed(signer, latest(aggregator), kind="reboot", target="")
    aggregator.wait(answered("act-1", "begun"), "the word that it was begun")
    node.stop()
    hands.kill()  # the machine goes down
    node.environment["GPUWATCH_BOOT_ID"] = "boot-2"
    hours = int(time.monotonic() // 3600) + 7  # the tests' machine was not rebooted: all it ran would count as after it
    hands.start(boot="boot-2", window_s=hours * 3600.0)
    node.start()
    _, report = aggregator.wait(answered("act-1", "done"), "the word that it happened")
    assert last_answer(report).reason == "it runs as boot boot-2 now"
    facts = latest(aggregator)
    aggregator.order = signed(signer, facts, action_id="act-2", kind="reboot", target="")
    _, report = aggregator.wait(answered("act-2", "refused"), "the refusal of a second one")
    assert f"once in {hours} h is allowed" in last_answer(report).reason
    assert hands.did() == ["reboot"]


def test_a_reboot_that_does_not_come_goes_up_the_ladder_though_it_is_told_to_stop(
    node: Node, hands: HandsProcess, aggregator: Aggregator, signer: Signer
) -> None:
    hands.start(deadline_s=1.0)
    node.start()
    aggregator.order = signed(signer, latest(aggregator), kind="reboot", target="")
    aggregator.wait(answered("act-1", "begun"), "the word that it was begun")
    hands.processes[-1].terminate()  # as a shutdown does
    _, report = aggregator.wait(answered("act-1", "failed"), "the word that nothing helped")
    assert hands.did() == ["reboot", "force"]
    assert (hands.folder / "sysrq").read_text() == "sub"
    assert last_answer(report).reason.endswith("and it runs still")


def test_before_a_reset_the_agent_lets_go_of_the_driver_and_takes_it_again(
    tmp_path: Path, aggregator: Aggregator, signer: Signer
) -> None:
    node = Node(tmp_path / "node", aggregator.url)  # of the real boot: the release is of it
    hands = HandsProcess(node.folder / "hands", "m-1", signer.public, boot=boot_id())
    node.hands |= hands.collector
    agent = [sys.executable, "-m", "gpuwatch", "agent"]
    config = ["--config", str(node.folder / "agent.toml")]
    hands.asks_agent = {"release": [*agent, "release", *config], "resume": [*agent, "resume", *config]}
    hands.note_and("sleep 2")
    hands.gpu("0000:9b:00", "GPU-5a1b2c3d-0000-1111-2222-333344445555", 3)
    try:
        hands.start()
        node.start()
        aggregator.wait(status_is("nvml", "ok"))
        aggregator.order = signed(signer, latest(aggregator), kind="reset_gpu", target="0000:9b:00")
        aggregator.wait(lambda report: _nvml(report).startswith("released on request"), "the release")
        assert hands.did() in ([], ["reset 0000:9b:00"])
        aggregator.wait(answered("act-1", "done"), "the answer")
        seen = len(aggregator.reports)
        aggregator.wait(lambda report: status_is("nvml", "ok")(report) and _new(aggregator, report, seen), "NVML again")
        assert hands.did() == ["reset 0000:9b:00"]
    finally:
        hands.end()
        node.end()


def _nvml(report: Report) -> str:
    envelope = envelope_of(report, "nvml")
    return "" if envelope is None else envelope.reason or ""


def _new(aggregator: Aggregator, report: Report, seen: int) -> bool:
    return all(report is not old for _, old in aggregator.reports[:seen])


def test_without_hands_the_agent_says_so(node: Node, aggregator: Aggregator, hands: HandsProcess) -> None:
    node.start()
    _, report = aggregator.wait(lambda report: envelope_of(report, "hands") is not None)
    envelope = envelope_of(report, "hands")
    assert envelope is not None
    assert envelope.status == "unsupported"
    assert (envelope.reason or "").startswith("no hands have written")


def test_the_agent_loads_nothing_of_the_hands() -> None:
    script = "import sys, gpuwatch.wiring.agent; print(*[n for n in sys.modules if 'crypt' in n or '.hands.' in n])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_keygen_and_check(tmp_path: Path) -> None:
    def cli(*words: str) -> subprocess.CompletedProcess[str]:
        words = (sys.executable, "-m", "gpuwatch", "hands", *words)
        return subprocess.run(words, capture_output=True, text=True, check=False)

    key, config = tmp_path / "order.pem", tmp_path / "hands.toml"
    made = cli("keygen", str(key))
    assert made.returncode == 0
    assert key.stat().st_mode & 0o777 == 0o600
    assert "PRIVATE" not in made.stdout
    public = made.stdout.split('"')[1]
    again = cli("keygen", str(key))
    assert (again.returncode, "a key is never overwritten" in again.stderr) == (1, True)
    proc = tmp_path / "proc"
    proc.mkdir()
    hold = tmp_path / "HOLD"
    text = (
        f'machine = "m-1"\npublic_keys = ["{public}"]\nhold_file = "{hold}"\n'
        f'[restart_service]\nunits = ["slurmd.service"]\n'
        f'[reboot]\nallowed = true\n[work]\nproc = "{proc}"\nheartbeat_directories = []\n'
    )
    config.write_text(text)
    config.chmod(0o644)
    tmp_path.chmod(0o755)
    found = cli("check", "-c", str(config))
    assert (found.returncode, found.stderr) == (0, "")
    assert "Allowed: restart slurmd.service" in found.stdout
    assert "reboot now: would be done" in found.stdout
    hold.touch()
    found = cli("check", "-c", str(config))
    assert found.returncode == 1
    assert f"reboot now: {hold} is there: somebody wants hands off" in found.stdout
    config.write_text(text.replace("units", "unit"))
    found = cli("check", "-c", str(config))
    assert found.returncode == 2
    assert "did you mean `restart_service.units`?" in found.stderr
    config.chmod(0o666)
    assert "can be written by others than root" in cli("check", "-c", str(config)).stderr
