"""One conversation with one user: whose it is, what of it is folded when, and what stays."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig, ensure_config
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.runtime import Runtime

from memagent_graph.conversation.backlog import UserMemories, refuse_writes
from memagent_graph.conversation.episodes import Branch, KeptMessage
from memagent_graph.conversation.messages import (
    USER,
    as_messages,
    beyond,
    by_owner,
    count_tokens,
    first_leaving,
    identify,
    is_excluded,
    is_summary,
    record_message,
    stamp,
)
from memagent_graph.conversation.privacy import for_itself
from memagent_graph.conversation.user_memory import AnonymousUser, UserId, name_user
from memagent_graph.errors import (
    BadRequestError,
    ConfigurationError,
    EmptyReplyError,
    RefusalError,
    StoreError,
)
from memagent_graph.seams import saver_of
from memagent_graph.templates import plural

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import tzinfo

    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
    from langgraph.store.base import BaseStore

    from memagent_graph.conversation.episodes import Recorded
    from memagent_graph.conversation.fold import Folding
    from memagent_graph.conversation.messages import Given, Redact

_REFUSED = (RefusalError, BadRequestError, EmptyReplyError)
_NEWEST = 1_000
"""Messages of a thread that a turn looks at besides the first, at most."""
_MOST_BACK = 1_000
"""Checkpoints from which a branch is followed back, at most."""
_MOST_NEW = 100
"""Messages that a turn lets others find, at most: earlier ones were found, or folded, before."""
_REPLY = 60.0
"""Seconds for which a fold waits for the end of a turn: one that hands over has none."""

_log = logging.getLogger(__name__)


class KeptThread(NamedTuple):
    """A thread that a checkpointer keeps, as a run saw it at a checkpoint.

    `nested`: the run is one within another graph, whose state may lack the messages.
    """

    saver: BaseCheckpointSaver[Any]
    thread: str
    checkpoint: str
    nested: bool

    @classmethod
    def of(cls, config: RunnableConfig | None) -> KeptThread | None:
        """Return the thread of a run; None if no checkpointer keeps it."""
        configurable = (config or {}).get("configurable", {})
        saver, seen = saver_of(config), configurable.get("checkpoint_map", {}).get("")
        if saver is None or not seen:
            return None
        return cls(saver, str(configurable["thread_id"]), str(seen), is_nested(config))

    async def read(self, checkpoint: str = "", graph: str = "") -> CheckpointTuple | None:
        """Return a checkpoint, the newest by default, of a graph by its namespace; or None."""
        place = {"thread_id": self.thread, "checkpoint_ns": graph}
        config: RunnableConfig = {
            "configurable": place | ({"checkpoint_id": checkpoint} if checkpoint else {})
        }
        try:
            return await self.saver.aget_tuple(config)
        except NotImplementedError:
            return await asyncio.to_thread(self.saver.get_tuple, config)

    async def branch(self, newest: CheckpointTuple, since: str) -> set[str]:
        """Return the ids of a checkpoint and of those that it continues, back to `since`."""
        found = {newest.checkpoint["id"]}
        at: CheckpointTuple | None = newest
        while at and at.parent_config and len(found) < _MOST_BACK:
            parent = str(at.parent_config["configurable"]["checkpoint_id"])
            found.add(parent)
            at = await self.read(parent) if parent > since else None
        return found


def messages_in(checkpoint: CheckpointTuple | None) -> list[BaseMessage] | None:
    """Return the messages in a checkpoint; None if it does not have them as a list."""
    found = checkpoint and checkpoint.checkpoint["channel_values"].get("messages")
    return found if isinstance(found, list) else None


class TalkMemory(Protocol):
    """The part of a `ConversationMemory` that a thread needs."""

    people: UserMemories
    window: int
    remember_within: float
    redact: Redact
    approves: bool
    chunk_tokens: int

    def get_folding(self, user: UserId) -> Folding:
        """Return the folding with the instructions for a user."""


class Talk:
    """A thread of a user; `kept` as a checkpointer keeps it, if one does.

    Of a `silent` one, nothing is folded or recorded.
    """

    def __init__(
        self,
        memory: TalkMemory,
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
        self._memory, self._config = memory, for_itself(config)
        # Nothing is found before it is folded that needs approval, or is kept by no fold either.
        self._quotes = not (memory.approves or self.personal.episodes.off)

    async def read_record(self) -> Sequence[Recorded]:
        """Return what messages without ids are compared with.

        The ids that a state gives last as long as a checkpointer keeps it: without one, a message
        is known by its place in what was recorded of the thread.
        """
        if self.kept is not None:
            return ()
        try:
            known = [one for one, _ in self.backlog.list_seen(self.thread).values()]
            return known or await self.personal.read_folded(self.thread)
        except StoreError as error:
            _log.warning("Earlier messages of a thread cannot be read: %s", error)
            return ()

    def identify(
        self, messages: Sequence[BaseMessage], recorded: Sequence[Recorded]
    ) -> list[BaseMessage]:
        """Return messages with ids, by which they are known when they come again."""
        return identify(messages, self.thread, recorded, self.redact)

    def record(self, messages: Iterable[BaseMessage]) -> dict[Recorded, BaseMessage]:
        """Return messages by what they are known by."""
        return {record_message(message, self.redact): message for message in messages}

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
            raise ConfigurationError(message)
        self.backlog.remove(removed, self.thread)
        left = [message for message in messages if not isinstance(message, RemoveMessage)]
        bare = not all(message.id for message in left)
        known = self.identify(left, await self.read_record() if bare else ())
        user = self.user if access.writes else ""
        return stamp(known, user, zone), stamp([HumanMessage("", id=key) for key in removed], user)

    async def note(self, messages: Sequence[BaseMessage], *, ended: bool) -> None:
        """Let new messages of the user wait to be folded, and be found word for word until then.

        Unless the turn has `ended` with the reply, the fold waits for that.
        """
        if self.silent:
            return
        there: set[str] | None = None
        if self.kept and not self.kept.nested and not any(map(is_summary, messages)):
            there = {str(message.id) for message in messages}
        own = by_owner(messages, self.user).get(self.user, [])
        own = own[:1] + own[1:][-_NEWEST:]
        seconds = self._memory.remember_within + (0.0 if ended else _REPLY)
        new = self.backlog.add(self.thread, self._fold_waiting, self.record(own), seconds)
        if new and self._quotes:
            await self._let_find([one for one in own if one.id in new][-_MOST_NEW:], there)

    async def _let_find(self, new: Sequence[BaseMessage], there: set[str] | None) -> None:
        """Let every process find messages that wait, and of the thread none that is not there."""

        def is_gone(one: KeptMessage) -> bool:
            key = one.id.removesuffix(f" in {self.thread}")
            return there is not None and one.thread == self.thread and key not in there

        try:
            changed = await self.personal.find_changed(self.thread, new, self._memory.redact)
            messages = [one.message for one in changed]
            ids = [str(one.id) for one in messages if isinstance(one, HumanMessage)]
            said = {key: KeptMessage(key, self.thread, "", "", "") for key in ids}  # taken back
            keeping = self._memory.get_folding(self.user).keeping
            kept = keeping.keep([m for m in messages if not is_excluded(m)], self.thread)
            said |= {one.id: one for one in kept}
            await self.personal.episodes.wait([*said.values()], is_gone)
        except Exception as error:  # noqa: BLE001 - a store and the user's function may raise anything
            _log.warning("What was said is found once it is folded: %s", error)

    async def settle(self, ids: Collection[str]) -> None:
        """Let messages wait no longer, which are folded or gone from the thread."""
        keys = {*ids, *(f"{key} in {self.thread}" for key in ids)}
        if ids and self._quotes:
            await self.personal.episodes.wait(
                [], lambda one: one.thread == self.thread and one.id in keys
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
            if not final:
                return ids
            _log.warning("A thread cannot be read, and all its messages are remembered: %s", error)
            gone, branch = set(), Branch()
        if branch is None and not final:  # the thread cannot have them yet
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
        if kept and (newest is None or newest.checkpoint["id"] < kept.checkpoint):
            return ids, None
        there = messages_in(newest)
        if kept is None or newest is None or there is None or any(map(is_summary, there)):
            return set(), Branch()
        now = self._ids(there)
        gone = ids - now
        if gone and kept.nested:
            gone &= self._ids(messages_in(await kept.read(kept.checkpoint)) or ())
        recorded = await self.personal.read_folded(self.thread)
        left = [one for one in recorded if one.checkpoint and one.id not in now]
        if left:
            branch = await kept.branch(newest, min(one.checkpoint for one in left))
            away = {one.checkpoint for one in left} - branch
            stand = {key for key in away if await kept.read(key)}  # else the thread was deleted
            left = _first_turn([one for one in left if one.checkpoint in stand])
        return gone, Branch(kept.checkpoint, now, left)

    def _ids(self, messages: Sequence[BaseMessage]) -> set[str]:
        return {str(message.id) for message in identify(messages, self.thread, redact=self.redact)}

    async def fold(self, messages: Sequence[BaseMessage], branch: Branch | None = None) -> int:
        """Fold messages, without those that the model refuses while it takes others."""
        if self._memory.people.read_only:
            raise refuse_writes()
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
        self, messages: Sequence[BaseMessage], *, folded: bool = False
    ) -> list[BaseMessage]:
        """Return the messages that stay: those beyond the window leave, and are folded soon.

        Nobody waits for that: they are found word for word. While the store is unreachable, so that
        they are not, the window does not count, but the tokens do. Messages that cannot be counted
        all stay, which is logged. With `folded`, only what is folded may leave, as from a state.
        """
        window, why = self._memory.window, "the memory store is unreachable"
        away = self.personal.bank.records.guard.failures and len(messages) > window
        try:
            gone = beyond(
                messages,
                window=2 * len(messages) if away else window,
                tokens=self._memory.chunk_tokens,
                count=count_tokens,
            )
            if gone or away:  # what waits is folded together
                self.backlog.schedule(self.thread, 0.0)
            if folded and not self.silent:
                own = by_owner(messages, self.user).get(self.user, [])
                seen = self.backlog.list_seen(self.thread).items()
                done = {key for key, (_, message) in seen if message is None}
                wait = {str(message.id) for message in own} - done
                gone = first_leaving(gone, wait)
        except Exception as error:  # noqa: BLE001 - whatever failed, the conversation goes on
            gone, away, why = [], True, str(error)
        if away and not gone:
            _log.warning("A conversation cannot be shortened, and keeps all messages: %s", why)
        return _without(messages, gone)


def _first_turn(recorded: Sequence[Recorded]) -> list[Recorded]:
    """Return the first of some messages, up to the next one of a user: what a fork replaces."""
    rest = takewhile(lambda one: not one.digest.startswith(USER[:1]), recorded[1:])
    return [*recorded[:1], *rest]


def _without(messages: Sequence[BaseMessage], gone: Sequence[BaseMessage]) -> list[BaseMessage]:
    ids = {message.id for message in gone}
    return [message for message in messages if message.id not in ids]


ACCESS_KEY = "memory_access"
"""Key of the context, or of `configurable`, with what a run may do."""


class Access(NamedTuple):
    """Whether a run may read the memory, and whether it may write it."""

    reads: bool
    writes: bool


_KINDS = {
    "all": Access(reads=True, writes=True),
    "read": Access(reads=True, writes=False),
    "write": Access(reads=False, writes=True),
    "none": Access(reads=False, writes=False),
}


def access_of(config: RunnableConfig | None = None, context: object = None) -> Access:
    """Return what a run may do: `memory_access` in its context, or in `configurable`.

    The configuration is that of the run under way by default. Raises `ConfigurationError` for
    another value than "all", "read", "write" or "none".
    """
    found = _in_context(context, ACCESS_KEY)
    if found is None:
        found = ensure_config(config).get("configurable", {}).get(ACCESS_KEY)
    found = "all" if found is None else found
    if not isinstance(found, str) or found not in _KINDS:
        message = f"{ACCESS_KEY} must be one of {', '.join(map(repr, _KINDS))}, not {found!r}."
        raise ConfigurationError(message)
    return _KINDS[found]


def _in_context(context: object, key: str) -> object:
    return context.get(key) if isinstance(context, Mapping) else getattr(context, key, None)


UserOf = Callable[[Runtime[Any], RunnableConfig], UserId | None]
"""A function from a run's runtime and config to the id of who talks."""

USER_KEY = "user_id"

_HOW = (
    'Invoke with context={"user_id": "..."} (a context_schema with that field) or with '
    '{"configurable": {"user_id": "...", "thread_id": "..."}}, or give user= a function.'
)


_TOOLS = "tools"
"""Name of the node that runs tools, in LangChain's agents and deepagents."""


def is_nested(config: RunnableConfig | None) -> bool:
    """Whether a run is one within a node or a tool of another graph."""
    return "|" in str((config or {}).get("configurable", {}).get("checkpoint_ns"))


async def is_subagent(config: RunnableConfig) -> bool:
    """Whether a tool of another agent began a run, so that its words are not the user's.

    The checkpoint of a graph above says so: the last message of its assistant calls tools that
    have not returned. Where no checkpoint does, a node above that is named as LangChain's agents
    name theirs runs tools.
    """
    if not is_nested(config):
        return False
    kept, configurable = KeptThread.of(config), config["configurable"]
    own = str(configurable["checkpoint_ns"]).rpartition("|")[0]
    run = str(configurable.get("thread_id")), own
    if run not in _subagents:
        above = [item for item in configurable["checkpoint_map"].items() if item[0] != own]
        found = [await kept.read(key, graph) for graph, key in above] if kept else []
        known = [messages for one in found if (messages := messages_in(one)) is not None]
        named = any(node.partition(":")[0] == _TOOLS for node in own.split("|"))
        if len(_subagents) >= _MOST_RUNS:
            _subagents.clear()
        _subagents[run] = any(map(_calls_tools, known)) if known else named
    return _subagents[run]


def _calls_tools(messages: Sequence[BaseMessage]) -> bool:
    last = next((one for one in reversed(messages) if isinstance(one, AIMessage)), None)
    done = {getattr(message, "tool_call_id", None) for message in messages}
    return last is not None and any(call["id"] not in done for call in last.tool_calls)


_subagents: dict[tuple[str, str], bool] = {}
_MOST_RUNS = 1_000


class Speaker(NamedTuple):
    """Whose memory it is, and which conversation with them."""

    user: str
    thread: str


class Speakers:
    """Finds the user by a function, the run's context or its config, in this order.

    A run without a user continues with the user of its thread, which may have been resumed;
    otherwise the thread has a memory of its own, unless `strict`.
    """

    def __init__(self, user: UserOf | None = None, *, strict: bool = False) -> None:
        self._user = user
        self._strict = strict
        self._warned = False

    def of(self, runtime: Runtime[Any], config: RunnableConfig, known: str | None) -> Speaker:
        """Return the user and the thread of a run; `known` is the user in the thread's state.

        Raises `ConfigurationError` if it names neither, or no user and `strict`.
        """
        configurable = config.get("configurable", {})
        thread = str(_first_id(configurable.get("thread_id")))
        given = (_in_context(runtime.context, USER_KEY), configurable.get(USER_KEY))
        found = _first_id(*(given if self._user is None else [self._user(runtime, config)]))
        named = "" if found == "" else name_user(found)
        if named or known:
            return Speaker(named or AnonymousUser.restore(known or ""), thread)
        if self._strict or not thread:
            message = f"The run does not say which user is talking. {_HOW}"
            raise ConfigurationError(message)
        if not self._warned:
            self._warned = True
            _log.warning("A run names no user, so its thread has a memory of its own. %s", _HOW)
        return Speaker(AnonymousUser.of(thread), thread)


def _first_id(*ids: object) -> object:
    """Return the first id that is one: 0 is, None and "" are not."""
    return next((one for one in ids if one is not None and one != ""), "")


def find_zone(name: str | None) -> ZoneInfo | None:
    """Return a time zone by its name; UTC is None."""
    try:
        return None if name is None else ZoneInfo(name)
    except (ValueError, ZoneInfoNotFoundError) as error:
        message = f"{name!r} is no time zone: give one by its name, such as 'Europe/Berlin'."
        raise ConfigurationError(message) from error
