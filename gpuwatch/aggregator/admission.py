"""Which reports are let in, and what the others are told.

What can never be accepted is refused as permanent (400, 403, 409, 413), so that the agent sets it aside and its spool
moves on; what may succeed later is 401 or 503.
"""

from __future__ import annotations

import hmac

import msgspec

from gpuwatch.aggregator.fleet import Fleet
from gpuwatch.aggregator.plausible import bounded, impossible
from gpuwatch.errors import StoreError, WireError
from gpuwatch.model.token import machine_token
from gpuwatch.model.wire import MAX_REPORT_BYTES, WIRE_VERSION, Report

_REPORT = msgspec.msgpack.Decoder(Report)
_BROKEN = (msgspec.MsgspecError, RecursionError)
"""What a body that is no report makes the decoder raise; the second where it is nested without end."""


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """A report of any version: its first field."""

    version: int


_HEAD = msgspec.msgpack.Decoder(_Head)


class Refusal(WireError):
    """A report is not accepted; `reason` is the word it is counted under."""

    def __init__(self, reason: str, what: str, *, code: int, why: str = "", next_step: str = "") -> None:
        super().__init__(what, code=code, why=why, next_step=next_step)
        self.reason = reason


def decode(body: bytes) -> Report:
    """A report of a version that is understood and of possible content. Raises `Refusal`."""
    try:
        report = _REPORT.decode(body)
    except _BROKEN as error:
        version = _version_of(body)
        if version is not None and abs(version - WIRE_VERSION) > 1:
            raise _wrong_version(version) from None
        step = "the agent sets it aside; if an agent of ours wrote it, that is a bug: please report it"
        raise Refusal("garbage", "this is not a report", code=400, why=str(error), next_step=step) from None
    if abs(report.version - WIRE_VERSION) > 1:
        raise _wrong_version(report.version)
    wrong = impossible(report)
    if wrong:
        raise Refusal("garbage", "this report cannot be", code=400, why=wrong, next_step="the agent sets it aside")
    return bounded(report)


class Tokens:
    """Who may speak for which machine."""

    def __init__(self, secret: bytes, fleet: Fleet) -> None:
        self._secret = secret
        self._fleet = fleet
        self._tokens: dict[str, bytes] = {}  # machine -> its token, worked out once
        self._owners: dict[bytes, str] = {}

    def check(self, given: bytes, machine: str) -> None:
        """Let only this machine's own token pass. Raises `Refusal`."""
        expected = self._tokens.get(machine) or machine_token(self._secret, machine).encode()
        if hmac.compare_digest(given, expected):
            if machine not in self._tokens:  # only what was proven is remembered: strangers cannot fill our memory
                self._learn(machine, expected)
            return
        owner = self._owner_of(given)
        if owner is not None:
            raise Refusal(
                "other_machine",
                f"the token of {owner} cannot speak for {machine}",
                code=403,
                why="a machine may speak only for itself",
                next_step=f"give {machine} its own token, and look at why {owner} sends this",
            )
        raise Refusal(
            "token",
            f"the token is not that of {machine}",
            code=401,
            why="it was derived from another cluster secret or another machine id",
            next_step=f"compare it with what `gpuwatch token {machine}` prints; the agent tries again",
        )

    def _learn(self, machine: str, token: bytes) -> None:
        self._tokens[machine] = token
        self._owners[token] = machine

    def _owner_of(self, given: bytes) -> str | None:
        """Whose token it is, machines that are known but have not spoken yet included."""
        if given not in self._owners:
            for record in self._fleet.machines():
                if record.machine not in self._tokens:
                    self._learn(record.machine, machine_token(self._secret, record.machine).encode())
        return self._owners.get(given)


def no_token() -> Refusal:
    """The header is missing."""
    return Refusal(
        "token",
        "no token came with the report",
        code=401,
        why="the header `Authorization: Bearer …` is missing",
        next_step="give the agent its machine's token: `gpuwatch token MACHINE` prints it",
    )


def too_large() -> Refusal:
    """More than any sound agent sends."""
    return Refusal(
        "too_large",
        f"the report is larger than {MAX_REPORT_BYTES} bytes",
        code=413,
        why="no report of a sound agent is",
        next_step="look at which collector grew; the agent sets this report aside",
    )


def broken_off() -> Refusal:
    """The connection ended within the body."""
    return Refusal("garbage", "the report broke off", code=400, next_step="send it again")


def released(machine: str) -> Refusal:
    """A retired machine speaks."""
    return Refusal(
        "retired",
        f"machine {machine} was released",
        code=403,
        why="another machine took its place, or the cloud lists it no more",
        next_step="stop its agent; a machine that comes back gets a new id",
    )


def conflict(report: Report) -> Refusal:
    """One id, two bodies."""
    return Refusal(
        "conflict",
        f"report {report.report_id()} of {report.machine} came before with another body",
        code=409,
        why="a report's id (boot, agent, sequence) names one body",
        next_step="two agents may share one agent id or spool: stop one of them",
    )


def not_stored(error: StoreError) -> Refusal:
    """Its events could not be made durable."""
    return Refusal("store", error.what, code=503, why=error.why, next_step=error.next_step)


def _version_of(body: bytes) -> int | None:
    try:
        return _HEAD.decode(body).version
    except _BROKEN:
        return None


def _wrong_version(version: int) -> Refusal:
    late = "agent" if version < WIRE_VERSION else "aggregator"
    return Refusal(
        "version",
        f"wire version {version} is not understood",
        code=400,
        why=f"this aggregator understands {WIRE_VERSION - 1} to {WIRE_VERSION + 1}",
        next_step=f"upgrade the {late}; versions may differ by one",
    )
