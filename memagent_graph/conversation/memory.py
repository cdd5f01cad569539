"""A chatbot's long-term memory: what lies beyond a recent window is folded into a small text."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from langchain_core.messages import BaseMessage, SystemMessage
from langchain_core.runnables import Runnable, RunnableLambda

from memagent_graph.conversation.backlog import fold_all
from memagent_graph.conversation.built_in import drop_ended
from memagent_graph.conversation.catch_up import aforget
from memagent_graph.conversation.form import choose_recalled, write_passages
from memagent_graph.conversation.messages import find_current, is_reply, word_for_word
from memagent_graph.conversation.profile import entries_of
from memagent_graph.conversation.prompt import drop_edited, find_passages, render_recalled
from memagent_graph.conversation.proposal import Decision, list_proposals
from memagent_graph.conversation.reader import read_work
from memagent_graph.conversation.session import ConversationSettings, Shape, Talk
from memagent_graph.conversation.thread import (
    AnonymousUser,
    Speakers,
    access_of,
    find_run,
    list_said,
    read_channel,
)
from memagent_graph.conversation.users import Users
from memagent_graph.errors import ConfigurationError, ModelError
from memagent_graph.seams import runs_of
from memagent_graph.sync import to_sync, wait_for

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import date

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.store.base import BaseStore

    from memagent_graph.conversation.messages import Given
    from memagent_graph.conversation.profile import ProfileEntry
    from memagent_graph.conversation.prompt import Reminders
    from memagent_graph.conversation.proposal import Proposal
    from memagent_graph.conversation.user_memory import ForgottenUser
    from memagent_graph.facts.record import Fact
    from memagent_graph.memory.items import UserId
    from memagent_graph.memory.version import History, MemoryVersion

_log = logging.getLogger(__name__)


class ConversationMemory(ConversationSettings[Shape]):
    """Remembers people across conversations, in a text of fixed size for each.

    After each turn, its messages are folded into the memory of the user in the background, by the
    same step that reads documents. Messages beyond a recent window leave the conversation, calls of
    tools with their results; the turn that runs stays. Each message is folded exactly once, even
    after failures, and simultaneous turns of a user lose nothing.

    No reply waits for a fold: what was said is found word for word as soon as it is observed, in
    every thread of the user and every process that shares the store. It is folded at `load` and
    `flush`, too, and as far as possible when the process ends. What a killed process has not folded
    is still found so; to fold it, see `catch_up`.

    Methods take the id of a user, and the host graph's store, which is used if the memory has no
    store of its own. If the store fails, they raise `StoreError`. Those whose name begins with an a
    are their async twins.

    Args:
        model: model that folds, as for `create_memagent`; None takes `MEMAGENT_MODEL`, otherwise
            the built-in reader.
        store: store for memories. None takes the host graph's; without one, memories stay in this
            process.
        window: most messages that stay in a conversation. If there are more, or if they exceed
            `config.chunk_tokens`, all but the last half are folded and leave.
        remember_within: seconds after a turn in which it is folded in the background, with those
            that follow meanwhile; `math.inf` folds when messages leave the window, and the rest at
            `load`, `flush` and `save`.
        config: budgets; `memory_tokens` is the size of a memory.
        tokenizer: counts tokens, as for `create_memagent`.
        namespace: labels of the memories in the store, below a label for each user.
        keep_versions: number of newest versions to keep of a memory; None for all.
        keep_days: days to keep a version after a newer one replaced it; None for ever.
        episode_tokens: tokens of each user's messages to keep word for word, so that `prompt` can
            quote them; the oldest are deleted first. With 0, none are kept.
        episode_days: days after which such a message is deleted; None for never.
        ttl: minutes that a memory lives on when it is not read; None for the store's default.
        keep: description of what to remember above all, a part of a chat model's prompt; for the
            built-in reader, statements with one of its words count double. A function returns it
            for the id of a user.
        never: description of what must not be remembered, likewise; the built-in reader leaves out
            statements with one of its words, in any form.
        read_only: whether to attach another agent's memories, which prompts have; writes fail.
        redact: function that each message's text passes through, in the event loop, before the
            model reads it or anything is stored; if it fails, the messages stay unfolded.
        approve: whether to wait for approval before a fold changes the memory; see `proposals`. A
            function decides at once: it gets the `Proposal`, and returns True, False, another text
            for the memory, or None to let it wait. It may be a coroutine function.
        schema: form of a memory: `str` for a text, a pydantic model for a profile, with a default
            for each field, or `Facts`, or `Facts(Person, Company)`, for facts. A profile needs a
            chat model. The changes that it reports are validated and merged field by field;
            `entries` has the evidence for each, and `facts` that of facts.
        time_zone: zone of the days on which messages without a time were said, as
            "Europe/Berlin"; UTC by default.

    Raises:
        ConfigurationError: The window does not fit the model, the model is not known, LangGraph
            does not allow the namespace, `keep` and `never` are too long, `never` has no word that
            the built-in reader can match, `redact` is a coroutine function, or `schema` is no
            pydantic model with a default for each field, or needs a chat model.

    Examples:
        >>> from langgraph.store.memory import InMemoryStore
        >>> from memagent_graph import ConversationMemory
        >>> memory = ConversationMemory("openai:gpt-4o", store=InMemoryStore())
        >>> messages = [("human", "My sister Edda breeds goats in Husum.")]
        >>> messages = memory.observe(messages, user="ann", thread="monday")
        >>> memory.load("ann")
        'My sister Edda breeds goats in Husum.'
        >>> (notes,) = memory.prompt("ann")  # goes to your model, before the messages
    """

    async def aload(self, user: UserId, *, store: BaseStore | None = None) -> Shape:
        """Fold the waiting messages of a user, and return the memory; empty if there is none.

        Values of a profile that do not fit its schema are left out, which is logged once.
        """
        head = await self._fold_to_head(user, store)
        return self._shape_notes("" if head is None else head.text)

    async def aentries(self, user: UserId, *, store: BaseStore | None = None) -> list[ProfileEntry]:
        """Return the values of a user's profile with their evidence: current ones, then earlier.

        Earlier values are kept like versions: `keep_versions` of each field, for `keep_days`.

        Raises:
            ConfigurationError: The memory is a text.
        """
        if self.form.fields is None:
            message = "This memory is no profile: give it a schema, or call `facts` for facts."
            raise ConfigurationError(message)
        head = await self._fold_to_head(user, store)
        return [] if head is None else entries_of(head, self.form.fields)

    async def afacts(
        self,
        user: UserId,
        *,
        subject: str | None = None,
        relation: str | None = None,
        at: str | date | None = None,
        history: bool = False,
        store: BaseStore | None = None,
    ) -> list[Fact]:
        """Fold the waiting messages of a user, and return facts, each with its message.

        They are those of a `subject` (also by another name), with a `relation`, as "works at", that
        hold `at` a day, month or year, today by default; with `history`, also those that do not.

        Raises:
            ConfigurationError: The memory is not one of facts.
        """
        if self.form.facts is None:
            raise ConfigurationError("This memory keeps no facts: give it schema=Facts.")
        head = await self._fold_to_head(user, store)
        from memagent_graph.facts.graph import select_facts
        from memagent_graph.facts.record import facts_of

        found = [] if head is None else facts_of(head)
        return select_facts(found, subject=subject, relation=relation, at=at, history=history)

    async def aprompt(
        self,
        user: UserId,
        *,
        about: Given = "",
        store: BaseStore | None = None,
        config: RunnableConfig | None = None,
    ) -> list[SystemMessage]:
        """Return the system message with what is known of a user, or no message.

        It does not wait for folds: call it after `observe`. If the store is away, this is logged,
        and the memory is the one that this process saw last.

        `about` is the current message: a text, a message, or the conversation, of which the last
        human message counts. Passages of earlier messages that bear on it are added to the memory,
        both together within `config.memory_tokens`. Messages of the conversation are not among
        them. The run's `config`, by default that under way, may forbid to read.
        """
        if not access_of(config).reads:
            return []
        text = render_recalled(*await self.atold(user, about=about, store=store))
        return [SystemMessage(text)] if text else []

    async def atold(
        self,
        user: UserId,
        *,
        about: Given = "",
        store: BaseStore | None = None,
        reminders: Reminders | None = None,
    ) -> tuple[str, str]:
        """Return memory and passages of `aprompt`; `reminders` are given what they do not have."""
        backlog, personal = self.people.backlog(user, store), self.people.of(user, store)
        text, messages = find_current(about)
        found, memory = cast("Any", ()), backlog.last_seen
        try:
            head, (kept, waiting) = await asyncio.gather(
                personal.head(), personal.episodes.read_all(empty=not text)
            )
            memory = backlog.last_seen = "" if head is None else head.text
            memory = drop_edited(self.form, memory, kept, waiting)
            if reminders:
                await reminders.check(personal, head, kept, waiting)
            if kept.pages or waiting:
                rules, days = self.get_folding(user).kept, personal.episodes.since
                known = {(one.id, one.text) for one in word_for_word(messages, "", rules)}
                find = partial(find_passages, since=days, known=known, allows=rules.allows)
                found = await asyncio.to_thread(find, kept, waiting, text)
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a store raises, the conversation goes on
            _log.warning("The memory of a user could not be loaded: %s", error)
        reading, memory = self._folding.reading, self.form.render(drop_ended(memory))
        tokens, counter = reading.config.memory_tokens, reading.tokenizer
        memory = self.form.choose_near(memory, text, tokens, counter) if found else memory
        whole = self.form.fields is not None
        memory, chosen = choose_recalled(memory, found, text, tokens, counter, whole=whole)
        if reminders:
            reminders.add(list_said(messages), memory, chosen, tokens, counter, whole=whole)
        return memory, write_passages(chosen)

    async def aobserve(
        self,
        messages: Given,
        *,
        user: UserId,
        thread: UserId,
        store: BaseStore | None = None,
        config: RunnableConfig | None = None,
    ) -> list[BaseMessage]:
        """Have new messages folded, and return the messages that stay in the conversation.

        Call it before each model call, and continue with the messages it returns: they have ids,
        by which they are known when they come again, and say whose they are and when they were
        seen first. If a fold fails, this is logged, and the messages wait to be folded next time.

        Args:
            messages: the conversation, its new messages, or a text of the user. A message with a
                known id and another text is edited, and `RemoveMessage` takes one back. Messages
                without ids are known by what they say if they begin as the thread did, or with its
                end: the same text sent twice alone counts once.
            user: id of the user.
            thread: id of the conversation.
            store: store of the host graph, used if this memory has no store of its own.
            config: configuration of the run, whose `configurable` a model may need.
        """
        self.check_writable()
        talk = Talk(self, user, thread, store, config)
        known, removed = await talk.take(messages, access_of(config), self.zone)
        await talk.note([*removed, *known], ended=is_reply(known))
        return talk.shorten(known)

    async def asave(
        self,
        messages: Given,
        *,
        user: UserId,
        thread: UserId,
        store: BaseStore | None = None,
        config: RunnableConfig | None = None,
    ) -> list[BaseMessage]:
        """Fold a whole conversation now, for example at its end, and return it with ids.

        Messages that were folded before are not folded again; see `observe`.

        Raises:
            ConfigurationError: What is given is no message and no list of messages.
            ModelError: The model failed; nothing was folded.
            MemoryConflictError: Other turns of this user changed the memory 50 times meanwhile.
        """
        self.check_writable()
        talk = Talk(self, user, thread, store, config)
        known, removed = await talk.take(messages, access_of(config), self.zone)
        await talk.save([*removed, *known])
        return known

    @property
    def summarizer(self) -> Runnable[Sequence[BaseMessage], str]:
        """A fold as the summarizer of a thread, for LangChain's and deepagents' middleware.

        What users said is folded into the memory of the run's user. Threads with tools are read for
        what bears on the last requests, which stays in the thread alone. What the middleware trims
        is not seen: give it `trim_tokens_to_summarize=None`.

        Its calls raise:
            ConfigurationError: No graph runs, or the run names neither a user nor a thread.
            ModelError: The model failed; nothing was folded, and nothing leaves the thread.
        """
        return RunnableLambda(lambda messages: wait_for(self._sum_up(messages)), self._sum_up)

    async def _sum_up(self, messages: Sequence[BaseMessage]) -> str:
        runtime, config = find_run()
        user, thread = Speakers().of(runtime, config, None)
        await self.asave(messages, user=user, thread=thread, store=runtime.store, config=config)
        said = read_channel(runs_of(config)[0], "messages") or messages
        work = await read_work(messages, said, self.redact, **self.for_work)
        return "\n\n".join(filter(None, [await self._head(user, runtime.store), work]))

    async def aflush(self, user: UserId | None = None, *, store: BaseStore | None = None) -> int:
        """Fold the messages of a user, or of all, that wait in this process, before it ends say.

        Returns the number of those that still wait because their fold failed, which is logged.
        """
        backlogs = self.people.seen if user is None else [self.people.backlog(user, store)]
        return await fold_all(backlogs)

    async def ahistory(self, user: UserId, *, store: BaseStore | None = None) -> History:
        """Return the versions of a user's memory, newest first; none if there is no memory.

        Each has its text, the thread and the messages that were folded into it, and in `warnings`
        what had to be dropped. Versions beyond `keep_versions` are deleted.
        """
        return await self.people.of(user, store).history()

    async def aforget(
        self,
        user: UserId,
        *,
        store: BaseStore | None = None,
        checkpointer: BaseCheckpointSaver[Any] | None = None,
        by: str = "application",
    ) -> ForgottenUser:
        """Delete everything stored about a user, also from the free pages of SQLite files.

        Threads of this user alone are deleted from a `checkpointer`. Without one, delete the
        `threads` of the result yourself. An entry stays, under a digest of the user's id, that says
        when they were forgotten, and `by` whom.
        """
        self.check_writable()
        await self.people.backlog(user, store).drop()
        return await aforget(self.people.of(user, store), by=by, checkpointer=checkpointer)

    def users(self, *, store: BaseStore | None = None) -> Users:
        """Return all users with a memory, for operators of the chatbot."""
        return Users(self.people.choose_store(store), self.people.namespace, ttl=self.people.ttl)

    async def ahand_over(
        self, thread: UserId, user: UserId, *, store: BaseStore | None = None
    ) -> Shape:
        """Hand the memory of a thread without a user over to a user, and return theirs.

        Call it when a guest logs in, before the first run of the thread that names the user. What
        the guest said is folded onto the memory of the user; the memory of the thread is deleted.

        Raises:
            ModelError: The model failed; nothing was handed over.
            MemoryConflictError: Other turns of this user changed the memory 50 times meanwhile.
        """
        self.check_writable()
        guest = AnonymousUser.of(thread)
        before = self.people.of(guest, store)
        if await self.people.backlog(guest, store).fold():
            raise ModelError("What a guest said cannot be folded: nothing was handed over. Retry.")
        notes = self.form.render(await self._head(guest, store))
        await Talk(self, user, thread, store).take_over(before, notes)
        await self.people.backlog(guest, store).drop()
        await before.forget(by="hand_over")
        return self._shape_notes(await self._head(user, store))

    async def aforget_messages(
        self,
        user: UserId,
        messages: Collection[str],
        *,
        thread: UserId | None = None,
        store: BaseStore | None = None,
    ) -> int:
        """Delete messages that are kept word for word; return their number.

        `messages` are their ids, in a thread or, by default, in any. Those that wait are not folded
        any more, and what was proposed from them is withdrawn. Notes that are their words, and no
        other message's, go, with the versions that had them.
        """
        self.check_writable()
        ids, of = {*map(str, messages)}, None if thread is None else str(thread)
        return await self.people.drop_messages(user, ids, of, store, self.redact, self.form)

    async def aforget_about(
        self, user: UserId, subject: str, *, store: BaseStore | None = None, by: str = "application"
    ) -> list[str]:
        """Delete the statements about a subject from notes, kept messages and proposals.

        Statements that have all words of the subject are deleted, and earlier versions of the notes
        that had one. Returns the statements of notes and messages.

        Raises:
            ConfigurationError: The subject has no specific word, or the memory is a profile.
            MemoryConflictError: Others changed the memory 50 times meanwhile.
        """
        self.check_writable()
        return await self.people.drop_about(user, subject, store, self.form, by=by)

    async def aproposals(self, user: UserId, *, store: BaseStore | None = None) -> list[Proposal]:
        """Fold the waiting messages of a user, and return what waits for approval, oldest first.

        Prompts have the accepted memory alone, and quote no message of a proposal. Each proposal
        is a whole memory that continues the accepted one. The messages of those that continue an
        earlier one are folded again.
        """
        await self.people.backlog(user, store).fold()
        personal = self.people.of(user, store)
        if not self.read_only:
            await self.get_folding(user).renew(personal)
        return await list_proposals(personal)

    async def aaccept(
        self,
        user: UserId,
        *chosen: str | Proposal,
        text: str | None = None,
        store: BaseStore | None = None,
        by: str = "application",
    ) -> Shape:
        """Accept proposals, and return the memory; their messages are kept word for word.

        Of several, the first becomes the memory, and the messages of the others are folded again on
        that: you accept what they say, not how the model then writes it. All that are not `chosen`,
        as proposals or by id, wait on. Another `text` in the place of that of the one proposal is
        redacted, and loses what `never` bans. The log of changes has who accepts (`by`).

        Raises:
            ConfigurationError: None is named, several have one text, or that is too long.
            MemoryNotFoundError: One of them does not wait; nothing was decided.
            MemoryConflictError: The memory changed since one was proposed: it was folded again, and
                the new proposal waits. Nothing was decided.
            ModelError: The model failed for one of several; those before it are accepted.
        """
        ids = _ids_of(chosen)
        decision = Decision(accept=ids) if text is None else Decision(edit=dict.fromkeys(ids, text))
        await self.decide(user, decision, store, by=by)
        return self._shape_notes(await self._head(user, store))

    async def arefuse(
        self,
        user: UserId,
        *chosen: str | Proposal,
        store: BaseStore | None = None,
        by: str = "application",
    ) -> None:
        """Delete proposals with their messages; the accepted memory and all others stay.

        Raises:
            ConfigurationError: None is named.
            MemoryNotFoundError: One of them does not wait; nothing was decided.
            MemoryConflictError: Others changed it meanwhile.
        """
        await self.decide(user, Decision(refuse=_ids_of(chosen)), store, by=by)

    async def decide(
        self, user: UserId, decision: Decision, store: BaseStore | None, *, by: str
    ) -> None:
        """Carry out a decision about proposals, for a graph; see `aaccept` and `arefuse`."""
        self.check_writable()
        await self.get_folding(user).decide(self.people.of(user, store), decision, by=by)

    load = to_sync(aload)
    entries = to_sync(aentries)
    facts = to_sync(afacts)
    prompt = to_sync(aprompt)
    observe = to_sync(aobserve)
    save = to_sync(asave)
    history = to_sync(ahistory)
    flush = to_sync(aflush)
    forget = to_sync(aforget)
    hand_over = to_sync(ahand_over)
    forget_messages = to_sync(aforget_messages)
    forget_about = to_sync(aforget_about)
    proposals = to_sync(aproposals)
    accept = to_sync(aaccept)
    refuse = to_sync(arefuse)

    async def _fold_to_head(self, user: UserId, store: BaseStore | None) -> MemoryVersion | None:
        await self.people.backlog(user, store).fold()
        return await self.people.of(user, store).head()

    async def _head(self, user: UserId, store: BaseStore | None) -> str:
        head = await self.people.of(user, store).head()
        return "" if head is None else head.text

    def _shape_notes(self, text: str) -> Shape:
        return cast("Shape", self.form.parse(drop_ended(text)))


def _ids_of(chosen: Iterable[str | Proposal]) -> list[str]:
    return [*dict.fromkeys(one if isinstance(one, str) else one.id for one in chosen)]
