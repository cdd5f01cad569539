"""Wrappers of a reader: calls that wait for their turn, and calls in a thread."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

from memagent_graph.readers.base import Reader

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.evidence.places import Memory
    from memagent_graph.readers.base import Answer, Identity, Merge, Step, Update
    from memagent_openai_server.turns import Seat

T = TypeVar("T")

_SEAT = "memagent_seat"


def seated(seat: Seat) -> RunnableConfig:
    """Return the config of a reading whose calls wait for their turns."""
    return {"configurable": {_SEAT: seat}}


class Around(Reader):
    """Wraps a reader; a subclass defines how calls are made.

    Args:
        reader: the reader.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    @property
    def identity(self) -> Identity:  # type: ignore[override]
        """The identity of the reader."""
        return self._reader.identity

    @property
    def model(self) -> object:
        """The chat model of the reader; None if it has none."""
        return getattr(self._reader, "model", None)

    @property
    def shortens(self) -> bool:  # type: ignore[override]
        """See `Reader`."""
        return self._reader.shortens

    def answers_without_notes(self, config: RunnableConfig | None) -> bool:
        """See `Reader`."""
        return self._reader.answers_without_notes(config)

    async def prepare(self) -> Identity:
        """Prepare the reader."""
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
    """Wraps a reader whose calls wait for their turn."""

    async def _make(self, call: Coroutine[Any, Any, T], config: RunnableConfig | None) -> T:
        with closing(call):  # it may be cancelled before its turn comes
            async with _seat(config):
                return await call


class InThread(Around):
    """Wraps a reader that computes, in a thread, so that it does not block the event loop.

    The reader must not depend on an event loop across calls.
    """

    async def _make(self, call: Coroutine[Any, Any, T], _config: RunnableConfig | None) -> T:
        return await asyncio.to_thread(asyncio.run, call)


def _seat(config: RunnableConfig | None) -> Seat:
    assert config is not None  # noqa: S101 - the graph passes on what `seated` made
    seat: Seat = config["configurable"][_SEAT]
    return seat
