"""A chatbot's long-term memory as nodes of its graph: one remembers, one asks for approval."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict
from uuid import UUID

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig  # noqa: TC002 - LangGraph reads the annotation
from langgraph.graph import MessagesState
from langgraph.runtime import Runtime  # noqa: TC002 - LangGraph reads the annotation
from langgraph.types import interrupt
from pydantic import ValidationError

from memagent_graph.conversation.messages import (
    as_messages,
    by_owner,
    identify,
    is_human,
    is_reply,
    is_unmarked,
    last_owner,
    record_message,
    stamp,
)
from memagent_graph.conversation.proposal import Decision, change_proposals, list_proposals
from memagent_graph.conversation.session import Talk
from memagent_graph.conversation.thread import (
    AnonymousUser,
    KeptThread,
    Speaker,
    Speakers,
    UserOf,
    access_of,
    find_left,
    in_context,
    read_channel,
    turn_of,
    view,
)
from memagent_graph.errors import ConfigurationError, MemoryConflictError, MemoryNotFoundError
from memagent_graph.seams import RunnableCallable, is_answered, replaces_messages, runs_of
from memagent_graph.sync import to_sync

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from langchain_core.messages import SystemMessage
    from langgraph.checkpoint.base import CheckpointTuple
    from langgraph.store.base import BaseStore

    from memagent_graph.conversation.memory import ConversationMemory
    from memagent_graph.conversation.proposal import Proposal

    _Run = Callable[[Mapping[str, Any], RunnableConfig, Runtime[Any]], Awaitable[dict[str, object]]]

_UNKNOWN = (
    "The run of user {!r} resumes one that stopped before the memory saw its messages, and whose "
    "user is not known. Put the memory before the node that interrupts, or give each run its user "
    'in {{"configurable": {{"user_id": "..."}}}}, too.'
)

_MOST_TURNS = 16
"""Turns of a user that have not ended whose memory is kept as it was shown."""
_log = logging.getLogger(__name__)


def _take_last(_: Any, value: Any) -> Any:
    """Reduce what several memory nodes write in one step."""
    return value


class RememberingState(TypedDict):
    """The keys of the graph's state that the node reads and writes; missing ones are added.

    `memory_user` and `memory_left` are as in `MemAgentState`, `memory_view` as below.
    """

    messages: list[AnyMessage]
    memory_user: NotRequired[Annotated[str, _take_last]]
    memory_left: NotRequired[Annotated[str, _take_last]]
    memory_view: NotRequired[Annotated[list[AnyMessage], _take_last]]


class ConversationState(MessagesState):
    """`MessagesState` with the view of a `ConversationNode`, for the nodes that call the model.

    Attributes:
        memory_view: messages for the model: the system messages and the recent ones.

    Examples:
        >>> from langgraph.graph import StateGraph
        >>> from memagent_graph import ConversationState
        >>> builder = StateGraph(ConversationState)
        >>> "memory_view" in builder.channels
        True
    """

    memory_view: NotRequired[Annotated[list[AnyMessage], _take_last]]


class _MemoryNode(RunnableCallable):
    """A node that runs a function of state, config and runtime.

    The function may not know the node: LangGraph would look for graphs in it for ever.
    """

    def __init__(self, name: str, run: _Run) -> None:
        async def arun(
            state: Any, config: RunnableConfig, runtime: Runtime[Any]
        ) -> dict[str, object]:
            return await run(state if isinstance(state, dict) else vars(state), config, runtime)

        self._call = to_sync(arun)
        super().__init__(self._call, arun, name=name, trace=False)

    def __call__(
        self, state: RememberingState, config: RunnableConfig, runtime: Runtime[Any]
    ) -> dict[str, object]:
        """Run the node. LangGraph learns from the annotations which keys the state needs."""
        return self._call(state, config, runtime)


class ConversationNode(_MemoryNode):
    """A node that remembers the `messages` of a graph, and keeps short what the model sees of them.

    Put it before the model call, where it writes `memory_view`, and once more after it, so that a
    turn is folded together with its reply. The model gets `memory.prompt(user, about=messages)` and
    the view. `messages` keeps the whole thread. The memory's text is in no state, and so in no
    checkpoint and no stream.

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
        memory: ConversationMemory,
        *,
        user: UserOf | None = None,
        strict: bool = False,
        shorten_state: bool = False,
    ) -> None:
        speakers = Speakers(user, strict=strict)

        async def remember(
            state: Mapping[str, Any], config: RunnableConfig, runtime: Runtime[Any]
        ) -> dict[str, object]:
            thread = Thread(memory, speakers, state, runtime, config)
            if memory.read_only:
                return {"memory_view": identify(state["messages"], thread.speaker.thread)}
            await thread.open()
            if is_reply(thread.now):
                await thread.note(ended=True)
                return thread.begin()
            stays, update = thread.turn(shorten=shorten_state)
            await thread.note(ended=False)
            return update if shorten_state else update | {"memory_view": stays}

        super().__init__("remember", remember)


_REFUSED = (ValidationError, ConfigurationError, MemoryConflictError, MemoryNotFoundError)
"""Errors of a reply that decides nothing, and can be given again."""


class ApprovalNode(_MemoryNode):
    """Interrupts the graph if something new waits for the approval of its user.

    The interrupt's value is `{"proposals": [{"id": ..., "at": ..., "thread": ..., "memory": ...,
    "changes": ...}]}`, with the whole new memory, and the lines of a diff. Resume with
    `Command(resume={"accept": [id], "refuse": [id], "edit": {id: text}})`. A reply with another
    form, or with an id that does not wait, decides nothing: the graph is interrupted again, with
    the reason in `"error"`.

    Each proposal interrupts a thread once. If a new message comes instead of a reply, the turn goes
    on, and the proposals wait. Nothing is folded for a review.

    The run may be resumed by another user if the thread's state has `memory_user`, as after a
    `ConversationNode`. Otherwise resume it with the `user_id` of the interrupted run.

    Args:
        memory: the memory of the users, with `approve=True`.
        user: function of the run's runtime and config that returns the id of the user, as for
            `ConversationNode`.
        strict: whether a run without a user is an error; otherwise its thread has a memory.

    Examples:
        >>> from langgraph.checkpoint.memory import InMemorySaver
        >>> from langgraph.graph import START, StateGraph
        >>> from memagent_graph import ApprovalNode, ConversationMemory, ConversationState
        >>> memory = ConversationMemory("openai:gpt-4o", approve=True)
        >>> _ = memory.save([("human", "My sister breeds goats.")], user="ann", thread="monday")
        >>> builder = StateGraph(ConversationState).add_node("approve", ApprovalNode(memory))
        >>> graph = builder.add_edge(START, "approve").compile(InMemorySaver())
        >>> config = {"configurable": {"user_id": "ann", "thread_id": "tuesday"}}
        >>> out = graph.invoke({"messages": [("human", "Good morning.")]}, config)
        >>> (proposal,) = out["__interrupt__"][0].value["proposals"]
        >>> proposal["changes"]
        '+ My sister breeds goats.'
    """

    def __init__(
        self, memory: ConversationMemory[Any], *, user: UserOf | None = None, strict: bool = False
    ) -> None:
        speakers = Speakers(user, strict=strict)

        async def approve(
            state: Mapping[str, Any], config: RunnableConfig, runtime: Runtime[Any]
        ) -> dict[str, object]:
            known = state.get("memory_user") or ""
            speaker = speakers.of(runtime, config, known)
            await review(memory, speaker, runtime.store, config, known)
            return {}

        super().__init__("approve", approve)


async def review(
    memory: ConversationMemory[Any],
    speaker: Speaker,
    store: BaseStore | None,
    config: RunnableConfig,
    known: str = "",
) -> None:
    """Interrupt a run if something new waits for approval, and decide as the reply says.

    `known` is the user in the thread's state, whose turn another one may resume.
    """

    async def show(**more: str) -> dict[str, object]:
        shown = [
            {
                "id": one.id,
                "at": one.at,
                "thread": one.thread,
                "memory": one.version.text,
                "changes": str(one),
            }
            for one in await list_proposals(personal)
        ]
        return {"proposals": shown, **more}

    personal, answered = memory.people.of(speaker.user, store), is_answered(config)
    waiting = await list_proposals(personal)
    new = {one.id for one in waiting if speaker.thread not in one.asked}
    if new and not answered:

        def ask(one: Proposal) -> Proposal:
            asked = (*one.asked, speaker.thread)
            return replace(one, asked=asked) if one.id in new else one

        await change_proposals(personal, ask)
    shown = await show() if new or answered else None  # a reply is always taken
    while shown is not None:
        reply, shown = interrupt(shown, response_schema=Decision.model_json_schema()), None
        try:
            decision = Decision.model_validate(reply)
            if ids := {*decision.ids}:
                users = speaker.user, AnonymousUser.restore(known)
                user = await _find_decided(memory, users, store, ids)
                await memory.decide(user, decision, store, by="review")
        except _REFUSED as error:
            shown = await show(error=str(error))


async def _find_decided(
    memory: ConversationMemory[Any], users: Iterable[str], store: BaseStore | None, ids: set[str]
) -> str:
    """Return the user for whom proposals wait: that of the run, or of the resumed turn."""
    for user in filter(None, users):
        if ids <= {one.id for one in await list_proposals(memory.people.of(user, store))}:
            return user
    message = (
        f"Not all of {', '.join(sorted(ids))} wait for the user of the run: they were decided or "
        "forgotten, or the interrupted run has another user, whose id must resume it."
    )
    raise MemoryNotFoundError(message)


class Thread:
    """The thread of a run, as node and middleware see it; `now` are its messages once it is open.

    It is the turn of the user who spoke last, also if another one resumes the run. What precedes
    the message `left`, and its group, the model does not see.
    """

    now: list[BaseMessage]

    def __init__(
        self,
        memory: ConversationMemory[Any],
        speakers: Speakers,
        state: Mapping[str, Any],
        runtime: Runtime[Any],
        config: RunnableConfig,
    ) -> None:
        self._memory, self._state, self._speakers = memory, state, speakers
        self._store, self._config, self._runtime = runtime.store, config, runtime
        self._known: str = state.get("memory_user") or ""
        self.left: str | None = state.get("memory_left") or None
        self._access = access_of(config, runtime.context)
        now = speakers.of(runtime, config, self._known)
        self._now, self.speaker = now.user, turn_of(now, state)

    async def open(self) -> Thread:
        """Find out which messages the state has, and whose they are; return the thread.

        A message belongs to the user with whose run it came.
        """
        talk = self._talk(self.speaker.user, silent=_is_subagent(self._config))
        self._own, given = talk, self._state["messages"]
        if talk.kept is None:
            given = [m.model_copy(update={"id": None}) if _is_passing(m.id) else m for m in given]
        now = talk.identify(given, await talk.read_record())
        earlier = await self._find_earlier(now)
        self._users = {self._known, str(self._now), *(mark["user"] for mark in earlier.values())}
        user = self._now if self._access.writes else ""
        self.now = stamp(now, user, self._memory.zone, earlier)
        if earlier and (owner := last_owner(self.now)) != self.speaker.user and owner:
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
        there = () if brings else talk.record_all(read_channel(run, "messages") or ())
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

    async def recall(self, about: Sequence[BaseMessage]) -> list[SystemMessage]:
        """Return what the model sees of the user; nothing if the run may not read.

        It is the same in all calls of a turn until something is forgotten, for providers' caches.
        """
        if not self._access.reads:
            return []
        user, turn, recalled = self.speaker.user, self._turn, self._recalled
        if (found := recalled.get(turn)) is None:
            found = recalled[turn] = await self._memory.aprompt(
                user, about=about, store=self._store, config=self._config
            )
        for old in [*recalled][:-_MOST_TURNS]:
            recalled.pop(old, None)
        return found

    @property
    def _recalled(self) -> dict[object, list[SystemMessage]]:
        return self._memory.people.backlog(self.speaker.user, self._store).recalled

    @property
    def _turn(self) -> object:
        """The thread, the agent's run and the message, by which a turn of an agent is known."""
        agent = self._config["configurable"].get("checkpoint_ns", "").rpartition("|")[0]
        said = next((m for m in reversed(self._state["messages"]) if is_human(m)), None)
        return self.speaker.thread, agent, said and record_message(said)

    def end(self) -> None:
        """End the turn: the next one recalls anew."""
        self._recalled.pop(self._turn, None)

    def _talk(self, user: str, *, silent: bool = False) -> Talk:
        kept = KeptThread.of(self._config)
        thread = self.speaker.thread
        return Talk(self._memory, user, thread, self._store, self._config, kept=kept, silent=silent)

    def begin(self) -> dict[str, Any]:
        """Begin a turn: return the changes of the state.

        Messages are marked in the state if its reducer replaces messages by their ids.
        """
        update: dict[str, Any] = {}
        if self._known != self.speaker.user:
            update["memory_user"] = str(self.speaker.user)
        given = self._state["messages"]
        marked = [
            mine.model_copy(update={"id": message.id})
            for message, mine in zip(given, self.now, strict=True)
            if message.id and message.additional_kwargs != mine.additional_kwargs
        ]
        if marked and replaces_messages(self._config, marked):
            update["messages"] = marked
        return update

    async def note(self, reply: Sequence[BaseMessage] = (), *, ended: bool) -> None:
        """Let messages wait to be folded, and a reply that this step writes, each for its user.

        Of other users than those of this turn, of the one before and of runs that checkpoints
        name, nothing is written: a client can mark messages, too.
        """
        self.now += reply
        if reply and (kept := self._own.kept):
            self._own.kept = kept._replace(writes=not kept.nested)
        await self._own.note(self.now, ended=ended)
        for user in self._users - {"", str(self._own.user)}:
            if any(by_owner(self.now, "").get(user, ())) and not self._own.silent:
                await self._talk(AnonymousUser.restore(user)).note(self.now, ended=ended)

    def turn(self, *, shorten: bool) -> tuple[list[BaseMessage], dict[str, Any]]:
        """Begin a turn: return what the model sees, and the changes of the state.

        What leaves the view leaves the state as well to `shorten` it.
        """
        update, seen = self.begin(), view(self.now, self.left)
        stays = self._own.shorten(seen, folded=shorten)
        if shorten:
            left = {message.id for message in stays}
            pairs = zip(self._state["messages"], self.now, strict=True)
            gone = [RemoveMessage(id=m.id) for m, mine in pairs if m.id and mine.id not in left]
            update |= {"messages": [*update.get("messages", ()), *gone]} if gone else {}
        elif len(stays) < len(seen):
            update["memory_left"] = find_left(self.now, stays)
        return stays, update


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


def _is_passing(key: str | None) -> bool:
    """Whether an id is a random one, as LangGraph gives to messages in each run without memory."""
    try:
        return key is not None and UUID(key).version == 4  # noqa: PLR2004 - of RFC 9562
    except ValueError:
        return False
