"""One conversation with one user: whose it is, what of it is folded when, and what stays."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from langchain_core.messages import BaseMessage, HumanMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig, ensure_config
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import get_checkpoint_metadata
from langgraph.constants import TAG_NOSTREAM
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.runtime import Runtime

from memagent_graph.conversation.backlog import UserMemories, refuse_writes
from memagent_graph.conversation.episodes import Branch, KeptMessage, Recorded, own_id
from memagent_graph.conversation.messages import (
    USER,
    as_messages,
    by_owner,
    identify,
    is_excluded,
    is_summary,
    last_owner,
    record_message,
    stamp,
)
from memagent_graph.conversation.prompt import beyond, count_tokens, first_leaving
from memagent_graph.conversation.user_memory import AnonymousUser, UserId, name_user
from memagent_graph.errors import (
    BadRequestError,
    ConfigurationError,
    EmptyReplyError,
    RefusalError,
    StoreError,
)
from memagent_graph.seams import runs_of, saver_of
from memagent_graph.sync import ask_saver
from memagent_graph.templates import plural

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Sequence
    from datetime import tzinfo

    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
    from langgraph.store.base import BaseStore

    from memagent_graph.conversation.fold import Folding
    from memagent_graph.conversation.messages import Given, Redact
    from memagent_graph.seams import GraphRun

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

    `nested`: the run is one within another graph, whose state may lack the messages; `above` are
    those that it has. `writes`: its step writes messages, which only a later checkpoint has.
    """

    saver: BaseCheckpointSaver[Any]
    thread: str
    checkpoint: str
    nested: bool
    above: Collection[str] = ()
    writes: bool = False

    @classmethod
    def of(cls, config: RunnableConfig | None) -> KeptThread | None:
        """Return the thread of a run; None if no checkpointer keeps it."""
        configurable = (config or {}).get("configurable", {})
        saver, seen = saver_of(config), configurable.get("checkpoint_map", {}).get("")
        if saver is None or not seen:
            return None
        nested = "|" in str(configurable.get("checkpoint_ns"))
        found = (read_channel(runs_of(config)[-1], "messages") or ()) if nested else ()
        above = {str(getattr(message, "id", None)) for message in found}
        return cls(saver, str(configurable["thread_id"]), str(seen), nested, above)

    async def read(self, checkpoint: str = "") -> CheckpointTuple | None:
        """Return a checkpoint, the newest by default; None if there is none."""
        of = {"checkpoint_id": checkpoint} if checkpoint else {}
        place = {"thread_id": self.thread, "checkpoint_ns": "", **of}
        found: CheckpointTuple | None = await ask_saver(
            self.saver, "get_tuple", {"configurable": place}
        )
        return found

    async def walk_back(
        self, newest: CheckpointTuple | None, since: str = ""
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield a checkpoint and those that it continues, back to `since`."""
        at = newest
        for _ in range(_MOST_BACK):
            if at is None:
                break
            yield at
            before = (at.parent_config or {}).get("configurable", {}).get("checkpoint_id")
            at = await self.read(before) if before and at.checkpoint["id"] > since else None

    async def find_removed(
        self,
        noted: Collection[Recorded],
        newest: CheckpointTuple | None,
        ids_of: Callable[[Sequence[BaseMessage]], set[str]],
    ) -> set[str]:
        """Return the ids of those messages that the graph above had, and has no longer.

        Since each was noted, a checkpoint had it, or the thread went back behind that.
        """
        found, branch, left = set[str](), set[str](), [one for one in noted if one.checkpoint]
        if left:
            async for at in self.walk_back(newest, min(one.checkpoint for one in left)):
                branch.add(at.checkpoint["id"])
                found |= ids_of(await messages_in(self.saver, at) or ())
        away = {one.checkpoint for one in left} - branch
        away = {key for key in away if await self.read(key)}  # else it was deleted
        return {one.id for one in left if one.id in found or one.checkpoint in away}

    async def find_marks(
        self,
        wanted: set[Recorded],
        record: Callable[[Sequence[BaseMessage]], Collection[Recorded]],
        user_of: Callable[[CheckpointTuple], str | None],
        began: float = math.inf,
        made: Collection[Recorded] = (),
    ) -> dict[str, Mapping[str, str]]:
        """Return the marks, by id, of messages that a checkpoint has from before the step `began`.

        Each is of the run that wrote the oldest checkpoint with it, whose user `user_of` returns; a
        run that might not write is remembered for nobody. What a run `made`, so that no checkpoint
        has it, came with the input of its turn.
        """
        found: dict[Recorded, CheckpointTuple] = {}
        seen = await self.read(self.checkpoint) or await self.read()
        async for at in self.walk_back(seen):
            if at.metadata["step"] < began:
                if at.metadata["source"] == "input":
                    found = dict.fromkeys(made, at) | found
                there = wanted.difference(made) & {*record(await messages_in(self.saver, at) or ())}
                found |= dict.fromkeys(there, at)
                if not there and found.keys() >= {*made}:
                    break
        marks: dict[str, Mapping[str, str]] = {}
        for one, first in found.items():
            writes = first.metadata.get(ACCESS_KEY, "all") in ("all", "write")
            user = (user_of(first) or "") if writes else ""
            marks[one.id] = {"user": user, "at": first.checkpoint["ts"]}
        return marks


async def messages_in(
    saver: BaseCheckpointSaver[Any], checkpoint: CheckpointTuple | None
) -> list[BaseMessage] | None:
    """Return the messages in a checkpoint; None if it does not have them as a list.

    A checkpoint of a `DeltaChannel` has only what its step wrote: earlier ones have the rest.
    """
    if checkpoint is None or "messages" not in checkpoint.checkpoint["channel_versions"]:
        return None
    found, writes = checkpoint.checkpoint["channel_values"].get("messages"), []
    if found is None:
        options = {"config": checkpoint.config, "channels": ["messages"]}
        history = (await ask_saver(saver, "get_delta_channel_history", **options))["messages"]
        found, writes = history.get("seed"), history["writes"]
    channel = DeltaChannel(lambda old, new: reduce(add_messages, new, old or []), list)
    channel = channel.from_checkpoint(found)
    channel.replay_writes(writes)
    found = channel.get()
    return found if isinstance(found, list) else None


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
        self._memory, self._config = memory, _for_itself(config)
        # Nothing is found before it is folded that needs approval, or is kept by no fold either.
        self._quotes = not (memory.approves or self.personal.episodes.off)

    async def read_record(self) -> Sequence[Recorded]:
        """Return what messages without ids are compared with: nothing where a state keeps ids."""
        if self.kept is not None:
            return ()
        try:
            return self._list_seen() or await self.personal.read_folded(self.thread)
        except StoreError as error:
            _log.warning("Earlier messages of a thread cannot be read: %s", error)
            return ()

    async def find_own(
        self, messages: Mapping[Recorded, BaseMessage]
    ) -> dict[str, Mapping[str, str]]:
        """Return the marks, by id, of those messages that are known as the user's in the thread."""
        known = [messages[one] for one in messages.keys() - {*self._list_seen()}]
        others = {str(message.id) for message in known}
        try:
            others = await self._find_unknown(known) if known else others
        except Exception as error:  # noqa: BLE001 - a store and the user's function may raise anything
            _log.warning("Earlier messages of a thread cannot be read: %s", error)
        return {one.id: {"user": str(self.user)} for one in messages if one.id not in others}

    async def _find_unknown(self, messages: Sequence[BaseMessage]) -> set[str]:
        """Return the ids of those messages that neither were folded nor wait in any process."""
        new = await self.personal.find_changed(self.thread, messages, self._memory.redact)
        waiting = (await self.personal.episodes.read_all(empty=not (new and self._quotes)))[1]
        said = {(one.id, one.text) for one in waiting if one.text}
        kept = self._memory.get_folding(self.user).keep([one.message for one in new], self.thread)
        left = {one.recorded.id for one in new} - {o.id for o in kept if (o.id, o.text) in said}
        return {own_id(key, self.thread) for key in left}

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
        own = by_owner(messages, self.user).get(self.user, [])
        own = own[:1] + own[1:][-_NEWEST:]
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

        def is_gone(one: KeptMessage) -> bool:
            return one.thread == self.thread and left(one.own_id)

        try:
            left = await self._find_left(there)
            changed = await self.personal.find_changed(self.thread, new, self._memory.redact)
            messages = [one.message for one in changed]
            ids = [str(one.id) for one in messages if isinstance(one, HumanMessage)]
            said = {key: KeptMessage(key, self.thread, "", "", "") for key in ids}  # taken back
            folding = self._memory.get_folding(self.user)
            kept = folding.keep([m for m in messages if not is_excluded(m)], self.thread)
            said |= {one.id: one for one in kept}
            await self.personal.episodes.wait([*said.values()], is_gone)
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
        removed = await kept.find_removed(old, await kept.read(), self._ids) if old else set()
        return removed.__contains__

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
            gone = await kept.find_removed(seen, newest, self._ids)
        recorded = await self.personal.read_folded(self.thread)
        left = [one for one in recorded if one.checkpoint and one.id not in now]
        if left:
            since = min(one.checkpoint for one in left)
            branch = {at.checkpoint["id"] async for at in kept.walk_back(newest, since)}
            away = {one.checkpoint for one in left} - branch
            stand = {key for key in away if await kept.read(key)}  # else the thread was deleted
            left = [one for one in left if one.checkpoint in stand]
            # A fork replaces the first, up to the next one of a user.
            more = takewhile(lambda one: not one.digest.startswith(USER[:1]), left[1:])
            left = [*left[:1], *more]
        return gone, Branch(at if kept.writes else kept.checkpoint, now, left)

    def _ids(self, messages: Sequence[BaseMessage]) -> set[str]:
        return {str(message.id) for message in self.identify(messages, ())}

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
        ids = {message.id for message in gone}
        return [message for message in messages if message.id not in ids]


ACCESS_KEY = "memory_access"
"""Key of the context, or of `configurable`, with what a run may do."""


class Access(NamedTuple):
    """Whether a run may read the memory, and whether it may write it."""

    reads: bool
    writes: bool


_ACCESS = ("all", "read", "write", "none")


def access_of(config: RunnableConfig | None = None, context: object = None) -> Access:
    """Return what a run may do: `memory_access` in its context, or in `configurable`.

    The configuration is that of the run under way by default. Raises `ConfigurationError` for
    another value than "all", "read", "write" or "none".
    """
    found = in_context(context, ACCESS_KEY)
    if found is None:
        found = ensure_config(config).get("configurable", {}).get(ACCESS_KEY)
    found = "all" if found is None else found
    if found not in _ACCESS:
        message = f"{ACCESS_KEY} must be one of {', '.join(map(repr, _ACCESS))}, not {found!r}."
        raise ConfigurationError(message)
    return Access(reads=found in ("all", "read"), writes=found in ("all", "write"))


def in_context(context: object, key: str) -> object:
    """Return a field or key of a run's context, or of its input; None without one."""
    return context.get(key) if isinstance(context, Mapping) else getattr(context, key, None)


UserOf = Callable[[Runtime[Any], RunnableConfig], UserId | None]
"""A function from a run's runtime and config to the id of who talks."""

USER_KEY = "user_id"

_HOW = (
    'Invoke with context={"user_id": "..."} (a context_schema with that field) or with '
    '{"configurable": {"user_id": "...", "thread_id": "..."}}, or give user= a function.'
)


def read_channel(run: GraphRun, name: str) -> Any:
    """Return what a key of the state of a run has now; None if it has nothing."""
    channel = run.channels.get(name)
    return channel.get() if channel is not None and channel.is_available() else None


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
        given = (in_context(runtime.context, USER_KEY), configurable.get(USER_KEY))
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

    def of_earlier(
        self,
        runtime: Runtime[Any],
        config: RunnableConfig,
        known: str | None,
        earlier: CheckpointTuple,
    ) -> str | None:
        """Return the user of the run that wrote a checkpoint of the thread; None if not known.

        Checkpoints keep the texts and numbers of `configurable`, and nothing of a context.
        """
        given, named = config.get("configurable", {}), earlier.metadata.get(USER_KEY)
        kept: Mapping[str, Any] = {**get_checkpoint_metadata(config, {})}
        if kept.get(USER_KEY) != given.get(USER_KEY) or self._user is not None:
            return None
        if named is None and _first_id(in_context(runtime.context, USER_KEY)) != "":
            return None
        if _first_id(named) == "":
            return AnonymousUser.restore(known or AnonymousUser.of(given.get("thread_id")))
        return str(named)


def turn_of(now: Speaker, state: Mapping[str, Any]) -> Speaker:
    """Return whose turn it is: the user's who spoke last, also if another one resumes the run."""
    known = state.get("memory_user") or ""
    ours = known and last_owner(state.get("messages", ())) == known
    return now._replace(user=AnonymousUser.restore(known)) if ours else now


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
