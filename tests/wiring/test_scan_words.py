"""What a look says of the sources that are no GPU, in one line each."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.agent.answers import Latest
from gpuwatch.model.facts.infiniband import InfinibandFacts
from gpuwatch.model.facts.pcie import PcieFacts
from gpuwatch.model.facts.services import ServicesFacts
from gpuwatch.scan import Look
from gpuwatch.scan.words import as_text
from tests.fakes_node import pci_device, rdma_port, service_unit


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (
            InfinibandFacts((rdma_port(), rdma_port("mlx5_1", state="down", expected=False))),
            "1 of 2 ports active, 1",
        ),
        (PcieFacts((pci_device(), pci_device("x", kind="nvme"), pci_device("y", gone=True))), "PCI: 1 gpu, 1 nvme"),
        (ServicesFacts((service_unit(), service_unit("munge.service"))), "services: slurmd active, munge active"),
        (ServicesFacts(), "services: none of those that are watched"),
    ],
)
def test_one_line(facts: Any, line: str) -> None:
    source = Latest(collector="x", status="ok", at_unix_ns=1, facts=facts)
    look = Look(
        slot="n", machine="m", boot_id="b", at_unix_ns=1, statement="s", remarks=(), sources=(source,), events=()
    )
    assert line in as_text(look, {})
