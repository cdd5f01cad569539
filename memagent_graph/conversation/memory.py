"""A chatbot's long-term memory: what lies beyond a recent window is folded into a small text."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, get_args
from weakref import WeakSet

from langchain_core.messages import BaseMessage, SystemMessage, convert_to_messages
from langgraph.store.memory import InMemoryStore

from memagent_graph.config import ReadingConfig
from memagent_graph.conversation.asking import standing_question
from memagent_graph.conversation.background import backlog_of, fold_all
from memagent_graph.conversation.messages import is_instruction, is_reply, marked, rendered
from memagent_graph.conversation.privacy import for_itself
from memagent_graph.conversation.redaction import checked
from memagent_graph.conversation.resolve import resolve_keeper
from memagent_graph.conversation.room import fold_within
from memagent_graph.conversation.talk import Remember, Talk
from memagent_graph.errors import ConfigurationError, MemoryConflictError
from memagent_graph.graph.reading import Reading, check_window
from memagent_graph.graph.records import begun, record_of
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.guard import store_seconds
from memagent_graph.memory.personal import PersonalMemory
from memagent_graph.memory.records import NAMESPACE, check_namespace
from memagent_graph.memory.version import MemoryVersion, child_id, reading_fingerprint, root_id
from memagent_graph.prompts import remembered
from memagent_graph.sync import running_loop, wait_for
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import load_tokenizer

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import MessageLikeRepresentation
    from langchain_core.runnables import RunnableConfig
    from langgraph.store.base import BaseStore

    from memagent_graph.conversation.background import Backlog
    from memagent_graph.conversation.redaction import Redact
    from memagent_graph.memory.history import History
    from memagent_graph.readers.base import Reader
    from memagent_graph.text.tokens import TokenizerLike

_REMEMBERED = 100
"""Folded messages of a thread that are known by their ids after they left it, at least."""

_log = logging.getLogger(__name__)


class ConversationMemory:
    """Remembers people across conversations, in a text of fixed size for each.

    After each turn, what was said is folded into the memory of its user by the same step with
    which documents are read, in the background. Messages beyond a recent window leave the
    conversation: an AI message with the results of its tool calls; the last human message and
    system messages stay. Each message is folded once, whatever fails in between, and two turns
    of one user at once lose nothing.

    What waits is folded when a new thread of the user starts, at `load` and `flush`, and as far
    as possible when the process ends. A process that is killed loses what waits, unless a
    checkpointer has it: see `catch_up`.

    A message's time is its `additional_kwargs["told_at"]` (ISO 8601), or else when it was first
    seen here. The built-in reader keeps what `salience` says tells most of a person.

    Args:
        model: who folds, as for `create_memagent`; None takes `MEMAGENT_MODEL`, or else the
            built-in reader.
        store: where memories are kept. None takes the host graph's, or else this process alone
            remembers.
        window: most messages that stay in a conversation; when there are more, or when they have
            more tokens than `config.chunk_tokens`, all but the last half are folded, and leave.
        remember: when messages are folded: "turn" after each turn, in the background; "window"
            when they leave the window, before the reply; "end" as "window", and the rest at
            `flush` or `save`.
        remember_within: seconds after a turn in which the background folds it.
        config: budgets, of which `memory_tokens` is the size of a memory.
        tokenizer: as for `create_memagent`.
        namespace: where in the store, below a label of each user's own.
        keep_versions: how many of a memory's newest versions stay; None for all.
        ttl: minutes that a memory lives on when it is not read; None for the store's default.
        keep: what to remember above all, in words. A chat model is told so; to the built-in
            reader, statements with one of these words count double.
        never: what must not be remembered, in words. A chat model is told so; the built-in reader
            leaves out statements with one of these words, in any form, and understands no more.
        redact: a function that each message's text goes through before the model reads it or
            anything is stored, such as one that masks the numbers of cards. It is called in the
            event loop; if it fails, the messages stay unfolded.

    Raises:
        ConfigurationError: The window does not fit the model, the model is not known, LangGraph
            does not allow the namespace, `keep` and `never` are too long, `never` has no word
            that the built-in reader can go by, or `redact` is a coroutine function.

    Example:
        ```python
        memory = ConversationMemory("openai:gpt-4o", store=store)
        messages = memory.observe(messages, user="ann", thread="monday")
        reply = chat.invoke([*memory.prompt("ann"), *messages])
        ```
    """

    def __init__(
        self,
        model: str | BaseChatModel | Reader | None = None,
        *,
        store: BaseStore | None = None,
        window: int = 20,
        remember: Remember = "turn",
        remember_within: float = 5.0,
        config: ReadingConfig | None = None,
        tokenizer: TokenizerLike = None,
        namespace: Sequence[str] = NAMESPACE,
        keep_versions: int | None = 10,
        ttl: float | None = None,
        keep: str = "",
        never: str = "",
        redact: Redact | None = None,
    ) -> None:
        if window < 1:
            raise ConfigurationError("window must be at least 1 message.")
        if remember not in get_args(Remember):
            message = f"remember must be one of {', '.join(get_args(Remember))}, not {remember!r}."
            raise ConfigurationError(message)
        if not remember_within >= 0:
            raise ConfigurationError("remember_within must be 0 seconds or more.")
        config = config or ReadingConfig()
        reader = resolve_keeper(model, config=config, tokenizer=tokenizer, keep=keep, never=never)
        check_window(reader.identity, config, question_tokens=0)
        counter = load_tokenizer(tokenizer or reader.identity.tokenizer)
        self.window = window
        self.remember: Remember = remember
        self.remember_within = remember_within
        self.namespace = check_namespace(namespace)
        self._keep_versions = keep_versions
        self._ttl = ttl
        self._store = store
        self._here: BaseStore | None = None
        self._warned: set[str] = set()
        self._redact = checked(redact)
        self._backlogs: WeakSet[Backlog] = WeakSet()
        self._reading = Reading("conversation", reader, config, counter)
        self._question = standing_question(keep, never)
        if counter.count(self._question) > config.question_tokens:
            message = (
                f"The instructions in keep and never are too long: with the standing question they "
                f"may have {config.question_tokens} tokens. Shorten them, or raise question_tokens."
            )
            raise ConfigurationError(message)

    async def aload(self, user: str, *, store: BaseStore | None = None) -> str:
        """The memory of a user, after what waits of them here is folded; empty if there is none.

        Args:
            user: whose.
            store: of the host graph, used when this memory has no store of its own.

        Raises:
            StoreError: The store failed.
        """
        return await self._load(user, store)

    async def aprompt(self, user: str, *, store: BaseStore | None = None) -> list[SystemMessage]:
        """What a model is to be told of a user now: one system message, or none.

        It waits for no fold: call it after `observe`. When the store is away, that is logged, and
        the memory is told as this process last saw it.
        """
        backlog = self._backlog(user, store)
        try:
            text = await self._head(user, store)
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a store raises, the conversation goes on
            _log.warning("The memory of a user could not be loaded: %s", error)
            text = backlog.told
        backlog.told = text
        told = remembered(text)
        return [SystemMessage(told)] if told else []

    async def aobserve(
        self,
        messages: Sequence[MessageLikeRepresentation],
        *,
        user: str,
        thread: str,
        store: BaseStore | None = None,
        config: RunnableConfig | None = None,
    ) -> list[BaseMessage]:
        """Let what was said be folded; return the messages that stay.

        Call it before each model call, and go on with the messages it returns: they have ids and
        times. When a fold fails, that is logged and all of them stay, to be folded next time.

        Args:
            messages: the conversation.
            user: who talks.
            thread: of which conversation with them.
            store: of the host graph, used when this memory has no store of its own.
            config: of the run, whose `configurable` a model may need.
        """
        known = marked(convert_to_messages(messages))
        talk = self.talk(user, thread, store, config)
        await talk.begin(known)
        talk.note(known, None, ended=is_reply(known))
        return await talk.shorten(known, None)

    async def asave(
        self,
        messages: Sequence[MessageLikeRepresentation],
        *,
        user: str,
        thread: str,
        store: BaseStore | None = None,
        config: RunnableConfig | None = None,
    ) -> str:
        """Fold a whole conversation now, at its end, say; return the memory.

        Messages that were folded before are not folded again, if they have the same ids.

        Raises:
            ModelError: The model failed; nothing was folded.
            StoreError: The store failed.
            MemoryConflictError: Other turns of this user were faster 50 times.
        """
        known = marked(convert_to_messages(messages))
        said = [message for message in known if not is_instruction(message)]
        talk = self.talk(user, thread, store, config)
        await talk.fold(said)
        talk.backlog.remove(thread, said)
        return await self._head(user, store)

    async def aflush(self, user: str | None = None, *, store: BaseStore | None = None) -> int:
        """Fold now what waits in this process: at a shutdown, at the end of a session, in tests.

        Args:
            user: whose; None for all users of this memory.
            store: of the host graph, used when this memory has no store of its own.

        Returns:
            How many messages still wait, because their fold failed, which is logged.
        """
        return await self._flush(user, store)

    async def ahistory(self, user: str, *, store: BaseStore | None = None) -> History:
        """The versions of a user's memory, newest first; none when there is no memory.

        Each has its text, the thread and the messages that were folded into it, and in `warnings`
        what had to give way. Older ones than `keep_versions` are gone.

        Args:
            user: whose.
            store: of the host graph, used when this memory has no store of its own.
        """
        return await self._of(user, store).history()

    async def aforget(self, user: str, *, store: BaseStore | None = None) -> int:
        """Delete all that is stored of a user; return how many items that were.

        Conversations that a checkpointer keeps are not this memory's: delete their threads there.
        """
        backlog = self._backlog(user, store)
        await backlog.drop()
        return await self._of(user, store).forget()

    def load(self, user: str) -> str:
        """As `aload`."""
        return wait_for(self._load(user, None, held_up=running_loop()))

    def prompt(self, user: str) -> list[SystemMessage]:
        """As `aprompt`."""
        return wait_for(self.aprompt(user))

    def observe(
        self, messages: Sequence[MessageLikeRepresentation], *, user: str, thread: str
    ) -> list[BaseMessage]:
        """As `aobserve`."""
        return wait_for(self.aobserve(messages, user=user, thread=thread))

    def save(self, messages: Sequence[MessageLikeRepresentation], *, user: str, thread: str) -> str:
        """As `asave`."""
        return wait_for(self.asave(messages, user=user, thread=thread))

    def history(self, user: str) -> History:
        """As `ahistory`."""
        return wait_for(self.ahistory(user))

    def flush(self, user: str | None = None) -> int:
        """As `aflush`."""
        return wait_for(self._flush(user, None, held_up=running_loop()))

    def forget(self, user: str) -> int:
        """As `aforget`."""
        return wait_for(self.aforget(user))

    def talk(
        self, user: str, thread: str, store: BaseStore | None, config: RunnableConfig | None
    ) -> Talk:
        """A conversation, for the node and the middleware; arguments as of `aobserve`."""
        personal = self._of(user, store)
        return Talk(
            thread,
            personal,
            self._backlog(user, store),
            partial(self._fold, personal, thread, for_itself(config)),
            self.remember,
            self.remember_within,
            self.window,
            self._reading.config.chunk_tokens,
        )

    async def _load(
        self,
        user: str,
        store: BaseStore | None,
        *,
        held_up: asyncio.AbstractEventLoop | None = None,
    ) -> str:
        await self._backlog(user, store).fold(held_up=held_up)
        return await self._head(user, store)

    async def _flush(
        self,
        user: str | None,
        store: BaseStore | None,
        *,
        held_up: asyncio.AbstractEventLoop | None = None,
    ) -> int:
        backlogs = self._backlogs if user is None else [self._backlog(user, store)]
        return await fold_all(backlogs, held_up=held_up)

    async def _head(self, user: str, store: BaseStore | None) -> str:
        head = await self._of(user, store).head()
        return "" if head is None else head.text

    def _backlog(self, user: str, store: BaseStore | None) -> Backlog:
        bank = self._of(user, store).bank
        found = backlog_of(bank.store, bank.namespace)
        self._backlogs.add(found)
        return found

    def _of(self, user: str, store: BaseStore | None) -> PersonalMemory:
        if not user:
            raise ConfigurationError("Whose memory? The user is empty.")
        chosen = self._store or store or self._here
        if chosen is None:
            chosen = self._here = InMemoryStore()
        return PersonalMemory(
            chosen,
            self.namespace,
            user,
            keep_versions=self._keep_versions,
            ttl=self._ttl,
            patience=store_seconds,
        )

    async def _fold(
        self,
        memory: PersonalMemory,
        thread: str,
        config: RunnableConfig,
        folding: Sequence[BaseMessage],
    ) -> int:
        """Fold what is not folded yet, onto whatever is the newest version; say how many."""
        await self._reading.prepare(self._reading.tokenizer.count(self._question))
        before: MemoryVersion | None = None
        for lost in range(MOST_LOST_RACES):
            await pause(lost)
            head = await memory.head()
            if head is None and before is not None:
                return 0  # the user was forgotten at this moment
            before = head
            done = await memory.folded(thread)
            new = [message for message in folding if message.id not in done]
            if not new:
                return 0
            # Others may still want to fold what left the thread only now.
            known = done[-max(_REMEMBERED, 2 * self.window) :]
            ids = (*known, *(str(message.id) for message in new))
            version = await self._version(head, rendered(new, self._redact), thread, ids, config)
            if await memory.add(version, after=head):
                return len(new)
        message = f"Other turns moved this memory on {MOST_LOST_RACES} times: try again."
        raise MemoryConflictError(message)

    async def _version(
        self,
        head: MemoryVersion | None,
        text: str,
        thread: str,
        messages: tuple[str, ...],
        config: RunnableConfig,
    ) -> MemoryVersion:
        reading = self._reading
        source = TextSource(text, thread)
        fingerprint = reading_fingerprint(reading.fingerprint, self._question)
        parent = root = root_id(self._question, fingerprint)
        fold = begun(self._question, record_of(source))
        if head is not None:
            parent, root = head.id, head.root
            fold["memory"] = head.text
            fold["progress"] |= {"step": head.step, "cut": head.cut}
        fold, warnings = await fold_within(reading, fold, source, config=config)
        self._warn(warnings)
        progress = fold["progress"]
        return MemoryVersion(
            id=child_id(parent, source.digest, fingerprint),
            parent=parent,
            root=root,
            text=fold["memory"],
            tokens=reading.tokenizer.count(fold["memory"]),
            step=progress["step"],
            question=self._question,
            source=source.digest,
            source_name=thread,
            start=0,
            end=source.length,
            length=source.length,
            fingerprint=fingerprint,
            cut=progress["cut"],
            thread=thread,
            messages=messages,
            warnings=warnings,
        )

    def _warn(self, warnings: Sequence[str]) -> None:
        """Log each kind of warning once: all are in the history of the memory they are about."""
        for warning in warnings:
            kind = warning.partition(":")[0]
            if kind not in self._warned:
                self._warned.add(kind)
                _log.warning("%s (Logged once; `history` has it for each memory.)", warning)
