"""Readers around a reader: one whose calls wait for their turns, one that works in a thread."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

from memagent_graph.readers.base import Reader

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.readers.base import Answer, Identity, Memory, Merge, Step, Update
    from memagent_openai_server.turns import Seat

T = TypeVar("T")

_SEAT = "memagent_seat"


def seated(seat: Seat) -> RunnableConfig:
    """The config of a reading whose calls wait for their turns."""
    return {"configurable": {_SEAT: seat}}


class Around(Reader):
    """Reads as another reader does; a subclass says how a call is made.

    Args:
        reader: does the work.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    @property
    def identity(self) -> Identity:  # type: ignore[override]
        """Of the reader."""
        return self._reader.identity

    @property
    def shortens(self) -> bool:  # type: ignore[override]
        """As the reader."""
        return self._reader.shortens

    async def prepare(self) -> Identity:
        """Let the reader find out about its model."""
        return await self._reader.prepare()

    async def update(self, step: Step, *, config: RunnableConfig | None = None) -> Update:
        """Read a chunk."""
        return await self._make(self._reader.update(step, config=config), config)

    async def merge(
        self,
        question: str,
        query: str,
        memories: Sequence[Memory],
        *,
        config: RunnableConfig | None = None,
    ) -> Merge:
        """Merge memories."""
        merging = self._reader.merge(question, query, memories, config=config)
        return await self._make(merging, config)

    async def respond(
        self, question: str, memory: Memory, *, config: RunnableConfig | None = None
    ) -> Answer:
        """Answer from a memory."""
        return await self._make(self._reader.respond(question, memory, config=config), config)

    async def _make(self, call: Coroutine[Any, Any, T], _config: RunnableConfig | None) -> T:
        return await call


class InTurn(Around):
    """Reads as another reader does, each call in its turn."""

    async def _make(self, call: Coroutine[Any, Any, T], config: RunnableConfig | None) -> T:
        with closing(call):  # it may be cancelled before its turn comes
            async with _seat(config):
                return await call


class InThread(Around):
    """Reads as a reader that computes does, in a thread: the event loop goes on meanwhile.

    The reader needs no event loop of its own from call to call.
    """

    async def _make(self, call: Coroutine[Any, Any, T], _config: RunnableConfig | None) -> T:
        return await asyncio.to_thread(asyncio.run, call)


def _seat(config: RunnableConfig | None) -> Seat:
    assert config is not None  # noqa: S101 - the graph passes on what `seated` made
    seat: Seat = config["configurable"][_SEAT]
    return seat
