"""Read bodies, with limits on size, time and the total of all requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, TypeVar

from memagent_http.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from starlette.requests import Request

_SMALL = 64 * 2**10
"""Bytes up to which a body is processed on the event loop."""
_PAUSE = 1.0
"""Time without a part of a refused body after which its client is answered, in seconds."""

P = ParamSpec("P")
T = TypeVar("T")
Take: TypeAlias = "Callable[[int], None]"


class BytesUnderWay:
    """The bytes of bodies in memory, over all requests.

    A caller may hold as much as it leaves free: half if it is alone, a third each with two callers.
    So there is always room for a short request of another caller.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._held: Counter[str] = Counter()

    @contextmanager
    def hold(self, caller: str) -> Iterator[Take]:
        """Yield a function that holds more bytes for a request; all are released at the end.

        It releases a negative number of bytes, and raises `Refusal` if there are too many.
        """
        held = 0

        def take(count: int) -> None:
            nonlocal held
            if count > 0 and self._held[caller] + count > self._free - count:
                message = "Too many long requests are under way. Try again in 5 seconds."
                raise Refusal(503, message, code="busy", headers={"retry-after": "5"})
            held += count
            self._free -= count
            self._held[caller] += count
            if not self._held[caller]:
                del self._held[caller]

        try:
            yield take
        finally:
            take(-held)


async def read_body(
    request: Request, *, most: int, seconds: float, take: Take | None = None
) -> bytes:
    """Return the body of a request.

    A refused body is read on and discarded while it comes, within the same time, because a client
    that is still sending would not see the answer.

    Args:
        request: the request.
        most: longest body, in bytes.
        seconds: time in which it must arrive, in seconds.
        take: counts its bytes among those of all requests.

    Raises:
        Refusal: It is too long or too slow, is compressed, or too many are under way.
        ClientDisconnect: The client is gone.
    """
    if _announced(request) > most and "expect" in request.headers:
        raise _too_long(most)
    stream, parts = request.stream(), list[bytes]()
    try:
        async with asyncio.timeout(seconds):
            try:
                await _receive(stream, parts, request, most, take)
            except Refusal:
                if take is not None:
                    take(-sum(map(len, parts)))
                parts.clear()
                await _discard(stream)
                raise
    except TimeoutError:
        headers = {"connection": "close"}
        message = f"The body took longer than {seconds:g} s: send it faster."
        raise Refusal(408, message, headers=headers) from None
    return await unless_small(sum(map(len, parts)), b"".join, parts)


async def unless_small(size: int, work: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    """Run `work` on a body of `size` bytes: at once if it is small, otherwise in a thread."""
    if size <= _SMALL:
        return work(*args, **more)
    return await asyncio.to_thread(work, *args, **more)


async def _discard(stream: AsyncGenerator[bytes, None]) -> None:
    """Read a refused body until it ends or pauses."""
    with suppress(TimeoutError, StopAsyncIteration):
        while True:
            async with asyncio.timeout(_PAUSE):
                await anext(stream)


async def _receive(
    stream: AsyncGenerator[bytes, None],
    parts: list[bytes],
    request: Request,
    most: int,
    take: Take | None,
) -> None:
    if _announced(request) > most:
        raise _too_long(most)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        message = f"The content-encoding {encoding[:50]!r} is not supported: send it uncompressed."
        headers = {"accept-encoding": "identity"}
        raise Refusal(415, message, code="content_encoding", headers=headers)
    sent = 0
    async for part in stream:
        sent += len(part)
        if sent > most:
            raise _too_long(most)
        if take is not None:
            take(len(part))
        parts.append(part)


def _announced(request: Request) -> int:
    length = request.headers.get("content-length", "")
    return int(length) if length.isdecimal() else 0


def _too_long(most: int) -> Refusal:
    message = f"The body is longer than {most} bytes: send less at once."
    return Refusal(413, message, code="body_too_long")
