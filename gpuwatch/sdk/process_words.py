"""What a process was started with: chosen variables of its environment, and files that it has mapped, through errands.

/proc/PID/environ and /proc/PID/maps wait for the process's memory lock, which one that is stuck in a driver may hold
for ever. `grep` picks the wanted variables out, so that nobody's passwords and keys enter this process at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuwatch.sdk.errand import Errands, Outcome

MOST_BYTES = 64 << 10
MOST_LETTERS = 200


def variables(
    errands: Errands, pids: Iterable[int], names: Sequence[str], *, proc: str, deadline_s: float
) -> dict[int, dict[str, str] | str]:
    """Of each process the wanted variables that it has, or why they are not known."""
    pattern = f"^({'|'.join(names)})="
    wanted = {f"environ-{pid}": ["grep", "-z", "-a", "-E", pattern, f"{proc}/{pid}/environ"] for pid in pids}
    found = errands.ask(wanted, deadline_s=deadline_s, most_bytes=MOST_BYTES)
    return {int(subject.removeprefix("environ-")): _variables(outcome, names) for subject, outcome in found.items()}


def _variables(outcome: Outcome, names: Sequence[str]) -> dict[str, str] | str:
    if not outcome.answered:
        return outcome.reason
    if outcome.err.strip():
        return outcome.err.decode("utf-8", "replace").strip().rpartition(": ")[2]
    found: dict[str, str] = {}
    for item in outcome.out.split(b"\0"):
        name, equals, value = item.decode("utf-8", "replace").partition("=")
        if equals and name in names:
            found.setdefault(name, value)
    return found


def shown(text: str) -> str:
    """What a process says of itself, so that it can travel, be a label and be printed: anybody may write it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:MOST_LETTERS])


def mapped(
    errands: Errands, pids: Iterable[int], pattern: str, *, proc: str, deadline_s: float
) -> dict[int, tuple[str, ...] | str]:
    """Of each process the paths that it has mapped and that fit an extended regular expression, each once."""
    wanted = {f"maps-{pid}": ["grep", "-a", "-o", "-E", pattern, f"{proc}/{pid}/maps"] for pid in pids}
    found = errands.ask(wanted, deadline_s=deadline_s, most_bytes=1 << 20)
    paths: dict[int, tuple[str, ...] | str] = {}
    for subject, outcome in found.items():
        pid = int(subject.removeprefix("maps-"))
        if not outcome.answered:
            paths[pid] = outcome.reason
        elif outcome.err.strip():
            paths[pid] = outcome.err.decode("utf-8", "replace").strip().rpartition(": ")[2]
        else:
            lines = outcome.out.decode("utf-8", "surrogateescape").splitlines()
            paths[pid] = tuple(dict.fromkeys(line for line in lines if line))
    return paths
