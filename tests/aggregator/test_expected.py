"""Expected GPUs: what is set counts, else the machine type's, and nothing is guessed."""

from __future__ import annotations

import pytest

from gpuwatch.aggregator.expected import by_type, expected_gpus
from gpuwatch.aggregator.settings import PoolSettings


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


def test_every_number_is_one_that_a_machine_can_have() -> None:
    assert len(by_type()) > 40
    assert set(by_type().values()) <= {1, 2, 4, 8, 16}
