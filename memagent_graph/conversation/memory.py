"""A chatbot's long-term memory: what lies beyond a recent window is folded into a small text."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, get_args
from weakref import WeakSet

from langchain_core.messages import BaseMessage, SystemMessage, convert_to_messages
from langgraph.store.memory import InMemoryStore

from memagent_graph.config import ReadingConfig
from memagent_graph.conversation.background import backlog_of, fold_all
from memagent_graph.conversation.messages import is_instruction, is_reply, marked, rendered
from memagent_graph.conversation.privacy import for_itself
from memagent_graph.conversation.salient import SalientReader
from memagent_graph.conversation.talk import Remember, Talk
from memagent_graph.errors import ConfigurationError, MemoryConflictError
from memagent_graph.graph.fold import advance
from memagent_graph.graph.reading import Reading, check_window
from memagent_graph.graph.records import begun, record_of
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.guard import store_seconds
from memagent_graph.memory.personal import PersonalMemory
from memagent_graph.memory.records import NAMESPACE, check_namespace
from memagent_graph.memory.version import MemoryVersion, child_id, root_id
from memagent_graph.prompts import remembered
from memagent_graph.readers.extractive import ExtractiveReader
from memagent_graph.readers.resolve import resolve_reader
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
    from memagent_graph.readers.base import Reader
    from memagent_graph.text.tokens import TokenizerLike

STANDING_QUESTION = (
    "What must a helpful assistant remember of the people in this conversation? Facts about them "
    "and those close to them, preferences, plans, decisions, promises and open tasks, each with "
    "the day on which it was told. A newer fact takes the place of an older one that it "
    "contradicts."
)

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

    Raises:
        ConfigurationError: The window does not fit the model, the model is not known, or LangGraph
            does not allow the namespace.

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
    ) -> None:
        if window < 1:
            raise ConfigurationError("window must be at least 1 message.")
        if remember not in get_args(Remember):
            message = f"remember must be one of {', '.join(get_args(Remember))}, not {remember!r}."
            raise ConfigurationError(message)
        if not remember_within >= 0:
            raise ConfigurationError("remember_within must be 0 seconds or more.")
        config = config or ReadingConfig()
        reader = resolve_reader(model, config=config, tokenizer=tokenizer)
        if type(reader) is ExtractiveReader:  # no word of the standing question would be found
            reader = SalientReader(config, load_tokenizer(tokenizer))
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
        self._backlogs: WeakSet[Backlog] = WeakSet()
        self._reading = Reading("conversation", reader, config, counter)

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
        await self._reading.prepare(self._reading.tokenizer.count(STANDING_QUESTION))
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
            version = await self._version(head, rendered(new), thread, ids, config)
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
        fingerprint = reading.fingerprint
        parent = root = root_id(STANDING_QUESTION, fingerprint)
        fold = begun(STANDING_QUESTION, record_of(source))
        if head is not None:
            parent, root = head.id, head.root
            fold["memory"] = head.text
            fold["progress"] |= {"step": head.step, "cut": head.cut}
        for chunk in reading.chunks(source):
            fold = await advance(reading, fold, chunk, config=config)
        progress = fold["progress"]
        return MemoryVersion(
            id=child_id(parent, source.digest, fingerprint),
            parent=parent,
            root=root,
            text=fold["memory"],
            tokens=reading.tokenizer.count(fold["memory"]),
            step=progress["step"],
            question=STANDING_QUESTION,
            source=source.digest,
            source_name=thread,
            start=0,
            end=source.length,
            length=source.length,
            fingerprint=fingerprint,
            cut=progress["cut"],
            thread=thread,
            messages=messages,
        )
