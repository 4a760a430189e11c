"""Asks the aggregator whether this node may be taken out. No answer within the time is a no."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from gpuwatch.scan.remarks import Remark
from gpuwatch.sdk.trust import trusted

WITHIN_S = 2.0
MOST_REPLY_BYTES = 10_000
MOST_LETTERS = 400


class Grant(msgspec.Struct, frozen=True):
    """The aggregator's word, or why there is none."""

    granted: bool = False
    because: str = "no reason told"


def ask(
    urls: Sequence[str], *, token_file: str, ca_file: str, machine: str, role: str, remark: Remark, within_s: float
) -> Grant:
    """Ask each address in turn; the first answer counts. Not longer than `within_s`, name lookup included."""
    if not urls:
        return Grant(because="no aggregator is set in the agent's settings")
    try:
        token = Path(token_file).read_text().strip()
    except OSError as error:
        return Grant(because=f"the token file cannot be read: {error.strerror}")
    question = {"machine": machine, "role": role, "rule": remark.rule, "subject": remark.subject}
    body = msgspec.json.encode(
        {key: text[:MOST_LETTERS] for key, text in {**question, "because": remark.because}.items()}
    )
    found: list[Grant] = []
    until_s = time.monotonic() + within_s

    def work() -> None:
        said = "no answer"
        for url in urls:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                break
            try:
                found.append(_one(url, token, ca_file, body, left_s / (1 if url == urls[-1] else 2)))
                return
            except (OSError, ValueError, http.client.HTTPException, msgspec.MsgspecError) as error:
                said = f"{url} gives no answer: {type(error).__name__}: {error}"[:MOST_LETTERS]
        found.append(Grant(because=said))

    thread = threading.Thread(target=work, name="grant", daemon=True)  # a name lookup knows no deadline
    thread.start()
    thread.join(within_s)
    return found[0] if found else Grant(because=f"the aggregator gives no answer within {within_s:g} s")


def _one(url: str, token: str, ca_file: str, body: bytes, timeout_s: float) -> Grant:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=trusted(ca_file))
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        connection.request("POST", parts.path.rstrip("/") + "/v1/grants", body, headers)
        response = connection.getresponse()
        text = response.read(MOST_REPLY_BYTES)
    finally:
        connection.close()
    if response.status != 200:
        return Grant(because=f"the aggregator answers HTTP {response.status}: {text[:200].decode('utf-8', 'replace')}")
    return msgspec.json.decode(text, type=Grant)
