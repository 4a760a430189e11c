"""Stand-ins for what the node's other sources say: RDMA ports, PCI devices, services, mounts. Well unless changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from gpuwatch.model.facts.host import Disk, HostFacts, NetworkMount, StuckProcess
from gpuwatch.model.facts.infiniband import InfinibandFacts, RdmaPort
from gpuwatch.model.facts.nvml import NvmlFacts, Xid
from gpuwatch.model.facts.pcie import PciDevice, PcieFacts
from gpuwatch.model.facts.services import ServicesFacts, Unit
from gpuwatch.model.view import NodeView
from tests.fakes import T0, S, gpus, node_view, nvml, source, with_nvml


def with_facts(view: NodeView, collector: str, facts: Any) -> NodeView:
    """The same node with this source's facts."""
    return replace(
        view,
        facts=dict(view.facts) | {type(facts): facts},
        sources=dict(view.sources) | {collector: source(collector)},
    )


def rdma_port(device: str = "mlx5_0", **changes: Any) -> RdmaPort:
    """An active 400 Gb/s InfiniBand port that the node must have."""
    usual: dict[str, Any] = {
        "device": device,
        "port": 1,
        "pci": "0000:1a:00.0",
        "link_layer": "infiniband",
        "state": "active",
        "phys_state": "linkup",
        "rate_gbps": 400.0,
        "best_rate_gbps": 400.0,
        "board": "MT_0000000838",
        "expected": True,
    }
    return RdmaPort(**usual | changes)


def with_rdma(*ports: RdmaPort, view: NodeView | None = None) -> NodeView:
    """A healthy node with these ports."""
    return with_facts(view or node_view(), "infiniband", InfinibandFacts(ports))


def pci_device(pci: str = "0000:1a:00.0", **changes: Any) -> PciDevice:
    """A GPU with a full link."""
    usual: dict[str, Any] = {
        "pci": pci,
        "kind": "gpu",
        "model": "10de:2330",
        "driver": "nvidia",
        "width": 16,
        "width_max": 16,
        "width_best": 16,
        "speed_gts": 32.0,
        "speed_max_gts": 32.0,
        "speed_best_gts": 32.0,
        "all_ones": False,
    }
    return PciDevice(**usual | changes)


def with_pci(*devices: PciDevice, view: NodeView | None = None) -> NodeView:
    """A healthy node with these devices."""
    return with_facts(view or node_view(), "pcie", PcieFacts(devices))


def service_unit(name: str = "slurmd.service", **changes: Any) -> Unit:
    """A unit that is enabled and runs since an hour."""
    usual: dict[str, Any] = {
        "name": name,
        "active_state": "active",
        "sub_state": "running",
        "result": "success",
        "enabled": True,
        "was_active": True,
        "since_unix_ns": T0.unix_ns - 3600 * S,
        "restart_count": 0,
    }
    return Unit(**usual | changes)


def with_services(*units: Unit, view: NodeView | None = None) -> NodeView:
    """A healthy node with these units."""
    return with_facts(view or node_view(), "services", ServicesFacts(units))


def worn_gpus() -> tuple[Any, ...]:
    """Eight of which the first has every trouble that a counter or a mode can tell of."""
    healthy: dict[str, Any] = {
        "nvlink_count": 18,
        "nvlink_inactive": (),
        "mig_mode": False,
        "power_limit_default_watts": 700.0,
    }
    first, *rest = gpus(**healthy, power_limit_watts=700.0)
    worn: dict[str, Any] = {"row_remap_failed": True, "row_remap_pending": True, "rows_remapped_uncorrected_count": 512}
    worn |= {"retired_page_count": 60, "ecc_uncorrected_hour_count": 1, "pcie_replay_hour_count": 5000}
    counts = {"nvlink_inactive": (1,), "nvlink_recovery_hour_count": 5, "temperature_margin_celsius": 0}
    modes = {"mig_mode": True, "persistence_mode": False, "power_limit_watts": 300.0}
    return (msgspec.structs.replace(first, **worn, **counts, **modes), *rest)


def disk(mount: str = "/", **changes: Any) -> Disk:
    """A disk that is a third full."""
    usual: dict[str, Any] = {
        "mount": mount,
        "device": "/dev/nvme0n1p2",
        "kind": "ext4",
        "used_ratio": 0.33,
        "inode_used_ratio": 0.03,
        "roles": ("root",),
    }
    return Disk(**usual | changes)


def network_mount(mount: str = "/home", **changes: Any) -> NetworkMount:
    """An NFS mount that answers."""
    usual: dict[str, Any] = {"mount": mount, "source": "nfs1:/home", "kind": "nfs4", "answer": "ok"}
    return NetworkMount(**usual | changes)


def with_host(view: NodeView | None = None, **host: Any) -> NodeView:
    """A healthy node whose operating system says this."""
    return with_facts(view or node_view(), "host", HostFacts(**{"uptime_s": 86_400.0} | host))


def troubled_views() -> list[NodeView]:
    """Nodes with each trouble that the rules over these sources know."""
    plain = node_view()
    hung_source = {"infiniband": source("infiniband", status="hung", reason="no RDMA device answers")}
    return [
        with_nvml(plain, gpus=worn_gpus()),
        replace(plain, facts={NvmlFacts: nvml(xids=(Xid("e", T0.unix_ns, "0000:10:00", 48),))}),
        with_nvml(plain, gpus=gpus(clock_event_mask=0xC0, ecc_corrected_hour_count=10**6, fabric_state=1)),
        with_nvml(plain, gpus=gpus(name="NVIDIA H100 80GB HBM3", nvlink_count=18, nvlink_inactive=(1,))),
        with_rdma(rdma_port()),
        with_rdma(rdma_port(state="down"), rdma_port("mlx5_1", gone=True, state=None)),
        with_rdma(rdma_port(virtual=True, state="down"), rdma_port("mlx5_1", flap_count=20)),
        with_rdma(rdma_port(rate_gbps=200.0), rdma_port("mlx5_1", rises={"symbol_error": 5_000})),
        with_rdma(rdma_port(state=None, hung="no answer")),
        replace(plain, sources=dict(plain.sources) | hung_source),
        with_host(disks=(disk(), disk("/scratch", roles=())), network_mounts=(network_mount(),)),
        with_host(disks=(disk(used_ratio=0.995), disk("/scratch", read_only=True, read_only_by="kernel"))),
        with_host(network_mounts=(network_mount(answer="hung", reason="state D"),), clock_synchronised=False),
        with_host(stuck_processes=(StuckProcess(7, "python", 900.0, "rpc_wait"),), clock_synchronised=True),
        with_services(service_unit()),
        with_services(service_unit(active_state="failed", recent_restart_count=9)),
        with_services(
            service_unit("nvidia-fabricmanager.service", active_state="failed"),
            view=with_pci(pci_device(kind="switch")),
        ),
        with_pci(pci_device()),
        with_pci(pci_device(width=8), pci_device("0000:1b:00.0", gone=True), pci_device("0000:1c:00.0", all_ones=True)),
    ]
