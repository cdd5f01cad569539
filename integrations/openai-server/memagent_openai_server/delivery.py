"""How an answer reaches a client that may wait long, or go: events, signs of life, the end."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from memagent_openai_server.refusals import refusal, stopping

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from starlette.types import Receive, Scope, Send

T = TypeVar("T")

ALIVE = b": still reading\n\n"
"""A comment, which clients skip."""


class _End:
    """Follows the last part."""


async def paced(
    parts: AsyncGenerator[T, None],
    receive: Receive,
    stop: asyncio.Event | None = None,
    every: float | None = None,
) -> AsyncIterator[T | None]:
    """The parts as they come, None after each `every` seconds without one.

    Whatever ends this, `parts` is closed when it has ended: nobody reads on for nobody.

    Args:
        parts: what to deliver.
        receive: of the request, whose body has been read.
        stop: set when the server stops; None lets them come to their end.
        every: seconds.

    Raises:
        ClientDisconnect: The client is gone.
        Refusal: The server stops.
    """
    found: asyncio.Queue[T | _End] = asyncio.Queue(1)

    async def produce() -> None:
        async with aclosing(parts):
            async for part in parts:
                await found.put(part)
        await found.put(_End())

    # One task from first to last: a generator does not survive being moved between contexts.
    producing = asyncio.ensure_future(produce())
    gone = asyncio.ensure_future(_gone(receive))
    stopped = asyncio.ensure_future((stop or asyncio.Event()).wait())
    getting = asyncio.ensure_future(found.get())
    try:
        while not (gone.done() or stopped.done()):
            ends = {gone, stopped} if producing.done() else {gone, stopped, producing}
            await asyncio.wait({getting, *ends}, timeout=every, return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                part = getting.result()
                if isinstance(part, _End):
                    return
                getting = asyncio.ensure_future(found.get())
                yield part
            elif producing.done():
                producing.result()  # it failed: had it ended well, there would be a last part
            else:
                yield None
        raise ClientDisconnect if gone.done() else stopping()
    finally:
        tasks = (producing, gone, stopped, getting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def last(
    parts: AsyncGenerator[T, None], receive: Receive, stop: asyncio.Event | None = None
) -> T | None:
    """The last part; raises as `paced` does."""
    part = None
    async for found in paced(parts, receive, stop):
        part = found
    return part


class EventStream(Response):
    """Server-sent events from a generator, with signs of life while there are none.

    The response begins at once: what fails from here on is told within the stream.

    Args:
        events: the events, as they are sent.
        stop: set when the server stops.
        failed: turns an error's JSON into the stream's last event.
        every: seconds between signs of life.
        report: told the error that ended the stream, if one did.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        stop: asyncio.Event | None,
        *,
        every: float,
        failed: Callable[[dict[str, Any]], bytes],
        report: Callable[[Exception], None],
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._stop = stop
        self._every = every
        self._failed = failed
        self._report = report

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events."""

        async def sent(body: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": more})

        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        try:
            async with aclosing(paced(self._events, receive, self._stop, self._every)) as events:  # type: ignore[type-var]
                async for event in events:
                    await sent(ALIVE if event is None else event)
        except (ClientDisconnect, OSError) as error:
            self._report(error)
            return
        except Exception as error:  # noqa: BLE001 - the client is told within the stream
            self._report(error)
            await sent(self._failed(refusal(error).body))
        with suppress(OSError):
            await sent(b"", more=False)


def event(data: Any, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"{head}data: {text}\n\n".encode()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(work: Awaitable[T], receive: Receive) -> T:
    """The result of `work`, which ends when the client goes."""

    async def parts() -> AsyncGenerator[T, None]:
        yield await work

    return await last(parts(), receive)  # type: ignore[return-value]
