"""Words that no command can work with: told in a sentence with a next step, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuwatch.cli import app
from gpuwatch.errors import UsageError
from gpuwatch.wiring import demo


@pytest.mark.parametrize(
    ("secret", "machine", "what"),
    [
        pytest.param("", "m1", "is empty", id="empty-secret"),
        pytest.param(" \n", "m1", "is empty", id="blank-secret"),
        pytest.param("s", "", "for one machine", id="no-machine"),
    ],
)
def test_no_token_of_nothing(tmp_path: Path, secret: str, machine: str, what: str) -> None:
    (tmp_path / "secret").write_text(secret)
    said = CliRunner().invoke(app, ["token", machine, "--secret-file", str(tmp_path / "secret")])
    assert isinstance(said.exception, UsageError)
    assert what in said.exception.what
    assert said.exception.next_step
    assert said.output == ""


@pytest.mark.parametrize("group", ["agent", "aggregator"])
def test_a_file_that_is_named_before_the_command_is_not_lost(tmp_path: Path, group: str) -> None:
    said = CliRunner().invoke(app, [group, "--config", str(tmp_path / "none.toml"), "check"])
    assert isinstance(said.exception, UsageError)
    assert said.exception.next_step.endswith(f" {group} check --config FILE")


@pytest.mark.parametrize("words", [["--nodes", "4"], ["--nodes", "65"], ["--port", "65536"], ["--port", "-1"]])
def test_a_demo_that_cannot_be_is_refused_at_once(words: list[str]) -> None:
    assert CliRunner().invoke(app, ["demo", *words]).exit_code == 2


def test_the_demo_wants_a_new_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path, tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError) as refused:
            demo.run(leave=True, node_count=5, port=0, directory=folder)
        assert "new folder" in refused.value.next_step
