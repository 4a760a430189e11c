"""What a GPU model has by design, where a rule must know it. Names are those that NVML tells.

Sources: NVIDIA's data sheets and architecture white papers (links of each SXM part: V100 6, A100 12, H100 and H200 18,
B200 18); Azure/azurehpc-health-checks#162 (H100 NVL: 12 of 18 in use); NVIDIA/DCGM#49, NVIDIA/NVSentinel#1481 (a PCIe
card has links, and uses them only over a bridge). A model that is not here is compared with its siblings alone, and so
is a slice of a board: a virtual machine with one H100 of eight has its links down (leptonai/gpud#1140).
"""

from __future__ import annotations

from functools import lru_cache

import msgspec


class Model(msgspec.Struct, frozen=True):
    """One model. `nvlinks`: how many are in use on a healthy board; None: by how the machine is built."""

    pattern: str
    nvlinks: int | None
    whole_board_gpus: int = 8  # with fewer of them the machine may be a slice


MODELS = (
    # the first whose pattern is part of the name
    Model("H100 NVL", 12, 2),
    Model("H200 NVL", None),
    Model("PCIe", None),
    Model("GH200", None),
    Model("V100-SXM", 6),
    Model("A100-SXM", 12),
    Model("H100 80GB HBM3", 18),
    Model("H100 SXM", 18),
    Model("H200", 18),
    Model("GB200", 18, 4),
    Model("GB300", 18, 4),
    Model("B200", 18),
    Model("B300", 18),
)


@lru_cache(maxsize=256)
def model_of(name: str) -> Model | None:
    """The model of this name, None where nothing is known of it."""
    return next((model for model in MODELS if model.pattern in name), None)
