"""Whole machines: Debian with a real systemd each, booted by systemd-nspawn on a switch of their own, with gpuwatch
installed from wheels as docs/operating.md says, without any network.

Nothing of the network appears in this machine's own: switch, cables and hosts live in network namespaces.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("GPUWATCH_PROOF_ROOT", "/var/tmp/gpuwatch-proof/bookworm"))
PACKAGES = "systemd-sysv,dbus,ca-certificates,python3-minimal,python3-venv"
POLL_S = 0.2


def sh(*words: str, text: str | None = None) -> str:
    """Run; what it printed. Raises with all its words where it fails."""
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def until(what: str, seconds: float, holds: Callable[[], bool], story: Callable[[], str] = str) -> float:
    """Wait for it, or fail with the story. Returns how long it took."""
    begun_s = time.monotonic()
    while not holds():
        if time.monotonic() > begun_s + seconds:
            raise AssertionError(f"not within {seconds:.0f} s: {what}\n{story()}")
        time.sleep(POLL_S)
    return time.monotonic() - begun_s


def wheel(version: str, work: Path) -> Path:
    """A wheel of this tree under another version number, made as a release is."""
    copy = work / f"tree-{version}"
    shutil.copytree(TREE / "gpuwatch", copy / "gpuwatch", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(TREE / name, copy)
    for path, words in ((copy / "pyproject.toml", "version"), (copy / "gpuwatch" / "__init__.py", "__version__")):
        path.write_text(re.sub(rf'(?m)^{words} = ".*"', f'{words} = "{version}"', path.read_text()))
    builder = work / "builder"
    if not builder.exists():
        sh(sys.executable, "-m", "venv", str(builder))
        sh(*_pip(builder), "install", "--require-hashes", "-r", str(TREE / "requirements-build.lock"))
    sh(*_pip(builder), "wheel", "--no-build-isolation", "--no-deps", "-w", str(work / "wheels"), str(copy))
    return work / "wheels" / f"gpuwatch-{version}-py3-none-any.whl"


def installed_root(work: Path, wheels: Sequence[Path]) -> Path:
    """A Debian with the first wheel installed, the others beside it, and both units in place but not enabled."""
    if not (CACHE / "etc" / "debian_version").exists():
        CACHE.parent.mkdir(parents=True, exist_ok=True)
        making = CACHE.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        words = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(making), _mirror()]
        sh(*[word for word in words if word])
        making.rename(CACHE)
    root = work / "root"
    sh("cp", "-a", "--reflink=auto", str(CACHE), str(root))
    (root / "etc" / "hostname").unlink(missing_ok=True)  # else every node is called like this machine
    (root / "etc" / "machine-id").write_text("")  # and has one id
    (root / "var" / "lib" / "dbus" / "machine-id").unlink(missing_ok=True)
    shelf = root / "srv" / "wheels"
    shelf.mkdir(parents=True)
    lock = ["--require-hashes", "-r", str(TREE / "requirements.lock")]
    for_debian = ["--python-version", "3.11", "--only-binary", ":all:", "--no-deps", "-d", str(shelf)]
    sh(*_pip(work / "builder"), "download", *lock, *for_debian)
    for each in wheels:
        shutil.copy(each, shelf)

    def inside(*words: str) -> None:
        sh("unshare", "--net", "chroot", str(root), "/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", *words)

    inside("python3", "-m", "venv", "/opt/gpuwatch")
    version = wheels[0].name.split("-")[1]
    inside(
        "/opt/gpuwatch/bin/pip", "install", "-q", "--no-index", "--find-links", "/srv/wheels", f"gpuwatch=={version}"
    )
    inside("ln", "-s", "/opt/gpuwatch/bin/gpuwatch", "/usr/local/bin/")
    inside("useradd", "--system", "gpuwatch")
    inside("install", "-d", "-m", "0750", "-g", "gpuwatch", "/etc/gpuwatch")
    for unit in ("gpuwatch-agent.service", "gpuwatch-aggregator.service"):
        shutil.copy(TREE / "deploy" / unit, root / "etc" / "systemd" / "system")
    return root


class Switch:
    """A bridge inside a namespace. Hosts get a cable each, 10.77.0.10 and up."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._prefix = f"gw{os.getpid()}"
        self.address = {host: f"10.77.0.{10 + number}" for number, host in enumerate(hosts)}
        self._made = [f"{self._prefix}-sw"]
        sh("ip", "netns", "add", self._made[0])
        self._ip("link", "add", "br0", "type", "bridge")
        self._ip("link", "set", "br0", "up")
        for host, address in self.address.items():
            name = self.namespace(host)
            sh("ip", "netns", "add", name)
            self._made.append(name)
            sh("ip", "link", "add", host, "netns", self._made[0], "type", "veth", "peer", "name", "eth0", "netns", name)
            self._ip("link", "set", host, "master", "br0", "up")
            sh("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            sh("ip", "-n", name, "link", "set", "eth0", "up")
            sh("ip", "-n", name, "link", "set", "lo", "up")

    def namespace(self, host: str) -> str:
        return f"{self._prefix}-{host}"

    def cable(self, host: str, *, plugged: bool) -> None:
        self._ip("link", "set", host, "up" if plugged else "down")

    def close(self) -> None:
        for name in self._made:
            with contextlib.suppress(AssertionError):
                sh("ip", "netns", "delete", name)

    def _ip(self, *words: str) -> None:
        sh("ip", "-n", self._made[0], *words)


class Machine:
    """One container with a systemd of its own. What it writes lies in memory and goes with it."""

    def __init__(self, name: str, root: Path, switch: Switch, work: Path, *options: str) -> None:
        self.name = name
        words = ["systemd-nspawn", "-q", "-D", str(root), "-b", "--register=no", "--keep-unit", "--volatile=overlay"]
        words += [f"--uuid={uuid.uuid4()}", f"--machine={name}", f"--hostname={name}", "--console=pipe", *options]
        words += [f"--network-namespace-path=/run/netns/{switch.namespace(name)}"]
        if Path("/sys/class/dmi").exists():  # else every node bears this machine's own UUID
            words += ["--inaccessible=/sys/class/dmi"]
        with (work / f"{name}.log").open("ab") as log:
            self._outer = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._leader = ""
        until(f"{name} boots", 60, self._booted, (work / f"{name}.log").read_text)

    def _booted(self) -> bool:
        if self._outer.poll() is not None:
            raise AssertionError(f"{self.name} ended with {self._outer.returncode}")
        outer = self._outer.pid
        self._leader = self._leader or Path(f"/proc/{outer}/task/{outer}/children").read_text().strip().split(" ")[0]
        return bool(self._leader) and self._ask("systemctl", "is-system-running").stdout.strip() == "running"

    def _ask(self, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        enter = ["nsenter", "-t", self._leader, "-m", "-u", "-i", "-n", "-p", "--"]
        enter += ["/usr/bin/env", "-i", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
        return subprocess.run([*enter, *words], input=text, capture_output=True, text=True, timeout=120, check=False)

    def run(self, *words: str, text: str | None = None) -> str:
        """A command on this machine, as root. Raises where it fails."""
        done = self._ask(*words, text=text)
        if done.returncode:
            raise AssertionError(f"{self.name}: {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout.strip()

    def says(self, *words: str) -> str:
        """What a command prints, whether it fails or not."""
        done = self._ask(*words)
        return (done.stdout + done.stderr).strip()

    def write(self, path: str, text: str, *, mode: str = "0640", group: str = "gpuwatch") -> None:
        self.run("install", "-D", "-m", mode, "-g", group, "/dev/stdin", path, text=text)

    def shows(self, unit: str, what: str) -> str:
        """One property of a unit."""
        return self.run("systemctl", "show", unit, "-p", what, "--value")

    def path(self, inside: str) -> Path:
        """A file of this machine, seen from outside."""
        return Path(f"/proc/{self._leader}/root{inside}")

    def power_off(self) -> None:
        """In order, as an operator would."""
        self._ask("systemctl", "poweroff")
        self._outer.wait(60)

    def close(self) -> None:
        if self._outer.poll() is None:
            self._outer.terminate()  # nspawn asks the machine to power off
            try:
                self._outer.wait(20)
            except subprocess.TimeoutExpired:
                self._outer.kill()
                self._outer.wait()


class Centre:
    """The machine of the aggregator, asked by programs on it, over TLS and in its ledger."""

    def __init__(self, machine: Machine, url: str) -> None:
        self.machine = machine
        self._url = url

    def get(self, path: str) -> str:
        """One page; empty while it does not answer."""
        words = "import ssl,sys,urllib.request as r;c=ssl.create_default_context(cafile='/etc/gpuwatch/ca.pem');"
        words += "print(r.urlopen(sys.argv[1],timeout=5,context=c).read().decode())"
        done = self.machine.says("python3", "-c", words, self._url + path)
        return "" if "Traceback" in done else done

    def fleet(self) -> dict[str, Any]:
        found = self.get("/api/v1/fleet")
        return json.loads(found) if found else {}

    def health(self) -> dict[str, str]:
        """Slot -> health."""
        return {node["slot"]: node["health"] for node in self.fleet().get("nodes", [])}

    def metric(self, name: str) -> float:
        """One series of its /metrics; 0 where it is not there."""
        found = [line for line in self.get("/metrics").splitlines() if line.startswith(f"{name} ")]
        return float(found[0].split()[-1]) if found else 0.0

    def rows(self, sql: str, *args: object) -> list[Any]:
        """Rows of the ledger's file, read on its machine: SQLite would resolve `/proc/…/root` to our own disk."""
        words = "import json,sqlite3,sys;sql,args=json.load(sys.stdin);"
        words += "db=sqlite3.connect('file:/var/lib/gpuwatch/ledger.db?mode=ro',uri=True,timeout=5);"
        words += "print(json.dumps(db.execute(sql,args).fetchall(),default=bytes.decode))"
        found = json.loads(self.machine.run("python3", "-c", words, text=json.dumps([sql, args])))
        assert isinstance(found, list)
        return found

    def mark(self) -> int:
        """The last line's number."""
        return int(self.rows("SELECT COALESCE(MAX(id), 0) FROM ledger")[0][0])

    def judged(self, after: int) -> list[tuple[str, str, str]]:
        """(slot, health, because) of every verdict since then."""
        rows = self.rows("SELECT body FROM ledger WHERE line = 'health' AND id > ? ORDER BY id", after)
        lines = [json.loads(row[0]) for row in rows]
        return [(line["slot"], line["health"], line["because"]) for line in lines]

    def last_seen(self) -> dict[str, dict[str, Any]]:
        """Slot -> what is kept of its machine's last report."""
        return {row["slot"]: row for row in (json.loads(body) for (body,) in self.rows("SELECT body FROM last_seen"))}


def _pip(venv: Path) -> list[str]:
    return [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]


def _mirror() -> str:
    """Where this machine itself gets Debian from; empty: debootstrap's usual place."""
    for path in (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")):
        with contextlib.suppress(OSError):
            for line in path.read_text().splitlines():
                words = line.split()
                if words[:1] == ["URIs:"] or words[:1] == ["deb"]:
                    return next(word for word in words[1:] if not word.startswith("["))
    return ""
