"""One machine of a real Slurm cluster: its slurmd, and the simulated node with a real agent. Ends as one family.

Started by the local cloud as `python slurm_node.py SLURM_CONF ARGUMENTS…`; the arguments are those of
`gpuwatch.simulate.node`. As `python slurm_node.py train CLUSTER_DIRECTORY` it is one node's task of a job's step.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gpuwatch.training.heartbeat import described_by


def machine() -> None:
    """Replaces itself by the node, which leaves slurmd a child of it."""
    conf, *rest = sys.argv[1:]
    slot = rest[rest.index("--slot") + 1]
    # again where the port is still held by the slurmd of the machine before; 0 is an ordered end
    words = ["sh", "-c", f"until slurmd -D -N {slot}; do sleep 0.2; done"]
    subprocess.Popen(words, env=os.environ | {"SLURM_CONF": conf}, stdin=subprocess.DEVNULL)
    os.execv(sys.executable, [sys.executable, "-m", "gpuwatch.simulate.node", *rest])


def train() -> None:
    """The trainer of the machine that fills this slot now, told by Slurm's own variables who it is."""
    cluster = Path(sys.argv[2])
    about = described_by(os.environ)
    machines = (cluster / "machines").glob(f"local-{os.environ['SLURMD_NODENAME']}-*")
    node = max(machines, key=lambda folder: folder.stat().st_ctime)
    words = ["--run", about["run"], "--attempt", about["attempt"], "--rank", os.environ["SLURM_PROCID"]]
    words += ["--ranks", os.environ["SLURM_NTASKS"], "--run-directory", str(cluster / "runs" / about["run"])]
    words += ["--node-directory", str(node), "--step-s", "1.0"]
    os.execv(sys.executable, [sys.executable, "-m", "gpuwatch.simulate.trainer", *words])


if __name__ == "__main__":
    train() if sys.argv[1] == "train" else machine()
