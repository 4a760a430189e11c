"""A command that fails says so: in sentences, or in JSON where JSON was asked for. Nothing half on stdout."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def gpuwatch(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpuwatch", *words], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("words", "what", "kind", "code"),
    [
        pytest.param(("--from-sacct", "/no/such", "--json"), "/no/such", "HistoryError", 1, id="no-dump"),
        pytest.param(("--from-sacct", "/no/such", "--format", "json"), "/no/such", "HistoryError", 1, id="format"),
        pytest.param(("--from-sacct", "/no/such", "--format=json"), "/no/such", "HistoryError", 1, id="format-equals"),
        pytest.param(("--from-sacct", "/no/such", "-f", "json"), "/no/such", "HistoryError", 1, id="f"),
        pytest.param(("--from-nowhere", "x", "--json"), "there is no --from-nowhere", "UsageError", 2, id="importer"),
        pytest.param(("--ledger", "/no/such", "--json"), "/no/such", "StoreError", 1, id="no-ledger"),
        pytest.param(("--sku-of", "x", "--json"), "No such option: --sku-of", "UsageError", 2, id="no-option"),
        pytest.param(("--fleet-gpus", "many", "--json"), "Invalid value", "UsageError", 2, id="no-number"),
    ],
)
def test_json_was_asked_for(words: tuple[str, ...], what: str, kind: str, code: int) -> None:
    done = gpuwatch("cost-report", *words)
    (line,) = done.stderr.splitlines()
    (error,) = json.loads(line).values()
    assert what in error["what"]
    assert error["next"]
    assert (error["kind"], error["exit_code"], done.returncode, done.stdout) == (kind, code, code, "")


@pytest.mark.parametrize(
    "words",
    [
        ("decode", "/no/such", "--json"),
        ("explain", "gpu1", "--json", "--config", "/no/such"),
        ("scan", "--json", "--config", "/no/such"),
        ("nonsense", "--json"),
    ],
)
def test_so_does_every_command(words: tuple[str, ...]) -> None:
    done = gpuwatch(*words)
    assert set(json.loads(done.stderr)["error"]) == {"what", "why", "next", "kind", "exit_code"}
    assert done.returncode == json.loads(done.stderr)["error"]["exit_code"] != 0
    assert done.stdout == ""


@pytest.mark.parametrize(("words", "code"), [((), 3), (("--as", "prolog"), 0)])
def test_a_word_that_a_scan_does_not_know_is_no_finding_in_json_either(words: tuple[str, ...], code: int) -> None:
    done = gpuwatch("scan", *words, "--nope", "--json")
    assert (done.returncode, json.loads(done.stderr)["error"]["exit_code"], done.stdout) == (code, code, "")


def test_sentences_were_asked_for() -> None:
    done = gpuwatch("cost-report", "--from-sacct", "/no/such", "--format", "csv")
    assert done.stderr.startswith("gpuwatch: /no/such cannot be read\nwhy: No such file or directory\nnext: ")
    assert (done.returncode, done.stdout) == (1, "")


def test_an_answer_in_json_is_as_ever() -> None:
    done = gpuwatch("decode", "-", "--json")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


def test_without_a_word_the_help_comes() -> None:
    assert "Usage: " in gpuwatch().stdout
