"""What an installed gpuwatch has with it: the wheel in a new environment, away from the clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.grafana_server import TOKEN, GrafanaServer

ROOT = Path(__file__).resolve().parents[2]
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "gpuwatch", "dashboards", "alert_rules", "docs")


def run(*command: object, cwd: Path) -> str:
    clean = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment's folder. Its dependencies are ours, by path alone: an editable gpuwatch is not found by it."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "source").mkdir()
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / "source" / name)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    run(*pip, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder, folder / "source", cwd=folder)
    (wheel,) = folder.glob("gpuwatch-*.whl")
    shutil.rmtree(folder / "source")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "env", cwd=folder)
    python = folder / "env" / "bin" / "python"
    run(*pip, f"--python={python}", "install", "--no-deps", "--no-index", wheel, cwd=folder)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    (Path(site) / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "env"


def test_the_dashboards_are_pushed_from_an_installed_wheel(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    grafana = GrafanaServer()
    try:
        push = (installed / "bin" / "gpuwatch", "dashboards", "push", "--url", grafana.url, "--token-file", "token")
        assert run(*push, cwd=tmp_path).count("pushed, ") == 4
        assert len(grafana.boards) == 4
        assert run(*push, cwd=tmp_path).count("is there already") == 4
    finally:
        grafana.close()
    where = "import gpuwatch; print(gpuwatch.__file__)"
    assert run(installed / "bin" / "python", "-c", where, cwd=tmp_path).startswith(str(installed))


def test_rules_and_run_books_come_with_it(installed: Path) -> None:
    for folder, pattern, ours in (
        ("dashboards", "*.json", "dashboards"),
        ("alert_rules", "*.yml", "alert_rules"),
        ("runbooks", "*.md", "docs/runbooks"),
    ):
        there = {path.name: path.read_bytes() for path in (installed / "share" / "gpuwatch" / folder).glob(pattern)}
        assert there == {path.name: path.read_bytes() for path in (ROOT / ours).glob(pattern)}
