"""One conversation with one user: whose it is, what of it is folded when, and what stays."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import Runtime

from memagent_graph.conversation.messages import (
    after,
    align,
    beyond,
    count_tokens,
    first_leaving,
    is_instruction,
    record_message,
    spread_exclusion,
)
from memagent_graph.conversation.user_memory import AnonymousUser, UserId, name_user
from memagent_graph.errors import ConfigurationError
from memagent_graph.templates import plural

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from memagent_graph.conversation.backlog import Backlog
    from memagent_graph.conversation.episodes import Recorded
    from memagent_graph.conversation.privacy import Redact
    from memagent_graph.conversation.user_memory import UserMemory

Remember = Literal["turn", "window", "end"]

_NEWEST = 100
"""Messages of a thread that a process knows, and compares with what a turn brings, at most."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Talk:
    """A thread of a user.

    Attributes:
        thread: id of the thread.
        personal: the user's memory.
        backlog: the user's messages that wait to be folded.
        fold: function that folds those of some messages that are not folded yet, and returns their
            number; the ids of which something is sure are as for `align`.
        remember: time of folding, see `ConversationMemory`.
        within: seconds after a turn in which it is to be folded.
        window: most messages that stay.
        tokens: most tokens that stay.
        redact: function that texts pass through before anything of them is stored.
        silent: whether nothing of the thread is folded or recorded.
    """

    thread: str
    personal: UserMemory
    backlog: Backlog
    fold: Callable[[Sequence[BaseMessage], Mapping[str, bool]], Awaitable[int]]
    remember: Remember
    within: float
    window: int
    tokens: int
    redact: Redact
    silent: bool = False

    def opens(self, messages: Sequence[BaseMessage]) -> bool:
        """Whether a thread starts while messages of the user wait to be folded."""
        if self.silent:
            return False
        starts = not any(isinstance(message, AIMessage) for message in messages)
        return self.remember == "turn" and starts and self.backlog.waits > 0

    async def begin(self, messages: Sequence[BaseMessage]) -> None:
        """Fold the messages of the user's other threads when a thread starts.

        It takes `within` seconds at most, and goes on afterwards.
        """
        if self.opens(messages):
            await self.backlog.fold(self.within)

    def fits(self, messages: Sequence[BaseMessage]) -> bool:
        """Whether all messages are within the window, as far as they can be counted."""
        try:
            return not self._beyond(messages)
        except Exception:  # noqa: BLE001 - `shorten` logs it
            return False

    def note(self, messages: Sequence[BaseMessage], folded: str | None, *, ended: bool) -> None:
        """Add new messages to those that wait to be folded.

        Args:
            messages: the conversation.
            folded: the id of the message that was folded last.
            ended: whether the last message is the reply; else the last turn is due later.
        """
        if self.silent or self.remember == "window":
            return
        messages = spread_exclusion(messages)
        said, recorded, sure = self._find_unrecorded(messages, folded)
        humans = [at for at, message in enumerate(said) if isinstance(message, HumanMessage)]
        closed = len(said) if ended or not humans else humans[-1]
        soon, late = self.within / 2, self.within  # the fold takes time, too
        if self.remember == "end":
            soon = late = math.inf
        waiting = ((soon if at < closed else late, message) for at, message in enumerate(said))
        self.backlog.add(self.thread, waiting, self.fold, recorded=recorded, sure=sure)

    def _find_unrecorded(
        self, messages: Sequence[BaseMessage], folded: str | None
    ) -> tuple[list[BaseMessage], list[Recorded], dict[str, bool]]:
        """Return messages that may have to be folded, what the thread has now, and what is sure.

        In a thread that this process does not know yet, a fold finds out what is new: that reads
        the store.
        """
        said = [message for message in messages if not is_instruction(message)]
        known = self.backlog.newest(self.thread)
        if known is None:
            new = [m for m in after(messages, folded) if not is_instruction(m)]
            said = said[-max(len(new), _NEWEST) :]
            sure = {str(m.id): False for m in said[: len(said) - len(new)]} | self._sure(new)
            return said, [*map(record_message, said)][-_NEWEST:], sure
        whole = len(known) < _NEWEST
        said = said if whole else said[-_NEWEST - len(after(said, known[-1].id)[:_NEWEST]) :]
        found = align(said, known, whole=whole, sure=self._sure(said))
        changed = {str(m.id): record_message(m) for m in (*found.edited, *found.new)}
        waits = [message for message in found.known if str(message.id) in changed]
        recorded = [changed.pop(one.id, one) for one in known]
        return (
            waits,
            [*recorded, *changed.values()][-_NEWEST:],
            {str(m.id): True for m in found.new},
        )

    async def shorten(
        self, messages: Sequence[BaseMessage], folded: str | None
    ) -> list[BaseMessage]:
        """The messages that stay: those beyond the window leave, once they are folded.

        What the background has not folded yet is folded here only if there is no room for it.
        When that fails, it is logged, and the messages stay.

        Args:
            messages: the conversation.
            folded: the id of the message that was folded last.
        """
        stay = [*messages]
        marked = {message.id: message for message in spread_exclusion(messages)}
        folding: list[BaseMessage] = []
        try:
            folding = self._beyond(stay)
            if self.silent:
                return _without(stay, folding)
            if folding and self.remember == "turn":
                new = after(stay, folded)
                done = {str(message.id) for message in stay[: len(stay) - len(new)]}
                if any(str(message.id) not in done for message in folding):
                    done.update(await self._find_folded(stay))
                stay = _without(stay, first_leaving(folding, done))
                folding = self._beyond(stay)
                if folding and _tokens(stay) <= self.tokens:
                    self.backlog.hurry()
                    return stay
            if folding:
                leaving = [marked[message.id] for message in folding]
                await self.fold(leaving, self._sure(folding))
                self.backlog.remove(self.thread, folding)
        except GraphBubbleUp:
            raise
        except Exception as error:  # noqa: BLE001 - whatever failed, the conversation goes on
            what = plural(len(folding), "message")
            _log.warning("Folding %s failed, and the conversation keeps all: %s", what, error)
            return stay
        return _without(stay, folding)

    def _sure(self, messages: Sequence[BaseMessage]) -> dict[str, bool]:
        """Return the ids of messages that are new unless their ids are known, with True."""
        trusted = self.backlog.trusts(self.thread)
        return {str(message.id): True for message in messages} if trusted else {}

    async def _find_folded(self, messages: Sequence[BaseMessage]) -> set[str]:
        """Return the ids, as they are here, of the messages that were folded."""
        said = [message for message in messages if not is_instruction(message)]
        recorded = await self.personal.read_folded(self.thread)
        found = align(said, recorded, sure=self._sure(said), redact=self.redact)
        changed = {str(message.id) for message in (*found.new, *found.edited)}
        return {
            str(message.id)
            for message, known in zip(said, found.known, strict=True)
            if str(known.id) not in changed
        }

    def _beyond(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        return beyond(messages, window=self.window, tokens=self.tokens, count=count_tokens)


def _without(messages: list[BaseMessage], gone: Sequence[BaseMessage]) -> list[BaseMessage]:
    ids = {message.id for message in gone}
    return [message for message in messages if message.id not in ids]


def _tokens(messages: Sequence[BaseMessage]) -> int:
    return sum(count_tokens(message) for message in messages if not is_instruction(message))


ACCESS_KEY = "memory_access"
"""Key of the context, or of `configurable`, with what a run may do."""


class Access(NamedTuple):
    """Whether a run may read the memory, and whether it may write it."""

    reads: bool
    writes: bool


_ALL = Access(reads=True, writes=True)
_KINDS = {
    "all": _ALL,
    "read": Access(reads=True, writes=False),
    "write": Access(reads=False, writes=True),
    "none": Access(reads=False, writes=False),
}


def access_of(config: RunnableConfig | None = None, context: object = None) -> Access:
    """Return what a run may do: `memory_access` in its context, or in `configurable`.

    Args:
        config: configuration of the run; None for the one under way, if there is one.
        context: context of the run.

    Raises:
        ConfigurationError: It is not "all", "read", "write" or "none".
    """
    if config is None:
        config = _current_config()
    known = context if isinstance(context, Mapping) else {}
    found = known.get(ACCESS_KEY, getattr(context, ACCESS_KEY, None))
    if found is None:
        found = (config.get("configurable") or {}).get(ACCESS_KEY)
    if found is None:
        return _ALL
    if not isinstance(found, str) or found not in _KINDS:
        message = f"{ACCESS_KEY} must be one of {', '.join(map(repr, _KINDS))}, not {found!r}."
        raise ConfigurationError(message)
    return _KINDS[found]


def _current_config() -> RunnableConfig:
    try:
        return get_config()
    except RuntimeError:  # no run is under way
        return {}


UserOf = Callable[[Runtime[Any], RunnableConfig], UserId | None]
"""A function from a run's runtime and config to the id of who talks."""

USER_KEY = "user_id"

_HOW = (
    'Invoke with context={"user_id": "..."} (a context_schema with that field) or with '
    '{"configurable": {"user_id": "...", "thread_id": "..."}}, or give user= a function.'
)


_TOOLS = "tools"
"""Name of the node that runs tools, in LangChain's agents and deepagents."""


def is_subagent(config: RunnableConfig | None) -> bool:
    """Whether a tool of another agent began a run, so that its words are not the user's.

    Args:
        config: configuration of the run.
    """
    place = str(((config or {}).get("configurable") or {}).get("checkpoint_ns") or "")
    above = place.split("|")[:-1]
    return any(node.partition(":")[0] == _TOOLS for node in above)


class Speaker(NamedTuple):
    """Whose memory it is, and which conversation with them."""

    user: str
    thread: str


class Speakers:
    """Finds the user by a function, the run's context or its config, in this order.

    A run without a user continues with the user of its thread, which may have been resumed;
    otherwise the thread has a memory of its own.

    Args:
        user: function that returns the user's id; None looks for `user_id` in the context, then in
            `configurable`.
        strict: whether a run without a user is an error instead.
    """

    def __init__(self, user: UserOf | None = None, *, strict: bool = False) -> None:
        self._user = user
        self._strict = strict
        self._warned = False

    def of(self, runtime: Runtime[Any], config: RunnableConfig, known: str | None) -> Speaker:
        """Return the user and the thread of a run.

        Args:
            runtime: runtime of the run.
            config: configuration of the run.
            known: id of the user in the thread's state.

        Raises:
            ConfigurationError: The run names neither a user nor a thread, or no user and `strict`.
        """
        configurable = config.get("configurable", {})
        thread = str(_first_id(configurable.get("thread_id")))
        named = self._find_user(runtime, config)
        if named or known:
            return Speaker(named or AnonymousUser.restore(known or ""), thread)
        if self._strict or not thread:
            message = f"The run does not say which user is talking. {_HOW}"
            raise ConfigurationError(message)
        if not self._warned:
            self._warned = True
            _log.warning("A run names no user, so its thread has a memory of its own. %s", _HOW)
        return Speaker(AnonymousUser.of(thread), thread)

    def access(self, runtime: Runtime[Any], config: RunnableConfig) -> Access:
        """Return what a run may do with the memory; see `access_of`."""
        return access_of(config, runtime.context)

    def _find_user(self, runtime: Runtime[Any], config: RunnableConfig) -> str:
        if self._user is not None:
            return _name(self._user(runtime, config))
        context = runtime.context
        found = (
            context.get(USER_KEY)
            if isinstance(context, Mapping)
            else getattr(context, USER_KEY, None)
        )
        return _name(found, config.get("configurable", {}).get(USER_KEY))


def _first_id(*ids: object) -> object:
    """Return the first id that is one: 0 is, None and "" are not."""
    return next((one for one in ids if one is not None and one != ""), "")


def _name(*ids: object) -> str:
    found = _first_id(*ids)
    return "" if found == "" else name_user(found)
