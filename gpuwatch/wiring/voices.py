"""What the aggregator tells the outside, joined: page, API and metrics as one application, and the push of alerts."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from gpuwatch.aggregator.alert_desk import AlertDesk
from gpuwatch.aggregator.alert_needs import told
from gpuwatch.aggregator.alert_push import Pusher
from gpuwatch.aggregator.alert_runs import AlertRuns
from gpuwatch.aggregator.coverage import coverage
from gpuwatch.aggregator.drift import Drift, drift_metrics, drifts
from gpuwatch.aggregator.explain import explain
from gpuwatch.aggregator.metrics import Metrics
from gpuwatch.aggregator.money import MoneyDesk
from gpuwatch.aggregator.needs import APPROVAL, Need, Needs
from gpuwatch.aggregator.orders import Orders
from gpuwatch.aggregator.overview import Teller
from gpuwatch.aggregator.settings import Settings
from gpuwatch.aggregator.sharing import Sharing
from gpuwatch.aggregator.unblock import unblock
from gpuwatch.aggregator.webapp import application
from gpuwatch.clock import Clock
from gpuwatch.model.policy import Policy
from gpuwatch.store.sqlite import Store
from gpuwatch.wiring.core import Core, Hands


class Voices:
    """`web` answers whoever asks; `pushers` tell Alertmanager unasked."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        core: Core,
        hands: Hands,
        money: MoneyDesk,
        *,
        operator: bytes | None,
        alive: Callable[[], str],
        clock: Clock,
    ) -> None:
        """`operator`: the token of who may give orders; None: nobody may. `alive`: why the process is not well."""
        stage = core.stage
        needs = Needs(
            ledger=store,
            stage=stage,
            executor=core.executor,
            book=core.book,
            policies=settings.policies(),
            clock=clock,
        )
        policies = settings.policies()
        scheduler = "" if settings.scheduler is None else settings.scheduler.kind
        page_url = _page_url(settings)

        def command(need: Need) -> str:
            return unblock(need, policy=policies.get(need.pool, Policy()), scheduler=scheduler, url=page_url)

        teller = Teller(
            settings=settings,
            clock=clock,
            stage=stage,
            fleet=core.fleet,
            book=core.book,
            executor=core.executor,
            people=core.people,
            guard=core.guard,
            money=money.latest,
            witnesses=hands.witnesses,
            needs=lambda: [told(need, command(need)) for need in needs.now() if need.reason != APPROVAL],
        )
        sharing = Sharing(stage=stage, clock=clock)

        def drifting() -> list[Drift]:
            return drifts(stage.scene.views.values(), stage.scene.runs)

        self.pushers = _pushers(settings, store, core, teller, needs, command, sharing, clock)
        metrics = Metrics(
            clock=clock,
            stage=stage,
            fleet=core.fleet,
            ingest=core.ingest,
            executor=core.executor,
            guard=core.guard,
            book=core.book,
            witnesses=hands.witnesses,
            money=money.latest,
            failures=lambda: core.brain.failure_count,
            covered=lambda: coverage(
                settings,
                core.fleet,
                stage.scene,
                core.book.open,
                {saga.action.slot for saga in core.executor.open()},
                clock.monotonic_ns(),
            ),
            ledger_error=lambda: core.journal.error,
            pushers=self.pushers,
            needs=needs.now,
            sharing=sharing.now,
            more=(core.grants.metrics, lambda: drift_metrics(drifting())),
        )
        self.web: Any = application(
            teller=teller,
            explain=partial(
                explain,
                clock=clock,
                stage=stage,
                fleet=core.fleet,
                book=core.book,
                executor=core.executor,
                people=core.people,
                drifting=drifting,
                places=settings.places,
            ),
            orders=Orders(
                token=operator,
                settings=settings,
                store=store,
                people=core.people,
                fleet=core.fleet,
                stage=stage,
                clock=clock,
            ),
            drifting=drifting,
            grants=core.grants,
            metrics=metrics,
            alive=alive,
            ready=lambda: "" if stage.scene.tick_count else "the first tick is not over yet",
        )


def _pushers(
    settings: Settings,
    store: Store,
    core: Core,
    teller: Teller,
    needs: Needs,
    command: Callable[[Need], str],
    sharing: Sharing,
    clock: Clock,
) -> tuple[Pusher, ...]:
    alerts = settings.alertmanager
    if not alerts.urls:
        return ()
    desk = AlertDesk(
        settings=alerts,
        cluster=settings.cluster.name,
        page_url=_page_url(settings),
        runs=AlertRuns(store),
        open_faults=lambda: core.book.open,
        incidents=teller.incidents,
        shared=sharing.now,
        needs=needs.now,
        unblock=command,
        clock=clock,
    )
    return tuple(Pusher(url, alerts, desk.alerts, clock) for url in alerts.urls)


def _page_url(settings: Settings) -> str:
    """What links begin with, and where orders go."""
    if settings.alertmanager.page_url:
        return settings.alertmanager.page_url.rstrip("/")
    scheme = "http" if settings.server.tls_cert_file is None else "https"
    host, _, port = settings.server.listen.rpartition(":")
    host = socket.gethostname() if host in ("0.0.0.0", "[::]") else host  # a link that leads somewhere
    return f"{scheme}://{host}:{port}"
