"""What users say in chats is remembered, and told when they talk again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from memagent_graph.conversation.memory import ConversationMemory
from memagent_graph.conversation.messages import marked
from memagent_graph.conversation.resolve import for_notes
from memagent_graph.conversation.telling import recalled
from memagent_openai_server.chat.conversation import SYSTEM, prefixes, said, split
from memagent_openai_server.chat.spoken import Thoughts
from memagent_openai_server.http.records import log
from memagent_openai_server.http.refusals import Refusal
from memagent_openai_server.http.requests import unless_small
from memagent_openai_server.memories.sessions import conversation_name, unless_away

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memagent_graph.config import ReadingConfig
    from memagent_graph.conversation.talk import Talk
    from memagent_graph.readers.base import Reader
    from memagent_graph.text.tokens import Tokenizer, TokenizerLike
    from memagent_openai_server.chat.conversation import Message
    from memagent_openai_server.memories.sessions import Sessions

_FLUSH_SECONDS = 30.0
"""Seconds that a stop waits for what is not folded yet."""
_MOST = 4 * 2**20
"""Bytes that a user's memory takes at most, about: the oldest messages go."""
_RECORD = 2_000
"""Bytes of a turn beside its words."""


class Remembering:
    """Remembers the users of all tenants, with one model.

    Args:
        reader: of the model.
        counter: counts tokens.
        config: budgets.
        tokenizer: as for `create_memagent`.
    """

    def __init__(
        self, reader: Reader, counter: Tokenizer, config: ReadingConfig, tokenizer: TokenizerLike
    ) -> None:
        self._reader, self._counter = reader, counter
        self._config, self._tokenizer = config, tokenizer
        self._memories: dict[tuple[str, ...], ConversationMemory] = {}

    async def begin(
        self,
        sessions: Sessions,
        user: str,
        session: str | None,
        messages: Sequence[Message],
        size: int,
    ) -> Turn:
        """What is known of a user whose turn begins.

        Args:
            sessions: of the tenant.
            user: who talks.
            session: in which; None where the client names none.
            messages: of the request.
            size: bytes of the request.
        """
        known = await unless_small(size, self._conversation, messages)
        thread = f"session {session}" if session else f"chat {known[0].id}" if known else "chat"
        memory = self._memory(sessions)
        talk = memory.talk(user, thread, None, None)
        await talk.begin(known)
        told = await memory.atold(user, about=known)
        replies = [at for at, message in enumerate(known) if isinstance(message, AIMessage)]
        new = known[replies[-1] + 1 :] if replies else known
        return Turn(_accounted(talk, sessions, user), new, *told)

    async def aclose(self) -> None:
        """Fold what waits."""
        left = [memory.aflush() for memory in self._memories.values()]
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_SECONDS):
                if not sum(await asyncio.gather(*left)):
                    return
        log.warning("not all that was said is remembered")

    def _memory(self, sessions: Sessions) -> ConversationMemory:
        namespace = sessions.bank.namespace
        if namespace not in self._memories:
            self._memories[namespace] = ConversationMemory(
                for_notes(self._reader),
                store=sessions.bank.store,
                namespace=namespace,
                config=self._config,
                tokenizer=self._tokenizer,
            )
        return self._memories[namespace]

    def _conversation(self, messages: Sequence[Message]) -> list[BaseMessage]:
        """What user and assistant said, with ids that stay for a day.

        A message that comes again with the same ones before it is the same one, unless that is on
        another day: what is said anew in a new conversation is not a repetition.
        """
        body = [message for message in messages if message["role"] not in SYSTEM]
        found: list[BaseMessage] = []
        day = datetime.now(UTC).date().isoformat()
        for message, prefix in zip(body, [*prefixes(body)][1:], strict=True):
            if message["role"] == "user":
                key = sha256(f"{day} {prefix}".encode()).hexdigest()[:24]
                found.append(HumanMessage(self._remarkable(said(message).strip()), id=key))
            elif message["role"] == "assistant" and not message.get("tool_calls") and found:
                found.append(_reply(said(message), found))
        return [message for message in marked(found) if message.content]

    def _remarkable(self, text: str) -> str:
        """What of a message is remembered: the question, if it is longer than a chunk."""
        most = self._config.chunk_tokens
        if len(text) <= most or self._counter.count(text) <= most:
            return text
        try:
            return split(text, self._config.question_tokens, self._counter.count)[0]
        except Refusal:  # it asks nothing
            return ""


class Turn:
    """One turn of a user.

    Args:
        talk: the conversation.
        new: what the user has said since the last reply.
        memory: what is known of them.
        passages: of earlier messages that bear on what they say.

    Attributes:
        told: what a model is told of them; empty if nothing is known.
        notes: the same for a reader that answers from notes.
    """

    def __init__(self, talk: Talk, new: list[BaseMessage], memory: str, passages: str) -> None:
        self.told = recalled(memory, passages)
        self.notes = "\n\n".join(filter(None, [memory, passages]))
        self._talk, self._new = talk, new
        self._text, self._calls = "", False

    def tell(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with what is known, in the first of them: many models take one prompt."""
        first, *rest = messages
        if first["role"] not in SYSTEM:
            return [{"role": "system", "content": self.told}, *messages]
        content = first.get("content") or ""
        if isinstance(content, str):
            content = f"{content}\n\n{self.told}".strip()
        else:
            content = [*content, {"type": "text", "text": self.told}]
        return [{**first, "content": content}, *rest]

    def hear(self, part: Any) -> None:
        """Take a completion, or the next part of one; remember the turn at its end.

        A body that is not a completion is the client's business.
        """
        with suppress(AttributeError, TypeError):
            for choice in part.get("choices") or ():
                if not choice.get("index"):
                    self._hear(choice)

    def _hear(self, choice: dict[str, Any]) -> None:
        message = choice.get("delta") or choice.get("message") or {}
        self._text += message.get("content") or ""
        self._calls = self._calls or bool(message.get("tool_calls"))
        if not choice.get("finish_reason") or self._calls or not self._new:
            return
        new, self._new = self._new, []
        reply = _reply(self._text, new)
        self._talk.note(marked([*new, *([reply] if reply.content else [])]), None, ended=True)


def _reply(text: str, before: Sequence[BaseMessage]) -> AIMessage:
    """A reply; another one to the same takes its place.

    Args:
        text: what a model said, without what it thought aloud.
        before: what it follows.
    """
    thoughts = Thoughts(headless=False)
    spoken = (thoughts.feed(text) + thoughts.finish()).strip()
    return AIMessage(spoken, id=f"{before[-1].id}-reply")


def _accounted(talk: Talk, sessions: Sessions, user: str) -> Talk:
    """A conversation of which the tenant's ledger knows what it adds."""
    name = conversation_name(user)

    async def fold(messages: Sequence[BaseMessage]) -> int:
        done = await talk.fold(messages)
        if not done:
            return 0
        with unless_away("What a user said may be kept for longer than the limits say"):
            size = sum(len(message.text.encode()) for message in messages) + _RECORD
            await sessions.used(name, read=size, most=_MOST)
        return done

    return replace(talk, fold=fold)
