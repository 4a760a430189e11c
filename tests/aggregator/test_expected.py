"""Expected GPUs: what is set counts, else the machine type's, and nothing is guessed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.aggregator.coverage import coverage
from gpuwatch.aggregator.expected import by_type, expected_gpus
from gpuwatch.aggregator.fleet import Fleet
from gpuwatch.aggregator.heard import absorb
from gpuwatch.aggregator.lives import Lives
from gpuwatch.aggregator.settings import ClusterSettings, Place, PoolSettings, ServerSettings, Settings
from gpuwatch.clouds import CloudMachine, CloudSnapshot
from gpuwatch.model.ledger import LifeStarted
from tests.fakes_centre import Centre


@pytest.mark.parametrize(
    ("gpus", "sku", "expected"),
    [
        pytest.param(None, "", None, id="nothing-said"),
        pytest.param(4, "Standard_ND96isr_H100_v5", 4, id="set-by-hand"),
        pytest.param(0, "Standard_ND96isr_H100_v5", 0, id="set-to-none"),
        pytest.param(None, "Standard_ND96isr_H100_v5", 8, id="azure"),
        pytest.param(None, "nd96ISR_h100_v5", 8, id="however-it-is-written"),
        pytest.param(None, "p5.48xlarge", 8, id="aws"),
        pytest.param(None, "a2-megagpu-16g", 16, id="gcp"),
        pytest.param(None, "Standard_ND96isr_MI300X_v5", None, id="not-nvidias"),
        pytest.param(None, "trn1.32xlarge", None, id="trainium"),
        pytest.param(None, "a-type-of-next-year", None, id="unknown"),
    ],
)
def test_what_is_expected(gpus: int | None, sku: str, expected: int | None) -> None:
    assert expected_gpus(PoolSettings(gpus=gpus, sku=sku)) == expected


@pytest.mark.parametrize(
    ("pool", "sku", "expected"),
    [
        pytest.param({}, "Standard_ND96isr_H100_v5", 8, id="the-cloud-says-its-type"),
        pytest.param({"sku": "a2-megagpu-16g"}, "p5.48xlarge", 16, id="the-pools-word-comes-first"),
        pytest.param({"gpus": 4}, "p5.48xlarge", 4, id="what-is-set-comes-first"),
        pytest.param({}, "a-type-of-next-year", None, id="unknown"),
    ],
)
def test_a_machine_whose_type_the_cloud_says(pool: dict[str, Any], sku: str, expected: int | None) -> None:
    """Everybody who counts GPUs counts the same: the rules, the money, the share of jobs, the coverage."""
    text = PoolSettings(**pool)
    settings = Settings(
        server=ServerSettings(secret_file=Path("secret")),
        cluster=ClusterSettings(),
        pools={"p": text},
        places={"gpu01": Place(pool="p", domain="")},
        rest="p",
        cloud=None,
        scheduler=None,
        rules={},
        fleet_rules={},
    )
    item = CloudMachine(machine="m", slot="gpu01", group="g", state="running", sku=sku, started_unix_ns=1)
    snapshot = CloudSnapshot(machines=(item,), groups=())
    fleet = Fleet(settings)
    record = fleet.join("m", "gpu01", 0)
    assert record.expected_gpu_count == expected_gpus(text)
    fleet.absorb_cloud(snapshot, 0)
    assert record.expected_gpu_count == expected
    (start, _) = Lives(settings, []).of_cloud(snapshot, lambda _: None, 10**9)
    assert isinstance(start, LifeStarted)
    assert start.gpu_count == (expected or 0)


def test_a_pool_of_a_known_type_is_covered_by_gpus_and_billed_for_them(tmp_path: Path) -> None:
    centre = Centre(tmp_path)
    centre.settle()
    pool = msgspec.structs.replace(centre.settings.pools["p"], gpus=None, sku="Standard_ND96isr_H100_v5")
    centre.settings = dataclasses.replace(centre.settings, pools={"p": pool})
    found = coverage(centre.settings, centre.fleet, centre.stage.scene, {}, set(), centre.clock.monotonic_ns())["p"]
    assert (found.node_count, found.gpu_count) == (8, 64)
    record = centre.fleet.join("m-new", "gpu09", 0)
    record.heard = absorb(None, centre.agents["m-gpu01"].report(), centre.clock.now())
    (start, _) = Lives(centre.settings, []).of_fleet([record], None, centre.clock.now())
    assert isinstance(start, LifeStarted)
    assert start.gpu_count == 8
    assert centre.store is not None
    centre.store.close()


def test_every_number_is_one_that_a_machine_can_have() -> None:
    assert len(by_type()) > 40
    assert set(by_type().values()) <= {1, 2, 4, 8, 16}
