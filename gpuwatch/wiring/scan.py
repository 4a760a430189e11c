"""`gpuwatch scan`: one look at this node, as text or JSON, with an exit code for whoever called it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import gpuwatch.collectors
from gpuwatch.agent.child import System
from gpuwatch.agent.identity import Identity, identify
from gpuwatch.agent.settings import AgentSettings, Settings, checked, load
from gpuwatch.clock import SystemClock
from gpuwatch.collectors import Collector
from gpuwatch.errors import ConfigError, GpuwatchError, UsageError
from gpuwatch.registry import leaves
from gpuwatch.scan import DEADLINE_S, EXIT_CODES, Look, look, node_rules
from gpuwatch.scan.apart import apart
from gpuwatch.scan.grant import WITHIN_S, Grant, ask
from gpuwatch.scan.words import as_text, headline

AGENT_CONFIG = Path("/etc/gpuwatch/agent.toml")
REST_S = 1.5  # of a whole call, for the start of the interpreter and the last words
NOT_JUDGED = ("attribution", "environment")  # no rule reads them
NOT_OK = 10  # of a role: no code with which an interpreter or a shell that is broken itself would end


class _Told(msgspec.Struct, frozen=True, array_like=True):
    """What one look printed, and its exit code."""

    text: str
    code: int


def run(
    *,
    as_json: bool = False,
    config: Path | None = None,
    expected_gpus: int | None = None,
    only: Sequence[str] = (),
    deadline_s: float = DEADLINE_S,
) -> int:
    """Look, print, and say how bad it is: 0 ok, 1 warning, 2 critical, 3 unknown.

    `config`: an agent's settings file, for its collectors' tables; none is needed. `expected_gpus`: how many there
    should be; without it, as many as are on the PCI bus. `only`: the sources to look at.
    """
    settings, doors = _settings(config)
    settings = _narrowed(settings, doors, only)

    def work() -> bytes:
        seen = _look(settings, doors, expected_gpus, deadline_s, partial=bool(only))
        text = json.dumps(as_object(seen), indent=2) if as_json else as_text(seen, node_rules())
        return msgspec.msgpack.encode(_Told(text, EXIT_CODES[seen.level()]))

    told = _apart(work, deadline_s + WITHIN_S)
    if told is None:
        late = f"the look did not end within {deadline_s + WITHIN_S:g} s"
        text = json.dumps({"level": "unknown", "exit_code": 3, "statement": late, "findings": []}) if as_json else late
        told = _Told(text, EXIT_CODES["unknown"])
    _say(told.text)
    return told.code


def run_as(
    role: str,
    *,
    as_json: bool = False,
    config: Path | None = None,
    expected_gpus: int | None = None,
    only: Sequence[str] = (),
    deadline_s: float = 10.0,
) -> int:
    """Look for a scheduler. 10 only for a conclusive fault of this node that the aggregator grants, else 0, always.

    `config`: the agent's settings file, where the aggregator's address and the token are; the usual one if it exists.
    `deadline_s`: for everything together.
    """
    begun_s = time.monotonic()
    look_s = max(0.5, deadline_s - WITHIN_S - REST_S)
    found: dict[str, Any] = {"role": role, "level": "unknown", "granted": False}
    try:
        settings, doors = _settings(config or (AGENT_CONFIG if AGENT_CONFIG.exists() else None))
        settings = _at_home(_narrowed(settings, doors, only))
        work = _for_role(role, settings, doors, expected_gpus, look_s)
        raw = apart(work, max(0.5, deadline_s - REST_S / 3 - (time.monotonic() - begun_s)))
        found |= {"because": f"the look did not end within {deadline_s:g} s"} if raw is None else json.loads(raw)
    except Exception as error:  # a broken check must never take out a cluster
        found["because"] = f"{type(error).__name__}: {error}".partition("\n")[0]
    code = NOT_OK if found["granted"] is True else 0
    _say(json.dumps({**found, "exit_code": code}) if as_json else _line(found, code))
    return code


def _say(text: str) -> None:
    """The exit code is the answer: a log that is full, closed, or not made for these letters changes nothing of it."""
    if sys.stdout is None:  # it was closed from the beginning
        return
    try:
        encoding = sys.stdout.encoding or "utf-8"
        print(text.encode(encoding, "replace").decode(encoding), flush=True)
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the end of Python fails over it


def as_object(seen: Look) -> dict[str, Any]:
    """For programs: findings, sources with their facts by name, and events."""
    rules = node_rules()
    findings = []
    for remark in seen.remarks:
        known = rules.get(remark.rule)
        words = {"title": headline(remark.rule, rules), "matters": "", "source": ""}
        if known is not None:
            words |= {"matters": known.matters, "source": known.source}
        findings.append(_plain(remark) | words)
    return {
        "slot": seen.slot,
        "machine": seen.machine,
        "boot_id": seen.boot_id,
        "at_unix_ns": seen.at_unix_ns,
        "level": seen.level(),
        "exit_code": EXIT_CODES[seen.level()],
        "statement": seen.statement,
        "findings": findings,
        "events": [_plain(event) for event in seen.events],
        "sources": {source.collector: _plain(source) for source in seen.sources},
    }


def _for_role(
    role: str, settings: Settings, doors: Mapping[str, Collector[Any]], gpus: int | None, look_s: float
) -> Any:
    def work() -> bytes:
        seen = _look(settings, doors, gpus, look_s)
        found: dict[str, Any] = {"level": seen.level(), "findings": [_plain(remark) for remark in seen.remarks]}
        certain = next((remark for remark in seen.remarks if remark.conclusive), None)
        if certain is None:
            grant = Grant(because="no conclusive fault of this node")
        else:
            agent = settings.agent
            grant = ask(
                agent.aggregator,
                token_file=agent.token_file,
                ca_file=agent.ca_file,
                machine=seen.machine,
                role=role,
                remark=certain,
                within_s=WITHIN_S,
            )
            found["fault"] = f"{certain.subject}: {certain.because}"
        return json.dumps(found | {"granted": grant.granted, "because": grant.because}).encode()

    return work


def _line(found: dict[str, Any], code: int) -> str:
    """One line: it ends up as a drain reason, a condition's message or in a log."""
    fault = found.get("fault", "")
    if code:
        return f"gpuwatch: {fault}"
    if fault:
        return f"gpuwatch: not taken out ({found['because']}): {fault}"
    return (
        "gpuwatch: ok" if found["level"] in ("ok", "warning") else f"gpuwatch: ok as far as known: {found['because']}"
    )


def _settings(config: Path | None) -> tuple[Settings, Mapping[str, Collector[Any]]]:
    doors = leaves(gpuwatch.collectors, "COLLECTOR", Collector)
    return (checked({}, doors, file="") if config is None else load(config, doors)), doors


def _narrowed(settings: Settings, doors: Mapping[str, Collector[Any]], only: Sequence[str]) -> Settings:
    strange = [name for name in only if name not in doors]
    if strange:
        names = ", ".join(sorted(doors))
        raise UsageError(f"there is no source {', '.join(map(repr, strange))}", next_step=f"the sources are {names}")
    off = [name for name in only if name not in settings.collectors]
    if off:
        raise UsageError(f"{', '.join(off)}: off in the settings", next_step="leave it out, or set enabled = true")
    wanted = {name: table for name, table in settings.collectors.items() if not only or name in only}
    return msgspec.structs.replace(settings, collectors=wanted)


def _at_home(settings: Settings) -> Settings:
    """For a scheduler no file server is asked: one that hangs is no fault of this node. Nor what nobody judges: whose
    work it is, and what it runs with."""
    tables = {
        name: msgspec.structs.replace(table, network_mounts=False) if hasattr(table, "network_mounts") else table
        for name, table in settings.collectors.items()
        if name not in NOT_JUDGED
    }
    return msgspec.structs.replace(settings, collectors=tables)


def _look(
    settings: Settings,
    doors: Mapping[str, Collector[Any]],
    gpus: int | None,
    deadline_s: float,
    *,
    partial: bool = False,
) -> Look:
    return look(
        _identity(settings.agent),
        doors,
        settings.collectors,
        clock=SystemClock(),
        processes=System(),
        state_dir=Path(settings.agent.state_dir),
        expected_gpus=gpus,
        deadline_s=deadline_s,
        partial=partial,
    )


def _apart(work: Any, deadline_s: float) -> _Told | None:
    """Raises `GpuwatchError` where the look itself failed."""

    def guarded() -> bytes:
        try:
            return bytes(work())
        except GpuwatchError as error:
            return msgspec.msgpack.encode([error.what, error.why, error.next_step])
        except Exception as error:
            return msgspec.msgpack.encode([f"the look failed: {type(error).__name__}: {error}", "", ""])

    raw = apart(guarded, deadline_s)
    if raw is None:
        return None
    said = msgspec.msgpack.decode(raw)
    if isinstance(said[1], str):
        raise GpuwatchError(said[0], why=said[1], next_step=said[2])
    return _Told(*said)


def _plain(value: Any) -> Any:
    """Records as objects with field names; on the wire they are arrays."""
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _identity(agent: AgentSettings) -> Identity:
    try:
        return identify(agent)
    except ConfigError:  # a machine without an id can be looked at all the same
        return identify(msgspec.structs.replace(agent, machine="unknown"))
