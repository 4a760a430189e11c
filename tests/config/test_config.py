"""Settings: every fault at once, each with file, key, expectation, and the nearest valid key."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpuwatch.config import convert, load
from gpuwatch.errors import ConfigError
from gpuwatch.model.policy import Mode, Policy


class Server(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    listen: str = "127.0.0.1:9190"
    tick_s: float = 1.0
    state_dir: Path = Path("/var/lib/gpuwatch")


class Pool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    nodes: tuple[str, ...]
    policy: Policy = Policy()


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    server: Server = Server()
    pools: dict[str, Pool] = {}


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "aggregator.toml"
    path.write_text(text)
    return path


def test_a_good_file_becomes_a_frozen_record(tmp_path: Path) -> None:
    path = _file(
        tmp_path, '[server]\nstate_dir = "/x"\n[pools.a100]\nnodes = ["gpu1"]\n[pools.a100.policy]\nmode = "drain"\n'
    )
    settings = load(path, Settings)
    assert settings.server.state_dir == Path("/x")
    assert settings.pools["a100"].policy.mode is Mode.DRAIN
    assert settings.pools["a100"].policy.max_nodes_out == Policy().max_nodes_out


def test_five_faults_are_reported_at_once_with_exit_code_2(tmp_path: Path) -> None:
    path = _file(
        tmp_path,
        """
[server]
lisen = "127.0.0.1:9190"
tick_s = "fast"
[pools.a100.policy]
mode = "replce"
max_out_ratio = 5
[pols]
""",
    )
    with pytest.raises(ConfigError) as caught:
        load(path, Settings)
    text = str(caught.value)
    assert caught.value.exit_code == 2
    assert text.startswith("6 faults")  # the missing pools.a100.nodes is the sixth
    assert text.count(str(path)) == 6
    assert "server.lisen" in text
    assert "did you mean `server.listen`?" in text
    assert "server.tick_s: expected a number, got 'fast'" in text
    assert "pools.a100.policy.mode: expected one of observe, recommend, approve, drain, replace" in text
    assert "did you mean `replace`?" in text
    assert "pools.a100.policy.max_out_ratio: expected a number >= 0.0 and <= 1.0, got 5" in text
    assert "did you mean `pools`?" in text
    assert "pools.a100.nodes: expected a list of a text, got nothing" in text


@pytest.mark.parametrize(
    ("text", "what"),
    [
        pytest.param(None, "does not exist", id="missing"),
        pytest.param("server = [", "is not valid TOML", id="malformed"),
        pytest.param("server = " + "[" * 10_000, "is not valid TOML", id="brackets-within-brackets"),
        pytest.param("server = " + "{a = " * 10_000, "is not valid TOML", id="tables-within-tables"),
    ],
)
def test_a_file_that_cannot_be_read_says_so(tmp_path: Path, text: str | None, what: str) -> None:
    path = tmp_path / "aggregator.toml" if text is None else _file(tmp_path, text)
    with pytest.raises(ConfigError, match=what):
        load(path, Settings)


def test_a_folder_is_no_settings_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path, Settings)


@pytest.mark.parametrize("value", [True, -1, 1.5, "2", None, [], {}])
def test_a_count_is_a_whole_number_that_is_not_negative(value: object) -> None:
    got, faults = convert({"max_nodes_out": value}, Policy, file="f")
    assert got is None
    assert faults[0].key == "max_nodes_out"
