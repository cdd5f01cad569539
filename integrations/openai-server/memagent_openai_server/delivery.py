"""Deliver answers to clients that wait long or disconnect: events and keep-alive comments."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from memagent_openai_server.errors import body_of, refusal, stopping

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable

    from starlette.types import Receive, Scope, Send

    from memagent_openai_server.access import Record

T = TypeVar("T")

_ALIVE_EVERY = 10.0
"""Interval of keep-alive comments, in seconds: proxies give up after 30 or 60."""
EVENTS = "text/event-stream"
ALIVE = b": still reading\n\n"
"""A comment, which clients skip."""


async def unless_gone(
    work: Awaitable[T], receive: Receive | None = None, stop: asyncio.Event | None = None
) -> T:
    """Return the result of `work`, which is ended if the client disconnects or the server stops.

    Without the request's `receive`, the client may leave; without `stop`, the work is finished.

    Raises:
        ClientDisconnect: The client is gone.
        Refusal: The server is stopping.
    """
    here = cast("asyncio.Task[object]", asyncio.current_task())
    before, ended = here.cancelling(), set[asyncio.Task[object]]()

    def end(task: asyncio.Task[object]) -> None:
        if not task.cancelled():
            task.exception()  # else it would be reported as never seen
            ended.add(task)
            here.cancel()

    # A task for the work as well would cost a request that is passed on twice as much.
    gone = asyncio.create_task(_gone(receive)) if receive is not None else None
    stopped = asyncio.create_task(stop.wait()) if stop is not None else None
    watching: list[asyncio.Task[Any]] = [task for task in (gone, stopped) if task is not None]
    for task in watching:
        task.add_done_callback(end)
    try:
        return await work
    except asyncio.CancelledError:
        for _ in ended:
            here.uncancel()
        if not ended or here.cancelling() > before:
            raise
        raise (ClientDisconnect() if gone in ended else stopping()) from None
    finally:
        for task in watching:
            task.remove_done_callback(end)
            task.cancel()


class EventStream(Response):
    """Server-sent events from a generator, with keep-alive comments in between.

    The response begins at once, so later errors are sent within the stream.
    """

    media_type = EVENTS

    def __init__(
        self, events: AsyncGenerator[bytes, None], record: Record, stop: asyncio.Event | None
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events, self._record, self._stop = events, record, stop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        try:
            await unless_gone(self._deliver(send), receive, self._stop)
        except (ClientDisconnect, OSError) as error:
            self._record.failed(error)
            return
        except Exception as error:  # noqa: BLE001 - it is sent to the client within the stream
            self._record.failed(error)
            await _send(send, event(body_of(refusal(error))))
        with suppress(OSError):
            await _send(send, b"", more=False)

    async def _deliver(self, send: Send) -> None:
        alive = asyncio.ensure_future(self._show_life(send))
        try:
            async with aclosing(self._events):
                async for found in self._events:
                    await _send(send, found)
        finally:
            alive.cancel()

    async def _show_life(self, send: Send) -> None:
        with suppress(OSError):  # the client is gone, which is handled elsewhere
            while True:
                await asyncio.sleep(_ALIVE_EVERY)
                await _send(send, ALIVE)


async def _send(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


def event(data: dict[str, Any], name: str | None = None) -> bytes:
    """Encode one server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
