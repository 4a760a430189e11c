"""Processes that make, release or reimage one machine in the local Azure, to be killed in the middle.

It imports the SDK once and forks for each line `[metadata service, settings, call, subject, action id]`: prints the
child's pid, waits for `go`, and prints what the child found, an empty line if it was killed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import azure.identity
import azure.mgmt.compute  # noqa: F401
import msgspec

from gpuwatch.clouds import reimager
from gpuwatch.clouds.azure_vmss import CLOUD, Settings
from gpuwatch.errors import CloudError


def work(imds: str, raw: dict[str, Any], call: str, subject: str, action_id: str) -> str:
    """The machine, once it is done."""
    os.environ["AZURE_POD_IDENTITY_AUTHORITY_HOST"] = imds
    cloud = CLOUD.open(msgspec.convert(raw, Settings, dec_hook=lambda _kind, value: Path(value)))
    reimaging = reimager(cloud)
    assert reimaging is not None
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if call == "create":
                receipt = cloud.create(slot=subject, group="gpu", action_id=action_id)
            elif call == "release":
                receipt = cloud.release(subject, action_id=action_id)
            else:
                receipt = reimaging.reimage(subject, action_id=action_id)
        except CloudError as error:
            if not error.retry:
                return ""
            continue
        if receipt.state == "done":
            return receipt.machine
        time.sleep(0.002)
    return ""


def main() -> None:
    for line in iter(sys.stdin.readline, ""):
        start, starter = os.pipe()
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.read(start, 1)
            os.write(write, work(*json.loads(line)).encode())
            os._exit(0)
        os.close(write)
        print(pid, flush=True)
        sys.stdin.readline()
        os.write(starter, b"g")
        os.waitpid(pid, 0)
        print(os.read(read, 1000).decode(), flush=True)
        for handle in (start, starter, read):
            os.close(handle)


if __name__ == "__main__":
    main()
