"""The memories of one key's users and sessions, and what users say in chats (`--remember`)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.store.base import GetOp

from memagent_graph.conversation.messages import stamp
from memagent_graph.conversation.prompt import render_recalled
from memagent_graph.conversation.session import Talk
from memagent_graph.errors import (
    ConfigurationError,
    MemoryConflictError,
    MemoryNotFoundError,
    StoreError,
)
from memagent_graph.memory.bank import MemoryBank
from memagent_graph.memory.store import store_seconds
from memagent_graph.models.reply import without_reasoning
from memagent_http.bodies import unless_small
from memagent_http.refusals import Refusal
from memagent_openai_server.access import log
from memagent_openai_server.conversation import SYSTEM, prefixes, split, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from langgraph.store.base import BaseStore

    from memagent_graph.config import ReadingConfig
    from memagent_graph.conversation.memory import ConversationMemory
    from memagent_graph.text.tokens import Tokenizer
    from memagent_openai_server.conversation import Message

_MOST_PREFIXES = 100
"""Conversations of a session that are recognized; an older one is read again."""
_FLUSH_SECONDS = 30.0
"""Time for which a stop waits for messages that are not folded yet, in seconds."""


class Memories:
    """The memories of one key, in their own part of the store.

    Attributes:
        bank: what was read for its users and sessions.
        users: what its users said; None if that is not remembered.
    """

    def __init__(
        self,
        store: BaseStore,
        tenant: str | None,
        namespace: Sequence[str],
        config: ReadingConfig,
        counter: Tokenizer,
        remember: Callable[..., ConversationMemory] | None,
    ) -> None:
        # The key's name comes first, so that a Redis Cluster spreads keys over its nodes.
        own = () if tenant is None else (f"tenant-{tenant}",)
        namespace = (*own, *namespace)
        self.bank = MemoryBank(store, namespace, ttl=config.ttl, patience=store_seconds)
        self.users = None if remember is None else remember(store=store, namespace=namespace)
        self._config, self._counter = config, counter
        self._read = (*namespace, "read")

    async def find(
        self, memory: str | None, session: str | None, user: str | None
    ) -> tuple[str | None, str | None]:
        """Return the id or name of the memory to continue from, and the name of the new one."""
        name = f"session {session}" if session else f"user {user}" if user else None
        reference, name = (name, name) if memory is None else (memory, None)
        try:
            if reference is not None:
                await self.bank.aget(reference)
        except StoreError as error:
            # A request that fits the model needs no memory of a user.
            if name is None or (session and not isinstance(error, MemoryNotFoundError)):
                raise
            return None, name
        return reference, name

    async def prefixes(self, reference: str) -> list[str]:
        """Return the prefixes of conversations that this memory has."""
        (item,) = await self.bank.items([GetOp(self._read, _key(reference))])
        return [] if item is None else item.value["prefixes"]

    async def add_prefix(self, references: Sequence[str], prefix: str, *, is_new: bool) -> None:
        """Record that these memories have a conversation's prefix, if the store can be reached.

        A new memory may have the name of one that was forgotten, with what that one had.
        """
        try:
            for reference in references:
                known = [] if is_new else await self.prefixes(reference)
                known = [*(one for one in known if one != prefix), prefix][-_MOST_PREFIXES:]
                put = self.bank.put(self._read, _key(reference), {"prefixes": known})
                await self.bank.items([put])
        except StoreError as error:  # the answer is worth more than its follow-up
            kind = type(error).__name__
            log.warning("A follow-up will be read from its beginning: %s", kind)

    async def branch(self, memory: str, name: str | None = None) -> str:
        """Give a memory another name, under which it can be extended; return the name."""
        name = name or f"branch {uuid4()}"
        with suppress(MemoryConflictError):  # it has that name already
            await self.bank.abranch(memory, name)
        return name

    async def begin(
        self, user: str, session: str | None, messages: Sequence[Message], size: int
    ) -> Turn | None:
        """Begin a user's turn, with what is remembered about them, by a request of `size` bytes."""
        if self.users is None:
            return None
        known = await unless_small(size, self._conversation, messages)
        thread = f"session {session}" if session else f"chat {known[0].id}" if known else "chat"
        try:
            talk = Talk(self.users, user, thread, None)
        except ConfigurationError as error:  # the id of a thread without a user
            raise Refusal(400, str(error), param="user") from error
        if session:  # which may be sent in parts: what was recorded says which message it is
            bare = [message.model_copy(update={"id": None}) for message in known]
            known = talk.identify(bare, await talk.read_record())
        known = stamp(known, talk.user)
        remembered = await self.users.atold(user, about=known)
        replies = [at for at, message in enumerate(known) if isinstance(message, AIMessage)]
        new = known[replies[-1] + 1 :] if replies and not session else known
        return Turn(talk, new, *remembered)

    def _conversation(self, messages: Sequence[Message]) -> list[BaseMessage]:
        """The messages of user and assistant, with ids that are stable for a day.

        A message with the same messages before it is the same message, except on another day: what
        is said again in a new conversation is not a repetition.
        """
        body = [message for message in messages if message["role"] not in SYSTEM]
        found: list[BaseMessage] = []
        day = datetime.now(UTC).date().isoformat()
        for message, prefix in zip(body, [*prefixes(body)][1:], strict=True):
            if message["role"] == "user":
                key = sha256(f"{day} {prefix}".encode()).hexdigest()[:24]
                found.append(HumanMessage(self._remarkable(text_of(message).strip()), id=key))
            elif message["role"] == "assistant" and not message.get("tool_calls") and found:
                found.append(_reply(text_of(message), found))
        return [message for message in found if message.content]

    def _remarkable(self, text: str) -> str:
        """The part of a message to remember: only the question if it is longer than a chunk."""
        most = self._config.chunk_tokens
        if len(text) <= most or self._counter.count(text) <= most:
            return text
        try:
            return split(text, self._config.question_tokens, self._counter.count)[0]
        except Refusal:  # there is no question
            return ""


async def flush(memories: Iterable[Memories]) -> None:
    """Fold the messages that wait, before the server stops."""
    left = [each.users.aflush() for each in memories if each.users is not None]
    with suppress(TimeoutError):
        async with asyncio.timeout(_FLUSH_SECONDS):
            if not sum(await asyncio.gather(*left)):
                return
    log.warning("not all that was said is remembered")


def _key(reference: str) -> str:
    """Its digest: these records outlive a memory that another process forgets."""
    return sha256(reference.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class Turn:
    """One turn of a user, with `new` messages: all of a session, so that edits are seen.

    Attributes:
        memory: what is remembered, as text for a model; "" for nothing.
        notes: the same for a reader that answers from notes.
    """

    def __init__(self, talk: Talk, new: list[BaseMessage], memory: str, passages: str) -> None:
        self.memory = render_recalled(memory, passages)
        self.notes = "\n\n".join(filter(None, [memory, passages]))
        self._talk, self._new = talk, new
        self._text, self._calls = "", False

    def with_memory(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages with what is remembered, in one system message for all."""
        first, *rest = messages
        if first["role"] not in SYSTEM:
            return [{"role": "system", "content": self.memory}, *messages]
        content = first.get("content") or ""
        if isinstance(content, str):
            content = f"{content}\n\n{self.memory}".strip()
        else:
            content = [*content, {"type": "text", "text": self.memory}]
        return [{**first, "content": content}, *rest]

    async def hear(self, part: Any) -> None:
        """Take a completion, or its next part, and remember the turn at the end.

        A body that is not a completion is ignored.
        """
        with suppress(AttributeError, TypeError):
            for choice in part.get("choices") or ():
                if not choice.get("index"):
                    await self._hear(choice)

    async def _hear(self, choice: dict[str, Any]) -> None:
        message = choice.get("delta") or choice.get("message") or {}
        self._text += message.get("content") or ""
        self._calls = self._calls or bool(message.get("tool_calls"))
        if not choice.get("finish_reason") or self._calls or not self._new:
            return
        new, self._new = self._new, []
        reply = _reply(self._text, new)
        await self._talk.note([*new, *([reply] if reply.content else [])], ended=True)


def _reply(text: str, before: Sequence[BaseMessage]) -> AIMessage:
    """A reply; another reply to the same message replaces it."""
    spoken = without_reasoning(text).strip()
    return AIMessage(spoken, id=f"{before[-1].id}-reply")
