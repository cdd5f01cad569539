"""A chatbot's long-term memory as nodes of its graph: one remembers, one asks for approval."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict
from uuid import UUID

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig  # noqa: TC002 - LangGraph reads the annotation
from langgraph.graph import MessagesState
from langgraph.runtime import Runtime  # noqa: TC002 - LangGraph reads the annotation
from langgraph.types import interrupt
from pydantic import ValidationError

from memagent_graph.conversation.messages import (
    by_owner,
    find_left,
    identify,
    is_reply,
    last_owner,
    stamp,
    view,
)
from memagent_graph.conversation.proposal import Decision, change_proposals, list_proposals
from memagent_graph.conversation.session import (
    KeptThread,
    Speaker,
    Speakers,
    Talk,
    UserOf,
    access_of,
    is_subagent,
)
from memagent_graph.conversation.user_memory import AnonymousUser
from memagent_graph.errors import ConfigurationError, MemoryConflictError, MemoryNotFoundError
from memagent_graph.seams import RunnableCallable, is_answered, replaces_messages
from memagent_graph.sync import to_sync

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from langchain_core.messages import SystemMessage
    from langgraph.store.base import BaseStore

    from memagent_graph.conversation.memory import ConversationMemory
    from memagent_graph.conversation.proposal import Proposal

_HOOK = "pre_model_hook"


def _take_last(_: Any, value: Any) -> Any:
    """Reduce what several memory nodes write in one step."""
    return value


class RememberingState(TypedDict):
    """The keys of the graph's state that the node reads and writes; missing ones are added.

    Attributes:
        messages: the conversation.
        memory_user: id of the user whose turn the thread's last one is.
        memory_left: id of a message: what precedes it, and its group, is not in the view.
        memory_view: messages for the model: the system messages and the recent ones.
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


class ConversationNode(RunnableCallable):
    """A node that remembers the `messages` of a graph, and keeps short what the model sees of them.

    Put it before the model call, where it writes `memory_view`, and once more after it, so that a
    turn is folded together with its reply. The model gets `memory.prompt(user, about=messages)` and
    the view. `messages` keeps the whole thread. The memory's text is in no state, and so in no
    checkpoint and no stream.

    As a `pre_model_hook` it writes the prompt and the view to `llm_input_messages` instead.
    LangGraph passes these through the state, and so through its streams.

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

        async def aremember(
            state: Any, config: RunnableConfig, runtime: Runtime[Any]
        ) -> dict[str, object]:
            given = state if isinstance(state, dict) else vars(state)
            hook = config.get("metadata", {}).get("langgraph_node") == _HOOK
            thread = Thread(memory, speakers, given, runtime, config)
            update: dict[str, Any] = {}
            if memory.read_only:
                stays = identify(given["messages"], thread.speaker.thread)
            else:
                await thread.open()
                stays, ended = thread.now, is_reply(thread.now)
                if not ended:
                    update = thread.begin()
                    stays, changed = thread.shorten(in_state=shorten_state)
                    gone = [*update.get("messages", ()), *changed.pop("messages", ())]
                    update |= changed | ({"messages": gone} if gone else {})
                await thread.note(ended=ended)
                if ended or (shorten_state and not hook):
                    return update
            if not hook:
                return update | {"memory_view": stays}
            recalled = await thread.recall(stays)
            return update | {"llm_input_messages": [*recalled, *stays]}

        remember = to_sync(aremember)
        super().__init__(remember, aremember, name="remember", trace=False)
        self._remember = remember

    def __call__(
        self, state: RememberingState, config: RunnableConfig, runtime: Runtime[Any]
    ) -> dict[str, object]:
        """Run the node. LangGraph learns from the annotations which keys the state needs."""
        return self._remember(state, config, runtime)


_BY = "review"
"""`MemoryChange.by` of what was decided in a graph."""
_REFUSED = (ValidationError, ConfigurationError, MemoryConflictError, MemoryNotFoundError)
"""Errors of a reply that decides nothing, and can be given again."""


class ApprovalNode(RunnableCallable):
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

        async def aapprove(
            state: Any, config: RunnableConfig, runtime: Runtime[Any]
        ) -> dict[str, object]:
            known = (state if isinstance(state, dict) else vars(state)).get("memory_user") or ""
            speaker = speakers.of(runtime, config, known)
            await review(memory, speaker, runtime.store, config, known)
            return {}

        approve = to_sync(aapprove)
        super().__init__(approve, aapprove, name="approve", trace=False)
        self._approve = approve

    def __call__(
        self, state: RememberingState, config: RunnableConfig, runtime: Runtime[Any]
    ) -> dict[str, object]:
        """Run the node. LangGraph learns from the annotations which keys the state needs."""
        return self._approve(state, config, runtime)


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
                await memory.decide(user, decision, store, by=_BY)
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
    the message `left`, and its group, the model does not see. `begun`: the state has the user.
    """

    now: list[BaseMessage]

    def __init__(
        self,
        memory: ConversationMemory[Any],
        speakers: Speakers,
        state: Mapping[str, Any],
        runtime: Runtime[Any],
        config: RunnableConfig,
        *,
        begun: bool = False,
    ) -> None:
        self._memory, self._state = memory, state
        self._store, self._config = runtime.store, config
        self._known: str = state.get("memory_user") or ""
        self.left: str | None = state.get("memory_left") or None
        self._access = access_of(config, runtime.context)
        now = speakers.of(runtime, config, self._known)
        self._now = now.user
        owner = last_owner(state["messages"])
        ours = bool(self._known) and (owner == self._known or (begun and not owner))
        self.speaker = now._replace(user=AnonymousUser.restore(self._known)) if ours else now

    async def open(self) -> Thread:
        """Find out which messages the state has, and whose they are; return the thread.

        A message belongs to the user in whose run it is seen first. Those that are not marked and
        precede the last reply are of the user of the turn before.
        """
        talk = self._talk(self.speaker.user, silent=await is_subagent(self._config))
        self._own, given = talk, self._state["messages"]
        if talk.kept is None:
            given = [m.model_copy(update={"id": None}) if _is_passing(m.id) else m for m in given]
        now = talk.identify(given, await talk.read_record())
        replies = [at for at, message in enumerate(now) if isinstance(message, AIMessage)]
        earlier = replies[-1] + 1 if replies and self._known else 0
        user = self._now if self._access.writes else ""
        zone = self._memory.zone
        self.now = stamp(now[:earlier], self._known, zone) + stamp(now[earlier:], user, zone)
        return self

    async def recall(self, about: Sequence[BaseMessage]) -> list[SystemMessage]:
        """Return what the model sees of the user; nothing if the run may not read."""
        if not self._access.reads:
            return []
        user = self.speaker.user
        return await self._memory.aprompt(user, about=about, store=self._store, config=self._config)

    def _talk(self, user: str, *, silent: bool = False) -> Talk:
        kept = KeptThread.of(self._config)
        thread = self.speaker.thread
        return Talk(self._memory, user, thread, self._store, self._config, kept=kept, silent=silent)

    def begin(self) -> dict[str, Any]:
        """Begin a turn: return the changes of the state.

        Messages are marked in the state if its reducer replaces messages by their ids.
        """
        update: dict[str, Any] = {}
        if self._known != self._now:
            update["memory_user"] = str(self._now)
        given = self._state["messages"]
        marked = [
            mine.model_copy(update={"id": message.id})
            for message, mine in zip(given, self.now, strict=True)
            if message.id and message.additional_kwargs != mine.additional_kwargs
        ]
        if marked and replaces_messages(self._config, marked):
            update["messages"] = marked
        return update

    async def note(self, *, ended: bool) -> None:
        """Let messages wait to be folded, each for the user whose it is.

        Of other users than the one of this turn and the one before, nothing is written: a client
        can mark messages, too.
        """
        await self._own.note(self.now, ended=ended)
        for user in {self._known, str(self._now)} - {"", str(self._own.user)}:
            if any(by_owner(self.now, "").get(user, ())) and not self._own.silent:
                await self._talk(AnonymousUser.restore(user)).note(self.now, ended=ended)

    def shorten(self, *, in_state: bool) -> tuple[list[BaseMessage], dict[str, Any]]:
        """Shorten what the model sees: the messages that stay, and the changes of the state."""
        given, now = self._state["messages"], self.now
        seen = view(now, self.left)
        stays = self._own.shorten(seen, folded=in_state)
        if in_state:
            left = {message.id for message in stays}
            pairs = zip(given, now, strict=True)
            gone = [RemoveMessage(id=m.id) for m, mine in pairs if m.id and mine.id not in left]
            return stays, {"messages": gone} if gone else {}
        return stays, {"memory_left": find_left(now, stays)} if len(stays) < len(seen) else {}


def _is_passing(key: str | None) -> bool:
    """Whether an id is a random one, as LangGraph gives to messages in each run without memory."""
    try:
        return key is not None and UUID(key).version == _RANDOM
    except ValueError:
        return False


_RANDOM = 4
"""Version of a random UUID (RFC 9562)."""
