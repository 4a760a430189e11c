"""Five faults in a settings file are five lines, not five starts."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from gpuwatch.aggregator import settings
from gpuwatch.errors import ConfigError
from gpuwatch.model.policy import Mode

GOOD = """
[server]
secret_file = "secret"
state_dir = "/var/lib/somewhere"

[cluster]
name = "alpha"

[pools.h100]
nodes = ["gpu[01-04]"]
gpus = 8
usd_per_hour = 27.197
domains = { rack1 = ["gpu[01-02]"], rack2 = ["gpu[03-04]"] }

[pools.h100.policy]
mode = "replace"
max_nodes_out = 1

[pools.rest]

[cloud]
kind = "local"
interval_s = 1
[cloud.local]
directory = "/tmp/cloud"
command = ["true"]

[scheduler]
kind = "local"
[scheduler.local]
directory = "/tmp/scheduler"
slots = ["gpu01"]
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "aggregator.toml"
    path.write_text(text)
    return path


def faults_of(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as refusal:
        settings.load(write(tmp_path, text))
    assert refusal.value.exit_code == 2
    return str(refusal.value)


def test_a_good_file(tmp_path: Path) -> None:
    got = settings.load(write(tmp_path, GOOD))
    assert got.server.secret_file == tmp_path / "secret"  # relative to the file
    assert got.server.state_dir == Path("/var/lib/somewhere")
    assert got.place("gpu03") == settings.Place("h100", "rack2")
    assert got.place("elsewhere") == settings.Place("rest")
    assert got.policies()["h100"].mode is Mode.REPLACE
    assert got.policies()["rest"].mode is Mode.OBSERVE
    assert got.pools["h100"].usd_per_hour == Decimal("27.197")
    assert got.cloud is not None
    assert (got.cloud.kind, got.cloud.interval_s, got.cloud.settings.command) == ("local", 1.0, ("true",))
    assert got.scheduler is not None
    assert got.scheduler.settings.slots == ("gpu01",)


def test_the_smallest_file_watches_everything_and_touches_nothing(tmp_path: Path) -> None:
    got = settings.load(write(tmp_path, '[server]\nsecret_file = "secret"\n'))
    assert got.place("any") == settings.Place(settings.UNLISTED)
    assert got.policies()[settings.UNLISTED].mode is Mode.OBSERVE
    assert got.cloud is None


def test_five_faults_are_reported_at_once_with_the_nearest_key(tmp_path: Path) -> None:
    text = GOOD.replace('secret_file = "secret"', 'secret_flie = "secret"\nsecret_file = "s"')
    text = text.replace('mode = "replace"', 'mode = "replcae"')
    text = text.replace('kind = "local"\ninterval_s = 1', 'kind = "lokal"\ninterval_s = 1')
    text = text.replace('slots = ["gpu01"]', 'slot = ["gpu01"]')
    text = text.replace("max_nodes_out = 1", "max_nodes_out = -1")
    said = faults_of(tmp_path, text)
    assert said.startswith("6 faults")  # the misspelt `slots` is unknown, and `slots` itself is missing
    for part in (
        f"{tmp_path / 'aggregator.toml'}: server.secret_flie: expected one of",
        "did you mean `server.secret_file`?",
        "pools.h100.policy.mode: expected one of observe, recommend, approve, drain, replace, got 'replcae'",
        "did you mean `replace`?",
        "cloud.kind: expected one of",
        "got 'lokal'; did you mean `local`?",
        "did you mean `local`?",
        "scheduler.local.slot: expected one of",
        "did you mean `scheduler.local.slots`?",
        "pools.h100.policy.max_nodes_out: expected a whole number >= 0, got -1",
    ):
        assert part in said


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        pytest.param('"gpu[01-04]"', '"gpu[01-04"', "pools.h100.nodes: expected slots such as", id="open-bracket"),
        pytest.param('"gpu[01-04]"', '"gpu[01-04]", "gpu02"', "each slot once, got gpu02", id="slot-twice"),
        pytest.param("[pools.rest]", "[pools.a]\n[pools.b]", "nothing, as in pools.a", id="two-pools-without-nodes"),
        pytest.param('["gpu[03-04]"]', '["gpu09"]', "slots of pools.h100, got gpu09", id="domain-of-a-stranger"),
        pytest.param(
            '["gpu[03-04]"]',
            '["gpu[05-20]"]',
            "rack2: expected slots of pools.h100, got gpu05 and 15 more",
            id="domain-of-strangers",
        ),
        pytest.param(
            "[server]", '[server]\nlisten = "127.0.0.1"', "server.listen: expected address:port", id="no-port"
        ),
        pytest.param(
            "[server]", '[server]\nlisten = "a:99999"', "server.listen: expected address:port", id="wild-port"
        ),
        pytest.param("interval_s = 1", "interval_s = 0", "cloud.interval_s: expected a number > 0", id="no-interval"),
        pytest.param("interval_s = 1", "intervall = 1", "did you mean `cloud.interval_s`?", id="unknown-hand-key"),
        pytest.param('kind = "local"\ninterval_s = 1', "", "cloud.kind: expected one of", id="no-kind"),
        pytest.param("[pools.rest]", "[rules.no_such_rule]\na = 1", "an unknown rule", id="unknown-rule"),
        pytest.param('[scheduler]\nkind = "local"', "[sched]", "did you mean `scheduler`?", id="unknown-table"),
    ],
)
def test_single_faults(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    assert said in faults_of(tmp_path, GOOD.replace(old, new))


def test_a_slip_in_the_nodes_makes_no_strangers_of_the_domains(tmp_path: Path) -> None:
    said = faults_of(tmp_path, GOOD.replace('nodes = ["gpu[01-04]"]', 'nodes = ["gpu[04-01]"]'))
    assert said.startswith("1 fault in the settings")
    assert "pools.h100.nodes: expected slots such as gpu[01-16]" in said


def test_a_mode_that_acts_needs_its_hands(tmp_path: Path) -> None:
    text = GOOD[: GOOD.index("[cloud]")]
    said = faults_of(tmp_path, text)
    assert "pools.h100.policy.mode: expected a [scheduler] table for this mode, got 'replace' without one" in said
    assert "pools.h100.policy.mode: expected a [cloud] table for this mode" in said


def test_a_scheduler_that_goes_by_name_needs_the_old_machine_gone_first(tmp_path: Path) -> None:
    slurm = GOOD[: GOOD.index("[scheduler]")] + '[scheduler]\nkind = "slurm"\n'
    said = faults_of(tmp_path, slurm)
    assert said.startswith("1 fault in the settings")
    assert "pools.h100.policy.replace_order: expected 'release_first' with this scheduler, got 'grow_first'" in said
    first = slurm.replace("max_nodes_out = 1", 'max_nodes_out = 1\nreplace_order = "release_first"')
    assert settings.load(write(tmp_path, first)).pools["h100"].policy.replace_order == "release_first"
    for mode in ("observe", "recommend", "drain"):
        settings.load(write(tmp_path, slurm.replace('mode = "replace"', f'mode = "{mode}"')))
