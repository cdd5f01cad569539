"""How much a client may send, and how often."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from memagent_openai_server.refusals import Refusal

if TYPE_CHECKING:
    from starlette.requests import Request

_MOST_CALLERS = 10_000
"""Buckets that are kept; those used longest ago are thrown away."""


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes:
        body_bytes: longest body. A million tokens are about 5 MB.
        body_seconds: within which a body must have come.
        requests_per_minute: of a key, or of an address where there are no keys; 0 for no limit.
        readings: readings under way at once; more wait for their turn.
    """

    body_bytes: int = 32 * 2**20
    body_seconds: float = 30.0
    requests_per_minute: int = 0
    readings: int = 64


async def limited_body(request: Request, limits: Limits) -> bytes:
    """The body of a request.

    One that is too long is read to its end and thrown away, in the same time, because a client
    that is still sending would not see the answer.

    Raises:
        Refusal: It is too long or too slow.
        ClientDisconnect: The client is gone.
    """
    too_long = Refusal(
        413, f"The body is longer than {limits.body_bytes} bytes.", code="body_too_long"
    )
    announced = request.headers.get("content-length", "")
    long = announced.isdecimal() and int(announced) > limits.body_bytes
    if long and "expect" in request.headers:
        raise too_long
    parts: list[bytes] = []
    size = 0

    async def receive() -> None:
        nonlocal size, long
        async for part in request.stream():
            size += len(part)
            long = long or size > limits.body_bytes
            if long:
                parts.clear()
            else:
                parts.append(part)

    try:
        await asyncio.wait_for(receive(), limits.body_seconds)
    except asyncio.TimeoutError:
        headers = {"connection": "close"}
        raise Refusal(408, "The body took too long.", headers=headers) from None
    if long:
        raise too_long
    return b"".join(parts)


class RateLimit:
    """A bucket for each caller, which holds a minute's requests and fills as time goes by.

    Args:
        per_minute: requests; 0 for no limit.
    """

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, caller: str) -> None:
        """Count a request.

        Raises:
            Refusal: It is one too many.
        """
        if not self._per_minute:
            return
        now, each = monotonic(), 60.0 / self._per_minute
        left, when = self._buckets.get(caller, (float(self._per_minute), now))
        left = min(self._per_minute, left + (now - when) / each)
        if left < 1:
            message = f"More than {self._per_minute} requests a minute: wait."
            headers = {"retry-after": str(max(1, round((1 - left) * each)))}
            raise Refusal(429, message, code="rate_limit_exceeded", headers=headers)
        self._buckets.pop(caller, None)
        self._buckets[caller] = (left - 1, now)
        if len(self._buckets) > _MOST_CALLERS:
            del self._buckets[next(iter(self._buckets))]
