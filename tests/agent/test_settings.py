"""The settings file: every fault at once, and which machine this is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.agent.identity import identify
from gpuwatch.agent.settings import AgentSettings, checked, for_the_running, listen_address, load
from gpuwatch.collectors import Collector
from gpuwatch.errors import ConfigError
from gpuwatch.model.facts.host import HostFacts


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = True
    interval_s: float = 5.0


DOORS: dict[str, Collector[Any]] = {
    name: Collector(facts=HostFacts, settings=Settings, open=lambda _: None)  # type: ignore[arg-type,return-value]
    for name in ("nvml", "host", "training")
}


def test_nothing_needs_to_be_set() -> None:
    settings = checked({}, DOORS, file="x")
    assert settings.agent == AgentSettings()
    assert set(settings.collectors) == {"nvml", "host", "training"}


def test_a_collector_is_set_or_off() -> None:
    raw = {"collectors": {"nvml": {"interval_s": 1.0}, "host": {"enabled": False}}}
    settings = checked(raw, DOORS, file="x")
    assert settings.collectors["nvml"].interval_s == 1.0
    assert set(settings.collectors) == {"nvml", "training"}


def test_five_faults_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(
        'slott = "gpu-001"\ninterval_s = "fast"\naggregator = ["aggregator:9190"]\n'
        "[collectors.nvml]\nintervall_s = 1.0\n[collectors.trainig]\nenabled = true\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(path, DOORS)
    text = str(caught.value)
    for words in (
        "4 faults",
        "slott: expected one of",
        "did you mean `slot`?",
        "interval_s: expected a number",
        "collectors.nvml.intervall_s",
        "did you mean `collectors.nvml.interval_s`?",
        "collectors.trainig: expected a collector: one of host, nvml, training",
        "did you mean `collectors.training`?",
    ):
        assert words in text
    assert caught.value.exit_code == 2


def test_a_check_looks_into_the_file_of_certificates_too_and_a_start_does_not_end_over_it(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    for url, faulty in (("https://a:1", True), ("http://a:1", False)):
        path.write_text(f'aggregator = ["{url}"]\nca_file = "{tmp_path}/none.pem"\ninterval_s = 1.0\n')
        assert load(path, DOORS).agent.ca_file
        if faulty:
            with pytest.raises(ConfigError, match=r"ca_file: expected .*PEM, got '.*none.pem' \(No such file"):
                load(path, DOORS, with_files=True)
        else:
            load(path, DOORS, with_files=True)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("aggregator", ["aggregator:9190"], "addresses such as http://127.0.0.1:9190"),
        ("aggregator", ["http://a", "http://b", "http://c"], "at most two"),
        ("aggregator", ["http://a:99999"], "addresses such as"),
        ("metrics_listen", "9101", "host:port"),
        ("interval_s", 0.0, "interval_s"),
        ("spool_max_bytes", 5, "spool_max_bytes"),
    ],
)
def test_values_that_do_not_fit(key: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError, match="1 fault") as caught:
        checked({key: value}, DOORS, file="x")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:9101", ("127.0.0.1", 9101)), ("[::1]:0", ("::1", 0)), ("9101", None), ("", None), ("a:b", None)],
)
def test_a_listen_address(text: str, address: tuple[str, int] | None) -> None:
    assert listen_address(text) == address


def test_who_this_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUWATCH_BOOT_ID", raising=False)
    (tmp_path / "uuid").write_text("03000200-0400-0500-0006-000700080009\n")
    (tmp_path / "zero").write_text("00000000-0000-0000-0000-000000000000\n")
    files = (str(tmp_path / "absent"), str(tmp_path / "zero"), str(tmp_path / "uuid"))
    one, two = (identify(AgentSettings(), sources=files) for _ in range(2))
    assert one.machine == "03000200-0400-0500-0006-000700080009"
    assert one.slot
    assert one.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert one.agent_id != two.agent_id
    assert identify(AgentSettings(slot="s", machine="m")).machine == "m"
    monkeypatch.setenv("GPUWATCH_BOOT_ID", "simulated")
    assert identify(AgentSettings(machine="m")).boot_id == "simulated"
    with pytest.raises(ConfigError, match="no id"):
        identify(AgentSettings(), sources=files[:2])


@pytest.mark.parametrize(
    ("change", "waiting"),
    [
        ({"interval_s": 1.0, "spool_max_reports": 7, "token_file": "t", "ca_file": "c"}, ()),
        ({"aggregator": ("http://b:1", "http://c:1")}, ()),
        ({"aggregator": ()}, ("aggregator",)),
        ({"slot": "other", "interval_s": 1.0}, ("slot",)),
        (
            {"machine": "m-2", "state_dir": "/elsewhere", "metrics_listen": ""},
            ("machine", "state_dir", "metrics_listen"),
        ),
    ],
)
def test_what_an_agent_that_runs_can_take_over(change: dict[str, Any], waiting: tuple[str, ...]) -> None:
    old = AgentSettings(slot="s", machine="m", aggregator=("http://a:1",))
    new = msgspec.structs.replace(old, **change)
    running, later = for_the_running(old, new)
    assert later == waiting
    for key in AgentSettings.__struct_fields__:
        assert getattr(running, key) == getattr(old if key in waiting else new, key)
