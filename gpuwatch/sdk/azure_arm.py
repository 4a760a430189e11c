"""Azure Resource Manager through Microsoft's own client: one call here is one request there.

The client's own retries are off: it would sleep for as long as `Retry-After` says, in a thread that holds an action,
and send a change again after a 503. Here each call is tried once, an error says whether it may be tried again, and
`Retry-After` is kept, up to `MAX_WAIT_S`, by refusing further calls until then. Its pollers are not used either: what
became of a change is read from the set itself, so that it can be read by whoever starts next.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwatch.clock import Clock
from gpuwatch.errors import CloudError, install_extra
from gpuwatch.sdk.azure_errors import GroupChanged, translate

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential
    from azure.mgmt.compute import ComputeManagementClient
    from azure.mgmt.compute.models import VirtualMachineScaleSet, VirtualMachineScaleSetVM

MAX_WAIT_S = 300.0  # a longer Retry-After is not believed
UNREADABLE_WAIT_S = 5.0
MAX_PAGES = 1000
AUTOSCALE_API = "2022-10-01"


def open_client(
    *, subscription_id: str, endpoint: str, credential: str, client_id: str, ca_file: Path | None, timeout_s: float
) -> ComputeManagementClient:
    """Microsoft's client. Nothing is asked yet. Raises `CloudError` where the extra `azure` is not installed."""
    logging.getLogger("azure").setLevel(logging.ERROR)  # what fails is told once, by us, in our words
    try:
        from azure.mgmt.compute import ComputeManagementClient
    except ImportError as error:
        raise CloudError("the Azure SDK is not installed", why=str(error), next_step=install_extra("azure")) from error
    return ComputeManagementClient(
        _credential(credential, client_id),
        subscription_id,
        endpoint,
        credential_scopes=[f"{endpoint.rstrip('/')}/.default"],
        connection_verify=True if ca_file is None else str(ca_file),
        connection_timeout=min(10.0, timeout_s),
        read_timeout=timeout_s,
        retry_total=0,
        logging_enable=False,
    )


def _credential(kind: str, client_id: str) -> TokenCredential:
    from azure.identity import DefaultAzureCredential, ManagedIdentityCredential

    if kind == "managed_identity":
        return ManagedIdentityCredential(client_id=client_id or None)
    return DefaultAzureCredential(
        managed_identity_client_id=client_id or None, exclude_interactive_browser_credential=True
    )


class Arm:
    """The calls we make, on one resource group. Thread-safe."""

    def __init__(
        self,
        client: ComputeManagementClient,
        *,
        endpoint: str,
        subscription_id: str,
        resource_group: str,
        credential: str,
        clock: Clock,
    ) -> None:
        self._client = client
        self._endpoint = endpoint.rstrip("/")
        self._subscription_id = subscription_id
        self._resource_group = resource_group
        self._credential = credential
        self._clock = clock
        self._lock = threading.Lock()
        self._wait_until_ns = 0

    def group(self, name: str) -> VirtualMachineScaleSet:
        """The set: capacity, tags, policies, ETag."""
        with self._asking(f"reading the set {name}"):
            found = self._client.virtual_machine_scale_sets.get(self._resource_group, name, **self._hook())
            if (found.name or "").lower() != name.lower():
                raise ValueError(f"it is called {found.name!r}")
            return found

    def machines(self, name: str) -> list[VirtualMachineScaleSetVM]:
        """Every machine of the set with its instance view, all pages of it."""
        with self._asking(f"listing the machines of {name}"):
            vms = self._client.virtual_machine_scale_set_vms
            pages = vms.list(self._resource_group, name, expand="instanceView", **self._hook(pages=set()))
            return list({vm.instance_id: vm for vm in pages}.values())  # one that moved between two pages is on both

    def machines_of(self, group: VirtualMachineScaleSet) -> list[VirtualMachineScaleSetVM]:
        """The same, believed."""
        vms = self.machines(group.name or "")
        self.believe(group, vms)
        return vms

    def believe(self, group: VirtualMachineScaleSet, vms: list[VirtualMachineScaleSetVM]) -> None:
        """Raise `CloudError` for a list that cannot be true: the client reads an answer without its list as empty."""
        if not vms and group.sku is not None and group.sku.capacity:
            raise CloudError(
                f"Azure lists none of the {group.sku.capacity} machines of {group.name}",
                retry=True,
                why="an empty list of a set with capacity is not believed",
                next_step="nothing, unless it lasts",
            )

    def failure(self, name: str) -> list[Any]:
        """The statuses of the set's own last operation."""
        with self._asking(f"reading what became of {name}"):
            view = self._client.virtual_machine_scale_sets.get_instance_view(self._resource_group, name, **self._hook())
            return list(view.statuses or ())

    def change(self, group: VirtualMachineScaleSet, tags: Mapping[str, str], capacity: int | None = None) -> float:
        """Write tags, and capacity where given, in one request, if the set is still as it was read.

        Answers with the seconds that Azure asks to wait before looking. Raises `GroupChanged` if it is not.
        """
        name, etag = group.name or "", group.etag
        if not etag:
            raise CloudError(
                f"Azure gave no ETag of the set {name}",
                why="without it two of us could each grow it by one",
                next_step="install a newer azure-mgmt-compute",
            )
        body: dict[str, Any] = {"tags": dict(tags)}
        if capacity is not None:
            sku = group.sku
            body["sku"] = {"name": sku.name, "tier": sku.tier, "capacity": capacity} if sku is not None else {}
        from azure.mgmt.compute.models import VirtualMachineScaleSetUpdate

        update = VirtualMachineScaleSetUpdate(body)
        told: dict[str, str] = {}
        with self._asking(f"changing the set {name}"):
            self._client.virtual_machine_scale_sets.begin_update(
                self._resource_group, name, update, headers={"If-Match": etag}, polling=False, **self._hook(told)
            )
        return float(told.get("wait_s", 0.0))

    def delete(self, name: str, instance: str) -> float:
        """Delete this one machine: its id stands in the address, so that no other can be meant."""
        _check_id(name, instance)
        told: dict[str, str] = {}
        with self._asking(f"deleting machine {instance} of {name}"):
            self._client.virtual_machine_scale_set_vms.begin_delete(
                self._resource_group, name, instance, polling=False, **self._hook(told)
            )
        return float(told.get("wait_s", 0.0))

    def reimage(self, name: str, instance: str) -> float:
        """Give this one machine a fresh system disk; what lies on its other disks stays."""
        _check_id(name, instance)
        told: dict[str, str] = {}
        with self._asking(f"reimaging machine {instance} of {name}"):
            self._client.virtual_machine_scale_set_vms.begin_reimage(
                self._resource_group, name, instance, polling=False, **self._hook(told)
            )
        return float(told.get("wait_s", 0.0))

    def autoscaled(self) -> dict[str, str]:
        """Resource id, lower case -> the autoscale setting that is enabled on it, in our resource group."""
        from azure.core.rest import HttpRequest

        found: dict[str, str] = {}
        pages: set[str] = set()
        path = f"/subscriptions/{self._subscription_id}/resourceGroups/{self._resource_group}"
        url = f"{self._endpoint}{path}/providers/Microsoft.Insights/autoscalesettings?api-version={AUTOSCALE_API}"
        with self._asking("listing the autoscale settings"):
            while url:
                answer = self._client.send_request(HttpRequest("GET", url), **self._hook(pages=pages))
                answer.raise_for_status()
                page = answer.json()
                for setting in page["value"]:
                    properties = setting["properties"]
                    if properties.get("enabled", True):
                        found[str(properties.get("targetResourceUri") or "").lower()] = str(setting.get("name") or "?")
                url = page.get("nextLink") or ""
        return found

    def _hook(self, told: dict[str, str] | None = None, *, pages: set[str] | None = None) -> dict[str, Any]:
        """`told`: gets the patience that Azure asks for. `pages`: of a list, those that were asked for so far."""

        def look(response: Any) -> None:
            answer = response.http_response
            wait_s = seconds(answer.headers.pop("Retry-After", ""), answer.headers.get("Date", ""))
            if answer.status_code in (429, 503) and wait_s:
                with self._lock:
                    self._wait_until_ns = max(self._wait_until_ns, self._clock.monotonic_ns() + int(wait_s * 1e9))
            if pages is not None and answer.status_code == 200:
                if not isinstance(answer.json().get("value"), list):
                    raise ValueError("a page without its list")  # the client would read it as an empty one
                if response.http_request.url in pages or len(pages) >= MAX_PAGES:
                    raise ValueError("the same page again")
                pages.add(response.http_request.url)
            if told is not None and answer.status_code < 300:
                told.update({"wait_s": str(wait_s)})

        return {"raw_response_hook": look}

    @contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        """One request, not before the last `Retry-After` has passed, its errors in our words."""
        left_s = (self._wait_until_ns - self._clock.monotonic_ns()) / 1e9
        if left_s > 0:
            raise CloudError(
                f"Azure asked us to wait: {left_s:.0f} s more before {doing}", retry=True, next_step="nothing"
            )
        try:
            yield
        except (CloudError, GroupChanged):
            raise
        except Exception as error:
            raise translate(error, doing, self._credential) from error


def _check_id(name: str, instance: str) -> None:
    if not (instance.isascii() and instance.isdecimal()):
        raise CloudError(
            f"{instance!r} is no instance id of {name}",
            why="a call without an explicit id could mean every machine",
            next_step="report this as a bug",
        )


def seconds(text: str, date: str) -> float:
    """`Retry-After` as seconds, at most `MAX_WAIT_S`; a moment is held against the answer's own `Date`."""
    if not text:
        return 0.0
    try:
        found = float(text)
    except ValueError:
        try:
            found = (parsedate_to_datetime(text) - parsedate_to_datetime(date)).total_seconds()
        except (ValueError, TypeError):
            found = UNREADABLE_WAIT_S
    return min(max(found, 0.0), MAX_WAIT_S) if found == found else UNREADABLE_WAIT_S
