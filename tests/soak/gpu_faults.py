"""Faults of the driver and its GPUs, by the C library under the agent's real binding."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from gpuwatch.model.facts.nvml import NvmlFacts
from tests.soak.fault import Fault
from tests.soak.judge import Look
from tests.soak.site import UUID, Site

RULES = (
    "probe_hung", "gpu_lost", "gpu_refuses", "gpu_missing", "driver_mismatch", "driver_not_loaded", "driver_refuses",
    "row_remap_failed",
)  # fmt: skip


def gpu_faults(site: Site, chance: random.Random) -> dict[str, Callable[[], Fault]]:
    """Each makes one fault of its kind."""
    state = site.state
    versions = iter(f"58{number // 100}.{number % 100:02d}.01" for number in range(100, 1000))
    running = ["580.95.05"]

    def well(look: Look) -> bool:
        facts = look.facts(NvmlFacts)
        return (
            look.status("nvml") == "ok"
            and facts is not None
            and len(facts.gpus) == 8
            and all(gpu.error is None and gpu.utilization_ratio is not None for gpu in facts.gpus)
            and facts.driver_version == running[0]
            and not look.evidence(RULES)
        )

    def another_driver() -> str:
        running[0] = next(versions)
        site.driver(running[0])
        return running[0]

    def hangs(kind: str, function: str, *, reload: bool = False, index: int = -1, **more: int) -> Fault:
        def inject() -> None:
            state.gpu(index, hang=function, **more)
            if reload:
                state.all(driver=another_driver())

        def seen(look: Look) -> bool:
            where = f"in {function.removesuffix('WithFlags')}" + (f" of GPU {index}" if index >= 0 else "")
            return (
                look.status("nvml") == "hung" and where in look.reason("nvml") and bool(look.evidence(["probe_hung"]))
            )

        def heal() -> None:
            state.gpu(index, hang=None, **dict.fromkeys(more))

        rules = ("probe_hung", "driver_not_loaded") if more else ("probe_hung",)
        return Fault(kind, inject, seen, heal, rules, well=well, hold_s=6.0)

    def one_gpu(kind: str, error: int, rule: str) -> Fault:
        index = chance.randrange(8)

        def seen(look: Look) -> bool:
            facts = look.facts(NvmlFacts)
            if facts is None or [gpu.index for gpu in facts.gpus if gpu.error == error] != [index]:
                return False
            named = (UUID.format(index), f"m-1/{index}")  # an agent that began after it was lost never knew its name
            return len(facts.gpus) == 8 and [one.subject.id in named for one in look.evidence([rule], words)] == [True]

        words = f"GPU {index} "
        inject, heal = partial(state.gpu, index, error=error), partial(state.gpu, index, error=None)
        return Fault(kind, inject, seen, heal, (rule,), words, well)

    def answers(kind: str, rule: str, code: int) -> Fault:
        """The driver refuses to be asked, and to start."""

        def inject() -> None:
            if code == 9:
                site.driver(None)
            state.all(init=code, refuse__nvmlDeviceGetCount_v2=code)

        def heal() -> None:
            state.all(init=None, refuse__nvmlDeviceGetCount_v2=None, driver=another_driver())

        def seen(look: Look) -> bool:
            facts = look.facts(NvmlFacts)
            return facts is not None and facts.init_error == code and bool(look.evidence([rule]))

        return Fault(kind, inject, seen, heal, rules=(rule,), well=well)

    def seven() -> Fault:
        def seen(look: Look) -> bool:
            facts = look.facts(NvmlFacts)
            return facts is not None and len(facts.gpus) == 7 and bool(look.evidence(["gpu_missing"]))

        inject, heal = partial(state.all, count=7), partial(state.all, count=8)
        return Fault("gpu_count_7", inject, seen, heal, ("gpu_missing",), well=well)

    def garbage() -> Fault:
        index = chance.randrange(8)

        def seen(look: Look) -> bool:
            facts = look.facts(NvmlFacts)
            noise = [gpu.index for gpu in facts.gpus if gpu.utilization_ratio is None] if facts is not None else []
            return noise == [index]

        inject = partial(state.gpu, index, garbage="nvmlDeviceGetUtilizationRates")
        return Fault("nvml_garbage", inject, seen, partial(state.gpu, index, garbage=None), well=well)

    def remap() -> Fault:
        index = chance.randrange(8)

        def seen(look: Look) -> bool:
            return bool(look.evidence(["row_remap_failed"], UUID.format(index)))

        inject, heal = partial(state.gpu, index, field__145=1), partial(state.gpu, index, field__145=None)
        return Fault("row_remap_failed", inject, seen, heal, ("row_remap_failed",), UUID.format(index), well)

    def one_hangs() -> Fault:
        function = chance.choice(
            ("nvmlDeviceGetFieldValues", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetClockInfo")
        )
        return hangs("nvml_hung_one_gpu", function, index=chance.randrange(8))

    return {
        "nvml_hung_init": lambda: hangs("nvml_hung_init", "nvmlInitWithFlags", reload=True),
        "nvml_hung_enumeration": lambda: hangs("nvml_hung_enumeration", "nvmlDeviceGetCount_v2"),
        "nvml_hung_one_gpu": one_hangs,
        "nvml_hung_shutdown": lambda: hangs("nvml_hung_shutdown", "nvmlShutdown", refuse__nvmlDeviceGetCount_v2=9),
        "gpu_lost": lambda: one_gpu("gpu_lost", 15, "gpu_lost"),
        "gpu_999": lambda: one_gpu("gpu_999", 999, "gpu_lost"),
        "gpu_reset_required": lambda: one_gpu("gpu_reset_required", 16, "gpu_refuses"),
        "driver_unloaded_another_loaded": lambda: answers("driver_unloaded_another_loaded", "driver_not_loaded", 9),
        "driver_mismatch": lambda: answers("driver_mismatch", "driver_mismatch", 18),
        "driver_refuses": lambda: answers("driver_refuses", "driver_refuses", 999),
        "gpu_count_7": seven,
        "nvml_garbage": garbage,
        "row_remap_failed": remap,
    }
