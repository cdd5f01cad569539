"""A chatbot's long-term memory in its graph: as nodes, or around the node of the model."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from dataclasses import replace
from inspect import iscoroutinefunction
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict
from uuid import uuid4

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, RemoveMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.graph import MessagesState
from langgraph.runtime import Runtime  # noqa: TC002 - LangGraph reads the annotation
from langgraph.types import Command

from memagent_graph.conversation.messages import (
    as_messages,
    by_owner,
    identify,
    is_instruction,
    is_reply,
    is_unmarked,
    last_owner,
    stamp,
)
from memagent_graph.conversation.prompt import Reminders, cut_long
from memagent_graph.conversation.session import Talk
from memagent_graph.conversation.thread import (
    AnonymousUser,
    KeptThread,
    Speakers,
    UserOf,
    access_of,
    drop_passing,
    find_left,
    in_context,
    list_said,
    put_before,
    read_channel,
    turn_of,
    view,
)
from memagent_graph.errors import ConfigurationError
from memagent_graph.seams import RunnableCallable, channels_of, replaces_messages, runs_of
from memagent_graph.sync import to_sync, wait_for

if TYPE_CHECKING:
    from collections import OrderedDict
    from collections.abc import Callable, Sequence

    from langgraph.checkpoint.base import CheckpointTuple

    from memagent_graph.conversation.memory import ConversationMemory

_UNKNOWN = (
    "The run of user {!r} resumes one that stopped before the memory saw its messages, and whose "
    "user is not known. Put the memory before the node that interrupts, or give each run its user "
    'in {{"configurable": {{"user_id": "..."}}}}, too.'
)

_MOST_VIEWS = 4
"""Views of a user's threads of which a process knows what was shown."""
_log = logging.getLogger(__name__)


def _take_last(_: Any, value: Any) -> Any:
    """Reduce what several memory nodes write in one step."""
    return value


class RememberingState(TypedDict):
    """The keys of the graph's state that the node reads and writes; missing ones are added."""

    messages: list[AnyMessage]
    memory_user: NotRequired[Annotated[str, _take_last]]
    memory_left: NotRequired[Annotated[str, _take_last]]
    memory_view: NotRequired[Annotated[list[AnyMessage], _take_last]]


class ConversationState(MessagesState):
    """`MessagesState` with what a conversation with memory keeps of a thread.

    Attributes:
        memory_user: id of the user whose turn the thread's last one is.
        memory_left: id of a message: what precedes it, and its group, the model does not see.
        memory_view: what the model sees after a `ConversationNode`: instructions, recent messages.

    Examples:
        >>> from langgraph.graph import StateGraph
        >>> from memagent_graph import ConversationState
        >>> builder = StateGraph(ConversationState)
        >>> "memory_view" in builder.channels
        True
    """

    memory_user: NotRequired[Annotated[str, _take_last]]
    memory_left: NotRequired[Annotated[str, _take_last]]
    memory_view: NotRequired[Annotated[list[AnyMessage], _take_last]]


class ConversationNode(RunnableCallable):
    """A node that remembers the `messages` of a graph, and keeps short what the model sees of them.

    Put it before the model call, where it writes `memory_view`, and once more after it, so that a
    turn is folded together with its reply. The model gets `memory.prompt(user, about=messages)` and
    the view; a `ReplyNode` does all of it in one step. `messages` keeps the whole thread. The
    memory's text is in no state, and so in no checkpoint and no stream.

    Args:
        memory: the memory of the users.
        user: function that returns the id of the user; None looks for `user_id` in the run's
            context, then in `configurable`. Without a user, the thread has a memory of its own.
        strict: whether a run without a user is an error instead.
        shorten_state: whether to remove messages that leave the view from `messages`, too.

    Examples:
        >>> from langgraph.graph import START, StateGraph
        >>> from langgraph.store.memory import InMemoryStore
        >>> from memagent_graph import ConversationMemory, ConversationNode, ConversationState
        >>> memory = ConversationMemory("openai:gpt-4o", store=InMemoryStore())
        >>> def reply(state, config):  # in its place, a model that gets notes and the view
        ...     notes = memory.prompt(config["configurable"]["user_id"], about=state["memory_view"])
        ...     return {"messages": [("ai", f"Noted {len(notes)} times.")]}
        >>> builder = StateGraph(ConversationState)
        >>> builder = builder.add_node("remember", ConversationNode(memory)).add_node(reply)
        >>> builder = builder.add_node("note", ConversationNode(memory))
        >>> builder = builder.add_edge(START, "remember").add_edge("remember", "reply")
        >>> graph = builder.add_edge("reply", "note").compile()
        >>> config = {"configurable": {"user_id": "ann", "thread_id": "monday"}}
        >>> done = graph.invoke({"messages": [("human", "My sister breeds goats.")]}, config)
        >>> memory.load("ann")
        'My sister breeds goats.'
    """

    def __init__(
        self,
        memory: ConversationMemory[Any],
        *,
        user: UserOf | None = None,
        strict: bool = False,
        shorten_state: bool = False,
    ) -> None:
        speakers = Speakers(user, strict=strict)

        async def remember(
            state: Any, config: RunnableConfig, runtime: Runtime[Any]
        ) -> dict[str, Any]:
            given = state if isinstance(state, dict) else vars(state)
            thread = Thread(memory, speakers, given, runtime, config)
            if memory.read_only:
                known = identify(as_messages(given["messages"]), thread.speaker.thread)
                return {"memory_view": known}
            await thread.open()
            if is_reply(thread.now):
                await thread.note(ended=True)
                return thread.begin()
            stays, update = thread.turn(shorten=shorten_state)
            await thread.note(ended=False)
            return update if shorten_state else update | {"memory_view": stays}

        self._call = to_sync(remember)
        super().__init__(self._call, remember, name="remember", trace=False)

    def __call__(
        self, state: RememberingState, config: RunnableConfig, runtime: Runtime[Any]
    ) -> dict[str, Any]:
        """Run the node. LangGraph learns from the annotations which keys the state needs."""
        return self._call(state, config, runtime)


class ReplyNode(RunnableCallable):
    """A node that calls the model with memory: around yours, which sees `messages` as it should.

    These are the system messages and the recent ones, with what is remembered of the user. What
    your node returns is folded as the turn's reply. The memory's text is in no checkpoint.

    Args:
        memory: the memory of the users.
        reply: function of the state (and config, runtime), or runnable, that calls the model and
            returns its reply under `messages`, or a `Command` with it.
        user, strict, shorten_state: as for `ConversationNode`.

    Its runs raise:
        ConfigurationError: The state lacks the keys of `ConversationState`.

    Examples:
        >>> from langgraph.graph import START, StateGraph
        >>> from langgraph.store.memory import InMemoryStore
        >>> from memagent_graph import ConversationMemory, ConversationState, ReplyNode
        >>> memory = ConversationMemory("openai:gpt-4o", store=InMemoryStore())
        >>> def reply(state):  # in its place, a model that gets the messages
        ...     return {"messages": [("ai", f"You say: {state['messages'][-1].text}")]}
        >>> builder = StateGraph(ConversationState).add_node("reply", ReplyNode(memory, reply))
        >>> graph = builder.add_edge(START, "reply").compile()
        >>> config = {"configurable": {"user_id": "ann", "thread_id": "monday"}}
        >>> done = graph.invoke({"messages": [("human", "My sister breeds goats.")]}, config)
        >>> memory.load("ann")
        'My sister breeds goats.'
    """

    def __init__(
        self,
        memory: ConversationMemory[Any],
        reply: Callable[..., Any] | Runnable[Any, Any],
        *,
        user: UserOf | None = None,
        strict: bool = False,
        shorten_state: bool = False,
    ) -> None:
        given = (None, reply) if iscoroutinefunction(reply) else (reply,)
        node = reply if isinstance(reply, Runnable) else RunnableCallable(*given, trace=False)
        speakers = Speakers(user, strict=strict)

        async def show(
            state: Any, config: RunnableConfig, runtime: Runtime[Any]
        ) -> tuple[Thread, Any, dict[str, Any]]:
            if "memory_left" not in channels_of(config):
                lacks = "The state lacks memory_left: build the graph with a ConversationState."
                raise ConfigurationError(lacks)
            given = state if isinstance(state, dict) else vars(state)
            thread = Thread(memory, speakers, given, runtime, config)
            shown, changed = await thread.show(given["messages"], shorten=shorten_state)
            return thread, _with_messages(state, shown), changed

        def call(state: Any, config: RunnableConfig, runtime: Runtime[Any]) -> Any:
            thread, shown, changed = wait_for(show(state, config, runtime))
            return wait_for(thread.take(node.invoke(shown, config), changed))

        async def acall(state: Any, config: RunnableConfig, runtime: Runtime[Any]) -> Any:
            thread, shown, changed = await show(state, config, runtime)
            return await thread.take(await node.ainvoke(shown, config), changed)

        super().__init__(call, acall, name="reply", trace=False)


def _with_messages(state: Any, messages: list[BaseMessage]) -> Any:
    """Return a state, of any of the kinds that LangGraph takes, with other messages."""
    if isinstance(state, dict):
        return {**state, "messages": messages}
    changed = copy(state)
    object.__setattr__(changed, "messages", messages)  # some are frozen
    return changed


class Thread:
    """The thread of a run, as node and middleware see it; `now` are their messages once it is open.

    Those that it `has`, and that may be folded, are others if a `Send` handed the node its own. It
    is the turn of the user who spoke last, also if another one resumes the run. What precedes the
    message `left`, and its group, the model does not see; of this turn it has `turn_tokens`.
    """

    now: list[BaseMessage]
    has: list[BaseMessage]
    turn_tokens = inf

    def __init__(
        self,
        memory: ConversationMemory[Any],
        speakers: Speakers,
        state: Mapping[str, Any],
        runtime: Runtime[Any],
        config: RunnableConfig,
    ) -> None:
        given = state.get("messages") or ()  # a state may keep them as they were given
        self._given = dict(zip(map(id, given), messages := as_messages(given), strict=True))
        state = {**state, "messages": messages}
        self._memory, self._state, self._speakers = memory, state, speakers
        self._store, self._config, self._runtime = runtime.store, config, runtime
        self._known: str = state.get("memory_user") or ""
        self.left: str | None = state.get("memory_left") or None
        self._access = access_of(config, runtime.context)
        now = speakers.of(runtime, config, self._known)
        self._now, self.speaker = now.user, turn_of(now, state)

    async def open(self) -> Thread:
        """Find out which messages there are, and with whose run each came; return the thread."""
        talk = self._own = self._talk(self.speaker.user, silent=_is_subagent(self._config))
        runs, given = runs_of(self._config)[:1], self._state["messages"]
        there = as_messages([m for run in runs for m in read_channel(run, "messages") or ()])
        same = not there or [m.id for m in there] == [m.id for m in given]
        lists, record = [given] if same else [there, given], await talk.read_record()
        if talk.kept is None:
            lists = [[*map(drop_passing, one)] for one in lists]
        lists = [talk.identify(one, record) for one in lists]
        earlier = await self._find_earlier(lists[0])
        self._users = {self._known, str(self._now), *(mark["user"] for mark in earlier.values())}
        marks = self._now if self._access.writes else "", self._memory.zone, earlier
        lists = [stamp(one, *marks) for one in lists]
        self.has, self.now = lists[0], lists[-1]
        self._pairs = [*zip(given, self.now, strict=True)]
        if earlier and (owner := last_owner(self.has)) != self.speaker.user and owner:
            self.speaker = self.speaker._replace(user=AnonymousUser.restore(owner))
            self._own = self._talk(self.speaker.user, silent=talk.silent)
        return self

    async def _find_earlier(self, now: Sequence[BaseMessage]) -> dict[str, Mapping[str, str]]:
        """Return the marks of messages that have none and came with an earlier run of the thread.

        The records of the two users of the last turns say whose they are, or else the checkpoints.
        Raises `ConfigurationError` if neither does, and the run resumes another one.
        """
        talk, marks = self._own, dict[str, Mapping[str, str]]()
        if talk.kept is None:
            return marks
        run = runs_of(self._config)[-1]
        brings = _brings_words(run.input)
        newest = [m for m in now if isinstance(m, HumanMessage)][-1:] if brings else []
        old = talk.record(m for m in now if is_unmarked(m) and m not in newest)
        for user in {self._known, str(self._now)} - {""} if old else ():
            marks |= await self._talk(AnonymousUser.restore(user)).find_own(old)
        left = {one for one in old if one.id not in marks}
        there = () if brings else talk.record_all(as_messages(read_channel(run, "messages") or ()))
        made = set() if brings else left.difference(there)

        def find_user(earlier: CheckpointTuple) -> str | None:
            of = self._runtime, self._config, self._known
            user = self._speakers.of_earlier(*of, earlier)
            if user is None and not brings:
                raise ConfigurationError(_UNKNOWN.format(self._speakers.of(*of).user))
            if user is None:
                _log.warning("An earlier message is remembered for nobody: its user is unknown.")
            return user

        if left:
            marks |= await talk.kept.find_marks(left, talk.record_all, find_user, run.began, made)
        return marks

    async def show(
        self, messages: Sequence[BaseMessage], *, shorten: bool
    ) -> tuple[list[Any], dict[str, Any]]:
        """Begin a turn, or continue it: return what the model sees, and the changes of the state.

        `messages` are those of the state, which other middleware may have changed. Before those of
        users stands what is remembered. It is the same in all calls of a turn, and of later turns,
        until the view begins elsewhere or something is forgotten.
        """
        messages = as_messages([self._given.get(id(message), message) for message in messages])
        left, changed = [(message.id, message) for message in messages], dict[str, Any]()
        if not self._memory.read_only:
            await self.open()
            if self.now and isinstance(self.now[-1], HumanMessage):
                await self.note(ended=False)
            stays, changed = self.turn(shorten=shorten)
            left = self._list_left(messages, stays)
        shown = [m if m.id == key else m.model_copy(update={"id": key}) for key, m in left]
        whole, shown = shown, cut_long(shown, self.turn_tokens)
        if self._access.reads:
            recalled = self._recalled
            view = *self._agent, next((str(m.id) for m in shown if not is_instruction(m)), "")
            reminders = recalled.setdefault(view, Reminders())
            recalled.move_to_end(view)
            while len(recalled) > _MOST_VIEWS:
                recalled.popitem(last=False)
            if reminders.begin(list_said(shown)):
                user, store = self.speaker.user, self._store
                await self._memory.atold(user, about=whole, store=store, reminders=reminders)
            shown = put_before(shown, reminders.texts)
        self._shown = {_key(one): own for one, (_, own) in zip(shown, left, strict=False)}
        return shown, changed

    def _list_left(
        self, messages: Sequence[BaseMessage], stays: Sequence[BaseMessage]
    ) -> list[tuple[str | None, BaseMessage]]:
        """Return the messages that the model still sees, with the ids by which they are known.

        Those with ids are found by them, as other middleware may have changed the messages.
        """
        own = {message.id or id(message): str(mine.id) for message, mine in self._pairs}
        gone = {*own.values()} - {message.id for message in stays}
        found = [(own.get(one.id or id(one), one.id), one) for one in messages]
        return [(key, one) for key, one in found if key not in gone]

    @property
    def _recalled(self) -> OrderedDict[tuple[str, str, str], Reminders]:
        return self._memory.people.backlog(self.speaker.user, self._store).recalled

    @property
    def _agent(self) -> tuple[str, str]:
        """The thread, and the agent in it: the nodes that run it, without the ids of their runs."""
        ns = str(self._config["configurable"].get("checkpoint_ns", "")).rpartition("|")[0]
        return self.speaker.thread, re.sub(":[^|]*", "", ns)

    async def take(self, result: Any, changed: dict[str, Any]) -> Any:
        """Take what the node of the model returns, and return it with what else changes.

        Messages that it was shown come back as those of the state, without the memory.
        """
        update = result.update or {} if isinstance(result, Command) else result or {}
        if not isinstance(update, Mapping):
            return result
        said = [self._shown.get(_key(m), m) for m in as_messages(update.get("messages") or ())]
        new = [message for message in said if message not in self._state["messages"]]
        for message in new:
            message.id = message.id or str(uuid4())
        own = stamp(new, self._now if self._access.writes else "", self._memory.zone)
        heard = [message for message in own if not isinstance(message, RemoveMessage)]
        if is_reply(heard):
            await self.end(heard)
        elif heard and not self._memory.read_only:
            await self.note(heard, ended=False)
        merged = {**update, **changed}
        if said:
            old = [message for message in said if message not in new]
            merged["messages"] = [*old, *own, *changed.get("messages", ())]
        return replace(result, update=merged) if isinstance(result, Command) else merged

    async def end(self, reply: Sequence[BaseMessage] = ()) -> None:
        """End the turn, with a reply that this step writes: it is folded, the next recalls anew."""
        for (*agent, _), reminders in [*self._recalled.items()]:
            if (*agent,) == self._agent:
                reminders.end()
        if not self._memory.read_only:
            await self.note(reply, ended=True)

    def _talk(self, user: str, *, silent: bool = False) -> Talk:
        kept = KeptThread.of(self._config)
        thread = self.speaker.thread
        return Talk(self._memory, user, thread, self._store, self._config, kept=kept, silent=silent)

    async def note(self, reply: Sequence[BaseMessage] = (), *, ended: bool) -> None:
        """Let messages wait to be folded, and a reply that this step writes, each for its user.

        Of other users than those of this turn, of the one before and of runs that checkpoints
        name, nothing is written: a client can mark messages, too.
        """
        self.has += reply
        if reply and (kept := self._own.kept):
            self._own.kept = kept._replace(writes=not kept.nested)
        await self._own.note(self.has, ended=ended)
        for user in self._users - {"", str(self._own.user)}:
            if any(by_owner(self.has, "").get(user, ())) and not self._own.silent:
                await self._talk(AnonymousUser.restore(user)).note(self.has, ended=ended)

    def begin(self) -> dict[str, Any]:
        """Begin a turn: return the changes of the state.

        Messages are marked in the state if its reducer replaces messages by their ids.
        """
        update: dict[str, Any] = {}
        if self._known != self.speaker.user:
            update["memory_user"] = str(self.speaker.user)
        marked = [
            mine.model_copy(update={"id": message.id})
            for message, mine in self._pairs
            if message.id and message.additional_kwargs != mine.additional_kwargs
        ]
        if marked and replaces_messages(self._config, marked):
            update["messages"] = marked
        return update

    def turn(self, *, shorten: bool) -> tuple[list[BaseMessage], dict[str, Any]]:
        """Begin a turn: return what the model sees, and the changes of the state.

        What leaves the view leaves the state as well to `shorten` it.
        """
        update, seen = self.begin(), view(self.now, self.left)
        stays = self._own.shorten(seen, turn_tokens=self.turn_tokens)
        if len(stays) < len(seen):
            update["memory_left"] = find_left(self.now, stays)
        if shorten:
            kept = self._own.shorten(self.now, turn_tokens=self.turn_tokens, folded=True)
            left = {message.id for message in kept}
            gone = [RemoveMessage(m.id) for m, mine in self._pairs if m.id and mine.id not in left]
            update |= {"messages": [*update.get("messages", ()), *gone]} if gone else {}
        return stays, update


def _key(message: BaseMessage) -> object:
    return message.id, str(message.content)


def _is_subagent(config: RunnableConfig) -> bool:
    """Whether a tool of another agent began a run, so that its words are not the user's.

    The state of a graph above says so: its assistant's last message calls tools that have not
    returned.
    """
    return any(_calls_tools(read_channel(run, "messages") or ()) for run in runs_of(config)[1:])


def _calls_tools(messages: Sequence[BaseMessage]) -> bool:
    last = next((one for one in reversed(messages) if isinstance(one, AIMessage)), None)
    done = {getattr(message, "tool_call_id", None) for message in messages}
    return last is not None and any(call["id"] not in done for call in last.tool_calls)


def _brings_words(given: object) -> bool:
    """Whether the input of a run has a message of a user."""
    with suppress(ConfigurationError):
        found = as_messages(in_context(given, "messages"))  # type: ignore[arg-type]
        return any(isinstance(message, HumanMessage) for message in found)
    return False
