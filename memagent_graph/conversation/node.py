"""A chatbot's long-term memory as a node of its graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict

from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig  # noqa: TC002 - LangGraph reads the annotation
from langgraph.graph import MessagesState
from langgraph.runtime import Runtime  # noqa: TC002 - LangGraph reads the annotation

from memagent_graph.conversation.messages import exclude, find_left, is_reply, mark_messages, view
from memagent_graph.conversation.session import Speakers, UserOf
from memagent_graph.conversation.user_memory import AnonymousUser
from memagent_graph.seams import RunnableCallable
from memagent_graph.sync import wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from langgraph.store.base import BaseStore

    from memagent_graph.conversation.memory import ConversationMemory
    from memagent_graph.conversation.session import Access, Speaker, Talk

_HOOK = "pre_model_hook"


def _take_last(_: Any, value: Any) -> Any:
    """Reduce what several memory nodes write in one step."""
    return value


class RememberingState(TypedDict):
    """The keys of the graph's state that the node reads and writes; missing ones are added.

    Attributes:
        messages: the conversation.
        memory_user: id of the user whose memory the thread's messages went to last.
        memory_folded: id of the thread's message that was folded last, as far as known.
        memory_left: id of a message: what precedes it, and its group, is not in the view.
        memory_view: messages for the model: the system messages and the recent ones.
    """

    messages: list[AnyMessage]
    memory_user: NotRequired[Annotated[str, _take_last]]
    memory_folded: NotRequired[Annotated[str, _take_last]]
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

        async def show(
            access: Access,
            speaker: Speaker,
            stays: list[BaseMessage],
            store: BaseStore | None,
            config: RunnableConfig,
            *,
            hook: bool,
        ) -> dict[str, object]:
            if not hook:
                return {"memory_view": stays}
            recalled = []
            if access.reads:
                recalled = await memory.aprompt(
                    speaker.user, about=stays, store=store, config=config
                )
            return {"llm_input_messages": [*recalled, *stays]}

        async def aremember(
            state: Any, config: RunnableConfig, runtime: Runtime[Any]
        ) -> dict[str, object]:
            known = state if isinstance(state, dict) else vars(state)
            speaker = speakers.of(runtime, config, known.get("memory_user"))
            now = mark_messages(known["messages"])
            access = speakers.access(runtime, config)
            hook = config.get("metadata", {}).get("langgraph_node") == _HOOK
            if memory.read_only:
                return await show(access, speaker, now, runtime.store, config, hook=hook)
            if not access.writes:
                now = exclude(now)
            talk = memory.talk(*speaker, runtime.store, config)
            update: dict[str, object] = {}
            stays = now
            if not is_reply(now):
                await talk.begin(now)
                update = begin(memory, speaker, known, now, runtime.store, config)
                stays, changed = await shorten(talk, known, update, in_state=shorten_state)
                update |= changed
                if hook or not shorten_state:
                    update |= await show(access, speaker, stays, runtime.store, config, hook=hook)
            talk.note(now, last("memory_folded", known, update), ended=is_reply(now))
            return {"messages": changes(known["messages"], now), **update}

        def remember(
            state: Any, config: RunnableConfig, runtime: Runtime[Any]
        ) -> dict[str, object]:
            return wait_for(aremember(state, config, runtime))

        super().__init__(remember, aremember, name="remember", trace=False)
        self._remember = remember

    def __call__(
        self, state: RememberingState, config: RunnableConfig, runtime: Runtime[Any]
    ) -> dict[str, object]:
        """Run the node. LangGraph learns from the annotations which keys the state needs."""
        return self._remember(state, config, runtime)


def begin(
    memory: ConversationMemory,
    speaker: Speaker,
    state: Mapping[str, Any],
    messages: Sequence[BaseMessage],
    store: BaseStore | None,
    config: RunnableConfig,
) -> dict[str, object]:
    """Begin a turn: the changes of the state's private keys.

    When another user talks in the thread now, what was said before is theirs who said it.
    """
    talk = memory.talk(*speaker, store, config)
    known = state.get("memory_user")
    if known:  # the thread is kept, and so are the ids of its messages
        talk.backlog.trust(talk.thread)
    update: dict[str, object] = {}
    last = talk.backlog.last(speaker.thread)
    if known and known != speaker.user:
        humans = [at for at, m in enumerate(messages) if isinstance(m, HumanMessage)]
        earlier = messages[: humans[-1]] if humans else messages
        before = memory.talk(AnonymousUser.restore(known), speaker.thread, store, config)
        before.note(earlier, state.get("memory_folded"), ended=True)
        last = str(earlier[-1].id) if earlier else last
    if known != speaker.user:
        update["memory_user"] = str(speaker.user)
    if last and last != state.get("memory_folded"):
        update["memory_folded"] = last
    return update


async def shorten(
    talk: Talk, state: Mapping[str, Any], update: Mapping[str, Any], *, in_state: bool
) -> tuple[list[BaseMessage], dict[str, object]]:
    """Shorten what the model sees: the messages that stay, and the changes of the state.

    Args:
        talk: the conversation.
        state: the state, with its messages.
        update: changes of this step.
        in_state: whether to remove messages from the state.
    """
    now = mark_messages(state["messages"])
    seen = view(now, last("memory_left", state, update))
    stays = await talk.shorten(seen, last("memory_folded", state, update))
    found: dict[str, object] = {}
    if changed := changes(state["messages"], stays if in_state else now):
        found["messages"] = changed
    if not in_state and len(stays) < len(seen):
        found["memory_left"] = find_left(now, stays)
    return stays, found


def last(key: str, state: Mapping[str, Any], update: Mapping[str, Any]) -> str | None:
    """Return a text of the state as it is after an update; None if it is empty."""
    found: str | None = update.get(key) or state.get(key)
    return found or None


def changes(before: Sequence[BaseMessage], after: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages by which `add_messages` turns one conversation into the other."""
    stay = {message.id for message in after}
    old = {id(message) for message in before}
    gone = [RemoveMessage(id=str(m.id)) for m in before if m.id not in stay]
    return [*gone, *(message for message in after if id(message) not in old)]
