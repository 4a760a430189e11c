"""The ordinary web application: page, JSON API, metrics, health. Each answer is made in a thread of a pool."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable
from html import escape
from importlib.resources import files
from typing import Any

import msgspec
from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gpuwatch.aggregator.drift import Drift
from gpuwatch.aggregator.grants import Grants
from gpuwatch.aggregator.metrics import Metrics
from gpuwatch.aggregator.orders import MAX_BODY_BYTES, Order, OrderError, Orders, read_order
from gpuwatch.aggregator.overview import Teller
from gpuwatch.errors import GpuwatchError

Json = Callable[[Request], Any]
_ENCODE = msgspec.json.Encoder(decimal_format="string", enc_hook=str).encode
_NO_STORE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


def application(
    *,
    teller: Teller,
    explain: Callable[[str], dict[str, Any] | None],
    drifting: Callable[[], list[Drift]],
    orders: Orders,
    grants: Grants,
    metrics: Metrics,
    alive: Callable[[], str],
    ready: Callable[[], str],
) -> Starlette:
    """`alive` and `ready` say what is wrong; empty if nothing."""
    page = _Page(teller)

    def node(request: Request) -> Any:
        slot = request.path_params["slot"]
        found = explain(slot)
        if found is None:
            raise OrderError(
                f"there is no slot {slot!r}", code=404, next_step="look at /api/v1/fleet for the names of all slots"
            )
        return found

    async def scrape(request: Request) -> Response:
        text, content_type = await to_thread.run_sync(metrics.render, request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type, "vary": "accept"})

    async def show(_request: Request) -> Response:
        return await to_thread.run_sync(page.render)

    api = "/api/v1"
    return Starlette(
        routes=[
            Route("/", show),
            Route("/metrics", scrape),
            Route("/healthz", _health(alive)),
            Route("/readyz", _health(ready)),
            Route(f"{api}/overview", _get(lambda _: teller.overview())),
            Route(f"{api}/fleet", _get(lambda _: teller.fleet())),
            Route(f"{api}/nodes/{{slot:path}}", _get(node)),
            Route(f"{api}/incidents", _get(lambda _: {"incidents": teller.incidents()})),
            Route(f"{api}/holds", _get(lambda _: teller.holds())),
            Route(f"{api}/plan", _get(lambda _: teller.plan())),
            Route(f"{api}/drift", _get(lambda _: {"drifts": drifting()})),
            Route(f"{api}/money", _get(lambda _: teller.money())),
            Route("/v1/grants", _body(grants.answer), methods=["POST"]),
            Route(f"{api}/approve/{{name:path}}", _post(orders, orders.approve), methods=["POST"]),
            Route(f"{api}/hold/{{name:path}}", _post(orders, orders.hold), methods=["POST"]),
            Route(f"{api}/clear/{{name:path}}", _post(orders, orders.clear), methods=["POST"]),
        ]
    )


def _get(make: Json) -> Callable[[Request], Awaitable[Response]]:
    def work(request: Request) -> Response:
        try:
            return _answer(make(request))
        except GpuwatchError as error:
            return _refusal(error)

    async def respond(request: Request) -> Response:
        return await to_thread.run_sync(work, request)

    return respond


def _post(orders: Orders, order: Callable[[str, Order], Any]) -> Callable[[Request], Awaitable[Response]]:
    def work(request: Request) -> Callable[[str, bytes], Any]:
        def obey(authorization: str, body: bytes) -> Any:
            orders.check(authorization)
            return order(request.path_params["name"], read_order(body))

        return obey

    async def respond(request: Request) -> Response:
        return await _body(work(request))(request)

    return respond


def _body(make: Callable[[str, bytes], Any]) -> Callable[[Request], Awaitable[Response]]:
    """Of a short body and the authorization that came with it."""

    def work(authorization: str, body: bytes) -> Response:
        try:
            return _answer(make(authorization, body))
        except GpuwatchError as error:
            return _refusal(error)

    async def respond(request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                return _refusal(OrderError("the body is too long", code=413, next_step="use fewer words"))
        return await to_thread.run_sync(work, request.headers.get("authorization", ""), body)

    return respond


def _health(wrong: Callable[[], str]) -> Callable[[Request], Awaitable[Response]]:
    async def respond(_request: Request) -> Response:
        because = wrong()
        return _answer({"ok": not because, "because": because}, status=503 if because else 200)

    return respond


def _answer(value: Any, status: int = 200) -> Response:
    return Response(_ENCODE(value), status_code=status, media_type="application/json", headers=_NO_STORE)


def _refusal(error: GpuwatchError) -> Response:
    code = getattr(error, "code", 503)
    return _answer({"ok": False, "error": error.what, "why": error.why, "next_step": error.next_step}, status=code)


class _Page:
    """The page, one file: its sentence is written in by us, so that it says something without any script, too."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self._html = files("gpuwatch.aggregator").joinpath("web/page.html").read_text(encoding="utf-8")
        self._policy = (
            f"default-src 'none'; script-src {self._digest('script')}; style-src {self._digest('style')}; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )

    def render(self) -> Response:
        fleet = self._teller.fleet()
        head = fleet["headline"]
        sentence = " ".join(part for part in (head["state"], head["doing"], head["cost"]) if part)
        words = {
            "cluster": fleet["cluster"],
            "sentence": sentence,
            "state": head["state"],
            "doing": head["doing"] or "Nothing needs doing.",
            "cost": head["cost"],
        }
        html = re.sub(r"{{(\w+)}}", lambda found: escape(words[found[1]]), self._html)
        return Response(html, media_type="text/html", headers={**_NO_STORE, "content-security-policy": self._policy})

    def _digest(self, tag: str) -> str:
        """Only what we wrote ourselves may run or style: nothing that an agent's text could smuggle in."""
        found = re.search(f"<{tag}>(.*?)</{tag}>", self._html, re.DOTALL)
        text = found[1] if found is not None else ""
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
