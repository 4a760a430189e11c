"""A local Azure: the part of ARM that a scale set needs, over HTTPS, and the metadata service of a machine.

Answers are serialised from the SDK's own models, so that their shape is right. What takes time there takes reads here:
an operation is over after `lag` further reads of the set. Faults are put in front of a request or behind its effect.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import trustme
from azure.mgmt.compute import models as m

SUBSCRIPTION = "00000000-0000-0000-0000-00000000beef"
RESOURCE_GROUP = "training"
COMPUTE = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{RESOURCE_GROUP}/providers/Microsoft.Compute"
TOKEN = "the-token"

# What a role must allow for each request: ARM's own names of the operations.
_SET, _VM = "Microsoft.Compute/virtualMachineScaleSets", "Microsoft.Compute/virtualMachineScaleSets/virtualMachines"
ACTIONS = {
    ("GET", r"/virtualMachineScaleSets/[^/]+"): {f"{_SET}/read"},
    ("PATCH", r"/virtualMachineScaleSets/[^/]+"): {f"{_SET}/write"},
    ("GET", r"/virtualMachineScaleSets/[^/]+/instanceView"): {f"{_SET}/instanceView/read"},
    ("GET", r"/virtualMachineScaleSets/[^/]+/virtualMachines"): {f"{_VM}/read", f"{_VM}/instanceView/read"},
    ("DELETE", r"/virtualMachineScaleSets/[^/]+/virtualMachines/\d+"): {f"{_VM}/delete"},
    ("POST", r"/virtualMachineScaleSets/[^/]+/virtualMachines/\d+/reimage"): {f"{_VM}/reimage/action"},
    ("GET", r"/autoscalesettings"): {"Microsoft.Insights/autoscalesettings/read"},
}


class Dropped(Exception):
    """The connection is closed without an answer."""


class ScaleSet:
    """One set and its machines. `lag`: how many reads of the set an operation lasts."""

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.lag = 1
        self.extra_count = 0  # machines that come beyond what was asked
        self.grows = True  # False: an operation that grows ends with `failure` and no machine
        self.failure = ("AllocationFailed", "Allocation failed. We do not have sufficient capacity.")
        self.also_deletes: list[str] = []  # machines that go with the next one
        self.keeps_capacity = False  # a deletion does not lower the capacity
        self.model = m.VirtualMachineScaleSet(
            location="eastus",
            tags={"team": "training"},
            sku=m.Sku(name="Standard_ND96isr_H100_v5", tier="Standard", capacity=count),
            properties=m.VirtualMachineScaleSetProperties(
                overprovision=False,
                orchestration_mode=m.OrchestrationMode.UNIFORM,
                upgrade_policy=m.UpgradePolicy(mode=m.UpgradeMode.MANUAL),
                virtual_machine_profile=m.VirtualMachineScaleSetVMProfile(priority="Regular"),
            ),
        )
        self.vms: dict[str, m.VirtualMachineScaleSetVM] = {}
        self.created: list[str] = []
        self.reimaged: list[str] = []
        self.reimage_fails = ""  # the error code with which reimages end
        self.disks_are_told = True  # False: nothing of a machine's looks changes with a reimage
        self._reimaging: list[str] = []
        self._next = 0
        self._revision = 1
        self._busy = 0
        self._wanted: list[str] = []  # machines that the operation under way makes
        self._failed: tuple[str, str] | None = None
        for _ in range(count):
            self.make("Succeeded", "running")
        self.created.clear()
        self._state("Succeeded")

    @property
    def capacity(self) -> int:
        assert self.model.sku is not None
        return int(self.model.sku.capacity or 0)

    @capacity.setter
    def capacity(self, count: int) -> None:
        assert self.model.sku is not None
        self.model.sku.capacity = count

    def make(self, provisioning: str, power: str = "") -> str:
        """A new machine; Azure never gives an instance id twice."""
        number, self._next = str(self._next), self._next + 1
        self.vms[number] = m.VirtualMachineScaleSetVM(
            location="eastus",
            properties=m.VirtualMachineScaleSetVMProperties(
                os_profile=m.OSProfile(computer_name=f"gpu{int(number):06d}")
            ),
        )
        vm = self.vms[number]
        vm.update(
            {
                "id": f"{COMPUTE}/virtualMachineScaleSets/{self.name}/virtualMachines/{number}",
                "name": f"{self.name}_{number}",
                "instanceId": number,
                "type": "Microsoft.Compute/virtualMachineScaleSets/virtualMachines",
            }
        )
        assert vm.properties is not None
        vm.properties.update({"vmId": str(uuid.uuid4()).upper(), "timeCreated": "2026-01-02T03:04:05Z"})
        self.say(number, provisioning, power)
        self.created.append(number)
        return number

    def say(self, number: str, provisioning: str, power: str = "", health: str = "", code: str = "") -> None:
        """What Azure says of this machine from now on."""
        properties = self.vms[number].properties
        assert properties is not None
        properties.provisioning_state = provisioning
        word = f"ProvisioningState/{provisioning.lower()}" + (f"/{code}" if code else "")
        statuses = [
            m.InstanceViewStatus(code=word, level="Error" if code else "Info", message="said so" if code else None)
        ]
        if power:
            statuses.append(m.InstanceViewStatus(code=f"PowerState/{power}", level="Info"))
        view = m.VirtualMachineScaleSetVMInstanceView(statuses=statuses)
        if health:
            status = m.InstanceViewStatus(code=f"HealthState/{health}")
            view.vm_health = m.VirtualMachineHealthStatus({"status": status.as_dict()})
        properties.instance_view = view

    def forget_wanted(self) -> None:
        """What is being made stays as it is."""
        self._wanted.clear()

    def make_spot(self) -> None:
        assert self.model.properties is not None
        self.model.properties.virtual_machine_profile = m.VirtualMachineScaleSetVMProfile(priority="Spot")

    def machine(self, number: str) -> str:
        properties = self.vms[number].properties
        assert properties is not None
        return str(properties.vm_id).lower()

    def tick(self) -> None:
        """The set is read: time goes on."""
        if self._busy > 0:
            self._busy -= 1
            return
        for number in [
            n for n, vm in self.vms.items() if vm.properties and vm.properties.provisioning_state == "Deleting"
        ]:
            for gone in (number, *self.also_deletes):
                self.vms.pop(gone, None)
                if not self.keeps_capacity:
                    self.capacity -= 1
            self.also_deletes = []
        for number in self._reimaging:
            if number in self.vms:
                self._fresh_disk(number)
        self._reimaging = []
        for number in self._wanted:
            if number in self.vms:
                self.say(number, "Succeeded", "running")
        self._wanted = []
        self._state("Failed" if self._failed else "Succeeded")

    def change(self, body: Mapping[str, Any]) -> None:
        """PATCH: a list of tags replaces the whole list."""
        if "tags" in body:
            self.model.tags = dict(body["tags"])
        self._revision += 1
        wanted = int(body.get("sku", {}).get("capacity", self.capacity))
        live = sum(1 for vm in self.vms.values() if vm.properties and vm.properties.provisioning_state != "Deleting")
        self.capacity = wanted
        missing = wanted - live - len([n for n in self._wanted if n not in self.vms])
        if "sku" in body and missing > 0:
            self._failed = None if self.grows else self.failure
            if self.grows:
                self._wanted += [self.make("Creating") for _ in range(missing + self.extra_count)]
        if "sku" in body:
            self._busy = self.lag
            self._state("Updating")

    def delete(self, number: str) -> None:
        self.say(number, "Deleting", "running")
        self._busy = self.lag
        self._state("Updating")

    def reimage(self, number: str) -> None:
        self.reimaged.append(number)
        self._reimaging.append(number)
        self.say(number, "Updating", "stopped")
        self._busy = self.lag
        self._state("Updating")

    def _fresh_disk(self, number: str) -> None:
        code = self.reimage_fails
        self.say(number, "Failed" if code else "Succeeded", "" if code else "running", code=code)
        properties = self.vms[number].properties
        assert properties is not None
        if self.disks_are_told:
            disk = m.OSDisk(create_option="FromImage", name=f"{self.name}_{number}_OsDisk_1_{uuid.uuid4().hex}")
            properties.storage_profile = m.StorageProfile(os_disk=disk)

    def statuses(self) -> list[m.InstanceViewStatus]:
        if self._failed is None:
            return [m.InstanceViewStatus(code="ProvisioningState/succeeded", level="Info")]
        code, message = self._failed
        return [m.InstanceViewStatus(code=f"ProvisioningState/failed/{code}", level="Error", message=message)]

    def etag(self) -> str:
        return f'"{self._revision}"'

    def _state(self, word: str) -> None:
        assert self.model.properties is not None
        self.model.properties.provisioning_state = word
        self.model.update(
            {"id": f"{COMPUTE}/virtualMachineScaleSets/{self.name}", "name": self.name, "etag": self.etag()}
        )


class Request:
    """One request as the faults see it. `number` counts from 1."""

    def __init__(self, number: int, method: str, path: str, body: Any, headers: Mapping[str, str]) -> None:
        self.number, self.method, self.path, self.body, self.headers = number, method, path, body, headers
        self.sub = path.removeprefix(COMPUTE)


Answer = tuple[int, Any, dict[str, str]]


class ArmServer:
    """`before` and `after` look at each request around its effect; what they return or raise is the answer."""

    def __init__(self, folder: Path) -> None:
        self.sets = {"gpu": ScaleSet("gpu", 4)}
        self.autoscale: list[dict[str, Any]] = []
        self.before: Callable[[Request], Answer | None] = lambda _request: None
        self.after: Callable[[Request], Answer | None] = lambda _request: None
        self.requests: list[Request] = []
        self.operations: dict[str, int] = {}
        self.page_size = 3
        self.retry_after = "0"
        self.lock = threading.RLock()
        authority = trustme.CA()
        self.ca_file = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca_file))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        self._server = _Quiet(("127.0.0.1", 0), _handler(self.handle))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def gpu(self) -> ScaleSet:
        return self.sets["gpu"]

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def actions(self) -> set[str]:
        """The rights that the requests so far needed; a request that no right is known for fails here."""
        found: set[str] = set()
        for request in self.requests:
            if "/operations/" in request.path:
                continue
            path = re.sub(r"^.*/providers/Microsoft\.(Compute|Insights)", "", request.path)
            (needed,) = [
                actions
                for (method, shape), actions in ACTIONS.items()
                if method == request.method and re.fullmatch(shape, path)
            ]
            found |= needed
        return found

    def handle(self, method: str, path: str, query: str, body: Any, headers: Mapping[str, str]) -> Answer:
        with self.lock:
            request = Request(len(self.requests) + 1, method, path, body, headers)
            self.requests.append(request)
        early = self.before(request)
        if early is not None:
            return early
        if headers.get("Authorization") != f"Bearer {TOKEN}":
            return error(401, "ExpiredAuthenticationToken", "The access token expiry UTC time is earlier than now.")
        with self.lock:
            answer = self._answer(request, query)
        return self.after(request) or answer

    def _answer(self, request: Request, query: str) -> Answer:
        if request.path.endswith("/providers/Microsoft.Insights/autoscalesettings"):
            return 200, {"value": self.autoscale}, {}
        if found := re.search(r"/operations/([^/]+)$", request.path):
            left = self.operations[found[1]] = self.operations[found[1]] - 1
            return 200, {"name": found[1], "status": "InProgress" if left > 0 else "Succeeded"}, {"Retry-After": "0"}
        found = re.fullmatch(r"/virtualMachineScaleSets/([^/]+)(/.*)?", request.sub)
        if found is None or found[1] not in self.sets:
            return error(404, "ResourceNotFound", f"The Resource {request.sub} was not found.")
        group, rest = self.sets[found[1]], found[2] or ""
        if request.method == "GET" and rest == "":
            group.tick()
            return 200, group.model.as_dict(), {}
        if request.method == "PATCH" and rest == "":
            if request.headers.get("If-Match", group.etag()) != group.etag():
                return error(
                    412, "PreconditionFailed", "The condition specified using HTTP conditional header(s) is not met."
                )
            group.change(request.body)
            group.model["etag"] = group.etag()
            return 200, group.model.as_dict(), self._operation()  # the SDK takes 200 alone
        if request.method == "GET" and rest == "/instanceView":
            return (
                200,
                m.VirtualMachineScaleSetInstanceView({"statuses": [s.as_dict() for s in group.statuses()]}).as_dict(),
                {},
            )
        if request.method == "GET" and rest == "/virtualMachines":
            begin = int(found[1]) if (found := re.search(r"skip=(\d+)", query)) else 0
            vms = list(group.vms.values())
            page: dict[str, Any] = {"value": [vm.as_dict() for vm in vms[begin : begin + self.page_size]]}
            if begin + self.page_size < len(vms):
                page["nextLink"] = f"{self.url}{request.path}?skip={begin + self.page_size}"
            return 200, page, {}
        number = rest.rpartition("/")[2]
        if request.method == "DELETE" and rest.startswith("/virtualMachines/"):
            if number not in group.vms:
                return 204, None, {}
            group.delete(number)
            return 202, None, self._operation()
        if found := re.fullmatch(r"/virtualMachines/(\d+)/reimage", rest):
            if request.method == "POST" and found[1] in group.vms:
                group.reimage(found[1])
                return 202, None, self._operation()
            return error(404, "ResourceNotFound", f"The Resource {request.sub} was not found.")
        return error(405, "MethodNotAllowed", f"{request.method} {request.sub}")

    def _operation(self) -> dict[str, str]:
        name = str(uuid.uuid4())
        self.operations[name] = 2
        where = (
            f"{self.url}/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/locations/eastus/operations/{name}"
        )
        return {
            "Azure-AsyncOperation": f"{where}?api-version=2026-04-01",
            "Location": f"{where}?monitor=true&api-version=2026-04-01",
            "Retry-After": self.retry_after,
        }


class ImdsServer:
    """The metadata service of one machine: tokens of its identity, and scheduled events."""

    def __init__(self) -> None:
        self.events: Any = {"DocumentIncarnation": 1, "Events": []}
        self.headers: dict[str, str] = {}  # of the answer with the events
        self.name = "gpu_3"
        self.name_status = 200
        self.token_status = 200
        self.requests: list[tuple[str, str]] = []
        self._server = _Quiet(("127.0.0.1", 0), _handler(self.handle))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def handle(self, method: str, path: str, query: str, body: Any, headers: Mapping[str, str]) -> Answer:
        self.requests.append((method, path))
        if headers.get("Metadata") != "true":
            return 400, {"error": "Required metadata header not specified"}, {}
        if path == "/metadata/identity/oauth2/token":
            if self.token_status != 200:
                return self.token_status, {"error": "invalid_request", "error_description": "Identity not found"}, {}
            until = int(datetime.now(UTC).timestamp()) + 86_000
            answer = {"access_token": TOKEN, "expires_on": str(until), "expires_in": "86000", "token_type": "Bearer"}
            return 200, answer | {"resource": "https://management.azure.com"}, {}
        if path == "/metadata/scheduledevents":
            return 200, self.events, self.headers
        if path == "/metadata/instance/compute/name":
            return self.name_status, self.name.encode(), {"Content-Type": "text/plain"}
        return 404, {"error": "not found"}, {}


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed in the middle is no news here."""


def error(status: int, code: str, message: str, **headers: str) -> Answer:
    """ARM's form of an error."""
    return status, {"error": {"code": code, "message": message}}, {k.replace("_", "-"): v for k, v in headers.items()}


def _handler(handle: Callable[[str, str, str, Any, Mapping[str, str]], Answer]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet: else each answer waits 40 ms for an acknowledgement

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Quiet."""

        def _do(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path, _, query = self.path.partition("?")
            try:
                status, body, headers = handle(self.command, path, query, json.loads(raw or b"null"), self.headers)  # type: ignore[arg-type]
            except Dropped:
                self.close_connection = True
                return
            data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            (self.send_response_only if "Date" in headers else self.send_response)(status)
            for key, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()

        do_GET = do_PATCH = do_DELETE = do_POST = do_PUT = _do  # noqa: N815

    return Handler
