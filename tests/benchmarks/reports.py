"""Realistic reports of 8-GPU nodes, for load: 42-field GPUs, host, eight training ranks, a readable kernel log."""

from __future__ import annotations

import time

import msgspec

from gpuwatch.model.facts.host import HostFacts
from gpuwatch.model.facts.kernel_log import KernelLogFacts
from gpuwatch.model.facts.nvml import Gpu, NvmlFacts
from gpuwatch.model.facts.training import Beat, TrainingFacts
from gpuwatch.model.wire import WIRE_VERSION, Envelope, Report

_ENCODER = msgspec.msgpack.Encoder()
GPUS = 8


def slot(node: int) -> str:
    """The node's slot name."""
    return f"gpu{node:05d}"


def machine(node: int) -> str:
    """The node's machine id."""
    return f"/subscriptions/s/resourceGroups/rg/virtualMachineScaleSets/gpu/virtualMachines/{node}"


def _gpu(node: int, index: int, busy: float) -> Gpu:
    return Gpu(
        index=index,
        uuid=f"GPU-{node:08x}-{index:04x}-4aaa-8bbb-0123456789ab",
        pci=f"0000:{0x10 + index:02x}:00",
        name="NVIDIA H100 80GB HBM3",
        utilization_ratio=busy,
        memory_utilization_ratio=0.55,
        memory_used_bytes=(70 << 30) + node + index,
        memory_total_bytes=80 << 30,
        power_watts=512.3 + index,
        power_limit_watts=700.0,
        temperature_celsius=55 + index,
        sm_clock_mhz=1980,
        memory_clock_mhz=2619,
        clock_event_mask=4,
        ecc_corrected_volatile_count=0,
        ecc_uncorrected_volatile_count=0,
        ecc_uncorrected_total_count=12,
        rows_remapped_corrected_count=0,
        rows_remapped_uncorrected_count=0,
        row_remap_pending=False,
        row_remap_failed=False,
        pcie_generation=5,
        pcie_width=16,
        pcie_width_max=16,
        recovery_action=0,
        pids=(12345 + index,),
        serial=f"165{node:07d}{index}",
    )


def report(node: int, sequence: int) -> bytes:
    """One report as an agent sends it."""
    now = time.time_ns()
    facts = {
        "nvml": NvmlFacts(
            driver_version="550.90.07",
            gpus=tuple(_gpu(node, index, 0.9 + (sequence % 10) / 100) for index in range(GPUS)),
            pci_gpu_count=GPUS,
            driver_loaded=True,
        ),
        "host": HostFacts(boot_unix_ns=1, cpu_count=192, load1=12.0, cpu_ratio=0.33, memory_used_bytes=1 << 38),
        "training": TrainingFacts(
            beats=tuple(
                Beat(
                    run="opt-175b",
                    attempt="opt-175b.1",
                    rank=node * GPUS + index,
                    world_size=100_000,
                    pid=12345 + index,
                    phase="train",
                    step=41_200 + sequence,
                    step_end_unix_ns=now,
                    phase_start_unix_ns=now,
                    checkpoint_step=41_000,
                    checkpoint_unix_ns=now,
                    tokens=1 << 40,
                    step_s=3.2,
                    alive=True,
                    gpu_index=index,
                    sequence=sequence,
                    read_unix_ns=now,
                )
                for index in range(GPUS)
            )
        ),
        "kernel_log": KernelLogFacts(readable=True, source="kmsg"),
    }
    return _ENCODER.encode(
        Report(
            version=WIRE_VERSION,
            slot=slot(node),
            machine=machine(node),
            boot_id="b7c1d0e2-1111-2222-3333-444455556666",
            agent_id=f"agent-{node}",
            sequence=sequence,
            sent_unix_ns=now,
            envelopes=tuple(
                Envelope(name, now, 0.012, "ok", facts=msgspec.Raw(_ENCODER.encode(value)))
                for name, value in facts.items()
            ),
        )
    )
