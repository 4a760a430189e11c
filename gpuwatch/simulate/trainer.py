"""One node's share of a simulated training gang: eight ranks, real heartbeats, real checkpoints, a real barrier.

A step ends when every rank of every node has arrived, as in synchronous training: one rank that never arrives holds all
the others, and nobody reports an error. Runs as `python -m gpuwatch.simulate.trainer`, started by the node's process.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import struct
import sys
import time
from pathlib import Path
from types import FrameType

from gpuwatch.sdk.local_files import read_json, write_json
from gpuwatch.training import Heartbeat

POLL_S = 0.03
GPUS = 8
TOKENS_PER_STEP = 4_194_304


class Gang:
    """The barrier: one counter a node in a shared file; a round is over when all have reached it."""

    def __init__(self, path: Path, rank: int, ranks: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._rank = rank
        self._ranks = ranks
        self._round = 0

    def wait(self) -> None:
        """Arrive, and return when every node has."""
        self._round += 1
        os.pwrite(self._file, struct.pack("<q", self._round), 8 * self._rank)
        while True:
            arrived = os.pread(self._file, 8 * self._ranks, 0).ljust(8 * self._ranks, b"\0")
            if min(struct.unpack(f"<{self._ranks}q", arrived)) >= self._round:
                return
            time.sleep(POLL_S)


def main() -> int:
    """Train until told to finish (0), or until a signal."""
    parser = argparse.ArgumentParser(prog="gpuwatch.simulate.trainer")
    parser.add_argument("--run", required=True)
    parser.add_argument("--attempt", required=True)
    parser.add_argument("--rank", type=int, required=True, help="this node's place in the gang")
    parser.add_argument("--ranks", type=int, required=True, help="nodes in the gang")
    parser.add_argument("--run-directory", type=Path, required=True)
    parser.add_argument("--node-directory", type=Path, required=True)
    parser.add_argument("--step-s", type=float, default=0.5)
    parser.add_argument("--checkpoint-steps", type=int, default=10)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    args.run_directory.mkdir(parents=True, exist_ok=True)

    beats = [
        Heartbeat(
            run=args.run,
            attempt=args.attempt,
            rank=args.rank * GPUS + gpu,
            world_size=args.ranks * GPUS,
            directory=args.node_directory / "heartbeats",
            team="pretraining",
            user="ada",
        )
        for gpu in range(GPUS)
    ]
    gang = Gang(args.run_directory / f"barrier-{args.attempt}", args.rank, args.ranks)
    checkpoint = args.run_directory / "checkpoint.json"
    stop = args.run_directory / f"stop-{args.attempt}.json"
    order = args.run_directory / "finish"
    gang.wait()
    done = (read_json(checkpoint) or {"step": 0})["step"]
    step = done
    while True:
        if args.rank == 0 and order.exists() and not stop.exists():
            write_json(stop, {"after": step + 2})  # all of the gang must stop at the same step
        last = (read_json(stop) or {"after": None})["after"]
        if last is not None and step >= last:
            break
        step += 1
        time.sleep(args.step_s)
        _obey_faults(args.node_directory, beats)
        gang.wait()
        for beat in beats:
            beat.step(step, tokens=TOKENS_PER_STEP * step)
        if step % args.checkpoint_steps == 0:
            _save(args.rank, step, checkpoint, beats, gang)
    for beat in beats:
        beat.close()
    return 0


def _save(rank: int, step: int, checkpoint: Path, beats: list[Heartbeat], gang: Gang) -> None:
    for beat in beats:
        beat.phase("checkpoint")
    if rank == 0:
        write_json(checkpoint, {"step": step})
    time.sleep(0.3)
    gang.wait()
    for beat in beats:
        beat.checkpoint_saved(step)
        beat.phase("train")


def _obey_faults(node_directory: Path, beats: list[Heartbeat]) -> None:
    """A fault that was injected into this node holds the rank that it hits for ever; only a signal ends it."""
    fault = read_json(node_directory / "fault.json")
    if fault is None or fault.get("stalls_rank") is None:
        return
    beats[fault["stalls_rank"]].phase("data_wait")
    while True:
        time.sleep(0.2)


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.stdout.flush()
    os._exit(128 + number)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, ValueError, json.JSONDecodeError) as error:
        print(f"trainer: {error}", file=sys.stderr)
        sys.exit(1)
