"""The local Azure, and clouds that speak to it through Microsoft's own client."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuwatch.clouds import CloudMachine, Receipt
from gpuwatch.clouds.azure_vmss import AzureVmss, Settings
from gpuwatch.errors import CloudError
from gpuwatch.sdk.azure_arm import Arm, open_client
from tests.arm_server import RESOURCE_GROUP, SUBSCRIPTION, ArmServer, Dropped, ImdsServer, Request
from tests.fakes_hands import FakeClock


class Rig:
    """The local Azure, and clouds that speak to it. Each `cloud()` knows as little as a new process."""

    def __init__(self, folder: Path) -> None:
        self.azure = ArmServer(folder)
        self.imds = ImdsServer()
        self.clock = FakeClock()

    def settings(self, **changes: Any) -> Settings:
        usual: dict[str, Any] = {
            "subscription_id": SUBSCRIPTION,
            "resource_group": RESOURCE_GROUP,
            "groups": ("gpu",),
            "credential": "managed_identity",
            "endpoint": self.azure.url,
            "ca_file": self.azure.ca_file,
            "timeout_s": 5.0,
        }
        return Settings(**usual | changes)

    def cloud(self, **changes: Any) -> AzureVmss:
        settings = self.settings(**changes)
        client = open_client(
            subscription_id=settings.subscription_id,
            endpoint=settings.endpoint,
            credential=settings.credential,
            client_id=settings.client_id,
            ca_file=settings.ca_file,
            timeout_s=settings.timeout_s,
        )
        arm = Arm(
            client,
            endpoint=settings.endpoint,
            subscription_id=settings.subscription_id,
            resource_group=settings.resource_group,
            credential=settings.credential,
            clock=self.clock,
        )
        return AzureVmss(settings, arm, self.clock)

    def until_done(self, call: Callable[[], Receipt], looks: int = 80) -> Receipt:
        """Ask as the executor does: again and again, also after an error that may pass."""
        for _ in range(looks):
            try:
                receipt = call()
            except CloudError as failed:
                if not failed.retry:
                    raise
            else:
                if receipt.state == "done":
                    return receipt
            self.clock.pass_s(5.0)
        raise AssertionError("it is never done")

    def create(self, cloud: AzureVmss | None = None, action: str = "a1/create", slot: str = "gpu000001") -> Receipt:
        used = cloud or self.cloud()
        return self.until_done(lambda: used.create(slot=slot, group="gpu", action_id=action))

    def release(self, number: str, cloud: AzureVmss | None = None, action: str = "a1/release") -> Receipt:
        used, machine = cloud or self.cloud(), self.azure.gpu.machine(number)
        return self.until_done(lambda: used.release(machine, action_id=action))

    def reimage(self, number: str, cloud: AzureVmss | None = None, action: str = "a1/reimage") -> Receipt:
        used, machine = cloud or self.cloud(), self.azure.gpu.machine(number)
        return self.until_done(lambda: used.reimage(machine, action_id=action))

    def by_slot(self, cloud: AzureVmss) -> dict[str | None, CloudMachine]:
        return {machine.slot: machine for machine in cloud.snapshot().machines}

    def changes(self) -> list[Request]:
        return [request for request in self.azure.requests if request.method != "GET"]

    def stop(self) -> None:
        self.azure.stop()
        self.imds.stop()


def once(answer: Callable[[], Any], method: str = "GET", path: str = "") -> Callable[[Request], Any]:
    """A fault for the first request that fits."""
    left = [1]

    def look(request: Request) -> Any:
        if left and request.method == method and re.search(path, request.sub):
            left.clear()
            return answer()
        return None

    return look


def drop() -> Any:
    """The connection breaks."""
    raise Dropped
