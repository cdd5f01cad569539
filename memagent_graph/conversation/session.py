"""One conversation with one user: whose it is, what of it is folded when, and what stays."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import lru_cache, partial
from itertools import takewhile
from math import inf
from typing import TYPE_CHECKING, Any, Generic
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from langchain_core.messages import BaseMessage, HumanMessage, RemoveMessage
from langgraph.constants import TAG_NOSTREAM
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from typing_extensions import TypeVar

from memagent_graph import errors
from memagent_graph.config import ReadingConfig
from memagent_graph.conversation.backlog import UserMemories, find_changed
from memagent_graph.conversation.built_in import read_remarks
from memagent_graph.conversation.episodes import Branch, KeptMessage, Recorded, own_id
from memagent_graph.conversation.fold import Folding
from memagent_graph.conversation.form import form_of
from memagent_graph.conversation.messages import (
    USER,
    as_message,
    as_messages,
    by_owner,
    check_redaction,
    identify,
    is_excluded,
    is_summary,
    record_message,
    stamp,
    word_for_word,
)
from memagent_graph.conversation.profile import Past
from memagent_graph.conversation.proposal import list_proposals
from memagent_graph.conversation.reader import share_model
from memagent_graph.conversation.thread import beyond, count_tokens, first_leaving, messages_in
from memagent_graph.memory.items import NAMESPACE, label
from memagent_graph.memory.stores import refuse_writes
from memagent_graph.templates import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from datetime import tzinfo

    from langchain_core.language_models import BaseChatModel
    from langchain_core.runnables import RunnableConfig
    from langgraph.store.base import BaseStore
    from pydantic import BaseModel

    from memagent_graph.conversation.messages import Given, Redact
    from memagent_graph.conversation.proposal import Approve
    from memagent_graph.conversation.thread import Access, KeptThread
    from memagent_graph.conversation.user_memory import UserMemory
    from memagent_graph.facts.rules import Facts
    from memagent_graph.memory.items import UserId
    from memagent_graph.readers.base import Reader
    from memagent_graph.text.tokens import TokenizerLike

    OfUser = Callable[[str], str]

Shape = TypeVar("Shape", bound="str | BaseModel", default=str)

_MOST_PAST = 100
"""Values of each field of a profile that no longer stand and are kept, at most."""

_MOST_WAYS = 1_000
"""Pairs of `keep` and `never` whose prompts a process keeps."""

_REFUSED = (errors.RefusalError, errors.BadRequestError, errors.EmptyReplyError)
_NEWEST = 1_000
"""Messages that a turn looks at besides the first, and those before them that are new."""
_MOST_NEW = 100
"""Messages that a turn lets others find, at most: earlier ones were found, or folded, before."""
_REPLY = 60.0
"""Seconds for which a fold waits for the end of a turn: one that hands over has none."""

_log = logging.getLogger(__name__)


def _for_itself(config: RunnableConfig | None) -> RunnableConfig:
    """Return the config for calls whose replies must not reach a run's callbacks.

    Callbacks of the model itself, and tracers that the environment turns on, are still called.
    """
    configurable = (config or {}).get("configurable", {})
    return {
        "run_name": "remember",
        "tags": [TAG_NOSTREAM],
        "callbacks": [],
        "configurable": {k: v for k, v in configurable.items() if not k.startswith("__")},
    }


class ConversationSettings(Generic[Shape]):
    """The parts of a `ConversationMemory`, where its arguments are documented."""

    def __init__(
        self,
        model: str | BaseChatModel | Reader | None = None,
        *,
        store: BaseStore | None = None,
        window: int = 20,
        remember_within: float = 5.0,
        config: ReadingConfig | None = None,
        tokenizer: TokenizerLike = None,
        namespace: Sequence[str] = NAMESPACE,
        keep_versions: int | None = 10,
        keep_days: float | None = None,
        episode_tokens: int = 500_000,
        episode_days: float | None = None,
        ttl: float | None = None,
        keep: str | OfUser = "",
        never: str | OfUser = "",
        read_only: bool = False,
        redact: Redact | None = None,
        approve: Approve | bool = False,
        schema: type[Shape | Facts] | Facts = str,  # type: ignore[assignment]
        time_zone: str | None = None,
    ) -> None:
        if window < 1:
            raise errors.ConfigurationError("window must be at least 1 message.")
        if not remember_within >= 0:
            raise errors.ConfigurationError("remember_within must be 0 seconds or more.")
        self.zone, self.redact = find_zone(time_zone), check_redaction(redact)
        self.window, self.remember_within = window, remember_within
        if episode_tokens < 0 or not (episode_days is None or episode_days > 0):
            message = "episode_tokens must be 0 or more, and episode_days more than 0 or None."
            raise errors.ConfigurationError(message)
        self.read_only, self.approves = read_only, bool(approve)
        self.people = UserMemories(
            store,
            namespace,
            keep_versions=keep_versions,
            keep_days=keep_days,
            episode_tokens=episode_tokens,
            episode_days=episode_days,
            ttl=ttl,
            read_only=read_only,
        )
        most = min(_MOST_PAST, (keep_versions or _MOST_PAST + 1) - 1)
        self.form = form_of(schema, Past(most, keep_days))
        self.config = ReadingConfig.model_validate(config or {})
        if callable(keep) or callable(never):
            model = share_model(model, self.config, tokenizer)
        self._keep, self._never = keep, never
        make_folding = partial(
            Folding,
            model,
            self.config,
            tokenizer,
            redact=self.redact,
            form=self.form,
            approve=approve,
        )
        self._foldings = lru_cache(_MOST_WAYS)(make_folding)
        self._folding = self._foldings(*("" if callable(text) else text for text in (keep, never)))
        self.chunk_tokens = self._folding.reading.config.chunk_tokens
        model = getattr(self._folding.reading.reader, "model", model)  # as it was loaded
        shown = self.config.model_copy(update={"answer_passages": 0})
        self.for_work = {"model": model, "config": shown, "tokenizer": tokenizer}

    def check_writable(self) -> None:
        """Raise `ConfigurationError` if this memory may only be read here."""
        if self.read_only:
            raise refuse_writes()

    def get_folding(self, user: UserId) -> Folding:
        """The folding with the instructions for a user."""
        texts = [text(str(user)) if callable(text) else text for text in (self._keep, self._never)]
        if not all(isinstance(text, str) for text in texts):
            raise errors.ConfigurationError("A function given as keep or never must return a text.")
        return self._foldings(*texts)


class Talk:
    """A thread of a user; `kept` as a checkpointer keeps it, if one does.

    Of a `silent` one, nothing is folded or recorded.
    """

    def __init__(
        self,
        memory: ConversationSettings[Any],
        user: UserId,
        thread: UserId,
        store: BaseStore | None,
        config: RunnableConfig | None = None,
        *,
        kept: KeptThread | None = None,
        silent: bool = False,
    ) -> None:
        self.personal = memory.people.of(user, store)
        self.backlog = memory.people.backlog(user, store)
        self.user, self.thread = self.personal.user, str(thread)
        self.kept, self.silent = kept, silent
        self._memory, self._config = memory, _for_itself(config)
        # Nothing is found before it is folded that needs approval, or is kept by no fold either.
        self._quotes = not (memory.approves or self.personal.episodes.off)

    async def read_record(self) -> Sequence[Recorded]:
        """Return what messages without ids are compared with: nothing where a state keeps ids."""
        if self.kept is not None:
            return ()
        try:
            return self._list_seen() or await self.personal.read_folded(self.thread)
        except errors.StoreError as error:
            _log.warning("Earlier messages of a thread cannot be read: %s", error)
            return ()

    async def find_own(
        self, messages: Mapping[Recorded, BaseMessage]
    ) -> dict[str, Mapping[str, str]]:
        """Return the marks, by id, of those messages that are known as the user's in the thread."""
        unseen = [messages[one] for one in messages.keys() - {*self._list_seen()}]
        others = {str(message.id) for message in unseen}
        try:
            redact = self._memory.redact
            new = await find_changed(self.personal, self.thread, unseen, redact) if unseen else []
            _, waiting = await self.personal.episodes.read_all(empty=not (new and self._quotes))
            said = {(one.id, one.text) for one in waiting if one.text}
            rules = self._memory.get_folding(self.user).kept
            kept = word_for_word([one.message for one in new], self.thread, rules)
            left = {one.recorded.id for one in new}
            left -= {one.id for one in kept if (one.id, one.text) in said}
            others = {own_id(key, self.thread) for key in left}
        except Exception as error:  # noqa: BLE001 - a store and the user's function may raise anything
            _log.warning("Earlier messages of a thread cannot be read: %s", error)
        return {one.id: {"user": str(self.user)} for one in messages if one.id not in others}

    def _list_seen(self) -> list[Recorded]:
        return [one for one, _ in self.backlog.list_seen(self.thread).values()]

    def identify(
        self, messages: Sequence[BaseMessage], recorded: Sequence[Recorded]
    ) -> list[BaseMessage]:
        """Return messages with ids, by which they are known when they come again."""
        return identify(messages, self.thread, recorded, self.redact)

    def record(self, messages: Iterable[BaseMessage]) -> dict[Recorded, BaseMessage]:
        """Return messages by what they are known by, and the checkpoint that the run saw."""
        at = "" if self.kept is None else self.kept.checkpoint
        known = ((record_message(message, self.redact), message) for message in messages)
        return {replace(one, checkpoint=at): message for one, message in known}

    def record_all(self, messages: Sequence[BaseMessage]) -> Collection[Recorded]:
        """Return what all messages of a state are known by, with or without ids."""
        return self.record(self.identify(messages, ())).keys()

    def redact(self, text: str) -> str:
        """Return a redacted text, or none if that fails: a fold that needs the text says so."""
        try:
            return self._memory.redact(text)
        except Exception:  # noqa: BLE001 - the user's function may raise anything
            return ""

    async def take(
        self, given: Given, access: Access, zone: tzinfo | None
    ) -> tuple[list[BaseMessage], list[BaseMessage]]:
        """Return messages with ids and their user, and those that are taken back, emptied."""
        messages = as_messages(given)
        removed = [str(message.id) for message in messages if isinstance(message, RemoveMessage)]
        if REMOVE_ALL_MESSAGES in removed:
            message = "RemoveMessage takes back one message by its id; `forget` deletes all."
            raise errors.ConfigurationError(message)
        self.backlog.remove(removed, self.thread)
        left = [message for message in messages if not isinstance(message, RemoveMessage)]
        bare = not all(message.id for message in left)
        known = self.identify(left, await self.read_record() if bare else ())
        user = self.user if access.writes else ""
        return stamp(known, user, zone), stamp([HumanMessage("", id=key) for key in removed], user)

    def _own(self, messages: Iterable[BaseMessage]) -> list[BaseMessage]:
        """Return the messages of this user."""
        return by_owner(messages, self.user).get(self.user, [])

    async def save(self, messages: Sequence[BaseMessage]) -> None:
        """Fold messages of the user now, with those of the thread that wait."""
        seen = self.backlog.list_seen(self.thread).values()
        waiting = [message for _, message in seen if message]
        said = [*{one.id: one for one in (*waiting, *self._own(messages))}.values()]
        await self.fold(said)
        self.backlog.see(self.thread, dict.fromkeys(self.record(said)))

    async def take_over(self, guest: UserMemory, notes: str) -> None:
        """Fold what the memory of a guest has, also what waits for approval there, onto this one.

        `notes` are as a model is shown them: their lines that no kept message says are messages.
        """
        episodes, waiting = await guest.episodes.read_all()
        kept = [*episodes.said, *(one for one in waiting if one.text)]
        kept += [one for proposal in await list_proposals(guest) for one in proposal.said]
        whole = "\n".join(one.text for one in kept)
        lines = [one for one in read_remarks(notes) if one.text not in whole]
        of = [KeptMessage(label(one.text), "", one.day, one.speaker, one.text) for one in lines]
        if said := stamp(map(as_message, [*of, *kept]), self.user):
            await self.fold(said)
            await self.personal.copy_said(guest)

    async def note(self, messages: Sequence[BaseMessage], *, ended: bool) -> None:
        """Let new messages of the user wait to be folded, and be found word for word until then.

        Unless the turn has `ended` with the reply, the fold waits for that.
        """
        if self.silent:
            return
        own = self._own(messages)
        seen = self.backlog.list_seen(self.thread)
        newest = range(len(own) - _NEWEST, 1, -1)
        own = own[:1] + own[next((at for at in newest if own[at].id in seen), 1) :]
        if self.kept and self.kept.nested:  # its own state may still have what left the one above
            left = self.backlog.list_removed(self.thread).difference(self.kept.above)
            own = [message for message in own if message.id not in left]
        seconds = self._memory.remember_within + (0.0 if ended else _REPLY)
        new = self.backlog.add(self.thread, self._fold_waiting, self.record(own), seconds)
        if new and self._quotes:
            there = None if any(map(is_summary, messages)) else self._ids(messages)
            await self._let_find([one for one in own if one.id in new][-_MOST_NEW:], there)

    async def _let_find(self, new: Sequence[BaseMessage], there: set[str] | None) -> None:
        """Let every process find messages that wait, and of the thread none that is not there."""
        try:
            left = await self._find_left(there)
            changed = await find_changed(self.personal, self.thread, new, self._memory.redact)
            messages = [one.message for one in changed]
            ids = [str(one.id) for one in messages if isinstance(one, HumanMessage)]
            said = {key: KeptMessage(key, self.thread, "", "", "") for key in ids}  # taken back
            rules = self._memory.get_folding(self.user).kept
            spoken = (message for message in messages if not is_excluded(message))
            kept = word_for_word(spoken, self.thread, rules)
            said |= {one.id: one for one in kept}
            await self.personal.episodes.wait(
                [*said.values()], lambda one: one.thread == self.thread and left(one.own_id)
            )
        except Exception as error:  # noqa: BLE001 - a store and the user's function may raise anything
            _log.warning("What was said is found once it is folded: %s", error)

    async def _find_left(self, there: set[str] | None) -> Callable[[str], bool]:
        """Return what says by its id whether a message left the thread that has those there."""
        kept = self.kept
        if kept is None or there is None:
            return lambda _: False
        if not kept.nested:
            return lambda key: key not in there
        seen = self.backlog.list_seen(self.thread).values()
        waiting = [one for one, message in seen if message and one.id not in kept.above]
        old = [one for one in waiting if one.checkpoint != kept.checkpoint]
        left = await kept.find_gone(old, await kept.read(), self._ids) if old else ()
        return {one.id for one in left}.__contains__

    async def settle(self, ids: Collection[str]) -> None:
        """Let messages wait no longer, which are folded or gone from the thread."""
        if ids and self._quotes:
            await self.personal.episodes.wait(
                [], lambda one: one.thread == self.thread and one.own_id in ids
            )

    async def _fold_waiting(
        self,
        messages: Sequence[BaseMessage],
        final: bool,  # noqa: FBT001 - as the backlog calls it
    ) -> Collection[str]:
        """Fold messages that the thread still has, and return the ids of those that wait on.

        If `final`, none may: what the thread does not have now was deleted.
        """
        ids = {str(message.id) for message in messages}
        try:
            gone, branch = await self._compare(ids)
        except Exception as error:  # noqa: BLE001 - a checkpointer that is closed may raise anything
            gone, branch = set(), None
            if final:
                _log.warning(
                    "A thread cannot be read, and all its messages are remembered: %s", error
                )
        if branch is None and not final:  # the thread cannot be read, or have them, yet
            return ids
        branch = branch or Branch()
        self.backlog.remove(gone, self.thread)
        await self.settle(gone)
        left = [message for message in messages if message.id not in gone]
        if left or branch.replaced:
            await self.fold(left, branch)
            replaced = {one.id for one in branch.replaced}
            self.backlog.remove(replaced, self.thread)
        return ()

    async def _compare(self, ids: set[str]) -> tuple[set[str], Branch | None]:
        """Return which of some messages the thread does not have, and where it is now.

        None stands for a thread whose newest checkpoint is older than what a run saw.
        """
        kept = self.kept
        newest = None if kept is None else await kept.read()
        at = newest.checkpoint["id"] if newest else ""
        if kept and (at < kept.checkpoint or (kept.writes and at == kept.checkpoint)):
            return ids, None
        there = None if kept is None else await messages_in(kept.saver, newest)
        if kept is None or newest is None or there is None or any(map(is_summary, there)):
            return set(), Branch()
        now = self._ids(there)
        gone = ids - now
        if gone and kept.nested:
            seen = [one for one in self._list_seen() if one.id in gone]
            gone = {one.id for one in await kept.find_gone(seen, newest, self._ids)}
        recorded = await self.personal.read_folded(self.thread)
        left = await kept.find_gone((one for one in recorded if one.id not in now), newest)
        # A fork replaces the first, up to the next one of a user.
        more = takewhile(lambda one: not one.digest.startswith(USER[:1]), left[1:])
        left = [*left[:1], *more]
        return gone, Branch(at if kept.writes else kept.checkpoint, now, left)

    def _ids(self, messages: Sequence[BaseMessage]) -> set[str]:
        return {str(message.id) for message in self.identify(messages, ())}

    async def fold(self, messages: Sequence[BaseMessage], branch: Branch | None = None) -> int:
        """Fold messages, without those that the model refuses while it takes others."""
        self._memory.check_writable()
        folding, branch = self._memory.get_folding(self.user), branch or Branch()

        async def fold(some: Sequence[BaseMessage]) -> int:
            return await folding.fold(self.personal, self.thread, self._config, some, branch)

        try:
            found = await fold(messages)
        except _REFUSED as error:
            refused, found = 0, 0
            for message in messages if len(messages) > 1 else ():
                try:
                    found += await fold([message])
                except _REFUSED:
                    refused += 1
            if len(messages) <= 1 or refused == len(messages):
                raise
            _log.warning(
                "The model refuses %s of a thread, and all others are remembered. `catch_up` tries "
                "again what a checkpointer keeps: %s",
                plural(refused, "message"),
                error,
            )
        if found and self._memory.approves:
            await folding.renew(self.personal)
        await self.settle({str(one.id) for one in messages})
        return found

    def shorten(
        self, messages: Sequence[BaseMessage], *, turn_tokens: float = inf, folded: bool = False
    ) -> list[BaseMessage]:
        """Return the messages that stay: those beyond the window leave, and are folded soon.

        Nobody waits for that: they are found word for word. While the store is unreachable, so that
        they are not, the window does not count, but the tokens do: those of `chunk_tokens` where it
        is set, or else half of `turn_tokens`. Messages that cannot be counted all stay, which is
        logged. With `folded`, only what is folded may leave, as from a state.
        """
        window, why = self._memory.window, "the memory store is unreachable"
        tokens = self._memory.chunk_tokens
        if "chunk_tokens" not in self._memory.config.model_fields_set and turn_tokens < inf:
            tokens = int(max(min(tokens, turn_tokens), turn_tokens / 2))
        away = self.personal.bank.guard.failures and len(messages) > window
        try:
            gone = beyond(
                messages,
                window=2 * len(messages) if away else window,
                tokens=tokens,
                count=count_tokens,
                turn_tokens=max(turn_tokens, tokens),
            )
            if gone or away:  # what waits is folded together
                self.backlog.schedule(self.thread, 0.0)
            if folded and not self.silent:
                seen = self.backlog.list_seen(self.thread).items()
                done = {key for key, (_, message) in seen if message is None}
                wait = {str(message.id) for message in self._own(messages)} - done
                gone = first_leaving(gone, wait)
        except Exception as error:  # noqa: BLE001 - whatever failed, the conversation goes on
            gone, away, why = [], True, str(error)
        if away and not gone:
            _log.warning("A conversation cannot be shortened, and keeps all messages: %s", why)
        ids = {message.id for message in gone}
        return [message for message in messages if message.id not in ids]


def find_zone(name: str | None) -> ZoneInfo | None:
    """Return a time zone by its name; UTC is None."""
    try:
        return None if name is None else ZoneInfo(name)
    except (ValueError, ZoneInfoNotFoundError) as error:
        message = f"{name!r} is no time zone: give one by its name, such as 'Europe/Berlin'."
        raise errors.ConfigurationError(message) from error
