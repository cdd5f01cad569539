"""Stored responses: each with its new messages, and the ids of those before it.

| field of a record | is |
|---|---|
| before | ids of the responses that it follows, nearest first, up to 8; the last continues |
| followers | how many responses follow it directly |
| messages | of the conversation that are new in it; what the model said is in `response` |
| memory | id of the memory that it was answered from; it begins a chain of its own then |
| response | the response; None once it was deleted while others follow it |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memagent_graph.errors import MemoryConflictError
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_openai_server.responses.items import messages_of

if TYPE_CHECKING:
    from memagent_graph.memory.bank import MemoryBank
    from memagent_openai_server.responses.items import Message

Kept = dict[str, Any]

_AT_ONCE = 8
"""Most preceding responses in a record, which are read in one round trip."""


class Chain:
    """The responses of one tenant.

    Args:
        bank: the tenant's bank.
    """

    def __init__(self, bank: MemoryBank) -> None:
        self._records = bank.records
        self._place = (*bank.namespace, "responses")

    async def get(self, key: str) -> Kept | None:
        """Return the record of a response; None if there is none."""
        found = await self._value(key)
        return found if found is not None and found["response"] is not None else None

    async def holds(self, key: str) -> bool:
        """Whether anything is stored of a response, even if only for those that follow it."""
        return await self._value(key) is not None

    async def conversation(self, kept: Kept) -> list[Message] | None:
        """Return the messages up to and including a response; None if an earlier one is gone."""
        messages, before = said_in(kept), kept["before"]
        while before:
            found = await self._records.values([(self._place, key) for key in before])
            for value in found:
                if not isinstance(value, dict):
                    return None
                messages = [*said_in(value), *messages]
                before = value["before"]
        return messages

    async def add(self, key: str, kept: Kept, *, after: str | None, whole: list[Message]) -> None:
        """Store a response.

        Args:
            key: its id.
            kept: its record, without references to others.
            after: id of the response that it follows; None if it follows none, or a memory.
            whole: all messages of the conversation, stored if `after` is gone meanwhile.
        """
        for lost in range(MOST_LOST_RACES):
            await pause(lost)
            record = {**kept, "before": [], "followers": 0}
            given: dict[Any, Any] = {(self._place, key): None}
            puts = []
            parent = None if after is None else await self._value(after)
            if after is not None and parent is None:
                record["messages"] = whole
            elif after is not None and parent is not None:
                earlier = parent["before"]
                record["before"] = [after, *earlier] if len(earlier) < _AT_ONCE else [after]
                followed = {**parent, "followers": parent["followers"] + 1}
                puts.append(self._records.put(self._place, after, followed))
                given[self._place, after] = parent
            puts.append(self._records.put(self._place, key, record))
            if await self._records.commit(puts, given):
                return
        raise _busy(after or key)

    async def remove(self, key: str) -> list[str]:
        """Delete a response; if others follow it, its messages are kept.

        Returns:
            Ids of the responses of which nothing is left: none, this one, or also some before it
            that had been deleted and that nothing follows any more.
        """
        gone: list[str] = []
        loose: str | None = key
        while loose is not None:
            key = loose
            deleted, loose = await self._let_go(key)
            gone += [key] if deleted else []
        return gone

    async def _let_go(self, key: str) -> tuple[bool, str | None]:
        """Delete one; return whether nothing is left of it, and the next one to delete."""
        for lost in range(MOST_LOST_RACES):
            await pause(lost)
            kept = await self._value(key)
            if kept is None:
                return False, None
            if kept["followers"]:
                left = {**kept, "messages": said_in(kept), "memory": None, "response": None}
                if await self._commit({key: left}, {key: kept}):
                    return False, None
                continue
            changed: dict[str, Kept | None] = {key: None}
            given, loose = {key: kept}, None
            after = next(iter(kept["before"]), None)
            parent = None if after is None else await self._value(after)
            if after is not None and parent is not None:
                changed[after] = {**parent, "followers": parent["followers"] - 1}
                given[after] = parent
                if parent["followers"] == 1 and parent["response"] is None:
                    loose = after
            if await self._commit(changed, given):
                return True, loose
        raise _busy(key)

    async def _value(self, key: str) -> Kept | None:
        (value,) = await self._records.values([(self._place, key)])
        return value if isinstance(value, dict) else None

    async def _commit(self, changed: dict[str, Kept | None], given: dict[str, Kept]) -> bool:
        puts = [self._records.put(self._place, key, value) for key, value in changed.items()]
        return await self._records.commit(
            puts, {(self._place, key): value for key, value in given.items()}
        )


def said_in(kept: Kept) -> list[Message]:
    """Return the new messages of a response, including its output."""
    response = kept["response"]
    answer = messages_of(response["output"]) if response else []
    return [*kept["messages"], *answer]


def _busy(key: str) -> MemoryConflictError:
    message = f"{key!r} was followed or deleted {MOST_LOST_RACES} times meanwhile: try again."
    return MemoryConflictError(message)
