"""`gpuwatch aggregator check`: would an aggregator start with these settings? It starts nothing and opens no ledger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpuwatch.aggregator.beginning import price_book
from gpuwatch.aggregator.expected import expected_gpus
from gpuwatch.aggregator.named_files import faults_of
from gpuwatch.aggregator.settings import Settings, load


def check(config: Path, say: Callable[[str], None] = print) -> int:
    """0, and what the settings come to. Raises `ConfigError` with every fault, the named files' too."""
    settings = load(config, faults_of)
    price_book(settings)  # says which pool's dollars are unknown
    say(f"{config}: good")
    for words in _words(settings):
        say(words)
    return 0


def _words(settings: Settings) -> list[str]:
    server = settings.server
    found = [f"listens on {'http' if server.tls_cert_file is None else 'https'}://{server.listen}"]
    for name, pool in settings.pools.items():
        count = sum(place.pool == name for place in settings.places.values())
        slots = f"{count} slots" if pool.nodes else "every slot that no other pool names"
        gpu_count = expected_gpus(pool)
        gpus = "" if gpu_count is None else f" with {gpu_count} GPUs"
        found.append(f"pool {name}: {slots}{gpus}, mode {pool.policy.mode.value}")
    for word, hand in (("scheduler", settings.scheduler), ("cloud", settings.cloud)):
        found.append(f"{word}: {'none' if hand is None else hand.kind}")
    found.append(f"alerts to: {', '.join(settings.alertmanager.urls) or 'nobody'}")
    return found
