"""One question to the metadata service of the cloud that this machine runs in.

The service has a link-local address: it is never asked through a proxy, whatever the environment says. Redirects are
not followed.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from gpuwatch.errors import ProbeError

IMDS = "http://169.254.169.254"
MOST_BYTES = 1 << 20


class Answer(NamedTuple):
    """A body, and the service's own clock when it was sent; None where it does not say."""

    text: str
    at_unix_ns: int | None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def ask(
    url: str,
    headers: Mapping[str, str],
    *,
    timeout_s: float,
    method: str = "GET",
    nothing: Collection[int] = (404,),
) -> Answer | None:
    """The answer; None for the codes by which this service says "nothing". Raises `ProbeError`."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            text = answer.read(MOST_BYTES + 1)
            if len(text) > MOST_BYTES:
                raise ProbeError(f"the metadata service's answer is larger than {MOST_BYTES} bytes", why=url)
            return Answer(text.decode("utf-8", "replace"), _date(answer.headers))
    except urllib.error.HTTPError as error:
        with error:
            if error.code in nothing:
                return None
            raise ProbeError(
                f"the metadata service answers {error.code}", why=url, next_step="nothing, unless it lasts"
            ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ProbeError(
            "the metadata service does not answer",
            why=f"{url}: {error}",
            next_step="let the host reach 169.254.169.254 without a proxy",
        ) from error


def unix_ns(text: str) -> int | None:
    """`Mon, 19 Sep 2016 18:29:47 GMT`, `21 Jan 2019 09:00:43 GMT`; None for what is no such date."""
    try:
        found = parsedate_to_datetime(text)
        return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()) * 10**9
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def iso_unix_ns(text: str) -> int | None:
    """`2024-12-01T19:00:01Z`; None for what is no such date, or has no zone."""
    try:
        found = datetime.fromisoformat(text)
        return int(found.timestamp()) * 10**9 if found.tzinfo is not None else None
    except (ValueError, TypeError, OverflowError):
        return None


def _date(headers: Message) -> int | None:
    return unix_ns(headers.get("Date") or "")
